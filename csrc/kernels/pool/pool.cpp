#include "csrc/kernels/pool/pool.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "csrc/kernels/arith/element.h"
#include "csrc/kernels/core/error.h"
#include "csrc/kernels/core/parallel.h"

namespace step_oracle::pool {
namespace {

using I = std::int64_t;

struct Range {
  I begin, end;
  I size() const { return end - begin; }
};

void validate(const Shape& s) {
  if (s.type != DType::kF32 && s.type != DType::kBF16 && s.type != DType::kF16)
    throw Error(ErrorKind::kUnsupported,
                fmt::format("pooling of {} is not modelled; use float32, bfloat16 or float16", name_of(s.type)));
  for (const I v : {s.n, s.channels, s.height, s.width, s.out_height, s.out_width})
    if (v < 1) throw Error(ErrorKind::kBadInput, fmt::format("pooling: a size of {}; each must be positive", v));
  constexpr I kMost = std::numeric_limits<std::int32_t>::max();
  if (s.height * s.width > kMost / (s.n * s.channels) || s.out_height * s.out_width > kMost / (s.n * s.channels))
    throw Error(ErrorKind::kUnsupported,
                "pooling: from 2^31 elements on CUDA takes other kernels, which are not modelled; "
                "use smaller batches");
}

// A plane's elements: `step` apart.
template <class T>
struct Plane {
  T* data;
  I step;
  T& operator[](I place) const { return data[place * step]; }
};
template <class T>
Plane<T> plane_of(const Shape& s, T* data, I plane, I places) {
  if (!s.channels_last) return {data + plane * places, 1};
  return {data + plane / s.channels * places * s.channels + plane % s.channels, s.channels};
}

// Where a window's taps begin and end on one axis; the taps are `dilation` apart.
std::vector<Range> taps(I outputs, I size, const Window& w, int axis) {
  std::vector<Range> out;
  for (I o = 0; o < outputs; ++o) {
    I begin = o * w.stride[axis] - w.pad[axis];
    const I end = std::min(begin + (w.kernel[axis] - 1) * w.dilation[axis] + 1, size);
    while (begin < 0) begin += w.dilation[axis];
    out.push_back({begin, end});
  }
  return out;
}
// Which outputs have an input among their taps' span, on one axis.
std::vector<Range> covering(I outputs, I size, const Window& w, int axis) {
  std::vector<Range> out;
  const I span = (w.kernel[axis] - 1) * w.dilation[axis] + 1;
  for (I i = 0; i < size; ++i) {
    const I x = i + w.pad[axis];
    out.push_back({x < span ? 0 : (x - span) / w.stride[axis] + 1, std::min(x / w.stride[axis] + 1, outputs)});
  }
  return out;
}

template <class Fn>
void by_type(DType type, Fn fn) {
  if (type == DType::kF32)
    fn(float{});
  else if (type == DType::kBF16)
    fn(Bf16{});
  else
    fn(F16{});
}
// fn(element type, plane) for every plane.
template <class Fn>
void each_plane(const Shape& s, Fn fn) {
  const I work = std::max(s.height * s.width, s.out_height * s.out_width);
  by_type(s.type, [&](auto t) {
    parallel_for(s.n * s.channels, std::max<I>(1, 16384 / work), [&](I begin, I end) {
      for (I plane = begin; plane < end; ++plane) fn(t, plane);
    });
  });
}

// An average's divisors: a window's size with the padding, and inside.
struct Frames {
  std::vector<Range> rows, columns;
  std::vector<I> heights, widths;  // with the padding
  explicit Frames(const Average& p) {
    const Shape& s = p.shape;
    const auto axis = [&](I outputs, I size, int k, std::vector<Range>& ranges, std::vector<I>& spans) {
      for (I o = 0; o < outputs; ++o) {
        const I begin = o * p.window.stride[k] - p.window.pad[k];
        const I end = std::min(begin + p.window.kernel[k], size + p.window.pad[k]);
        spans.push_back(end - begin);
        ranges.push_back({std::max<I>(begin, 0), std::min(end, size)});
      }
    };
    axis(s.out_height, s.height, 0, rows, heights);
    axis(s.out_width, s.width, 1, columns, widths);
  }
  // 0: nothing lies inside.
  float divisor(const Average& p, std::size_t h, std::size_t w) const {
    if (rows[h].size() <= 0 || columns[w].size() <= 0) return 0.0f;
    return static_cast<float>(p.divisor     ? p.divisor
                              : p.count_pad ? heights[h] * widths[w]
                                            : rows[h].size() * columns[w].size());
  }
};

std::size_t z(I i) { return static_cast<std::size_t>(i); }

std::vector<Range> adaptive_ranges(I outputs, I inputs) {
  std::vector<Range> out;
  for (I o = 0; o < outputs; ++o)
    out.push_back({o / outputs * inputs + o % outputs * inputs / outputs, 1 + ((o + 1) * inputs - 1) / outputs});
  return out;
}

// The forward pass of an average: finish(element type, sum of a window, its row, its column) is the output.
template <class Params, class Finish>
void sum_windows(const Params& p, const std::vector<Range>& rows, const std::vector<Range>& columns, Finish finish) {
  const Shape& s = p.shape;
  each_plane(s, [&](auto t, I plane) {
    using T = decltype(t);
    const auto x = plane_of(s, static_cast<const T*>(p.in), plane, s.height * s.width);
    const auto y = plane_of(s, static_cast<T*>(p.out), plane, s.out_height * s.out_width);
    I o = 0;
    for (std::size_t h = 0; h < rows.size(); ++h)
      for (std::size_t w = 0; w < columns.size(); ++w) {
        float sum = 0.0f;
        for (I i = rows[h].begin; i < rows[h].end; ++i)
          for (I j = columns[w].begin; j < columns[w].end; ++j) sum = sum + widen(x[i * s.width + j]);
        y[o++] = narrow<T>(finish(t, sum, h, w));
      }
  });
}
// The backward pass: an input's sum over the outputs of its ranges, step(element type, sum so far, dy, row, column).
template <class Params, class Step>
void gather_gradients(const Params& p, const std::vector<Range>& rows, const std::vector<Range>& columns, Step step) {
  const Shape& s = p.shape;
  each_plane(s, [&, step](auto t, I plane) {  // by value: what it holds stays in registers
    using T = decltype(t);
    const auto dy = plane_of(s, static_cast<const T*>(p.in), plane, s.out_height * s.out_width);
    const auto dx = plane_of(s, static_cast<T*>(p.out), plane, s.height * s.width);
    I place = 0;
    for (const Range& r : rows)
      for (const Range& c : columns) {
        float sum = 0.0f;
        for (I h = r.begin; h < r.end; ++h)
          for (I w = c.begin; w < c.end; ++w) sum = step(t, sum, widen(dy[h * s.out_width + w]), z(h), z(w));
        dx[place++] = narrow<T>(canonical(sum));
      }
  });
}

}  // namespace

void max_forward(const Max& p) {
  validate(p.shape);
  const Shape& s = p.shape;
  const auto rows = taps(s.out_height, s.height, p.window, 0), columns = taps(s.out_width, s.width, p.window, 1);
  const I step_h = p.window.dilation[0], step_w = p.window.dilation[1];
  each_plane(s, [&](auto t, I plane) {
    using T = decltype(t);
    const auto x = plane_of(s, static_cast<const T*>(p.x), plane, s.height * s.width);
    const auto y = plane_of(s, static_cast<T*>(p.y), plane, s.out_height * s.out_width);
    const auto indices = plane_of(s, p.indices, plane, s.out_height * s.out_width);
    I o = 0;
    for (const Range& r : rows)
      for (const Range& c : columns) {
        float most = -std::numeric_limits<float>::infinity();
        I where = s.channels_last ? 0 : r.begin * s.width + c.begin;
        for (I h = r.begin; h < r.end; h += step_h)
          for (I w = c.begin; w < c.end; w += step_w) {
            const float v = widen(x[h * s.width + w]);
            if (v > most || v != v) {
              most = v;
              where = h * s.width + w;
            }
          }
        y[o] = narrow_exact<T>(most);
        indices[o++] = where;
      }
  });
}

void max_backward(const MaxBackward& p) {
  validate(p.shape);
  const Shape& s = p.shape;
  const auto rows = covering(s.out_height, s.height, p.window, 0),
             columns = covering(s.out_width, s.width, p.window, 1);
  each_plane(s, [&](auto t, I plane) {
    using T = decltype(t);
    const auto dy = plane_of(s, static_cast<const T*>(p.dy), plane, s.out_height * s.out_width);
    const auto indices = plane_of(s, p.indices, plane, s.out_height * s.out_width);
    const auto dx = plane_of(s, static_cast<T*>(p.dx), plane, s.height * s.width);
    I place = 0;
    for (const Range& r : rows)
      for (const Range& c : columns) {
        float sum = 0.0f;
        const bool single = s.channels_last && r.size() == 1 && c.size() == 1;  // copied: a zero keeps its sign
        for (I h = r.begin; h < r.end; ++h)
          for (I w = c.begin; w < c.end; ++w) {
            const I o = h * s.out_width + w;
            if (indices[o] == place) sum = single ? widen(dy[o]) : sum + widen(dy[o]);
          }
        dx[place++] = narrow<T>(canonical(sum));
      }
  });
}

void average_forward(const Average& p) {
  validate(p.shape);
  const Frames frames(p);
  sum_windows(p, frames.rows, frames.columns, [&](auto, float sum, std::size_t h, std::size_t w) {
    const float divisor = frames.divisor(p, h, w);
    return divisor == 0.0f ? 0.0f : canonical(sum / divisor);
  });
}

void average_backward(const Average& p) {
  validate(p.shape);
  const Shape& s = p.shape;
  const Frames frames(p);
  // 2.13.0's kernel for channels last takes an input's place for its padded place (pytorch issue 188344).
  Window window = p.window;
  if (s.channels_last) window.pad[0] = window.pad[1] = 0;
  const auto rows = covering(s.out_height, s.height, window, 0), columns = covering(s.out_width, s.width, window, 1);
  gather_gradients(p, rows, columns, [&](auto t, float sum, float dy, std::size_t h, std::size_t w) {
    const float divisor = frames.divisor(p, h, w);
    return divisor == 0.0f ? sum : sum + widen(narrow<decltype(t)>(dy / divisor));
  });
}

void adaptive_forward(const Adaptive& p) {
  validate(p.shape);
  const Shape& s = p.shape;
  const auto rows = adaptive_ranges(s.out_height, s.height), columns = adaptive_ranges(s.out_width, s.width);
  sum_windows(p, rows, columns, [&](auto t, float sum, std::size_t h, std::size_t w) {
    const float high = static_cast<float>(rows[h].size()), wide = static_cast<float>(columns[w].size());
    const float factor = widen(narrow<decltype(t)>(1.0f / static_cast<float>(rows[h].size() * columns[w].size())));
    return canonical(s.channels_last ? sum * factor : (sum / high) / wide);
  });
}

void adaptive_backward(const Adaptive& p) {
  validate(p.shape);
  const Shape& s = p.shape;
  const auto rows = adaptive_ranges(s.out_height, s.height), columns = adaptive_ranges(s.out_width, s.width);
  const auto over_rows = adaptive_ranges(s.height, s.out_height), over_columns = adaptive_ranges(s.width, s.out_width);
  gather_gradients(p, over_rows, over_columns, [&](auto t, float sum, float dy, std::size_t h, std::size_t w) {
    using T = decltype(t);
    const auto r = [](float v) { return widen(narrow<T>(v)); };
    const float high = static_cast<float>(rows[h].size()), wide = static_cast<float>(columns[w].size());
    if (!s.channels_last) return r(sum + r(r(dy / wide) / high));
    if (sizeof(T) == 4) return fma(dy, (1.0f / wide) * (1.0f / high), sum);
    return r(sum + r(dy * r(r(1.0f / wide) * r(1.0f / high))));
  });
}

// Windows that meet an input on an axis: two additions to zero commute, three do not.
bool adaptive_races(const Shape& s) {
  if (s.channels_last) return false;
  const auto most = [](I inputs, I outputs) {
    I most = 1;
    for (const Range& r : adaptive_ranges(inputs, outputs)) most = std::max(most, r.size());
    return most;
  };
  return most(s.height, s.out_height) * most(s.width, s.out_width) > 2;
}

}  // namespace step_oracle::pool
