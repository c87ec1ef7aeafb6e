// Pooling over windows of two dimensions, forward and backward: maxima, averages, adaptive averages.
//
// Shapes    x: n x channels x height x width; y: n x channels x out_height x out_width. Both contiguous, or both with
//           channels last.
// Types     float32, bfloat16, float16; computed in float32 unless Rounding says otherwise. Indices: int64.
// Order     a window's elements row by row from the upper left. Backward: an input's windows row by row.
// Rounding  average: one division of the sum. Adaptive: contiguous: two divisions (height, width); channels last: one
//           product with 1 / (height width), rounded to the type; its backward accumulates in the type. See Source.
//           Average, channels last, with padding, backward: wrong gradients in torch 2.13.0 (pytorch issue 188344),
//           which are computed here as on the card.
// NaN       0x7fffffff where arithmetic made it; a maximum keeps its element's payload. A NaN wins, the last one.
// Source    DilatedMaxPool2d.cu, AveragePool2d.cu, AdaptiveAveragePooling.cu; what is fused and rounded: vectors
//           max_pool_*, avg_pool_*, adaptive_pool_*.
// Evidence  docs/evidence.md, rows pool.
#pragma once
#include <cstdint>

#include "csrc/kernels/core/dtype.h"

namespace step_oracle::pool {

struct Shape {
  DType type;
  bool channels_last;
  std::int64_t n, channels, height, width, out_height, out_width;
};

struct Window {  // of height, width
  std::int64_t kernel[2], stride[2], pad[2], dilation[2];
};

struct Max {
  Shape shape;
  Window window;
  const void* x;
  void* y;
  std::int64_t* indices;  // height * width + width's place, in the plane
};
struct MaxBackward {
  Shape shape;
  Window window;
  const void* dy;
  const std::int64_t* indices;
  void* dx;
};

struct Average {  // `in` is x or dy, `out` y or dx
  Shape shape;
  Window window;  // dilation is 1
  bool count_pad;
  std::int64_t divisor;  // 0: the window's size
  const void* in;
  void* out;
};

struct Adaptive {
  Shape shape;
  const void* in;
  void* out;
};

void max_forward(const Max& params);
void max_backward(const MaxBackward& params);
void average_forward(const Average& params);
void average_backward(const Average& params);
void adaptive_forward(const Adaptive& params);
// Contiguous: the card adds atomically, which has one result where at most two windows meet (adaptive_races says).
void adaptive_backward(const Adaptive& params);
bool adaptive_races(const Shape& shape);

namespace ref {
void max_forward(const Max& params);
void max_backward(const MaxBackward& params);
void average_forward(const Average& params);
void average_backward(const Average& params);
void adaptive_forward(const Adaptive& params);
void adaptive_backward(const Adaptive& params);
}  // namespace ref

}  // namespace step_oracle::pool
