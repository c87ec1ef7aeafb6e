#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "csrc/kernels/arith/convert.h"
#include "csrc/kernels/core/error.h"
#include "csrc/kernels/core/parallel.h"
#include "csrc/kernels/random/launch.h"
#include "csrc/kernels/random/random_body.h"

namespace step_oracle::random {
namespace {

constexpr int kTile = RandomBody::kTile;
constexpr int kMaxVector = 8;

void load(DType t, const void* x, std::int64_t first, int n, float* y) {
  if (t == DType::kF32) {
    std::memcpy(y, static_cast<const float*>(x) + first, static_cast<std::size_t>(n) * 4);
    return;
  }
  const std::uint16_t* h = static_cast<const std::uint16_t*>(x) + first;
  for (int i = 0; i < n; ++i) y[i] = t == DType::kBF16 ? convert::from_bf16(h[i]) : convert::from_fp16(h[i]);
}
void store(DType t, const float* x, std::int64_t first, int n, int compute_capability, void* y) {
  const auto& body = SO_BODY(random_body);
  switch (t) {
    case DType::kF32:
      std::memcpy(static_cast<float*>(y) + first, x, static_cast<std::size_t>(n) * 4);
      return;
    case DType::kBF16:
      body.to_bf16(x, n, convert::bf16_nan(compute_capability), static_cast<std::uint16_t*>(y) + first);
      return;
    default:
      body.to_fp16(x, n, static_cast<std::uint16_t*>(y) + first);
  }
}

void check(DType t, std::int64_t n) {
  if (n < 0) throw Error(ErrorKind::kBadInput, fmt::format("dropout: n is {}; it must not be negative", n));
  if (t != DType::kF32 && t != DType::kBF16 && t != DType::kF16)
    throw Error(ErrorKind::kUnsupported,
                fmt::format("dropout of {} is not modelled; use float32, bfloat16 or float16", name_of(t)));
}

// keep < p over n elements from `first`, whose uniforms are u.
void apply(const Stream& s, const Dropout& d, float p, float scale, std::int64_t first, const float* u, int n) {
  float x[kTile * kMaxVector], y[kTile * kMaxVector];
  load(d.dtype, d.x, first, n, x);
  SO_BODY(random_body).dropout(u, x, n, p, scale, y, d.mask + first);
  store(d.dtype, y, first, n, s.compute_capability, d.out);
}

}  // namespace

int dropout_vector(DType dtype, std::int64_t n, bool aligned) {
  int v = aligned ? 16 / static_cast<int>(size_of(dtype)) : 1;
  while (v > 1 && n % v != 0) v /= 2;
  return v;
}

std::uint64_t dropout(const Stream& s, const Dropout& d) {
  check(d.dtype, d.n);
  if (!(d.p >= 0.0 && d.p < 1.0))
    throw Error(ErrorKind::kBadInput, fmt::format("dropout: p is {}; the fused kernel takes 0 <= p < 1", d.p));
  if (d.vector != 1 && d.vector != 2 && d.vector != 4 && d.vector != 8)
    throw Error(ErrorKind::kBadInput, fmt::format("dropout: vector is {}; it must be 1, 2, 4 or 8", d.vector));
  if (d.n == 0) return 0;
  const auto& body = SO_BODY(random_body);
  const float p = static_cast<float>(1.0 - d.p);
  const float scale = static_cast<float>(1.0 / static_cast<double>(p));
  const Launch l = launch(s, d.n, 4);
  // A round of the vector kernels covers `vector` elements a thread, side by side; vector 2 draws a block for its two.
  const std::int64_t round_size = l.threads * (d.vector == 1 ? 4 : d.vector);
  const std::int64_t rounds = (d.n - 1) / round_size + 1, tiles = (l.threads + kTile - 1) / kTile;
  const int draws = d.vector == 8 ? 2 : 1;
  parallel_for(rounds * tiles, 8, [&](std::int64_t begin, std::int64_t end) {
    std::uint32_t w[4 * kTile];
    float u[kTile * kMaxVector];
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t round = i / tiles, thread = i % tiles * kTile, base = round * round_size;
      const int count = static_cast<int>(std::min<std::int64_t>(kTile, l.threads - thread));
      if (d.vector != 1 && base + thread * d.vector >= d.n) continue;
      for (int k = 0; k < draws; ++k) {
        body.words(s.seed, s.offset / 4 + static_cast<std::uint64_t>(round * draws + k),
                   static_cast<std::uint64_t>(thread), count, w);
        if (d.vector >= 4) body.uniforms_by_thread(w, count, d.vector, u + 4 * k);
      }
      if (d.vector >= 4) {
        const std::int64_t first = base + thread * d.vector;
        apply(s, d, p, scale, first, u,
              static_cast<int>(std::min<std::int64_t>(static_cast<std::int64_t>(count) * d.vector, d.n - first)));
      } else if (d.vector == 2) {
        float all[4 * kTile];
        body.uniforms_by_thread(w, count, 4, all);
        for (int t = 0; t < count; ++t) u[2 * t] = all[4 * t], u[2 * t + 1] = all[4 * t + 1];
        const std::int64_t first = base + thread * 2;
        apply(s, d, p, scale, first, u, static_cast<int>(std::min<std::int64_t>(count * 2, d.n - first)));
      } else {
        for (int k = 0; k < 4; ++k) {
          const std::int64_t first = base + l.threads * k + thread;
          if (first >= d.n) break;
          body.uniforms(w + kTile * k, count, u);
          apply(s, d, p, scale, first, u, static_cast<int>(std::min<std::int64_t>(count, d.n - first)));
        }
      }
    }
  });
  return l.advance;
}

void dropout_backward(const DropoutBackward& d, int compute_capability) {
  check(d.dtype, d.n);
  const float scale = static_cast<float>(d.scale);
  parallel_for((d.n + kTile - 1) / kTile, 32, [&](std::int64_t begin, std::int64_t end) {
    float g[kTile], y[kTile];
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t first = i * kTile;
      const int n = static_cast<int>(std::min<std::int64_t>(kTile, d.n - first));
      load(d.dtype, d.grad, first, n, g);
      SO_BODY(random_body).dropout_backward(g, d.mask + first, n, scale, y);
      store(d.dtype, y, first, n, compute_capability, d.out);
    }
  });
}

}  // namespace step_oracle::random
