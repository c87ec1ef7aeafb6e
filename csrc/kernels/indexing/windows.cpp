#include "csrc/kernels/indexing/windows.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "csrc/kernels/core/error.h"
#include "csrc/kernels/core/parallel.h"
#include "csrc/kernels/indexing/windows_body.h"

namespace step_oracle::indexing {
namespace {

void validate(const Windows& w, const char* name) {
  if (w.planes < 0 || w.height < 0 || w.width < 0 || w.kernel_height < 1 || w.kernel_width < 1 || w.stride_height < 1 ||
      w.stride_width < 1 || w.dilation_height < 1 || w.dilation_width < 1 || w.down() < 0 || w.across() < 0)
    throw Error(ErrorKind::kBadInput,
                fmt::format("{}: {} planes of {} x {}, kernel {} x {}, stride {} x {}, dilation {} x {}: no window "
                            "fits",
                            name, w.planes, w.height, w.width, w.kernel_height, w.kernel_width, w.stride_height,
                            w.stride_width, w.dilation_height, w.dilation_width));
}

// One row of columns: the elements under one place of the kernel, row `h_col` of the windows.
template <class U>
void row_of_columns(const Windows& w, const U* plane, std::int64_t i, std::int64_t j, std::int64_t h_col, U* out) {
  const std::int64_t across = w.across(), h = h_col * w.stride_height - w.pad_height + i * w.dilation_height;
  for (std::int64_t w_col = 0; w_col < across; ++w_col) {
    const std::int64_t x = w_col * w.stride_width - w.pad_width + j * w.dilation_width;
    out[w_col] = h >= 0 && x >= 0 && h < w.height && x < w.width ? plane[h * w.width + x] : U(0);
  }
}

template <class U>
void im2col_sized(const Windows& w, const U* image, U* columns) {
  const std::int64_t down = w.down(), across = w.across(), taps = w.kernel_height * w.kernel_width;
  const std::int64_t grain = std::max<std::int64_t>(1, 32768 / std::max<std::int64_t>(1, down * across));
  parallel_for(w.planes * taps, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      const U* plane = image + row / taps * w.height * w.width;
      const std::int64_t tap = row % taps;
      for (std::int64_t h = 0; h < down; ++h)
        row_of_columns(w, plane, tap / w.kernel_width, tap % w.kernel_width, h, columns + (row * down + h) * across);
    }
  });
}

}  // namespace

void im2col(const Windows& w, std::int64_t itemsize, const void* image, void* columns) {
  validate(w, "im2col");
  switch (itemsize) {
    case 1:
      return im2col_sized(w, static_cast<const std::uint8_t*>(image), static_cast<std::uint8_t*>(columns));
    case 2:
      return im2col_sized(w, static_cast<const std::uint16_t*>(image), static_cast<std::uint16_t*>(columns));
    case 4:
      return im2col_sized(w, static_cast<const std::uint32_t*>(image), static_cast<std::uint32_t*>(columns));
    default:
      return im2col_sized(w, static_cast<const std::uint64_t*>(image), static_cast<std::uint64_t*>(columns));
  }
}

void col2im(const Windows& w, DType type, const void* columns, void* image) {
  validate(w, "col2im");
  if (type != DType::kF32 && type != DType::kF64 && type != DType::kBF16 && type != DType::kF16)
    throw Error(ErrorKind::kUnsupported,
                fmt::format("col2im of {} is not modelled; use a floating-point type", name_of(type)));
  const std::int64_t grain = std::max<std::int64_t>(1, 16384 / std::max<std::int64_t>(1, w.width));
  parallel_for(w.planes * w.height, grain, [&](std::int64_t begin, std::int64_t end) {
    SO_BODY(windows_body).col2im(w, type, columns, image, begin, end);
  });
}

}  // namespace step_oracle::indexing
