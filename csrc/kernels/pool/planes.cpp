#include "csrc/kernels/pool/planes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "csrc/kernels/arith/element.h"
#include "csrc/kernels/core/error.h"
#include "csrc/kernels/core/parallel.h"

namespace step_oracle::pool {
namespace {

using I = std::int64_t;

template <class Fn>
void each_plane(const Planes& p, I work, Fn fn) {
  parallel_for(p.samples * p.channels, std::max<I>(1, 16384 / std::max<I>(1, work)), [&](I begin, I end) {
    for (I k = begin; k < end; ++k)
      fn(k / p.channels * p.in[0] + k % p.channels * p.in[1], k / p.channels * p.out[0] + k % p.channels * p.out[1]);
  });
}

template <class T>
void copy_typed(const Copy& p) {
  const I rows = static_cast<I>(p.rows.size()), columns = static_cast<I>(p.columns.size());
  each_plane(p.planes, rows * columns, [&](I in, I out) {
    for (I h = 0; h < rows; ++h) {
      const T* const x = static_cast<const T*>(p.x) + in + p.rows[static_cast<std::size_t>(h)] * p.planes.in[2];
      T* const y = static_cast<T*>(p.y) + out + h * p.planes.out[2];
      for (I w = 0; w < columns; ++w)
        y[w * p.planes.out[3]] = x[p.columns[static_cast<std::size_t>(w)] * p.planes.in[3]];
    }
  });
}

template <class T>
void backward_typed(const CopyBackward& p) {
  each_plane(p.planes, static_cast<I>(p.rows.size() * p.columns.size()), [&](I in, I out) {
    for (std::size_t h = 0; h < p.rows.size(); ++h)
      for (std::size_t w = 0; w < p.columns.size(); ++w) {
        float sum = 0.0f;
        for (const I i : p.rows[h])
          for (const I j : p.columns[w]) {
            sum = sum + widen(static_cast<const T*>(p.dy)[out + i * p.planes.out[2] + j * p.planes.out[3]]);
            if (p.rounds_each) sum = widen(narrow<T>(sum));
          }
        static_cast<T*>(p.dx)[in + static_cast<I>(h) * p.planes.in[2] + static_cast<I>(w) * p.planes.in[3]] =
            narrow<T>(canonical(sum));
      }
  });
}

}  // namespace

void copy_planes(const Copy& p) {
  switch (p.element) {
    case 1:
      return copy_typed<std::uint8_t>(p);
    case 2:
      return copy_typed<std::uint16_t>(p);
    case 4:
      return copy_typed<std::uint32_t>(p);
    default:
      return copy_typed<std::uint64_t>(p);
  }
}

void copy_planes_backward(const CopyBackward& p) {
  switch (p.type) {
    case DType::kF32:
      return backward_typed<float>(p);
    case DType::kBF16:
      return backward_typed<Bf16>(p);
    case DType::kF16:
      return backward_typed<F16>(p);
    default:
      throw Error(ErrorKind::kUnsupported, fmt::format("the gradient of a padded or upsampled {} is not modelled; use "
                                                       "float32, bfloat16 or float16",
                                                       name_of(p.type)));
  }
}

Copies nearest(I in, I out, float scale, bool exact) {
  Copies from;
  for (I o = 0; o < out; ++o) {
    const float at = exact ? (static_cast<float>(o) + 0.5f) * scale : static_cast<float>(o) * scale;
    from.push_back(std::min(static_cast<I>(std::floor(at)), in - 1));
  }
  return from;
}

Sources nearest_sources(I in, I out, float scale, bool exact) {
  const auto edge = [&](I i) {
    const float at = exact ? fma(static_cast<float>(i), scale, -0.5f) : static_cast<float>(i) * scale;
    return std::min(static_cast<I>(std::ceil(at)), out);
  };
  Sources sources(static_cast<std::size_t>(in));
  for (I i = 0; i < in; ++i)
    for (I o = edge(i); o < edge(i + 1); ++o) sources[static_cast<std::size_t>(i)].push_back(o);
  return sources;
}

Copies padded(I in, I before, I after, bool reflects) {
  Copies from;
  for (I o = 0; o < in + before + after; ++o) {
    const I at = o - before;
    if (reflects)
      from.push_back(at < 0 ? -at : at >= in ? 2 * (in - 1) - at : at);
    else
      from.push_back(std::clamp<I>(at, 0, in - 1));
  }
  return from;
}

Sources sources_of(const Copies& copies, I in) {
  Sources sources(static_cast<std::size_t>(in));
  for (std::size_t o = 0; o < copies.size(); ++o)
    sources[static_cast<std::size_t>(copies[o])].push_back(static_cast<I>(o));
  return sources;
}

bool sums_race(const Sources& rows, const Sources& columns) {
  const auto most = [](const Sources& s) {
    std::size_t n = 0;
    for (const auto& list : s) n = std::max(n, list.size());
    return n;
  };
  return most(rows) * most(columns) > 2;
}

}  // namespace step_oracle::pool
