#include "csrc/kernels/gemm/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "csrc/kernels/arith/convert.h"
#include "csrc/kernels/core/bits.h"
#include "csrc/kernels/core/error.h"
#include "csrc/kernels/core/parallel.h"

namespace step_oracle::gemm {
namespace {

[[noreturn]] void bad(std::string message) { throw Error(ErrorKind::kBadInput, "plan: " + std::move(message)); }

// A run of neighbouring positions of k; a chain is a list of them.
struct Segment {
  std::int64_t begin, end;
};
using Chain = std::vector<Segment>;

// `anew`: even where it continues the last run, a group of the adder starts with it.
void append(Chain& chain, std::int64_t begin, std::int64_t end, bool anew = false) {
  if (begin >= end) return;
  if (!anew && !chain.empty() && chain.back().end == begin)
    chain.back().end = end;
  else
    chain.push_back({begin, end});
}

std::int64_t length(const Chain& chain) {
  std::int64_t n = 0;
  for (const Segment& s : chain) n += s.end - s.begin;
  return n;
}

// The positions [from, to) of a chain, counted along it.
Chain piece(const Chain& chain, std::int64_t from, std::int64_t to) {
  Chain out;
  std::int64_t at = 0;
  for (const Segment& s : chain) {
    const std::int64_t begin = std::max(from, at), end = std::min(to, at + s.end - s.begin);
    append(out, s.begin + begin - at, s.begin + end - at, true);
    at += s.end - s.begin;
  }
  return out;
}

// The part of each run of k before tails and slices: what belongs to `part`, ascending.
Chain part_runs(const Plan& plan, int part, std::int64_t k) {
  Chain out;
  const std::int64_t w = plan.width, tiles = plan.splits == 1 ? 0 : (k + w - 1) / w;
  if (plan.splits == 1) {
    append(out, 0, k);
  } else if (plan.deal == Deal::kChunks) {
    append(out, part * w, std::min(k, (part + 1) * w));
  } else if (plan.deal == Deal::kRoundRobin) {
    for (std::int64_t t = part; t < tiles; t += plan.splits) append(out, t * w, std::min(k, (t + 1) * w));
  } else {
    const std::int64_t least = tiles / plan.splits, more = tiles % plan.splits;
    const std::int64_t first = part * least + std::min<std::int64_t>(part, more);
    append(out, first * w, std::min(k, (first + least + (part < more ? 1 : 0)) * w));
  }
  return out;
}

// The same with the tail moved to the front or left out.
Chain with_tail(const Plan& plan, const Chain& runs, std::int64_t k) {
  if (plan.tail == Tail::kLast || plan.tail == Tail::kShortFirst) return runs;
  const std::int64_t whole = k / plan.tail_width * plan.tail_width;
  Chain out;
  if (plan.tail == Tail::kFirst)
    for (const Segment& s : runs) append(out, std::max(s.begin, whole), s.end);
  for (const Segment& s : runs) append(out, s.begin, std::min(s.end, whole));
  return out;
}

// Deals a run of tiles to the slices, the first tile to slice 0.
void deal_to_slices(const Plan& plan, const Chain& runs, std::vector<Chain>& slices) {
  std::int64_t at = 0;
  std::vector<bool> begun(slices.size());
  for (const Segment& s : runs)
    for (std::int64_t q = s.begin; q < s.end;) {
      const std::int64_t step = std::min(s.end - q, plan.slice_width - at % plan.slice_width);
      const auto slice = static_cast<std::size_t>(at / plan.slice_width % plan.slices);
      append(slices[slice], q, q + step, !begun[slice]);
      begun[slice] = true;
      q += step, at += step;
    }
}

std::vector<Chain> sliced(const Plan& plan, const Chain& runs) {
  const std::int64_t n = length(runs), head = plan.tail == Tail::kShortFirst ? n % plan.tail_width : 0;
  if (plan.slices == 1 && head == 0) return {runs};
  std::vector<Chain> out(static_cast<std::size_t>(plan.slices));
  if (plan.slices == 1) {
    out[0] = piece(runs, 0, head);
    for (const Segment& s : piece(runs, head, n)) append(out[0], s.begin, s.end, true);
    return out;
  }
  // A short tile counts as a whole one: slice 0 begins again behind it.
  if (head) deal_to_slices(plan, piece(runs, 0, head), out);
  deal_to_slices(plan, piece(runs, head, n), out);
  return out;
}

// Where each position of a chain comes from, with -1 for a zero that fills a group up.
std::vector<std::int64_t> positions(const Chain& chain, int group, int terms) {
  std::vector<std::int64_t> out;
  for (const Segment& s : chain)
    for (std::int64_t q = s.begin; q < s.end; ++q) {
      const std::int64_t at = q - s.begin;
      if (terms && at % group == 0)
        while (out.size() % static_cast<std::size_t>(terms)) out.push_back(-1);
      out.push_back(q);
    }
  return out;
}

template <class T>
std::vector<T> gathered(const T* from, std::int64_t lines, std::int64_t line_step, std::int64_t k_step,
                        std::int64_t batch, std::int64_t batch_step, const std::vector<std::int64_t>& at) {
  const auto depth = static_cast<std::int64_t>(at.size());
  std::vector<T> out(static_cast<std::size_t>(batch * lines * depth));
  parallel_for(
      batch * lines, (1 << 14) / std::max<std::int64_t>(1, depth) + 1, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t line = begin; line < end; ++line) {
          const T* source = from + line / lines * batch_step + line % lines * line_step;
          T* to = out.data() + line * depth;
          for (std::int64_t q = 0; q < depth; ++q)
            to[q] = at[static_cast<std::size_t>(q)] < 0 ? T{0} : source[at[static_cast<std::size_t>(q)] * k_step];
        }
      });
  return out;
}

