// Group norm, forward and backward.
//
// Shapes    x, y, dy, dx: n x channels x places, contiguous; mean, rstd: n x groups; gamma, beta, dgamma, dbeta:
//           channels.
// Types     float32, bfloat16, float16 for all tensors, mean and rstd too; computed in float32. eps is rounded to the
//           type.
// Order     a group's moments, a channel's sums of dy x and dy, and the sums over a group's channels: 32 threads for
//           fewer than 512 elements (one warp's tree), else 512 threads (block tree); thread t takes t, t + threads,
//           ... dgamma, dbeta: up to 128 samples one after the other; more: 32 lanes, lane l samples l, l + 32, ...,
//           warp tree.
// Rounding  moments with true divisions (arith/moments.h). a = rstd gamma, b = beta - a mean (two roundings), y =
//           fma(a, x, b); one place: fma((x - mean) rstd, gamma, beta). dx = fma(c1, dy, c2 x) + c3. Where the forward
//           pass keeps float32 moments beside the rounded ones, y is computed from the float32 ones.
// NaN       0x7fffffff.
// Source    group_norm_kernel.cu; fused products: vectors group_norm_*, gn_*.
// Evidence  docs/evidence.md, rows norm group norm.
#pragma once
#include <cstdint>

#include "csrc/kernels/core/dtype.h"

namespace step_oracle::norm {

struct GroupShape {
  DType type;
  std::int64_t n, channels, groups, places;
  std::int64_t per_group() const { return channels / groups; }
};

struct GroupForward {
  GroupShape shape;
  double eps;
  const void* x;
  const void* gamma;  // or null
  const void* beta;   // or null
  void* y;
  void* mean;
  void* rstd;
};

struct GroupBackward {
  GroupShape shape;
  const void* dy;
  const void* x;
  const void* mean;
  const void* rstd;
  const void* gamma;  // or null
  void* dx;           // or null
  void* dgamma;       // or null
  void* dbeta;        // or null
};

void group_forward(const GroupForward& params);
void group_backward(const GroupBackward& params);

namespace ref {
void group_forward(const GroupForward& params);
void group_backward(const GroupBackward& params);
}  // namespace ref

}  // namespace step_oracle::norm
