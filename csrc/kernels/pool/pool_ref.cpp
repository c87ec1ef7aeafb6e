// DilatedMaxPool2d.cu, AveragePool2d.cu and AdaptiveAveragePooling.cu: a thread an output.
#include <algorithm>
#include <limits>

#include "csrc/kernels/arith/typed_element.h"
#include "csrc/kernels/pool/pool.h"

namespace step_oracle::pool::ref {
namespace {

using I = std::int64_t;
using typed::load;
using typed::rounded;
using typed::store;

// One of the type's values: nothing is rounded, a NaN keeps its payload.
void keep(DType type, void* data, I i, float v) {
  switch (type) {
    case DType::kF32:
      static_cast<float*>(data)[i] = v;
      break;
    case DType::kBF16:
      static_cast<Bf16*>(data)[i] = narrow_exact<Bf16>(v);
      break;
    default:
      static_cast<F16*>(data)[i] = narrow_exact<F16>(v);
  }
}
// Where a plane's element lies.
struct Plane {
  I first, step;
  I at(I place) const { return first + place * step; }
};
Plane plane_of(const Shape& s, I n, I c, I places) {
  return s.channels_last ? Plane{n * places * s.channels + c, s.channels} : Plane{(n * s.channels + c) * places, 1};
}
template <class Visit>
void each(const Shape& s, I height, I width, Visit visit) {
  for (I n = 0; n < s.n; ++n)
    for (I c = 0; c < s.channels; ++c) {
      const Plane in = plane_of(s, n, c, s.height * s.width), out = plane_of(s, n, c, s.out_height * s.out_width);
      for (I h = 0; h < height; ++h)
        for (I w = 0; w < width; ++w) visit(in, out, h, w);
    }
}
I p_start(I size, I pad, I kernel, I dilation, I stride) {
  return size + pad < (kernel - 1) * dilation + 1 ? 0 : (size + pad - ((kernel - 1) * dilation + 1)) / stride + 1;
}
I p_end(I size, I pad, I pooled, I stride) { return std::min((size + pad) / stride + 1, pooled); }
I start_index(I a, I b, I c) { return a / b * c + a % b * c / b; }
I end_index(I a, I b, I c) { return 1 + ((a + 1) * c - 1) / b; }

// A window of the average: its size with the padding, and what of it lies inside.
struct Frame {
  I h0, h1, w0, w1, size;
  Frame(const Average& p, I ph, I pw) {
    const Shape& s = p.shape;
    h0 = ph * p.window.stride[0] - p.window.pad[0];
    w0 = pw * p.window.stride[1] - p.window.pad[1];
    h1 = std::min(h0 + p.window.kernel[0], s.height + p.window.pad[0]);
    w1 = std::min(w0 + p.window.kernel[1], s.width + p.window.pad[1]);
    size = (h1 - h0) * (w1 - w0);
    h0 = std::max<I>(h0, 0);
    w0 = std::max<I>(w0, 0);
    h1 = std::min(h1, s.height);
    w1 = std::min(w1, s.width);
  }
  bool empty() const { return h0 >= h1 || w0 >= w1; }
  float divisor(const Average& p) const {
    return static_cast<float>(p.divisor ? p.divisor : p.count_pad ? size : (h1 - h0) * (w1 - w0));
  }
};

}  // namespace

void max_forward(const Max& p) {
  const Shape& s = p.shape;
  const Window& v = p.window;
  each(s, s.out_height, s.out_width, [&](const Plane& in, const Plane& out, I ph, I pw) {
    I hstart = ph * v.stride[0] - v.pad[0], wstart = pw * v.stride[1] - v.pad[1];
    const I hend = std::min(hstart + (v.kernel[0] - 1) * v.dilation[0] + 1, s.height);
    const I wend = std::min(wstart + (v.kernel[1] - 1) * v.dilation[1] + 1, s.width);
    while (hstart < 0) hstart += v.dilation[0];
    while (wstart < 0) wstart += v.dilation[1];
    float maxval = -std::numeric_limits<float>::infinity();
    I maxidx = s.channels_last ? 0 : hstart * s.width + wstart;
    for (I h = hstart; h < hend; h += v.dilation[0])
      for (I w = wstart; w < wend; w += v.dilation[1]) {
        const float val = load(s.type, p.x, in.at(h * s.width + w));
        if (val > maxval || val != val) {
          maxidx = h * s.width + w;
          maxval = val;
        }
      }
    const I index = out.at(ph * s.out_width + pw);
    keep(s.type, p.y, index, maxval);
    p.indices[index] = maxidx;
  });
}

void max_backward(const MaxBackward& p) {
  const Shape& s = p.shape;
  const Window& v = p.window;
  each(s, s.height, s.width, [&](const Plane& in, const Plane& out, I h, I w) {
    const I phstart = p_start(h, v.pad[0], v.kernel[0], v.dilation[0], v.stride[0]),
            phend = p_end(h, v.pad[0], s.out_height, v.stride[0]);
    const I pwstart = p_start(w, v.pad[1], v.kernel[1], v.dilation[1], v.stride[1]),
            pwend = p_end(w, v.pad[1], s.out_width, v.stride[1]);
    const bool copies = s.channels_last && phstart + 1 == phend && pwstart + 1 == pwend;
    float gradient = 0.0f;
    for (I ph = phstart; ph < phend; ++ph)
      for (I pw = pwstart; pw < pwend; ++pw) {
        const I index = out.at(ph * s.out_width + pw);
        if (p.indices[index] != h * s.width + w) continue;
        const float dy = load(s.type, p.dy, index);
        gradient = copies ? dy : gradient + dy;
      }
    store(s.type, p.dx, in.at(h * s.width + w), gradient);
  });
}

void average_forward(const Average& p) {
  const Shape& s = p.shape;
  each(s, s.out_height, s.out_width, [&](const Plane& in, const Plane& out, I ph, I pw) {
    const Frame f(p, ph, pw);
    float sum = 0.0f;
    for (I h = f.h0; h < f.h1; ++h)
      for (I w = f.w0; w < f.w1; ++w) sum = sum + load(s.type, p.in, in.at(h * s.width + w));
    store(s.type, p.out, out.at(ph * s.out_width + pw), f.empty() ? 0.0f : canonical(sum / f.divisor(p)));
  });
}

void average_backward(const Average& p) {
  const Shape& s = p.shape;
  const Window& v = p.window;
  // 2.13.0's kernel for channels last leaves the padding out of these coordinates (pytorch issue 188344).
  const I pad_h = s.channels_last ? 0 : v.pad[0], pad_w = s.channels_last ? 0 : v.pad[1];
  each(s, s.height, s.width, [&](const Plane& in, const Plane& out, I h, I w) {
    const I phstart = p_start(h, pad_h, v.kernel[0], 1, v.stride[0]),
            phend = p_end(h, pad_h, s.out_height, v.stride[0]);
    const I pwstart = p_start(w, pad_w, v.kernel[1], 1, v.stride[1]), pwend = p_end(w, pad_w, s.out_width, v.stride[1]);
    float gradient = 0.0f;
    for (I ph = phstart; ph < phend; ++ph)
      for (I pw = pwstart; pw < pwend; ++pw) {
        const Frame f(p, ph, pw);
        if (!f.empty())
          gradient = gradient + rounded(s.type, load(s.type, p.in, out.at(ph * s.out_width + pw)) / f.divisor(p));
      }
    store(s.type, p.out, in.at(h * s.width + w), canonical(gradient));
  });
}

void adaptive_forward(const Adaptive& p) {
  const Shape& s = p.shape;
  each(s, s.out_height, s.out_width, [&](const Plane& in, const Plane& out, I oh, I ow) {
    const I h0 = start_index(oh, s.out_height, s.height), h1 = end_index(oh, s.out_height, s.height);
    const I w0 = start_index(ow, s.out_width, s.width), w1 = end_index(ow, s.out_width, s.width);
    float sum = 0.0f;
    for (I h = h0; h < h1; ++h)
      for (I w = w0; w < w1; ++w) sum = sum + load(s.type, p.in, in.at(h * s.width + w));
    const float factor = rounded(s.type, 1.0f / static_cast<float>((h1 - h0) * (w1 - w0)));
    const float y = s.channels_last ? sum * factor : sum / static_cast<float>(h1 - h0) / static_cast<float>(w1 - w0);
    store(s.type, p.out, out.at(oh * s.out_width + ow), canonical(y));
  });
}

// atomic_adaptive_average_gradinput, outputs in turn; adaptive_average_gradinput_nhwc
void adaptive_backward(const Adaptive& p) {
  const Shape& s = p.shape;
  each(s, s.height, s.width, [&](const Plane& in, const Plane& out, I h, I w) {
    float gradient = 0.0f;
    for (I oh = start_index(h, s.height, s.out_height); oh < end_index(h, s.height, s.out_height); ++oh)
      for (I ow = start_index(w, s.width, s.out_width); ow < end_index(w, s.width, s.out_width); ++ow) {
        const auto kh =
            static_cast<float>(end_index(oh, s.out_height, s.height) - start_index(oh, s.out_height, s.height));
        const auto kw = static_cast<float>(end_index(ow, s.out_width, s.width) - start_index(ow, s.out_width, s.width));
        const float dy = load(s.type, p.in, out.at(oh * s.out_width + ow));
        if (s.channels_last) {
          const float f = rounded(s.type, rounded(s.type, 1.0f / kw) * rounded(s.type, 1.0f / kh));
          gradient = s.type == DType::kF32 ? fma(dy, f, gradient) : rounded(s.type, gradient + rounded(s.type, dy * f));
        } else {
          gradient = rounded(s.type, gradient + rounded(s.type, rounded(s.type, dy / kw) / kh));
        }
      }
    store(s.type, p.out, in.at(h * s.width + w), canonical(gradient));
  });
}

}  // namespace step_oracle::pool::ref