using Buffer = std::vector<float>;

Buffer chain_values(const Params& p, const Chain& chain, const Plan&) {
  Buffer out(static_cast<std::size_t>(p.batch * p.m * p.n));
  Params q = p;
  q.epilogue = {};
  q.d = {out.data(), p.n, 1, p.m * p.n};
  std::vector<float> a, b;
  if (chain.size() <= 1) {
    const Segment s = chain.empty() ? Segment{0, 0} : chain[0];
    q.k = s.end - s.begin;
    q.a.data += s.begin * p.a.col, q.b.data += s.begin * p.b.row;
  } else {
    const auto at = positions(chain, 1, 0);
    q.k = static_cast<std::int64_t>(at.size());
    a = gathered(p.a.data, p.m, p.a.row, p.a.col, p.batch, p.a.batch, at);
    b = gathered(p.b.data, p.n, p.b.col, p.b.row, p.batch, p.b.batch, at);
    q.a = {a.data(), q.k, 1, p.m * q.k}, q.b = {b.data(), 1, q.k, p.n * q.k};
  }
  fp32_chain(q);
  return out;
}

template <class Storage>
Buffer chain_values_of(const TensorCoreParams& p, const Chain& chain, const Plan& plan) {
  const int group = plan.group;
  Buffer out(static_cast<std::size_t>(p.batch * p.m * p.n));
  TensorCoreParams q = p;
  if (plan.unit == Unit::kChain) q.adder = AdderClass::kFmaChain;
  q.alpha = 1.0f, q.beta = 0.0f, q.bias = nullptr;
  q.results = DType::kF32, q.d = out.data(), q.d_strides = {p.n, 1, p.m * p.n};
  const int terms = terms_of(q.adder, p.factors);
  const auto* from_a = static_cast<const Storage*>(p.a);
  const auto* from_b = static_cast<const Storage*>(p.b);
  std::vector<Storage> a, b;
  if (chain.size() <= 1 && (group == 0 || group == terms)) {
    const Segment s = chain.empty() ? Segment{0, 0} : chain[0];
    q.k = s.end - s.begin;
    q.a = from_a + s.begin * p.a_strides.col, q.b = from_b + s.begin * p.b_strides.row;
  } else {
    const auto at = positions(chain, group ? group : terms, terms);
    q.k = static_cast<std::int64_t>(at.size());
    a = gathered(from_a, p.m, p.a_strides.row, p.a_strides.col, p.batch, p.a_strides.batch, at);
    b = gathered(from_b, p.n, p.b_strides.col, p.b_strides.row, p.batch, p.b_strides.batch, at);
    q.a = a.data(), q.a_strides = {q.k, 1, p.m * q.k};
    q.b = b.data(), q.b_strides = {1, q.k, p.n * q.k};
  }
  tensor_core(q);
  return out;
}
Buffer chain_values(const TensorCoreParams& p, const Chain& chain, const Plan& plan) {
  return p.factors == DType::kF32 ? chain_values_of<std::uint32_t>(p, chain, plan)
                                  : chain_values_of<std::uint16_t>(p, chain, plan);
}

