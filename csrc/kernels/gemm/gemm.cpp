#include "csrc/kernels/gemm/gemm.h"

#include <fmt/format.h>

#include "csrc/kernels/core/error.h"
#include "csrc/kernels/core/parallel.h"
#include "csrc/kernels/gemm/gemm_body.h"

namespace step_oracle::gemm {

void fp32_chain(const Params& p) {
  if (p.m < 0 || p.n < 0 || p.k < 0 || p.batch < 0)
    throw Error(ErrorKind::kBadInput, fmt::format("gemm: sizes m {} n {} k {} batch {}; none may be negative", p.m, p.n, p.k, p.batch));
  if (p.m == 0 || p.n == 0) return;
  const auto& body = SO_BODY(gemm_body);
  parallel_for(p.batch * p.m, 1, [&](std::int64_t begin, std::int64_t end) {
    while (begin < end) {
      const std::int64_t batch = begin / p.m, row = begin % p.m;
      const std::int64_t rows = std::min(end - begin, p.m - row);
      body.fp32_chain(p, batch, row, row + rows);
      begin += rows;
    }
  });
}

}  // namespace step_oracle::gemm
