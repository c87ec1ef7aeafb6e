#include <algorithm>
#include <functional>
#include <vector>

#include "csrc/kernels/arith/typed_element.h"
#include "csrc/kernels/core/bits.h"
#include "csrc/kernels/gemm/plan.h"

namespace step_oracle::gemm::ref {
namespace {

struct Place {
  std::int64_t part, slice;
};

// Where position q of k goes. `rank` counts the positions walked before it within its part.
std::int64_t part_of(const Plan& plan, std::int64_t q, std::int64_t k) {
  if (plan.splits == 1) return 0;
  switch (plan.deal) {
    case Deal::kChunks:
      return q / plan.width;
    case Deal::kRoundRobin:
      return q / plan.width % plan.splits;
    case Deal::kBalanced: {
      const std::int64_t tiles = (k + plan.width - 1) / plan.width;
      std::int64_t tile = q / plan.width;
      for (std::int64_t part = 0;; ++part) {
        const std::int64_t mine = tiles / plan.splits + (part < tiles % plan.splits ? 1 : 0);
        if (tile < mine) return part;
        tile -= mine;
      }
    }
  }
  return 0;
}

// Positions of k in the order of the walk; dropped ones are missing.
std::vector<std::int64_t> walk(const Plan& plan, std::int64_t k) {
  std::vector<std::int64_t> order;
  const bool whole_only = plan.tail == Tail::kFirst || plan.tail == Tail::kDropped;
  const std::int64_t whole = whole_only ? k / plan.tail_width * plan.tail_width : k;
  if (plan.tail == Tail::kFirst)
    for (std::int64_t q = whole; q < k; ++q) order.push_back(q);
  for (std::int64_t q = 0; q < whole; ++q) order.push_back(q);
  return order;
}

// A position of a chain. Groups of the adder do not reach over a cut, nor over a jump of the walk.
struct Step {
  std::int64_t q;
  bool cut;
};
using Chain = std::vector<Step>;

// [part][slice]
std::vector<std::vector<Chain>> chains(const Plan& plan, std::int64_t k) {
  std::vector<std::vector<std::int64_t>> parts(static_cast<std::size_t>(plan.splits));
  for (std::int64_t q : walk(plan, k)) parts[static_cast<std::size_t>(part_of(plan, q, k))].push_back(q);
  std::vector<std::vector<Chain>> out;
  for (const auto& part : parts) {
    const auto n = static_cast<std::int64_t>(part.size());
    const std::int64_t head = plan.tail == Tail::kShortFirst ? n % plan.tail_width : 0;
    std::vector<Chain> slices(static_cast<std::size_t>(plan.slices));
    std::vector<std::int64_t> tile_of(slices.size(), -1);  // 0: the short one, 1: those behind it
    for (std::int64_t i = 0; i < n; ++i) {
      const std::int64_t rank = i < head ? i : i - head;
      const auto slice = static_cast<std::size_t>(plan.slices == 1 ? 0 : rank / plan.slice_width % plan.slices);
      const std::int64_t behind = i >= head;
      slices[slice].push_back({part[static_cast<std::size_t>(i)], tile_of[slice] != behind});
      tile_of[slice] = behind;
    }
    out.push_back(slices);
  }
  return out;
}

// A chain closed after every `block` positions, the totals added as they come.
template <class ChainValue>
float closed(const Plan& plan, const Chain& chain, ChainValue value) {
  if (plan.block == 0) return value(chain);
  float total = 0.0f;
  for (std::size_t i = 0; i == 0 || i < chain.size(); i += static_cast<std::size_t>(plan.block)) {
    const std::size_t end = std::min(chain.size(), i + static_cast<std::size_t>(plan.block));
    Chain part(chain.begin() + static_cast<std::ptrdiff_t>(i), chain.begin() + static_cast<std::ptrdiff_t>(end));
    if (!part.empty()) part[0].cut = true;
    total = i == 0 ? value(part) : total + value(part);
  }
  return total;
}

float combined(const Plan& plan, std::vector<float> s) {
  for (bool first = true; s.size() > 1; first = false) {
    const std::size_t half = s.size() / 2;
    const bool neighbours = plan.combine == Combine::kAdjacent || (plan.combine == Combine::kPairs && first);
    std::vector<float> next;
    if (plan.combine == Combine::kInOrder) {
      next.push_back(s[0] + s[1]);
      next.insert(next.end(), s.begin() + 2, s.end());
    } else {
      for (std::size_t i = 0; i < half; ++i) next.push_back(neighbours ? s[2 * i] + s[2 * i + 1] : s[i] + s[i + half]);
    }
    s = next;
  }
  return s[0];
}

// reduce_1Block_kernel<float, 128, 7>, thread by thread.
float one_block(const std::vector<float>& parts) {
  float q[128] = {}, u[4];
  for (std::size_t i = 0; i < parts.size(); ++i) q[i % 128] = i < 128 ? parts[i] : q[i % 128] + parts[i];
  for (int t = 0; t < 64; ++t) q[t] = q[t] + q[t + 64];
  for (int t = 0; t < 32; ++t) q[t] = q[t] + q[t + 32];
  for (int j = 0; j < 4; ++j) {
    u[j] = q[j];
    for (int i = 1; i < 8; ++i) u[j] = u[j] + q[4 * i + j];
  }
  return ((u[0] + u[1]) + u[2]) + u[3];
}

float summed(SumOrder order, std::vector<float> parts) {
  if (order == SumOrder::kOneBlock) return one_block(parts);
  if (order == SumOrder::kDescending) std::reverse(parts.begin(), parts.end());
  if (order != SumOrder::kPairwise) {
    float total = parts[0];
    for (std::size_t i = 1; i < parts.size(); ++i) total = total + parts[i];
    return total;
  }
  while (parts.size() > 1) {
    std::vector<float> next;
    for (std::size_t i = 0; i + 1 < parts.size(); i += 2) next.push_back(parts[i] + parts[i + 1]);
    if (parts.size() % 2) next.push_back(parts.back());
    parts = next;
  }
  return parts[0];
}

struct Finish {
  float alpha, beta;
  const float* c;                       // null: beta is 0
  const float* bias;                    // null: none
  std::function<float(float)> rounded;  // to D's type and back
};

float finished(const Plan& plan, std::vector<std::vector<float>> slices, const Finish& f) {
  if (f.bias && plan.bias == BiasPlace::kSliceZero) slices[0][0] = slices[0][0] + *f.bias;
  std::vector<float> parts;
  for (auto& s : slices) parts.push_back(combined(plan, s));
  const bool first = f.bias && plan.bias == BiasPlace::kFirst, last = f.bias && plan.bias == BiasPlace::kLast;
  if (plan.reduction == Reduction::kInPlace && parts.size() > 1) {
    float d = 0;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const float source = i > 0 ? d : f.c ? f.beta * *f.c : first ? *f.bias : 0.0f;
      d = f.rounded(i > 0 || f.c || first ? fma(f.alpha, parts[i], source) : f.alpha * parts[i]);
    }
    return last ? d + *f.bias : d;
  }
  if (plan.reduction == Reduction::kOutputType && parts.size() > 1)
    for (float& p : parts) p = f.rounded(p);
  if (first) parts.insert(parts.begin(), *f.bias);
  const float total = summed(plan.order, parts);
  if (last) return fma(f.alpha, total, *f.bias);
  return f.c ? fma(f.alpha, total, f.beta * *f.c) : f.alpha * total;
}

template <class ChainValue>
float output(const Plan& plan, std::int64_t k, const Finish& f, ChainValue value) {
  std::vector<std::vector<float>> slices;
  for (const auto& part : chains(plan, k)) {
    slices.emplace_back();
    for (const Chain& chain : part) slices.back().push_back(closed(plan, chain, value));
  }
  return finished(plan, slices, f);
}

// Groups of the adder: the chain's positions cut where they are not neighbours, then into groups.
template <class Format>
float tensor_chain(const TensorCoreParams& p, const Chain& chain, std::int64_t a_start, std::int64_t b_start,
                   int group) {
  using Storage = typename Format::Storage;
  const Storage* a = static_cast<const Storage*>(p.a) + a_start;
  const Storage* b = static_cast<const Storage*>(p.b) + b_start;
  const Adder adder = adder_of(p.adder, p.factors);
  const std::size_t most = static_cast<std::size_t>(group ? group : adder.terms);
  float acc = 0.0f;
  for (std::size_t i = 0; i < chain.size();) {
    std::vector<Storage> x, y;
    do {
      x.push_back(a[chain[i].q * p.a_strides.col]);
      y.push_back(b[chain[i].q * p.b_strides.row]);
      ++i;
    } while (i < chain.size() && x.size() < most && !chain[i].cut && chain[i].q == chain[i - 1].q + 1);
    acc = dot_add<Format>(x.data(), 1, y.data(), 1, static_cast<int>(x.size()), acc, adder);
  }
  return acc;
}

// The same on the CUDA cores: widened, and an fma each.
float widened_chain(const TensorCoreParams& p, const Chain& chain, std::int64_t a_start, std::int64_t b_start) {
  float acc = 0.0f;
  for (const Step& s : chain)
    acc = fma(typed::load(p.factors, p.a, a_start + s.q * p.a_strides.col),
              typed::load(p.factors, p.b, b_start + s.q * p.b_strides.row), acc);
  return acc;
}

}  // namespace

