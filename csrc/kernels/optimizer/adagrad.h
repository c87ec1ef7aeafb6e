// Fused Adagrad, one tensor a call.
//
// Shapes    the elements in memory order (dense).
// Types     float32, bfloat16, float16.
// Order     none.
// Rounding  lr / fma(step - 1, lr_decay, 1) in double. A scaled gradient is divided in double, rounded to float; the
//           weight decay is one fused product in double, rounded to float; state = fma(g, g, state) in float; the step
//           p - lr g / (sqrt(state) + eps) in double but for the root, then rounded to float and to the type.
// NaN       0x7fffffff.
// Source    fused_adagrad_utils.cuh@v2.13.0 (the wheel); what is fused: vectors fused_adagrad_*.
// Evidence  docs/evidence.md, rows optimizer fused Adagrad.
#pragma once
#include <cstdint>

#include "csrc/kernels/core/dtype.h"

namespace step_oracle::optimizer {

struct AdagradParams {
  std::int64_t n;
  DType dtype;
  void* p;
  void* g;  // divided by *grad_scale and stored back when there is one
  void* state;
  float step;
  double lr, lr_decay, weight_decay, eps;
  bool maximize;
  const float* grad_scale;  // or null
  std::uint16_t bf16_nan = 0x7fff;
};
void adagrad(const AdagradParams& params);

namespace ref {
void adagrad(const AdagradParams& params);
}

}  // namespace step_oracle::optimizer
