// group_norm_kernel.cu, thread by thread.
#include <algorithm>
#include <vector>

#include "csrc/kernels/arith/element.h"
#include "csrc/kernels/arith/libdevice.h"
#include "csrc/kernels/arith/moments.h"
#include "csrc/kernels/norm/group.h"

namespace step_oracle::norm::ref {
namespace {

using Welford = Moments<float>;
constexpr std::int64_t kBlock = 512;

// Shuffle-down in each warp, the leaders' values in shared memory, the first warp again.
template <class V, class Op>
V block_reduce(std::vector<V> v, V identity, Op op) {
  const std::size_t warps = v.size() / 32;
  const auto warp_reduce = [&](std::size_t base, std::vector<V>& lanes) {
    for (std::size_t offset = 16; offset > 0; offset /= 2)
      for (std::size_t lane = 0; lane < offset; ++lane)
        lanes[base + lane] = op(lanes[base + lane], lanes[base + lane + offset]);
  };
  for (std::size_t w = 0; w < warps; ++w) warp_reduce(w * 32, v);
  if (warps == 1) return v[0];
  std::vector<V> shared(32, identity);
  for (std::size_t w = 0; w < warps; ++w) shared[w] = v[w * 32];
  warp_reduce(0, shared);
  return shared[0];
}
float sum_of(const std::vector<float>& v) {
  return block_reduce(v, 0.0f, [](float a, float b) { return a + b; });
}

template <class T>
struct Tensors {
  static float get(const void* p, std::int64_t i) { return widen(static_cast<const T*>(p)[i]); }
  static void set(void* p, std::int64_t i, float v) { static_cast<T*>(p)[i] = narrow<T>(canonical(v)); }
};

std::int64_t threads_of(std::int64_t n) { return n < kBlock ? 32 : kBlock; }

template <class T>
void forward(const GroupForward& p) {
  using X = Tensors<T>;
  const GroupShape& s = p.shape;
  const std::int64_t d = s.per_group(), n = d * s.places;
  const float eps = widen(narrow<T>(static_cast<float>(p.eps)));
  for (std::int64_t ng = 0; ng < s.n * s.groups; ++ng) {
    std::vector<Welford> v(static_cast<std::size_t>(threads_of(n)), Welford{0, 0, 0});
    for (std::int64_t t = 0; t < threads_of(n); ++t)
      for (std::int64_t j = t; j < n; j += threads_of(n)) {
        Welford& own = v[static_cast<std::size_t>(t)];
        own = moments_step(own, X::get(p.x, ng * n + j));
      }
    const Welford all =
        block_reduce(v, Welford{0, 0, 0}, [](const Welford& a, const Welford& b) { return moments_merge(a, b); });
    const float rstd = libdevice::rsqrtf(all.m2 / all.count + eps);
    X::set(p.mean, ng, all.mean);
    X::set(p.rstd, ng, rstd);
    for (std::int64_t i = 0; i < n; ++i) {
      const std::int64_t c = ng % s.groups * d + i / s.places;
      const float x = X::get(p.x, ng * n + i), gamma = p.gamma ? X::get(p.gamma, c) : 1.0f,
                  beta = p.beta ? X::get(p.beta, c) : 0.0f;
      float y;
      if (!p.gamma && !p.beta)
        y = (x - all.mean) * rstd;
      else if (s.places == 1)
        y = !p.gamma  ? fma(x - all.mean, rstd, beta)
            : !p.beta ? ((x - all.mean) * rstd) * gamma
                      : fma((x - all.mean) * rstd, gamma, beta);
      else
        y = fma(p.gamma ? rstd * gamma : rstd, x, -((p.gamma ? rstd * gamma : rstd) * all.mean) + beta);
      X::set(p.y, ng * n + i, y);
    }
  }
}

template <class T>
void backward(const GroupBackward& p) {
  using X = Tensors<T>;
  const GroupShape& s = p.shape;
  const std::int64_t d = s.per_group();
  std::vector<float> ds(static_cast<std::size_t>(s.n * s.channels)), db(ds.size());
  for (std::int64_t nc = 0; nc < s.n * s.channels; ++nc) {  // ComputeInternalGradientsCUDAKernel
    std::vector<float> a(static_cast<std::size_t>(threads_of(s.places))), b(a.size());
    for (std::int64_t t = 0; t < threads_of(s.places); ++t)
      for (std::int64_t i = t; i < s.places; i += threads_of(s.places)) {
        const float dy = X::get(p.dy, nc * s.places + i), x = X::get(p.x, nc * s.places + i);
        a[static_cast<std::size_t>(t)] = fma(dy, x, a[static_cast<std::size_t>(t)]);
        b[static_cast<std::size_t>(t)] = b[static_cast<std::size_t>(t)] + dy;
      }
    ds[static_cast<std::size_t>(nc)] = sum_of(a);
    db[static_cast<std::size_t>(nc)] = sum_of(b);
  }
  const bool one = s.places == 1;
  for (std::int64_t ng = 0; ng < s.n * s.groups && p.dx; ++ng) {  // Compute[1d]BackwardFusedParamsCUDAKernel
    std::vector<float> a(static_cast<std::size_t>(threads_of(d))), b(a.size());
    for (std::int64_t t = 0; t < threads_of(d); ++t)
      for (std::int64_t i = t; i < d; i += threads_of(d)) {
        const std::int64_t index = ng * d + i;
        const float gamma = p.gamma ? X::get(p.gamma, ng % s.groups * d + i) : 1.0f;
        float &sum1 = a[static_cast<std::size_t>(t)], &sum2 = b[static_cast<std::size_t>(t)];
        // The kernel multiplies two elements in their own type.
        const float product = one ? widen(narrow<T>(X::get(p.dy, index) * X::get(p.x, index))) : 0.0f;
        sum1 = fma(one ? product : ds[static_cast<std::size_t>(index)], gamma, sum1);
        sum2 = fma(one ? X::get(p.dy, index) : db[static_cast<std::size_t>(index)], gamma, sum2);
      }
    const float sum1 = sum_of(a), sum2 = sum_of(b), mean = X::get(p.mean, ng), rstd = X::get(p.rstd, ng);
    const float scale = 1.0f / static_cast<float>(d * s.places);
    const float c2 = (((fma(sum2, mean, -sum1) * rstd) * rstd) * rstd) * scale;
    const float c3 = fma(-c2, mean, -((sum2 * rstd) * scale));
    for (std::int64_t i = 0; i < d * s.places; ++i) {
      const std::int64_t index = ng * d * s.places + i;
      const float c1 = p.gamma ? rstd * X::get(p.gamma, ng % s.groups * d + i / s.places) : rstd;
      X::set(p.dx, index, fma(c1, X::get(p.dy, index), c2 * X::get(p.x, index)) + c3);
    }
  }
  for (std::int64_t c = 0; c < s.channels; ++c) {  // GammaBeta[1d]BackwardCUDAKernel1, 2
    const std::int64_t rows = s.n <= 128 ? 1 : 32;
    std::vector<float> dg(static_cast<std::size_t>(rows)), dbeta(dg.size());
    for (std::int64_t n = 0; n < s.n; ++n) {
      const std::int64_t nc = n * s.channels + c, ng = n * s.groups + c / d;
      const float mean = X::get(p.mean, ng), rstd = X::get(p.rstd, ng);
      const float b = one ? X::get(p.dy, nc) : db[static_cast<std::size_t>(nc)];
      const float a = one ? fma(b, X::get(p.x, nc), -(b * mean)) : fma(-b, mean, ds[static_cast<std::size_t>(nc)]);
      const auto row = static_cast<std::size_t>(n % rows);
      dg[row] = fma(a, rstd, dg[row]);
      dbeta[row] = dbeta[row] + b;
    }
    if (p.dgamma) X::set(p.dgamma, c, rows == 1 ? dg[0] : sum_of(dg));
    if (p.dbeta) X::set(p.dbeta, c, rows == 1 ? dbeta[0] : sum_of(dbeta));
  }
}

}  // namespace

void group_forward(const GroupForward& p) {
  const DType t = p.shape.type;
  t == DType::kF32 ? forward<float>(p) : t == DType::kBF16 ? forward<Bf16>(p) : forward<F16>(p);
}
void group_backward(const GroupBackward& p) {
  const DType t = p.shape.type;
  t == DType::kF32 ? backward<float>(p) : t == DType::kBF16 ? backward<Bf16>(p) : backward<F16>(p);
}

}  // namespace step_oracle::norm::ref
