#include "csrc/kernels/gemm/gemm.h"

#include <fmt/format.h>

#include "csrc/kernels/core/error.h"
#include "csrc/kernels/core/parallel.h"
#include "csrc/kernels/gemm/gemm_body.h"

namespace step_oracle::gemm {
namespace {

void check(const Params& p) {
  if (p.m < 0 || p.n < 0 || p.k < 0 || p.batch < 0)
    throw Error(ErrorKind::kBadInput,
                fmt::format("gemm: m {} n {} k {} batch {}; give sizes of 0 or more", p.m, p.n, p.k, p.batch));
  if ((p.m > 1 && p.d.row == 0) || (p.n > 1 && p.d.col == 0) || (p.batch > 1 && p.d.batch == 0))
    throw Error(ErrorKind::kBadInput,
                fmt::format("gemm: the result's strides are {} {} {} (row, column, batch); give strides that keep its "
                            "elements apart",
                            p.d.row, p.d.col, p.d.batch));
  if (p.epilogue.bias && p.epilogue.beta != 0.0f)
    throw Error(ErrorKind::kBadInput,
                fmt::format("gemm: a bias and beta {} at once; give one of them", p.epilogue.beta));
}

}  // namespace

void fp32_chain(const Params& p) {
  check(p);
  if (p.m == 0 || p.n == 0 || p.batch == 0) return;
  const auto& body = SO_BODY(gemm_body);
  parallel_for(p.batch * p.m, 1, [&](std::int64_t begin, std::int64_t end) {
    for (; begin < end; ++begin) body.fp32_chain(p, begin / p.m, begin % p.m, begin % p.m + 1, 0, p.n);
  });
}

}  // namespace step_oracle::gemm
