#include "csrc/kernels/loss/loss.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "csrc/kernels/core/error.h"
#include "csrc/kernels/core/parallel.h"
#include "csrc/kernels/loss/loss_body.h"
#include "csrc/kernels/loss/loss_ops.h"

namespace step_oracle::loss {
namespace {

void validate(DType type, DType target_type, std::int64_t rows, std::int64_t classes, const void* target,
              std::int64_t ignored) {
  if (rows < 0 || classes < 0)
    throw Error(ErrorKind::kBadInput,
                fmt::format("nll_loss: {} rows of {} classes; neither may be negative", rows, classes));
  if ((type != DType::kF32 && type != DType::kBF16 && type != DType::kF16) ||
      (target_type != DType::kI64 && target_type != DType::kU8))
    throw Error(ErrorKind::kUnsupported,
                fmt::format("nll_loss of {} with targets of {} is not modelled; use float32, bfloat16 or "
                            "float16 and int64 or uint8",
                            name_of(type), name_of(target_type)));
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t t = loss_ops::target_of(target, target_type, row);
    if (t != ignored && (t < 0 || t >= classes))
      throw Error(ErrorKind::kBadInput,
                  fmt::format("nll_loss: the target of row {} is {}; it must be ignore_index ({}) or a class "
                              "from 0 to {} (a card stops here with a device-side assertion)",
                              row, t, ignored, classes - 1));
  }
}

}  // namespace

// [src Loss.cu nll_loss_threads]: 2^round(log2(rows / 16)), 32 to 1024. log2(q) rounds up from 2^(k + 1/2) on; q = 0
// shifts by a huge negative number, which the host turns into 1 << 0.
int nll_threads(std::int64_t rows) {
  const std::int64_t q = rows / 16;
  if (q >= 1024) return 1024;
  int k = 0;
  while ((std::int64_t{2} << k) <= q) ++k;
  const bool up = q * q >= (std::int64_t{2} << (2 * k));
  return std::clamp(1 << (up ? k + 1 : k), 32, 1024);
}

void nll_forward(const NllParams& p) {
  validate(p.type, p.target_type, p.rows, p.classes, p.target, p.ignore_index);
  const auto& body = SO_BODY(loss_body);
  if (p.reduction == Reduction::kNone)
    parallel_for(p.rows, 8192, [&](std::int64_t b, std::int64_t e) { body.nll_each(p, b, e); });
  else
    parallel_for(1, 1, [&](std::int64_t, std::int64_t) { body.nll_reduced(p, nll_threads(p.rows)); });
}

void nll_backward(const NllBackwardParams& p) {
  validate(p.type, p.target_type, p.rows, p.classes, p.target, p.ignore_index);
  if (p.rows == 0) return;
  parallel_for(p.rows, std::max<std::int64_t>(1, 65536 / std::max<std::int64_t>(1, p.classes)),
               [&](std::int64_t b, std::int64_t e) { SO_BODY(loss_body).nll_backward(p, b, e); });
}

std::int64_t nll2d_blocks(std::int64_t batch, std::int64_t places) {
  return batch * std::max<std::int64_t>(1, (places + 1023) / 1024 / 128);  // [src NLLLoss2d.cu blocks_per_sample]
}

void nll2d_forward(const Nll2dParams& p) {
  const std::int64_t n = p.batch * p.places;
  validate(p.type, DType::kI64, n, p.classes, p.target, p.ignore_index);
  const auto& body = SO_BODY(loss_body);
  if (p.reduction == Reduction::kNone) {
    parallel_for(n, 8192, [&](std::int64_t b, std::int64_t e) { body.nll2d_each(p, b, e); });
    return;
  }
  const std::int64_t blocks = nll2d_blocks(p.batch, p.places), of_sample = blocks / std::max<std::int64_t>(1, p.batch);
  std::vector<float> sums(static_cast<std::size_t>(blocks)), weights(sums.size());
  parallel_for(blocks, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t b = begin; b < end; ++b)
      body.nll2d_block(p, b / of_sample, b % of_sample, of_sample, &sums[static_cast<std::size_t>(b)],
                       &weights[static_cast<std::size_t>(b)]);
  });
  parallel_for(1, 1, [&](std::int64_t, std::int64_t) { body.nll2d_fold(p, sums.data(), weights.data(), blocks); });
}

void nll2d_backward(const Nll2dBackwardParams& p) {
  validate(p.type, DType::kI64, p.batch * p.places, p.classes, p.target, p.ignore_index);
  if (p.batch * p.places == 0) return;
  parallel_for(p.batch, 1, [&](std::int64_t b, std::int64_t e) { SO_BODY(loss_body).nll2d_backward(p, b, e); });
}

}  // namespace step_oracle::loss
