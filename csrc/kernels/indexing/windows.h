// Sliding windows of an image as columns (im2col), and columns summed back into the image (col2im).
//
// Shapes    image: planes x height x width, contiguous, planes = batch x channels; columns: planes x (kernel height x
//           kernel width) x (windows down x windows across), contiguous.
// Types     im2col moves elements of 1, 2, 4 or 8 bytes; outside the image it writes zeros. col2im: float32, bfloat16
//           and float16 summed in float32, float64 in float64.
// Order     col2im: an image element starts at 0 and adds the windows that cover it, top to bottom, left to right.
// Rounding  one an addition; 16-bit types round once at the end.
// NaN       0x7fffffff for sums; moves keep bits.
// Source    ATen/native/cuda/im2col.cuh of torch 2.13.0.
// Evidence  docs/evidence.md, rows indexing im2col, col2im.
#pragma once
#include <cstdint>

#include "csrc/kernels/core/dtype.h"

namespace step_oracle::indexing {

struct Windows {
  std::int64_t planes, height, width;
  std::int64_t kernel_height, kernel_width, pad_height, pad_width;
  std::int64_t stride_height, stride_width, dilation_height, dilation_width;

  std::int64_t down() const {
    return (height + 2 * pad_height - (dilation_height * (kernel_height - 1) + 1)) / stride_height + 1;
  }
  std::int64_t across() const {
    return (width + 2 * pad_width - (dilation_width * (kernel_width - 1) + 1)) / stride_width + 1;
  }
};

void im2col(const Windows& windows, std::int64_t itemsize, const void* image, void* columns);
void col2im(const Windows& windows, DType type, const void* columns, void* image);

namespace ref {
void im2col(const Windows& windows, std::int64_t itemsize, const void* image, void* columns);
void col2im(const Windows& windows, DType type, const void* columns, void* image);
}  // namespace ref

}  // namespace step_oracle::indexing