template <class Fn>
void each(std::size_t n, Fn fn) {
  parallel_for(static_cast<std::int64_t>(n), 1 << 14, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) fn(static_cast<std::size_t>(i));
  });
}

void add_to(Buffer& total, const Buffer& more) {
  each(total.size(), [&](std::size_t i) { total[i] = total[i] + more[i]; });
}

// The value of a slice: its chain, closed after every `block` positions.
template <class P>
Buffer slice_values(const P& p, const Chain& chain, const Plan& plan) {
  const std::int64_t n = length(chain);
  if (plan.block == 0 || n <= plan.block) return chain_values(p, chain, plan);
  Buffer total = chain_values(p, piece(chain, 0, plan.block), plan);
  for (std::int64_t at = plan.block; at < n; at += plan.block)
    add_to(total, chain_values(p, piece(chain, at, std::min(n, at + plan.block)), plan));
  return total;
}

// s[0] becomes the combination of all.
Buffer combined(Combine how, std::vector<Buffer> s) {
  if (how == Combine::kPairs && s.size() > 1) {
    std::vector<Buffer> pairs;
    for (std::size_t i = 0; i + 1 < s.size(); i += 2) {
      add_to(s[i], s[i + 1]);
      pairs.push_back(std::move(s[i]));
    }
    s = std::move(pairs);
  }
  if (how == Combine::kInOrder)
    for (std::size_t i = 1; i < s.size(); ++i) add_to(s[0], s[i]);
  else if (how == Combine::kAdjacent)
    for (std::size_t step = 1; step < s.size(); step *= 2)
      for (std::size_t i = 0; i + step < s.size(); i += 2 * step) add_to(s[i], s[i + step]);
  else
    for (std::size_t half = s.size() / 2; half; half /= 2)
      for (std::size_t i = 0; i < half; ++i) add_to(s[i], s[i + half]);
  return std::move(s[0]);
}

// What the two classes' parameters have in common, as functions of the index of an output.
struct Outputs {
  std::int64_t m, n;
  float alpha, beta;
  DType type;
  const void* c;
  const void* bias;
  Strides c_strides;

  float read(const void* from, std::int64_t at) const {
    if (type == DType::kF32) return static_cast<const float*>(from)[at];
    const std::uint16_t h = static_cast<const std::uint16_t*>(from)[at];
    return type == DType::kBF16 ? convert::from_bf16(h) : convert::from_fp16(h);
  }
  std::int64_t place(std::size_t index, const Strides& s) const {
    const auto i = static_cast<std::int64_t>(index);
    return i / (m * n) * s.batch + i / n % m * s.row + i % n * s.col;
  }
  float c_at(std::size_t i) const { return beta * read(c, place(i, c_strides)); }
  float bias_at(std::size_t i) const { return read(bias, static_cast<std::int64_t>(i) % n); }
  float rounded(float x) const {
    return type == DType::kF32    ? x
           : type == DType::kBF16 ? convert::from_bf16(convert::to_bf16(x))
                                  : convert::from_fp16(convert::to_fp16(x));
  }
};

Outputs outputs_of(const Params& p) {
  const Epilogue& e = p.epilogue;
  return {p.m, p.n, e.alpha, e.beta, DType::kF32, e.c.data, e.bias, {e.c.row, e.c.col, e.c.batch}};
}
Outputs outputs_of(const TensorCoreParams& p) {
  return {p.m, p.n, p.alpha, p.beta, p.results, p.c, p.bias, p.c_strides};
}

// Adds the parts up as they come; `pairwise` keeps them all.
class Sum {
 public:
  Sum(const Plan& plan, const Outputs& out) : plan_(plan), out_(out) {}

