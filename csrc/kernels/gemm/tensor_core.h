// Matrix products of 16-bit and TF32 factors, accumulated in float32: on tensor cores, or, where a card's take no such
// factors (bfloat16 on compute capability 7.5), on its CUDA cores.
//
// Shapes    D[m, n] = epilogue(sum over k of A[m, k] B[k, n]), `batch` of them; strides as in gemm.h.
// Types     A and B bfloat16, float16, or float32 of which the tensor core reads the upper 19 bits (TF32), both the
//           same; D (and C and bias, of D's type) that type or float32. kFmaChain reads all of a float32.
// Order     One accumulator an output, from +0; k ascending in groups of the adder's `terms` products, each group added
//           by arith/dot_add.h; the last group is filled up with zeros. kFmaChain: the factors widened to float32,
//           acc = fma(a[i, p], b[p, j], acc), k ascending. (A product of two 16-bit factors is exact in float32 unless
//           it leaves its range: fused or not is the same there.)
// Rounding  The adder's, or one per fma to nearest even; then the epilogue in float32 (gemm.h, struct Epilogue:
//           D = fma(alpha, acc, round(beta * C)), a bias as C with beta 1), then nearest even to D's type.
// NaN       0x7fff (16-bit), 0x7fffffff (float32).
// Errors    as gemm.h.
// Source    "The step oracle", section 3.4 ("chained over k the way the kernel walks it"), arith/dot_add.h for the
//           adder. TF32 factors are rounded to nearest: a result printed by a card tells that from cutting them
//           (tests/gemm/test_published_products.py); that a half goes away from zero is CUTLASS's rule [src cutlass,
//           half-ulp truncate]. kFmaChain for bfloat16 on 7.5: every product of bfloat16 steps that were profiled on a
//           T4 is one launch of magma_sgemmEx_kernel<float, __nv_bfloat16, ..> (tests/data/published/
//           bf16_on_turing.json), and that kernel is one ascending chain, byte for byte, where it was measured (sm_90)
//           [cublas_match, algorithm 16].
// Evidence  docs/evidence.md, rows gemm bfloat16, float16 and TF32: source (as gemm.h); the adder alone: peer.
//           bfloat16 on 7.5: published for the class. Fit, as docs/limits.md says: the same walk on 7.5, shapes that
//           the profile does not have, alpha and beta, the NaN (cuda_bf16.h converts in software there and gives
//           0x7fff; torch's own conversion, in its own kernels, gives 0x7fc0).
#pragma once
#include <cstdint>

#include "csrc/kernels/arith/dot_add.h"
#include "csrc/kernels/core/dtype.h"

namespace step_oracle::gemm {

enum class AdderClass {
  kTuring,    // Turing, Ampere, Ada: 8 terms
  kHopper,    // Hopper, Blackwell: 16 terms
  kFmaChain,  // no tensor core takes the type: the CUDA cores, an fma each
};
// Of a card; throws kUnsupported for a compute capability whose adder is not known, or that lacks the type.
AdderClass adder_class(int compute_capability, DType factors);

struct Strides {
  std::int64_t row, col, batch;  // elements from one row, column, matrix to the next
};

struct TensorCoreParams {
  std::int64_t m = 0, n = 0, k = 0, batch = 1;
  AdderClass adder = AdderClass::kTuring;
  DType factors = DType::kBF16;  // kF32: TF32
  bool rounds_tf32 = true;       // float32 factors are rounded to TF32 (half away from zero), not cut to it
  const void* a = nullptr;
  const void* b = nullptr;
  Strides a_strides{}, b_strides{};
  DType results = DType::kBF16;
  void* d = nullptr;
  Strides d_strides{};
  float alpha = 1.0f, beta = 0.0f;
  const void* c = nullptr;  // read when beta != 0; it may be D itself
  Strides c_strides{};
  const void* bias = nullptr;  // n values; excludes beta
};

void tensor_core(const TensorCoreParams& params);

#ifndef SO_ISA
// As it takes factors of this type; not of kFmaChain, which has none.
constexpr Adder adder_of(AdderClass adder, DType factors) {
  return adder_for(adder == AdderClass::kTuring ? kAdderTuring : kAdderHopper, static_cast<int>(size_of(factors)));
}
// Products that are added at once; 0: none are, each is an fma of its own.
constexpr int terms_of(AdderClass adder, DType factors) {
  return adder == AdderClass::kFmaChain ? 0 : adder_of(adder, factors).terms;
}
#endif

namespace ref {
// The definition: one call of the scalar adder a group and output; without an adder, one fma a position of k.
void tensor_core(const TensorCoreParams& params);
}  // namespace ref

}  // namespace step_oracle::gemm