void run(const Params& p, const Plan& plan) {
  std::vector<float> out;
  const Epilogue& e = p.epilogue;
  for (std::int64_t z = 0; z < p.batch; ++z)
    for (std::int64_t i = 0; i < p.m; ++i)
      for (std::int64_t j = 0; j < p.n; ++j) {
        const float* c = e.beta != 0.0f ? e.c.data + z * e.c.batch + i * e.c.row + j * e.c.col : nullptr;
        const Finish f{e.alpha, e.beta, c, e.bias ? e.bias + j : nullptr, [](float x) { return x; }};
        out.push_back(canonical(output(plan, p.k, f, [&](const Chain& chain) {
          float acc = 0.0f;
          for (const Step& s : chain)
            acc = fma(p.a.data[z * p.a.batch + i * p.a.row + s.q * p.a.col],
                      p.b.data[z * p.b.batch + s.q * p.b.row + j * p.b.col], acc);
          return acc;
        })));
      }
  const float* next = out.data();
  for (std::int64_t z = 0; z < p.batch; ++z)
    for (std::int64_t i = 0; i < p.m; ++i)
      for (std::int64_t j = 0; j < p.n; ++j) p.d.data[z * p.d.batch + i * p.d.row + j * p.d.col] = *next++;
}

void run(const TensorCoreParams& p, const Plan& plan) {
  const auto rounded = [&](float x) { return typed::rounded(p.results, x); };
  std::vector<float> out;
  for (std::int64_t z = 0; z < p.batch; ++z)
    for (std::int64_t i = 0; i < p.m; ++i)
      for (std::int64_t j = 0; j < p.n; ++j) {
        const std::int64_t c_at = z * p.c_strides.batch + i * p.c_strides.row + j * p.c_strides.col;
        const float c = p.beta != 0.0f ? typed::load(p.results, p.c, c_at) : 0;
        const float bias = p.bias ? typed::load(p.results, p.bias, j) : 0;
        const Finish f{p.alpha, p.beta, p.beta != 0.0f ? &c : nullptr, p.bias ? &bias : nullptr, rounded};
        const std::int64_t a = z * p.a_strides.batch + i * p.a_strides.row;
        const std::int64_t b = z * p.b_strides.batch + j * p.b_strides.col;
        out.push_back(output(plan, p.k, f, [&](const Chain& chain) {
          if (plan.unit == Unit::kChain || p.adder == AdderClass::kFmaChain) return widened_chain(p, chain, a, b);
          return p.factors == DType::kBF16  ? tensor_chain<Bf16Format>(p, chain, a, b, plan.group)
                 : p.factors == DType::kF16 ? tensor_chain<Fp16Format>(p, chain, a, b, plan.group)
                 : p.rounds_tf32            ? tensor_chain<Tf32RoundedFormat>(p, chain, a, b, plan.group)
                                            : tensor_chain<Tf32Format>(p, chain, a, b, plan.group);
        }));
      }
  const float* next = out.data();
  for (std::int64_t z = 0; z < p.batch; ++z)
    for (std::int64_t i = 0; i < p.m; ++i)
      for (std::int64_t j = 0; j < p.n; ++j) {
        const std::int64_t at = z * p.d_strides.batch + i * p.d_strides.row + j * p.d_strides.col;
        typed::store(p.results, p.d, at, canonical(*next++));
      }
}

}  // namespace step_oracle::gemm::ref
