// im2col_kernel and col2im_device, thread by thread.
#include <algorithm>
#include <cstring>

#include "csrc/kernels/arith/element.h"
#include "csrc/kernels/indexing/windows.h"

namespace step_oracle::indexing::ref {
namespace {

template <class T, class A>
T col2im_thread(const Windows& w, const T* data_col, std::int64_t index) {
  A val = A(0);
  const std::int64_t height_col = w.down(), width_col = w.across();
  const std::int64_t w_im = index % w.width + w.pad_width, h_im = index / w.width % w.height + w.pad_height;
  const std::int64_t c_im = index / (w.width * w.height);
  const std::int64_t extent_w = (w.kernel_width - 1) * w.dilation_width + 1;
  const std::int64_t extent_h = (w.kernel_height - 1) * w.dilation_height + 1;
  const std::int64_t w_begin = w_im < extent_w ? 0 : (w_im - extent_w) / w.stride_width + 1;
  const std::int64_t h_begin = h_im < extent_h ? 0 : (h_im - extent_h) / w.stride_height + 1;
  const std::int64_t w_end = std::min(w_im / w.stride_width + 1, width_col);
  const std::int64_t h_end = std::min(h_im / w.stride_height + 1, height_col);
  for (std::int64_t h_col = h_begin; h_col < h_end; ++h_col)
    for (std::int64_t w_col = w_begin; w_col < w_end; ++w_col) {
      const std::int64_t h_k = h_im - h_col * w.stride_height, w_k = w_im - w_col * w.stride_width;
      if (h_k % w.dilation_height != 0 || w_k % w.dilation_width != 0) continue;
      const std::int64_t tap =
          (c_im * w.kernel_height + h_k / w.dilation_height) * w.kernel_width + w_k / w.dilation_width;
      val = val + widen(data_col[(tap * height_col + h_col) * width_col + w_col]);
    }
  if constexpr (sizeof(T) == 8)
    return val != val ? double_of(0xfff8000000000000ull) : val;
  else
    return narrow<T>(canonical(val));
}

template <class T, class A>
void col2im_typed(const Windows& w, const void* columns, void* image) {
  for (std::int64_t i = 0; i < w.planes * w.height * w.width; ++i)
    static_cast<T*>(image)[i] = col2im_thread<T, A>(w, static_cast<const T*>(columns), i);
}

}  // namespace

void im2col(const Windows& w, std::int64_t itemsize, const void* image, void* columns) {
  const std::int64_t height_col = w.down(), width_col = w.across();
  for (std::int64_t index = 0; index < w.planes * height_col * width_col; ++index) {
    const std::int64_t w_out = index % width_col, h_out = index / width_col % height_col;
    const std::int64_t plane = index / width_col / height_col;
    for (std::int64_t i = 0; i < w.kernel_height; ++i)
      for (std::int64_t j = 0; j < w.kernel_width; ++j) {
        const std::int64_t h = h_out * w.stride_height - w.pad_height + i * w.dilation_height;
        const std::int64_t x = w_out * w.stride_width - w.pad_width + j * w.dilation_width;
        const std::int64_t tap = (plane * w.kernel_height + i) * w.kernel_width + j;
        char* to = static_cast<char*>(columns) + ((tap * height_col + h_out) * width_col + w_out) * itemsize;
        if (h >= 0 && x >= 0 && h < w.height && x < w.width)
          std::memcpy(to, static_cast<const char*>(image) + ((plane * w.height + h) * w.width + x) * itemsize,
                      static_cast<std::size_t>(itemsize));
        else
          std::memset(to, 0, static_cast<std::size_t>(itemsize));
      }
  }
}

void col2im(const Windows& w, DType type, const void* columns, void* image) {
  if (type == DType::kF32) col2im_typed<float, float>(w, columns, image);
  if (type == DType::kBF16) col2im_typed<Bf16, float>(w, columns, image);
  if (type == DType::kF16) col2im_typed<F16, float>(w, columns, image);
  if (type == DType::kF64) col2im_typed<double, double>(w, columns, image);
}

}  // namespace step_oracle::indexing::ref
