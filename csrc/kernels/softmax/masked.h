// Masked softmax of rows, forward and backward.
//
// Shapes    (rows, n), contiguous, n <= 1024; one row of the mask for `rows_per_mask` rows (1, or a sample's rows).
// Types     float32, bfloat16, float16, computed in float32; the mask is bool, true where an element is left out.
// Order     [src PersistentSoftmax.cuh@v2.13.0] that of softmax's warp kernel; what is left out is not added.
// Rounding  as softmax. Elements that are left out become +0, forward and backward.
// NaN       arithmetic: 0x7fffffff. A row that is left out whole is the constant quiet NaN: 0x7fc00000, 0x7fc0, 0x7e00,
//           and 0x7fff in 16 bits where the card converts it.
// Errors    sizes below zero, n above 1024, other types.
// Source    upstream-arithmetic.md section 2; SoftMax.cu masked_softmax_cuda.
// Evidence  docs/evidence.md, rows softmax/*.
#pragma once
#include <cstdint>

#include "csrc/kernels/core/dtype.h"

namespace step_oracle::softmax {

constexpr std::int64_t kMaskedMost = 1024;  // [src SoftMax.cu masked_softmax_cuda]

struct MaskedParams {
  DType type;
  std::int64_t rows, n, rows_per_mask;
  const void* x;
  const bool* mask;
  void* y;
};

struct MaskedBackwardParams {
  DType type;
  std::int64_t rows, n;
  const void* grad;  // the gradient; its product with y is rounded to the type
  const void* y;
  const bool* mask;
  void* dx;
};

void masked_forward(const MaskedParams& params);
void masked_backward(const MaskedBackwardParams& params);

namespace ref {
void masked_forward(const MaskedParams& params);
void masked_backward(const MaskedBackwardParams& params);
}  // namespace ref

}  // namespace step_oracle::softmax
