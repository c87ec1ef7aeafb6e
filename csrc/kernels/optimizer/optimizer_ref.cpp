// The definition: the kernels of torch 2.13.0, thread by thread.
#include <cmath>
#include <vector>

#include "csrc/kernels/arith/convert.h"
#include "csrc/kernels/core/bits.h"
#include "csrc/kernels/core/lanes.h"
#include "csrc/kernels/optimizer/optimizer_body.h"

namespace step_oracle::optimizer::ref {
namespace {

// One tensor's list entry: element i as float, rounded when it is put back.
struct View {
  void* data;
  DType type;
  std::uint16_t nan;
  float get(std::int64_t i) const {
    if (type == DType::kF32) return static_cast<const float*>(data)[i];
    return convert::from_bf16(static_cast<const std::uint16_t*>(data)[i]);
  }
  void put(std::int64_t i, float x) const {
    if (type == DType::kF32)
      static_cast<float*>(data)[i] = canonical(x);
    else
      static_cast<std::uint16_t*>(data)[i] = convert::to_bf16(x, nan);
  }
};

// Calls visit(element, slot) for every element of a tensor in the order of blocks, threads and turns: slot is the place
// among the four values that a thread holds.
template <class Visit>
void each_thread(std::int64_t n, bool vectorised, Visit visit) {
  for (std::int64_t chunk = 0; chunk < n; chunk += kChunk) {
    const std::int64_t left = std::min(n - chunk, kChunk);
    for (std::int64_t thread = 0; thread < kThreads; ++thread) {
      if (vectorised) {
        for (std::int64_t i = thread; i * kIlp < left; i += kThreads)
          for (int slot = 0; slot < kIlp; ++slot) visit(chunk + i * kIlp + slot, slot);
      } else {
        for (std::int64_t start = 0; start < left; start += kThreads * kIlp)
          for (int slot = 0; slot < kIlp; ++slot)
            if (const std::int64_t i = start + thread + slot * kThreads; i < left) visit(chunk + i, slot);
      }
    }
  }
}

}  // namespace

void adam(const AdamParams& a) {
  const AdamNumbers k = numbers_of(a);
  const View p{a.p, a.dtype, a.bf16_nan}, g{a.g, a.dtype, a.bf16_nan}, m{a.m, a.state_dtype, a.bf16_nan},
      v{a.v, a.state_dtype, a.bf16_nan}, top{a.max_v, a.state_dtype, a.bf16_nan};
  each_thread(a.n, a.vectorised, [&](std::int64_t i, int slot) {
    float w = p.get(i), d = g.get(i);
    if (a.grad_scale) {
      d = d / *a.grad_scale;
      g.put(i, d);
    }
    if (a.maximize) d = -d;
    if (k.weight_decay != 0.0f) {
      if (a.mode == WeightDecay::kDecoupled)
        w = fma(w, k.decay, w);
      else if (!a.grad_scale && !a.fuses_everywhere && !a.max_v && (a.maximize || slot == 0))
        d = d + w * k.weight_decay;
      else
        d = fma(w, k.weight_decay, d);
    }
    const float m1 = fma(k.beta1, m.get(i), fma(-k.beta1, d, d));
    const float v1 = fma(k.beta2, v.get(i), fma(-k.beta2, d * d, d * d));
    float largest = v1;
    if (a.max_v) {
      largest = top.get(i) < v1 ? v1 : top.get(i);
      top.put(i, largest);
    }
    const float denominator = std::sqrt(largest) / k.root2 + k.eps;
    p.put(i, w - k.step_size * m1 / denominator);
    m.put(i, m1);
    v.put(i, v1);
  });
}

void sgd(const SgdParams& a) {
  const SgdNumbers k = numbers_of(a);
  const View p{a.p, a.dtype, a.bf16_nan}, g{a.g, a.dtype, a.bf16_nan}, buf{a.buf, a.dtype, a.bf16_nan};
  for (std::int64_t i = 0; i < a.n; ++i) {
    float d = g.get(i);
    if (a.grad_scale) {
      d = d / *a.grad_scale;
      g.put(i, d);
    }
    if (a.maximize) d = -d;
    if (k.weight_decay != 0.0f) d = fma(p.get(i), k.weight_decay, d);
    if (a.buf) {
      const float b = a.first_step ? d : fma(d, 1.0f - static_cast<float>(a.dampening), k.momentum * buf.get(i));
      buf.put(i, b);
      d = a.nesterov ? fma(b, k.momentum, d) : b;
    }
    p.put(i, fma(d, -k.lr, p.get(i)));
  }
}

float norm(const NormParams& a, float* partials) {
  const View x{const_cast<void*>(a.x), a.dtype, 0x7fff};
  const auto take = [&](float acc, float v) {
    if (a.kind == NormKind::kL2) return fma(v, v, acc);
    if (a.kind == NormKind::kL1) return acc + std::fabs(v);
    return acc != acc || acc > std::fabs(v) ? acc : std::fabs(v);
  };
  const auto join = [&](float p, float q) { return a.kind == NormKind::kInf ? (p != p || p > q ? p : q) : p + q; };
  std::vector<float> parts(static_cast<std::size_t>(a.max_chunks), 0.0f);
  for (std::int64_t chunk = 0; chunk * kChunk < a.n; ++chunk) {
    const std::int64_t left = std::min(a.n - chunk * kChunk, kChunk), base = chunk * kChunk;
    float sums[kThreads];
    for (std::int64_t thread = 0; thread < kThreads; ++thread) {
      float acc[kIlp] = {};
      if (a.vectorised) {
        for (std::int64_t i = thread; i * kIlp < left; i += kThreads)
          for (int slot = 0; slot < kIlp; ++slot) acc[slot] = take(acc[slot], x.get(base + i * kIlp + slot));
      } else {
        for (std::int64_t start = 0; start < left; start += kThreads * kIlp)
          for (int slot = 0; slot < kIlp; ++slot)
            if (const std::int64_t i = start + thread + slot * kThreads; i < left)
              acc[slot] = take(acc[slot], x.get(base + i));
      }
      sums[thread] = join(join(join(join(0.0f, acc[0]), acc[1]), acc[2]), acc[3]);
    }
    parts[static_cast<std::size_t>(chunk)] = canonical(fold_block(sums, kThreads, 0.0f, join));
  }
  if (partials) std::copy(parts.begin(), parts.end(), partials);
  float sums[kThreads] = {};
  for (std::int64_t thread = 0; thread < kThreads; ++thread)
    for (std::int64_t i = thread; i < a.max_chunks; i += kThreads)
      sums[thread] = join(sums[thread], parts[static_cast<std::size_t>(i)]);
  const float sum = fold_block(sums, kThreads, 0.0f, join);
  return canonical(a.kind == NormKind::kL2 && !a.power_sum ? std::sqrt(sum) : sum);
}

}  // namespace step_oracle::optimizer::ref
