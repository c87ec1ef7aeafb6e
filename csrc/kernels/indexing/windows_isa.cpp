#include "csrc/kernels/arith/element.h"
#include "csrc/kernels/indexing/windows_body.h"

SO_ISA_BEGIN
namespace {
using indexing::Windows;

inline float finished(float x) { return canonical(x); }
inline double finished(double x) { return x != x ? double_of(0xfff8000000000000ull) : x; }
template <class T, class A>
inline T rounded(A x) {
  if constexpr (sizeof(T) == 8)
    return finished(x);
  else
    return narrow<T>(finished(x));
}

// Row by row of the image. For one element the windows come in the order of h_col and then w_col: of w_col the larger
// ones have the smaller kernel column, so kernel columns run downwards.
template <class T, class A>
void col2im_rows(const Windows& w, const T* columns, T* image, std::int64_t begin, std::int64_t end) {
  constexpr std::int64_t kTile = 512;
  const std::int64_t down = w.down(), across = w.across();
  A sum[kTile];
  for (std::int64_t row = begin; row < end; ++row) {
    const std::int64_t plane = row / w.height, h_im = row % w.height + w.pad_height;
    const T* base = columns + plane * w.kernel_height * w.kernel_width * down * across;
    for (std::int64_t first = 0; first < w.width; first += kTile) {
      const std::int64_t n = w.width - first < kTile ? w.width - first : kTile;
      for (std::int64_t i = 0; i < n; ++i) sum[i] = A(0);
      for (std::int64_t h_col = 0; h_col < down; ++h_col) {
        const std::int64_t h_k = h_im - h_col * w.stride_height;
        if (h_k < 0) break;
        if (h_k % w.dilation_height != 0 || h_k / w.dilation_height >= w.kernel_height) continue;
        const T* line = base + h_k / w.dilation_height * w.kernel_width * down * across + h_col * across;
        for (std::int64_t k = w.kernel_width - 1; k >= 0; --k) {
          // Elements x of the image with x + pad = w_col * stride + k * dilation.
          const std::int64_t shift = k * w.dilation_width - w.pad_width - first;
          std::int64_t w_col = shift < 0 ? (-shift + w.stride_width - 1) / w.stride_width : 0;
          const T* from = line + k * down * across;
          for (; w_col < across; ++w_col) {
            const std::int64_t x = w_col * w.stride_width + shift;
            if (x >= n) break;
            sum[x] = sum[x] + widen(from[w_col]);
          }
        }
      }
      T* out = image + row * w.width + first;
      for (std::int64_t i = 0; i < n; ++i) out[i] = rounded<T>(sum[i]);
    }
  }
}

void col2im(const Windows& w, DType type, const void* columns, void* image, std::int64_t begin, std::int64_t end) {
  switch (type) {
    case DType::kF32:
      return col2im_rows<float, float>(w, static_cast<const float*>(columns), static_cast<float*>(image), begin, end);
    case DType::kBF16:
      return col2im_rows<Bf16, float>(w, static_cast<const Bf16*>(columns), static_cast<Bf16*>(image), begin, end);
    case DType::kF16:
      return col2im_rows<F16, float>(w, static_cast<const F16*>(columns), static_cast<F16*>(image), begin, end);
    default:
      return col2im_rows<double, double>(w, static_cast<const double*>(columns), static_cast<double*>(image), begin,
                                         end);
  }
}

}  // namespace

extern const WindowsBody windows_body;
const WindowsBody windows_body = {&col2im};
SO_ISA_END
