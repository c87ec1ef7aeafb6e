// The bodies of softmax over copies of the rows: -inf where an element is left out, whose exponential is the +0 that a
// sum of exponentials does not notice; backward a zero gradient.
#include "csrc/kernels/softmax/masked.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "csrc/kernels/core/error.h"
#include "csrc/kernels/core/parallel.h"
#include "csrc/kernels/softmax/softmax_body.h"

namespace step_oracle::softmax {
namespace {

constexpr std::int64_t kElements = 16384;  // of a copy

struct Words {
  std::uint32_t minus_infinity, all_left_out;
};
Words words_of(DType type) {
  switch (type) {
    case DType::kF32: return {0xff800000u, 0x7fc00000u};
    case DType::kBF16: return {0xff80u, 0x7fffu};
    default: return {0xfc00u, 0x7fffu};
  }
}

void validate(DType type, std::int64_t rows, std::int64_t n, const char* name) {
  if (rows < 0 || n < 0 || n > kMaskedMost)
    throw Error(ErrorKind::kBadInput,
                fmt::format("{}: {} rows of {}; rows of 0 to {} elements are taken", name, rows, n, kMaskedMost));
  if (type != DType::kF32 && type != DType::kBF16 && type != DType::kF16)
    throw Error(ErrorKind::kUnsupported,
                fmt::format("{} of {} is not modelled; use float32, bfloat16 or float16", name, name_of(type)));
}

template <class Word>
void copy_masked(const void* from, const bool* mask, std::int64_t n, std::uint32_t instead, Word* to) {
  const auto* x = static_cast<const Word*>(from);
  for (std::int64_t i = 0; i < n; ++i) to[i] = mask[i] ? static_cast<Word>(instead) : x[i];
}

template <class Word>
void forward_rows(const MaskedParams& p, std::int64_t begin, std::int64_t end) {
  const Words words = words_of(p.type);
  const std::int64_t most = std::max<std::int64_t>(1, kElements / p.n);
  std::vector<Word> x(static_cast<std::size_t>(std::min(most, end - begin) * p.n));
  for (std::int64_t row = begin; row < end; row += most) {
    const std::int64_t rows = std::min(most, end - row);
    const auto mask_of = [&](std::int64_t r) { return p.mask + (row + r) / p.rows_per_mask * p.n; };
    Word* y = static_cast<Word*>(p.y) + row * p.n;
    for (std::int64_t r = 0; r < rows; ++r)
      copy_masked(static_cast<const Word*>(p.x) + (row + r) * p.n, mask_of(r), p.n, words.minus_infinity,
                  x.data() + r * p.n);
    const Params plain{false, p.type, p.type, rows, p.n, 1, x.data(), y, 0, 0};
    SO_BODY(softmax_body).forward(plain, plan_forward(plain), 0, rows);
    for (std::int64_t r = 0; r < rows; ++r)
      if (std::all_of(mask_of(r), mask_of(r) + p.n, [](bool out) { return out; }))
        std::fill_n(y + r * p.n, p.n, static_cast<Word>(words.all_left_out));
  }
}

template <class Word>
void backward_rows(const MaskedBackwardParams& p, std::int64_t begin, std::int64_t end) {
  const std::int64_t most = std::max<std::int64_t>(1, kElements / p.n);
  std::vector<Word> grad(static_cast<std::size_t>(std::min(most, end - begin) * p.n)), y(grad.size());
  for (std::int64_t row = begin; row < end; row += most) {
    const std::int64_t rows = std::min(most, end - row), at = row * p.n, n = rows * p.n;
    Word* dx = static_cast<Word*>(p.dx) + at;
    copy_masked(static_cast<const Word*>(p.grad) + at, p.mask + at, n, 0, grad.data());
    copy_masked(static_cast<const Word*>(p.y) + at, p.mask + at, n, 0, y.data());  // an infinity times 0 is no zero
    const BackwardParams plain{false, p.type, p.type, rows, p.n, 1, grad.data(), y.data(), dx, 0, 0, 0, true};
    SO_BODY(softmax_body).backward(plain, plan_backward(plain), 0, rows);
    copy_masked(dx, p.mask + at, n, 0, dx);
  }
}

std::int64_t grain(std::int64_t n) { return std::max<std::int64_t>(1, 4096 / n); }

}  // namespace

void masked_forward(const MaskedParams& p) {
  validate(p.type, p.rows, p.n, "masked softmax");
  if (p.rows_per_mask < 1)
    throw Error(ErrorKind::kBadInput,
                fmt::format("masked softmax: {} rows for a row of the mask; at least 1", p.rows_per_mask));
  if (p.rows * p.n == 0) return;
  parallel_for(p.rows, grain(p.n), [&](std::int64_t b, std::int64_t e) {
    p.type == DType::kF32 ? forward_rows<std::uint32_t>(p, b, e) : forward_rows<std::uint16_t>(p, b, e);
  });
}

void masked_backward(const MaskedBackwardParams& p) {
  validate(p.type, p.rows, p.n, "masked softmax backward");
  if (p.rows * p.n == 0) return;
  parallel_for(p.rows, grain(p.n), [&](std::int64_t b, std::int64_t e) {
    p.type == DType::kF32 ? backward_rows<std::uint32_t>(p, b, e) : backward_rows<std::uint16_t>(p, b, e);
  });
}

}  // namespace step_oracle::softmax
