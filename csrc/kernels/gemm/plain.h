// Matrix products without a tensor-core adder of their own: float64 as one FMA chain, int8 exactly.
//
// Shapes    D[m, n] = epilogue(sum over k of A[m, k] B[k, n]), `batch` of them; strides in elements as in gemm.h.
// Types     float64; int8 factors with int32 results.
// Order     float64: one accumulator an output, from +0, k ascending, acc = fma(a, b, acc): on cards with and without
//           DMMA, whose instructions are chains over their k. int8: any order, the sum is exact modulo 2^32.
// Rounding  float64: one per fma; D = fma(alpha, acc, round(beta * C)), a bias as C with beta 1. int8: none.
// NaN       float64: 0xfff8000000000000 [fit: no vector shows a float64 NaN].
// Errors    negative sizes, a result's stride of 0: kBadInput.
// Source    [src mmasim 2.1.1 arithmetic/fma.py: DMMA m8n8k4 and longer]; cuBLAS itself is closed: that it walks k once
// and
//           ascending is assumed.
// Evidence  docs/evidence.md, rows gemm float64 and int8.
#pragma once
#include <cstdint>

#include "csrc/kernels/gemm/tensor_core.h"

namespace step_oracle::gemm {

template <class Factor, class Result>
struct PlainParams {
  std::int64_t m = 0, n = 0, k = 0, batch = 1;
  const Factor* a = nullptr;
  const Factor* b = nullptr;
  Result* d = nullptr;
  Strides a_strides{}, b_strides{}, d_strides{};
  Result alpha = 1, beta = 0;
  const Result* c = nullptr;  // read when beta != 0; it may be D itself
  Strides c_strides{};
};
using Fp64Params = PlainParams<double, double>;
using Int8Params = PlainParams<std::int8_t, std::int32_t>;  // alpha and beta stay 1 and 0

void fp64_chain(const Fp64Params& params);
void int8_exact(const Int8Params& params);

namespace ref {
void fp64_chain(const Fp64Params& params);
void int8_exact(const Int8Params& params);
}  // namespace ref

}  // namespace step_oracle::gemm