  void add(Buffer part) {
    const bool in_place = plan_.reduction == Reduction::kInPlace && plan_.splits > 1;
    const bool bias_first = out_.bias && plan_.bias == BiasPlace::kFirst;
    if (plan_.reduction == Reduction::kOutputType && plan_.splits > 1)
      each(part.size(), [&](std::size_t i) { part[i] = out_.rounded(part[i]); });
    if (in_place) {
      each(part.size(), [&](std::size_t i) {
        const float source = !total_.empty()     ? total_[i]
                             : out_.beta != 0.0f ? out_.c_at(i)
                             : bias_first        ? out_.bias_at(i)
                                                 : 0.0f;
        const bool add = !total_.empty() || out_.beta != 0.0f || bias_first;
        part[i] = out_.rounded(add ? fma(out_.alpha, part[i], source) : out_.alpha * part[i]);
      });
      total_ = std::move(part);
    } else if (plan_.order == SumOrder::kPairwise || plan_.order == SumOrder::kOneBlock) {
      parts_.push_back(std::move(part));
    } else if (total_.empty()) {
      if (bias_first) each(part.size(), [&](std::size_t i) { part[i] = out_.bias_at(i) + part[i]; });
      total_ = std::move(part);
    } else {
      add_to(total_, part);
    }
  }

  // Before the last rounding to D's type.
  Buffer finish() {
    if (plan_.order == SumOrder::kOneBlock) parts_ = one_block(std::move(parts_));
    while (parts_.size() > 1) {
      std::vector<Buffer> next;
      for (std::size_t i = 0; i + 1 < parts_.size(); i += 2) {
        add_to(parts_[i], parts_[i + 1]);
        next.push_back(std::move(parts_[i]));
      }
      if (parts_.size() % 2) next.push_back(std::move(parts_.back()));
      parts_ = std::move(next);
    }
    if (!parts_.empty()) total_ = std::move(parts_[0]);
    const bool scaled = plan_.reduction == Reduction::kInPlace && plan_.splits > 1;
    const bool last = out_.bias && plan_.bias == BiasPlace::kLast;
    each(total_.size(), [&](std::size_t i) {
      float& x = total_[i];
      if (scaled)
        x = last ? x + out_.bias_at(i) : x;
      else if (last)
        x = fma(out_.alpha, x, out_.bias_at(i));
      else if (out_.beta != 0.0f)
        x = fma(out_.alpha, x, out_.c_at(i));
      else
        x = out_.alpha * x;
    });
    return std::move(total_);
  }

 private:
  // Lane t adds up parts t, t + 128, ..; lanes fold at 64 and at 32; four sums take every fourth of 32 lanes. What is
  // absent is +0, and x + 0 is not x where x is -0.
  static std::vector<Buffer> one_block(std::vector<Buffer> parts) {
    constexpr std::size_t kLanes = 128, kSums = 4;
    const auto add = [](Buffer& x, Buffer y) {
      if (x.empty()) std::swap(x, y);
      if (x.empty()) return;
      if (y.empty()) y.assign(x.size(), 0.0f);
      add_to(x, y);
    };
    std::vector<Buffer> lanes(kLanes);
    for (std::size_t i = 0; i < parts.size(); ++i) {
      if (i < kLanes)
        lanes[i] = std::move(parts[i]);
      else
        add_to(lanes[i % kLanes], parts[i]);
    }
    for (std::size_t half = kLanes / 2; half >= 32; half /= 2)
      for (std::size_t t = 0; t < half; ++t) add(lanes[t], std::move(lanes[t + half]));
    for (std::size_t t = kSums; t < 32; ++t) add(lanes[t % kSums], std::move(lanes[t]));
    for (std::size_t j = 1; j < kSums; ++j) add(lanes[0], std::move(lanes[j]));
    lanes.resize(1);
    return lanes;
  }

  const Plan& plan_;
  const Outputs& out_;
  Buffer total_;
  std::vector<Buffer> parts_;
};

void store(const Params& p, const Outputs& out, const Buffer& x) {
  each(x.size(), [&](std::size_t i) { p.d.data[out.place(i, {p.d.row, p.d.col, p.d.batch})] = canonical(x[i]); });
}
void store(const TensorCoreParams& p, const Outputs& out, const Buffer& x) {
  each(x.size(), [&](std::size_t i) {
    const std::int64_t at = out.place(i, p.d_strides);
    if (p.results == DType::kF32)
      static_cast<float*>(p.d)[at] = canonical(x[i]);
    else
      static_cast<std::uint16_t*>(p.d)[at] =
          p.results == DType::kBF16 ? convert::to_bf16(x[i]) : convert::to_fp16(x[i]);
  });
}

