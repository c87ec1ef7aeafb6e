// upsample_nearest2d_out_frame, upsample_nearest2d_backward_out_frame: a thread an element.
#include <cstring>

#include "csrc/kernels/arith/typed_element.h"
#include "csrc/kernels/pool/planes.h"

namespace step_oracle::pool::ref {
namespace {

using I = std::int64_t;
using typed::load;
using typed::rounded;
using typed::store;

I at(const I (&strides)[4], I n, I c, I h, I w) {
  return n * strides[0] + c * strides[1] + h * strides[2] + w * strides[3];
}

}  // namespace

void copy_planes(const Copy& p) {
  const I rows = static_cast<I>(p.rows.size()), columns = static_cast<I>(p.columns.size());
  for (I index = 0; index < p.planes.samples * p.planes.channels * rows * columns; ++index) {
    const I w = index % columns, h = index / columns % rows, c = index / columns / rows % p.planes.channels,
            n = index / columns / rows / p.planes.channels;
    const I from = at(p.planes.in, n, c, p.rows[static_cast<std::size_t>(h)], p.columns[static_cast<std::size_t>(w)]);
    std::memcpy(static_cast<char*>(p.y) + at(p.planes.out, n, c, h, w) * static_cast<I>(p.element),
                static_cast<const char*>(p.x) + from * static_cast<I>(p.element), p.element);
  }
}

void copy_planes_backward(const CopyBackward& p) {
  const I rows = static_cast<I>(p.rows.size()), columns = static_cast<I>(p.columns.size());
  for (I index = 0; index < p.planes.samples * p.planes.channels * rows * columns; ++index) {
    const I w = index % columns, h = index / columns % rows, c = index / columns / rows % p.planes.channels,
            n = index / columns / rows / p.planes.channels;
    float grad = 0.0f;
    for (const I y : p.rows[static_cast<std::size_t>(h)])
      for (const I x : p.columns[static_cast<std::size_t>(w)]) {
        grad = grad + load(p.type, p.dy, at(p.planes.out, n, c, y, x));
        if (p.rounds_each) grad = rounded(p.type, grad);
      }
    store(p.type, p.dx, at(p.planes.in, n, c, h, w), canonical(grad));
  }
}

}  // namespace step_oracle::pool::ref
