// Batch norm by PyTorch's own kernels, forward and backward: statistics over a channel's samples and places.
//
// Shapes    n x channels x places, by strides; mean, var, invstd, weight, bias, running statistics: channels. "Rows":
//           the tensor is n places x channels, contiguous (channels last; two dimensions).
// Types     x, y, dy, dx: float32, bfloat16, float16. Weight, bias, running statistics and the gradients of weight and
//           bias: that type, or float32. mean, var, invstd and sums of dy: float32. Computed in float32.
// Order     Planes, statistics and fused backward: 512 threads a channel, `width` (32, 64, 128, 256 or 512, by places)
//           over places and 512 / width over samples; a thread takes samples in turn, of each its places. The
//           statistics' tree pairs neighbours first (xor 1, 2, 4, 8, 16), the sums' tree takes halves (block tree).
//           Sums alone (batch_sums) have 16 samples of threads at most. Rows: blocks of width x height threads, each
//           with four accumulators that take its rows in turn; then those four, the block's rows by halves, and from
//           eight blocks on the blocks: thread y takes y, y + height, ..., halves again. Fewer blocks become one.
// Rounding  fused: moments' last products, (x - mean) weight invstd + bias, running statistics' first product; see the
//           bodies. bfloat16 and float16, planes: dy (x - mean) is rounded to the type before it is added, and so are
//           both sums of the other thread in each step of the tree; rows keep float32.
// NaN       0x7fffffff.
// Source    Normalization.cuh@v2.13.0 (the wheel), Normalization.cu; fused products: vectors batch_norm_*, bn_*.
// Evidence  docs/evidence.md, rows norm batch norm.
#pragma once
#include <cstdint>

#include "csrc/kernels/core/dtype.h"

namespace step_oracle::norm {

struct BatchShape {
  DType type;
  DType parameters;
  std::int64_t n, channels, places;
  std::int64_t count() const { return n * places; }  // elements a channel
};

// Strides in elements.
struct BatchLayout {
  std::int64_t sample, channel, place;
};

struct BatchStatistics {
  BatchShape shape;
  bool rows;       // else planes
  BatchLayout at;  // of x; unused for rows
  const void* x;
  float* mean;
  float* var;  // divided by the count
};

// invstd = 1 / sqrt(var + eps), and where there are running statistics: old (1 - momentum) + new momentum, the new
// variance divided by count - 1.
struct BatchUpdate {
  DType parameters;
  std::int64_t channels, count;
  double momentum, eps;
  const float* mean;
  const float* var;
  void* running_mean;
  void* running_var;
  float* invstd;  // or null
};

struct BatchForward {
  BatchShape shape;
  BatchLayout x_at, y_at;
  const void* x;
  const float* mean;
  const float* invstd;
  const void* weight;  // or null
  const void* bias;    // or null
  void* y;
};

// One kernel for all gradients; of planes.
struct BatchBackward {
  BatchShape shape;
  BatchLayout x_at, dy_at, dx_at;
  bool train;  // else by running statistics
  double eps;
  const void* x;
  const void* dy;
  const float* mean;
  const float* invstd;
  const void* running_mean;
  const void* running_var;
  const void* weight;  // or null
  void* dx;
  void* dgamma;  // or null
  void* dbeta;   // or null
};

struct BatchSums {
  BatchShape shape;
  bool rows;
  BatchLayout x_at, dy_at;  // unused for rows
  const void* x;
  const void* dy;
  const float* mean;
  const float* invstd;
  float* sum_dy;      // or null
  float* sum_dy_xmu;  // or null
  void* dgamma;       // or null
  void* dbeta;        // or null
};

// dx from the sums; without them (evaluation), from dy alone.
struct BatchInput {
  BatchShape shape;
  BatchLayout x_at, dy_at, dx_at;
  float scale;  // 1 / count
  const void* x;
  const void* dy;
  const float* mean;
  const float* invstd;
  const void* weight;  // or null
  const float* sum_dy;
  const float* sum_dy_xmu;
  void* dx;
};

void batch_statistics(const BatchStatistics& params);
void batch_update(const BatchUpdate& params);
void batch_invstd(DType type, std::int64_t channels, double eps, const void* var, float* invstd);
void batch_forward(const BatchForward& params);
void batch_backward(const BatchBackward& params);
void batch_sums(const BatchSums& params);
void batch_input(const BatchInput& params);

namespace ref {
void batch_statistics(const BatchStatistics& params);
void batch_update(const BatchUpdate& params);
void batch_invstd(DType type, std::int64_t channels, double eps, const void* var, float* invstd);
void batch_forward(const BatchForward& params);
void batch_backward(const BatchBackward& params);
void batch_sums(const BatchSums& params);
void batch_input(const BatchInput& params);
}  // namespace ref

}  // namespace step_oracle::norm