template <class AnyParams>
void run_any(const AnyParams& p, const Plan& plan) {
  const Outputs out = outputs_of(p);
  check(plan);
  if (out.bias && out.beta != 0.0f) bad(fmt::format("a bias and beta {} at once; give one of them", out.beta));
  if (out.bias && plan.bias != BiasPlace::kLast && out.alpha != 1.0f)
    throw Error(ErrorKind::kUnsupported,
                fmt::format("plan: a bias inside the sum with alpha {} is not modelled; give alpha 1", out.alpha));
  if (plan.splits > 1 && plan.deal == Deal::kChunks && plan.width * plan.splits < walked(plan, p.k))
    bad(fmt::format("{} chunks of {} do not cover k = {}", plan.splits, plan.width, p.k));
  if (p.m <= 0 || p.n <= 0 || p.batch <= 0) return;
  Sum sum(plan, out);
  for (int i = 0; i < plan.splits; ++i) {
    const int part = plan.order == SumOrder::kDescending ? plan.splits - 1 - i : i;
    std::vector<Buffer> slices;
    for (const Chain& chain : sliced(plan, with_tail(plan, part_runs(plan, part, p.k), p.k)))
      slices.push_back(slice_values(p, chain, plan));
    if (out.bias && plan.bias == BiasPlace::kSliceZero && part == 0)
      each(slices[0].size(), [&](std::size_t j) { slices[0][j] = slices[0][j] + out.bias_at(j); });
    sum.add(combined(plan.combine, std::move(slices)));
  }
  store(p, out, sum.finish());
}

}  // namespace

void check(const Plan& p) {
  constexpr int kMostSplits = 1024;
  if (p.splits < 1 || p.splits > kMostSplits) bad(fmt::format("splits is {}; give 1 to {}", p.splits, kMostSplits));
  if (p.splits > 1 && p.width < 1)
    bad(fmt::format("width is {} with {} splits; give the width of a chunk or tile", p.width, p.splits));
  constexpr int kMostSlices = 256;  // dot_kernel: 128 threads of two accumulators
  if (p.slices < 1 || p.slices > kMostSlices || (p.slices & (p.slices - 1)))
    bad(fmt::format("slices is {}; give a power of two up to {}", p.slices, kMostSlices));
  if (p.block < 0) bad(fmt::format("block is {}; give 1 or more, or 0 for chains that are not closed", p.block));
  if (p.slices > 1 && p.slice_width < 1)
    bad(fmt::format("slice_width is {} with {} slices; give 1 or more", p.slice_width, p.slices));
  if (p.tail != Tail::kLast && p.tail_width < 1)
    bad(fmt::format("tail_width is {}; give the width of a whole tile", p.tail_width));
  if (p.group != 0 && p.group != 4 && p.group != 8 && p.group != 16)
    bad(fmt::format("group is {}; give 4, 8, 16, or 0 for the adder's own", p.group));
  if (p.reduction == Reduction::kInPlace && p.order != SumOrder::kAscending)
    bad("an in-place reduction adds in ascending order only");
  if (p.bias == BiasPlace::kFirst && p.order != SumOrder::kAscending)
    bad("a sum that starts from the bias is ascending");
  if (p.unit == Unit::kChain && p.group) bad("group is a tensor core's, and unit chain is none");
}

void check(const Plan& p, std::int64_t k) {
  check(p);
  const std::int64_t n = walked(p, k);
  if (p.splits > 1 && p.deal == Deal::kChunks && (p.width * p.splits < n || p.width * (p.splits - 1) >= n))
    bad(fmt::format("{} chunks of {} do not fit k = {}", p.splits, p.width, k));
}

void run(const Params& p, const Plan& plan) {
  if (plan == Plan{}) return fp32_chain(p);
  run_any(p, plan);
}

void run(const TensorCoreParams& p, const Plan& plan) {
  if (plan == Plan{}) return tensor_core(p);
  if (plan.group > terms_of(p.adder, p.factors))
    bad(fmt::format("group is {}, more than the {} products that are added at once", plan.group,
                    terms_of(p.adder, p.factors)));
  run_any(p, plan);
}

}  // namespace step_oracle::gemm
