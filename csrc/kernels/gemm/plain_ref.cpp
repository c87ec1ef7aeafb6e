#include <cmath>

#include "csrc/kernels/core/bits.h"
#include "csrc/kernels/gemm/plain.h"

namespace step_oracle::gemm::ref {
namespace {

template <class Params, class Output>
void each(const Params& p, Output output) {
  for (std::int64_t z = 0; z < p.batch; ++z)
    for (std::int64_t i = 0; i < p.m; ++i)
      for (std::int64_t j = 0; j < p.n; ++j)
        p.d[z * p.d_strides.batch + i * p.d_strides.row + j * p.d_strides.col] =
            output(p.a + z * p.a_strides.batch + i * p.a_strides.row, p.b + z * p.b_strides.batch + j * p.b_strides.col,
                   z * p.c_strides.batch + i * p.c_strides.row + j * p.c_strides.col);
}

}  // namespace

void fp64_chain(const Fp64Params& p) {
  each(p, [&](const double* a, const double* b, std::int64_t c) {
    double acc = 0.0;
    for (std::int64_t q = 0; q < p.k; ++q) acc = fma(a[q * p.a_strides.col], b[q * p.b_strides.row], acc);
    const double x = p.beta == 0.0 ? p.alpha * acc : fma(p.alpha, acc, p.beta * p.c[c]);
    return std::isnan(x) ? double_of(std::uint64_t{0xfff8000000000000}) : x;
  });
}

void int8_exact(const Int8Params& p) {
  each(p, [&](const std::int8_t* a, const std::int8_t* b, std::int64_t) {
    std::int64_t acc = 0;
    for (std::int64_t q = 0; q < p.k; ++q)
      acc += static_cast<std::int64_t>(a[q * p.a_strides.col]) * b[q * p.b_strides.row];
    return static_cast<std::int32_t>(static_cast<std::uint32_t>(acc));
  });
}

}  // namespace step_oracle::gemm::ref
