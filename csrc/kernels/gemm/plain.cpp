#include "csrc/kernels/gemm/plain.h"

#include <algorithm>
#include <vector>

#include "csrc/kernels/core/bits.h"
#include "csrc/kernels/core/parallel.h"
#include "csrc/kernels/gemm/plain_body.h"
#include "csrc/kernels/gemm/sizes.h"

namespace step_oracle::gemm {
namespace {

double finished(const Fp64Params& p, double acc, std::int64_t at_c) {
  const double x = p.beta == 0.0 ? p.alpha * acc : fma(p.alpha, acc, p.beta * p.c[at_c]);
  return x != x ? double_of(std::uint64_t{0xfff8000000000000}) : x;
}
std::int32_t finished(const Int8Params&, std::int32_t acc, std::int64_t) { return acc; }

// Strips of kPlainCols columns; each packs its B once.
template <class Value, class Params, class Tile>
void run(const Params& p, Tile tile) {
  check_sizes(p, p.d_strides);
  if (p.m == 0 || p.n == 0) return;
  const std::int64_t strips = (p.n + kPlainCols - 1) / kPlainCols;
  const std::int64_t work = std::max<std::int64_t>(1, p.m * kPlainCols * p.k);
  parallel_for(p.batch * strips, (1 << 20) / work + 1, [&](std::int64_t begin, std::int64_t end) {
    std::vector<Value> b(static_cast<std::size_t>(p.k * kPlainCols)), a(static_cast<std::size_t>(p.k * kPlainRows));
    Value acc[kPlainRows * kPlainCols];
    for (std::int64_t task = begin; task < end; ++task) {
      const std::int64_t z = task / strips, first = task % strips * kPlainCols;
      const std::int64_t cols = std::min(kPlainCols, p.n - first);
      for (std::int64_t q = 0; q < p.k; ++q)
        for (std::int64_t j = 0; j < kPlainCols; ++j)
          b[static_cast<std::size_t>(q * kPlainCols + j)] =
              j < cols ? p.b[z * p.b_strides.batch + q * p.b_strides.row + (first + j) * p.b_strides.col] : 0;
      for (std::int64_t i = 0; i < p.m; i += kPlainRows) {
        const std::int64_t rows = std::min(kPlainRows, p.m - i);
        for (std::int64_t r = 0; r < kPlainRows; ++r)
          for (std::int64_t q = 0; q < p.k; ++q)
            a[static_cast<std::size_t>(q * kPlainRows + r)] =
                r < rows ? p.a[z * p.a_strides.batch + (i + r) * p.a_strides.row + q * p.a_strides.col] : 0;
        tile(p.k, a.data(), b.data(), acc);
        for (std::int64_t r = 0; r < rows; ++r)
          for (std::int64_t j = 0; j < cols; ++j)
            p.d[z * p.d_strides.batch + (i + r) * p.d_strides.row + (first + j) * p.d_strides.col] =
                finished(p, acc[r * kPlainCols + j],
                         z * p.c_strides.batch + (i + r) * p.c_strides.row + (first + j) * p.c_strides.col);
      }
    }
  });
}

}  // namespace

void fp64_chain(const Fp64Params& p) { run<double>(p, SO_BODY(plain_body).fp64_tile); }
void int8_exact(const Int8Params& p) { run<std::int32_t>(p, SO_BODY(plain_body).int8_tile); }

}  // namespace step_oracle::gemm
