#include "tests/plan/slow_forms.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace step_oracle::slow {
namespace {

using gemm::BiasPlace;
using gemm::Combine;
using gemm::Deal;
using gemm::Plan;
using gemm::Reduction;
using gemm::SumOrder;
using gemm::Tail;
using gemm::Unit;

bool narrow(Kind kind) { return kind != Kind::kFloat32; }
bool on_tensor_cores(Kind kind) { return narrow(kind) && kind != Kind::kBf16Chain; }

int exponent_of(double x) { return x == 0.0 ? -1000 : std::ilogb(x); }

// Nearest even to 8 (bfloat16) or 11 (float16, not below 2^-24) significant digits; the data keep clear of the large end.
float to_kind(Kind kind, float x) {
  if (!narrow(kind) || x == 0.0f) return x;
  const bool half = kind == Kind::kFp16Turing;
  const int last = half ? std::max(exponent_of(x) - 10, -24) : exponent_of(x) - 7;
  return static_cast<float>(std::ldexp(std::nearbyint(std::ldexp(static_cast<double>(x), -last)), last));
}

// Of a value that to_kind has rounded.
std::uint16_t fp16_bits(float x) {
  const std::uint16_t sign = std::signbit(x) ? 0x8000 : 0;
  const int exponent = std::max(exponent_of(x), -14);
  const auto digits = static_cast<int>(std::ldexp(std::fabs(x), 10 - exponent));  // 1024.. where normal
  return static_cast<std::uint16_t>(sign | (digits + ((exponent + 14) << 10)));
}

// Products and the accumulator, cut below 2^(largest exponent - fraction bits), added, cut to float32. Every value here
// has fewer than 53 digits, so that double is exact.
float tensor_core_step(Kind kind, const std::vector<std::pair<float, float>>& products, float acc) {
  const int fraction = kind == Kind::kBf16Hopper ? 25 : 24;
  int largest = acc == 0.0f ? -132 : exponent_of(acc);
  for (auto [x, y] : products)
    if (x != 0.0f && y != 0.0f) largest = std::max(largest, exponent_of(x) + exponent_of(y));
  const double unit = std::ldexp(1.0, largest - fraction);
  double sum = std::trunc(static_cast<double>(acc) / unit);
  for (auto [x, y] : products) sum += std::trunc(static_cast<double>(x) * y / unit);
  if (sum == 0.0) return 0.0f;
  const double value = sum * unit, last = std::ldexp(1.0, exponent_of(value) - 23);
  return static_cast<float>(std::trunc(value / last) * last);
}

// One accumulator that positions of k are added to.
class Acc {
 public:
  Acc(const Problem& p, std::int64_t i, std::int64_t j, int group = 0, bool chain = false)
      : p_(p), i_(i), j_(j), chain_(chain || !on_tensor_cores(p.kind)), group_(group) {
    if (!group_) group_ = p.kind == Kind::kBf16Hopper ? 16 : 8;
  }
  void take(std::int64_t q) {
    const float x = p_.a[static_cast<std::size_t>(i_ * p_.k + q)], y = p_.b[static_cast<std::size_t>(q * p_.n + j_)];
    if (chain_) {
      value_ = std::fma(x, y, value_);
      return;
    }
    waiting_.emplace_back(x, y);
    if (static_cast<int>(waiting_.size()) == group_) cut();
  }
  Acc& take(std::int64_t from, std::int64_t to) {
    for (std::int64_t q = from; q < to; ++q) take(q);
    return *this;
  }
  // The tensor core adds what is waiting.
  void cut() {
    if (!waiting_.empty()) value_ = tensor_core_step(p_.kind, waiting_, value_);
    waiting_.clear();
  }
  float value() {
    cut();
    return value_;
  }

 private:
  const Problem& p_;
  std::int64_t i_, j_;
  bool chain_;
  int group_;
  float value_ = 0.0f;
  std::vector<std::pair<float, float>> waiting_;
};

float bias_at(const Problem& p, std::int64_t j) { return p.bias.empty() ? 0.0f : p.bias[static_cast<std::size_t>(j)]; }
float with_bias(const Problem& p, std::int64_t j, float x) { return p.bias.empty() ? x : x + bias_at(p, j); }

// What a split-K kernel does with its partial sums.
float reduced(const Problem& p, const std::vector<float>& parts, Reduction how, float start, bool starts) {
  const auto to_d = [&](float x) { return p.wide ? x : to_kind(p.kind, x); };
  float total = start;
  for (std::size_t s = 0; s < parts.size(); ++s) {
    const float part = how == Reduction::kOutputType ? to_d(parts[s]) : parts[s];
    total = s == 0 && !starts ? part : total + part;
    if (how == Reduction::kInPlace) total = to_d(total);
  }
  return total;
}

template <class T>
T pick(std::mt19937& gen, std::initializer_list<T> from) {
  return from.begin()[gen() % from.size()];
}

Reduction draw_reduction(std::mt19937& gen, const Problem& p) {
  if (!narrow(p.kind) || p.wide) return Reduction::kComputeType;
  return pick(gen, {Reduction::kComputeType, Reduction::kInPlace, Reduction::kOutputType});
}

std::int64_t round_up(std::int64_t x, std::int64_t to) { return (x + to - 1) / to * to; }

// Splits that leave no part empty.
int draw_splits(std::mt19937& gen, std::int64_t k, std::int64_t rounding, std::initializer_list<int> from) {
  for (;;) {
    const int s = pick(gen, from);
    if (round_up((k + s - 1) / s, rounding) * (s - 1) < k) return s;
  }
}

Case single_pass(std::mt19937&, Problem&) {
  return {{}, [](const Problem& p, std::int64_t i, std::int64_t j) {
            return with_bias(p, j, Acc(p, i, j).take(0, p.k).value());
          }};
}

Case split_chunks(std::mt19937& gen, Problem& problem) {
  const std::int64_t rounding = pick(gen, {4, 8, 16, 32, 64});
  const int splits = draw_splits(gen, problem.k, rounding, {2, 3, 4, 5, 6, 8});
  const std::int64_t width = round_up((problem.k + splits - 1) / splits, rounding);
  const Reduction how = draw_reduction(gen, problem);
  const bool first = !problem.bias.empty() && gen() % 2;
  Plan plan;
  plan.splits = splits, plan.width = width, plan.reduction = how;
  plan.bias = first ? BiasPlace::kFirst : BiasPlace::kLast;
  return {plan, [=](const Problem& p, std::int64_t i, std::int64_t j) {
            std::vector<float> parts;
            for (std::int64_t from = 0; from < p.k; from += width)
              parts.push_back(Acc(p, i, j).take(from, std::min(p.k, from + width)).value());
            const float total = reduced(p, parts, how, bias_at(p, j), first);
            return first ? total : with_bias(p, j, total);
          }};
}

// Tiles of `tile` over [from, to), dealt to accumulators in turn.
std::vector<float> sliced(const Problem& p, std::int64_t i, std::int64_t j, std::int64_t from, std::int64_t to,
                          int slices, std::int64_t tile, bool chain = false) {
  std::vector<Acc> accs(static_cast<std::size_t>(slices), Acc(p, i, j, 0, chain));
  int next = 0;
  for (std::int64_t q = from; q < to; q += tile, next = (next + 1) % slices) {
    accs[static_cast<std::size_t>(next)].take(q, std::min(to, q + tile));
    accs[static_cast<std::size_t>(next)].cut();
  }
  std::vector<float> out;
  for (Acc& a : accs) out.push_back(a.value());
  return out;
}

float in_order(const std::vector<float>& s) {
  float total = s[0];
  for (std::size_t i = 1; i < s.size(); ++i) total = total + s[i];
  return total;
}
// Lane l adds lane l + 16, then l + 8, ..: a shuffle down.
float butterfly(std::vector<float> s) {
  for (std::size_t half = s.size() / 2; half; half /= 2)
    for (std::size_t l = 0; l < half; ++l) s[l] = s[l] + s[l + half];
  return s[0];
}

Case algorithm_30_64x64(std::mt19937& gen, Problem& problem) {
  const bool slice_zero = !problem.bias.empty() && gen() % 4;
  Plan plan;
  plan.slices = 4, plan.slice_width = 16, plan.combine = Combine::kHalves;
  plan.bias = slice_zero ? BiasPlace::kSliceZero : BiasPlace::kLast;
  return {plan, [=](const Problem& p, std::int64_t i, std::int64_t j) {
            std::vector<float> s = sliced(p, i, j, 0, p.k, 4, 16);
            if (slice_zero) s[0] = s[0] + bias_at(p, j);
            const float sum = (s[0] + s[2]) + (s[1] + s[3]);
            return slice_zero ? sum : with_bias(p, j, sum);
          }};
}

Case algorithm_30_128x64(std::mt19937&, Problem& problem) {
  const bool bias = !problem.bias.empty();
  Plan plan;
  plan.slices = 2, plan.slice_width = 32, plan.bias = bias ? BiasPlace::kSliceZero : BiasPlace::kLast;
  return {plan, [=](const Problem& p, std::int64_t i, std::int64_t j) {
            std::vector<float> s = sliced(p, i, j, 0, p.k, 2, 32);
            if (bias) s[0] = s[0] + bias_at(p, j);
            return s[0] + s[1];
          }};
}

Case algorithm_30_split(std::mt19937& gen, Problem& problem) {
  const int splits = draw_splits(gen, problem.k, 64, {2, 3, 4});
  const std::int64_t width = round_up((problem.k + splits - 1) / splits, 64);
  const Reduction how = draw_reduction(gen, problem);
  Plan plan;
  plan.splits = splits, plan.width = width, plan.reduction = how;
  plan.slices = 4, plan.slice_width = 16, plan.combine = Combine::kHalves;
  return {plan, [=](const Problem& p, std::int64_t i, std::int64_t j) {
            std::vector<float> parts;
            for (std::int64_t from = 0; from < p.k; from += width) {
              const auto s = sliced(p, i, j, from, std::min(p.k, from + width), 4, 16);
              parts.push_back((s[0] + s[2]) + (s[1] + s[3]));
            }
            return with_bias(p, j, reduced(p, parts, how, 0, false));
          }};
}

Case two_slices_in_order(std::mt19937&, Problem&) {
  Plan plan;
  plan.slices = 2, plan.slice_width = 16;
  return {plan, [](const Problem& p, std::int64_t i, std::int64_t j) {
            const auto s = sliced(p, i, j, 0, p.k, 2, 16);
            return with_bias(p, j, s[0] + s[1]);
          }};
}

Case four_slices(std::mt19937& gen, Problem&) {
  const bool pairwise = gen() % 2;
  Plan plan;
  plan.slices = 4, plan.slice_width = 8, plan.combine = pairwise ? Combine::kAdjacent : Combine::kInOrder;
  return {plan, [=](const Problem& p, std::int64_t i, std::int64_t j) {
            const auto s = sliced(p, i, j, 0, p.k, 4, 8);
            return with_bias(p, j, pairwise ? (s[0] + s[1]) + (s[2] + s[3]) : ((s[0] + s[1]) + s[2]) + s[3]);
          }};
}

Case turing_split(std::mt19937& gen, Problem& problem) {
  const int splits = draw_splits(gen, problem.k, 64, {2, 3, 4, 5});
  const std::int64_t width = round_up((problem.k + splits - 1) / splits, 64);
  Plan plan;
  plan.splits = splits, plan.width = width;
  plan.slices = 4, plan.slice_width = 8, plan.combine = Combine::kAdjacent;
  plan.bias = problem.bias.empty() ? BiasPlace::kLast : BiasPlace::kFirst;
  return {plan, [=](const Problem& p, std::int64_t i, std::int64_t j) {
            std::vector<float> parts;
            for (std::int64_t from = 0; from < p.k; from += width) {
              const auto s = sliced(p, i, j, from, std::min(p.k, from + width), 4, 8);
              parts.push_back((s[0] + s[1]) + (s[2] + s[3]));
            }
            return reduced(p, parts, Reduction::kComputeType, bias_at(p, j), !p.bias.empty());
          }};
}

Case legacy_interleaved(std::mt19937& gen, Problem&) {
  const std::int64_t tile = pick(gen, {1, 2, 4});
  const int how = static_cast<int>(gen() % 3);
  Plan plan;
  plan.slices = 4, plan.slice_width = tile;
  plan.combine = how == 0 ? Combine::kInOrder : how == 1 ? Combine::kAdjacent : Combine::kHalves;
  return {plan, [=](const Problem& p, std::int64_t i, std::int64_t j) {
            std::vector<float> s(4);  // position q belongs to accumulator q / tile mod 4
            for (std::int64_t q = 0; q < p.k; ++q) {
              float& acc = s[static_cast<std::size_t>(q / tile % 4)];
              acc = std::fma(p.a[static_cast<std::size_t>(i * p.k + q)], p.b[static_cast<std::size_t>(q * p.n + j)], acc);
            }
            const float sum = how == 0   ? ((s[0] + s[1]) + s[2]) + s[3]
                              : how == 1 ? (s[0] + s[1]) + (s[2] + s[3])
                                         : (s[0] + s[2]) + (s[1] + s[3]);
            return with_bias(p, j, sum);
          }};
}

Case round_robin(std::mt19937& gen, Problem& problem) {
  const int splits = pick(gen, {2, 3, 4, 5, 7, 8});
  const Reduction how = draw_reduction(gen, problem);
  Plan plan;
  plan.splits = splits, plan.width = 8, plan.deal = Deal::kRoundRobin, plan.reduction = how;
  return {plan, [=](const Problem& p, std::int64_t i, std::int64_t j) {
            std::vector<float> parts;
            for (int s = 0; s < splits; ++s) {
              Acc acc(p, i, j);
              for (std::int64_t tile = s; tile * 8 < p.k; tile += splits) {
                acc.take(tile * 8, std::min(p.k, tile * 8 + 8));
                acc.cut();
              }
              parts.push_back(acc.value());
            }
            return with_bias(p, j, reduced(p, parts, how, 0, false));
          }};
}

Case balanced(std::mt19937& gen, Problem& problem) {
  const std::int64_t tile = pick(gen, {32, 64});
  int splits;
  std::int64_t tiles, more;
  do {
    problem.k = 250 + gen() % 400;
    splits = pick(gen, {3, 4, 5});
    tiles = (problem.k + tile - 1) / tile, more = tiles % splits;
  } while (tiles < splits || more == 0 || more == splits - 1);
  const Reduction how = draw_reduction(gen, problem);
  Plan plan;
  plan.splits = splits, plan.width = tile, plan.deal = Deal::kBalanced, plan.reduction = how;
  return {plan, [=](const Problem& p, std::int64_t i, std::int64_t j) {
            std::vector<float> parts;
            std::int64_t from = 0;
            for (int s = 0; s < splits; ++s) {
              const std::int64_t to = std::min(p.k, from + (tiles / splits + (s < more)) * tile);
              parts.push_back(Acc(p, i, j).take(from, to).value());
              from = to;
            }
            return with_bias(p, j, reduced(p, parts, how, 0, false));
          }};
}

Case tail_first(std::mt19937& gen, Problem& problem) {
  const std::int64_t tile = pick(gen, {32, 64});
  if (problem.k % tile == 0) ++problem.k;
  Plan plan;
  plan.tail = Tail::kFirst, plan.tail_width = tile;
  return {plan, [=](const Problem& p, std::int64_t i, std::int64_t j) {
            Acc acc(p, i, j);
            const std::int64_t whole = p.k - p.k % tile;
            acc.take(whole, p.k);
            acc.cut();
            return with_bias(p, j, acc.take(0, whole).value());
          }};
}

Case dropped_tail(std::mt19937& gen, Problem& problem) {
  const std::int64_t tile = pick(gen, {32, 64});
  if (problem.k % tile == 0) ++problem.k;
  Plan plan;
  plan.tail = Tail::kDropped, plan.tail_width = tile;
  return {plan, [=](const Problem& p, std::int64_t i, std::int64_t j) {
            return with_bias(p, j, Acc(p, i, j).take(0, p.k - p.k % tile).value());
          }};
}

// k's whole tiles of 64 shared out evenly, and the rest forgotten.
Case dropped_tail_of_a_split(std::mt19937& gen, Problem& problem) {
  const int splits = pick(gen, {3, 4, 5, 8});
  const std::int64_t each = 1 + gen() % 2;
  problem.k = splits * each * 64 + 1 + gen() % (splits - 1);
  Plan plan;
  plan.splits = splits, plan.width = each * 64, plan.tail = Tail::kDropped, plan.tail_width = 64;
  return {plan, [=](const Problem& p, std::int64_t i, std::int64_t j) {
            std::vector<float> parts;
            for (int s = 0; s < splits; ++s)
              parts.push_back(Acc(p, i, j).take(s * each * 64, (s + 1) * each * 64).value());
            return with_bias(p, j, in_order(parts));
          }};
}

Case groups_of_8(std::mt19937&, Problem&) {
  Plan plan;
  plan.group = 8;
  return {plan, [](const Problem& p, std::int64_t i, std::int64_t j) {
            return with_bias(p, j, Acc(p, i, j, 8).take(0, p.k).value());
          }};
}

Case groups_of_8_split(std::mt19937& gen, Problem& problem) {
  const int splits = draw_splits(gen, problem.k, 64, {2, 3, 4});
  const std::int64_t width = round_up((problem.k + splits - 1) / splits, 64);
  const Reduction how = draw_reduction(gen, problem);
  Plan plan;
  plan.group = 8, plan.splits = splits, plan.width = width, plan.reduction = how;
  return {plan, [=](const Problem& p, std::int64_t i, std::int64_t j) {
            std::vector<float> parts;
            for (std::int64_t from = 0; from < p.k; from += width)
              parts.push_back(Acc(p, i, j, 8).take(from, std::min(p.k, from + width)).value());
            return with_bias(p, j, reduced(p, parts, how, 0, false));
          }};
}

// CUTLASS's main loop begins with the short tile.
float short_tile_first(const Problem& p, std::int64_t i, std::int64_t j, std::int64_t from, std::int64_t to,
                       std::int64_t tile, int group) {
  Acc acc(p, i, j, group);
  const std::int64_t head = (to - from) % tile;
  acc.take(from, from + head);
  acc.cut();
  return acc.take(from + head, to).value();
}

Case cutlass(std::mt19937& gen, Problem& problem) {
  const std::int64_t tile = pick(gen, {32, 64, 128});
  const int group = problem.kind == Kind::kBf16Hopper && gen() % 2 ? 8 : 0;
  if (problem.k % tile == 0) ++problem.k;
  Plan plan;
  plan.tail = Tail::kShortFirst, plan.tail_width = tile, plan.group = group;
  return {plan, [=](const Problem& p, std::int64_t i, std::int64_t j) {
            return with_bias(p, j, short_tile_first(p, i, j, 0, p.k, tile, group));
          }};
}

Case cutlass_split(std::mt19937& gen, Problem& problem) {
  const std::int64_t tile = pick(gen, {32, 64, 128});
  const std::int64_t grain = problem.k % 64 == 0 ? 64 : 8;
  const int splits = draw_splits(gen, problem.k, grain, {2, 3, 4, 5, 6, 8});
  const std::int64_t width = round_up((problem.k + splits - 1) / splits, grain);
  const Reduction how = draw_reduction(gen, problem);
  Plan plan;
  plan.splits = splits, plan.width = width, plan.reduction = how;
  if (width % tile || problem.k % tile) plan.tail = Tail::kShortFirst, plan.tail_width = tile;
  return {plan, [=](const Problem& p, std::int64_t i, std::int64_t j) {
            std::vector<float> parts;
            for (std::int64_t from = 0; from < p.k; from += width)
              parts.push_back(short_tile_first(p, i, j, from, std::min(p.k, from + width), tile, 0));
            return with_bias(p, j, reduced(p, parts, how, 0, false));
          }};
}

// Sums of `block` positions, added up as they come.
float closed(const Problem& p, std::int64_t i, std::int64_t j, std::int64_t from, std::int64_t to, std::int64_t block,
             bool chain) {
  float total = 0.0f;
  for (std::int64_t q = from; q < to; q += block) {
    const float part = Acc(p, i, j, 0, chain).take(q, std::min(to, q + block)).value();
    total = q == from ? part : total + part;
  }
  return total;
}

Case closed_every_128(std::mt19937&, Problem&) {
  Plan plan;
  plan.block = 128;
  return {plan, [](const Problem& p, std::int64_t i, std::int64_t j) {
            return with_bias(p, j, closed(p, i, j, 0, p.k, 128, false));
          }};
}

Case magma_chain(std::mt19937&, Problem&) {
  Plan plan;
  plan.unit = Unit::kChain;
  return {plan, [](const Problem& p, std::int64_t i, std::int64_t j) {
            return with_bias(p, j, Acc(p, i, j, 0, true).take(0, p.k).value());
          }};
}

Case gemm_sn(std::mt19937& gen, Problem& problem) {
  const int threads = pick(gen, {2, 4});
  const std::int64_t block = 512 / threads, share = (problem.k + threads - 1) / threads;
  Plan plan;
  plan.splits = threads, plan.width = share;
  if (on_tensor_cores(problem.kind))
    plan.unit = Unit::kChain;
  else
    problem.wide = false;  // 16-bit results tell a candidate of this form from float32's, which has none
  if (share > block) plan.block = block;
  return {plan, [=](const Problem& p, std::int64_t i, std::int64_t j) {
            std::vector<float> parts;
            for (int t = 0; t < threads; ++t)
              parts.push_back(closed(p, i, j, t * share, std::min(p.k, (t + 1) * share), block, true));
            return with_bias(p, j, in_order(parts));
          }};
}

Plan on_cores(const Problem& p) {
  Plan plan;
  if (on_tensor_cores(p.kind)) plan.unit = Unit::kChain;
  return plan;
}

// Lane l of `lanes` has `load` neighbouring positions of every tile of lanes * load.
Case gemv_lanes(std::mt19937& gen, Problem& problem) {
  const int lanes = pick(gen, {2, 4, 8, 16, 32});
  const std::int64_t share = (problem.k + lanes - 1) / lanes;
  const std::int64_t load = gen() % 2 ? 1 : std::min<std::int64_t>(64, share);
  Plan plan = on_cores(problem);
  plan.slices = lanes, plan.slice_width = load, plan.combine = Combine::kHalves;
  return {plan, [=](const Problem& p, std::int64_t i, std::int64_t j) {
            return with_bias(p, j, butterfly(sliced(p, i, j, 0, p.k, lanes, load, true)));
          }};
}

// 16 lanes, each closing its chain every `tiles` positions, added left to right.
Case gemv_closed(std::mt19937& gen, Problem& problem) {
  const std::int64_t tiles = pick(gen, {16, 32});
  problem.k = 600 + gen() % 900;
  Plan plan = on_cores(problem);
  plan.slices = 16, plan.slice_width = 1, plan.block = tiles;
  return {plan, [=](const Problem& p, std::int64_t i, std::int64_t j) {
            std::vector<float> lanes;
            for (std::int64_t l = 0; l < 16; ++l) {
              float total = 0.0f;
              for (std::int64_t chunk = 0; chunk * 16 * tiles + l < p.k; ++chunk) {
                Acc acc(p, i, j, 0, true);
                for (std::int64_t t = 0; t < tiles; ++t)
                  if (const std::int64_t q = (chunk * tiles + t) * 16 + l; q < p.k) acc.take(q);
                total = chunk == 0 ? acc.value() : total + acc.value();
              }
              lanes.push_back(total);
            }
            return with_bias(p, j, in_order(lanes));
          }};
}

// 32 lanes of one slice each, closed every 16 positions.
Case gemv_slice(std::mt19937& gen, Problem& problem) {
  problem.k = 300 + gen() % 1200;
  const std::int64_t share = (problem.k + 31) / 32;
  Plan plan = on_cores(problem);
  plan.splits = static_cast<int>((problem.k + share - 1) / share), plan.width = share;
  if (share > 16) plan.block = 16;
  return {plan, [=](const Problem& p, std::int64_t i, std::int64_t j) {
            std::vector<float> lanes;
            for (std::int64_t l = 0; l < 32 && l * share < p.k; ++l)
              lanes.push_back(closed(p, i, j, l * share, std::min(p.k, (l + 1) * share), 16, true));
            return with_bias(p, j, in_order(lanes));
          }};
}

// dot_kernel: 128 threads of `load` accumulators, tiles dealt to the blocks; then reduce_1Block_kernel.
Case dot_kernel(std::mt19937& gen, Problem& problem) {
  const int load = pick(gen, {1, 2}), blocks = pick(gen, {1, 2, 4, 8});
  const std::int64_t tile = 128 * load;
  problem.k = blocks * tile + gen() % 700;
  Plan plan = on_cores(problem);
  plan.slices = 128 * load, plan.slice_width = 1, plan.combine = load == 1 ? Combine::kHalves : Combine::kPairs;
  if (blocks > 1) plan.splits = blocks, plan.width = tile, plan.deal = Deal::kRoundRobin, plan.order = SumOrder::kOneBlock;
  return {plan, [=](const Problem& p, std::int64_t i, std::int64_t j) {
            std::vector<float> partial;
            for (int block = 0; block < blocks; ++block) {
              std::vector<float> threads;
              for (std::int64_t t = 0; t < 128; ++t) {
                float sum = 0.0f;
                for (int s = 0; s < load; ++s) {
                  Acc acc(p, i, j, 0, true);
                  for (std::int64_t g = block; g * tile < p.k; g += blocks)
                    if (const std::int64_t q = g * tile + t * load + s; q < p.k) acc.take(q);
                  sum = s == 0 ? acc.value() : sum + acc.value();
                }
                threads.push_back(sum);
              }
              partial.push_back(butterfly(threads));
            }
            if (blocks == 1) return with_bias(p, j, partial[0]);
            partial.resize(128);
            for (std::size_t t = 0; t < 64; ++t) partial[t] += partial[t + 64];
            for (std::size_t t = 0; t < 32; ++t) partial[t] += partial[t + 32];
            float u[4] = {};
            for (std::size_t t = 0; t < 32; ++t) u[t % 4] = t < 4 ? partial[t] : u[t % 4] + partial[t];
            return with_bias(p, j, ((u[0] + u[1]) + u[2]) + u[3]);
          }};
}

Case from_the_end(std::mt19937&, Problem&) {
  return {{}, [](const Problem& p, std::int64_t i, std::int64_t j) {
            Acc acc(p, i, j);
            for (std::int64_t q = p.k; q-- > 0;) acc.take(q);
            return with_bias(p, j, acc.value());
          }};
}
Case three_slices_of_five(std::mt19937&, Problem&) {
  return {{}, [](const Problem& p, std::int64_t i, std::int64_t j) {
            return with_bias(p, j, in_order(sliced(p, i, j, 0, p.k, 3, 5)));
          }};
}

}  // namespace

const char* name_of(Kind kind) {
  switch (kind) {
    case Kind::kFloat32:
      return "float32";
    case Kind::kBf16Turing:
      return "bfloat16-8";
    case Kind::kBf16Hopper:
      return "bfloat16-16";
    case Kind::kFp16Turing:
      return "float16-8";
    case Kind::kBf16Chain:
      return "bfloat16-1";
  }
  return "?";
}

const std::vector<Form>& forms() {
  using enum Kind;
  const std::vector<Kind> all(std::begin(kKinds), std::end(kKinds)), f32{kFloat32}, hopper{kBf16Hopper};
  const std::vector<Kind> narrow_ones{kBf16Turing, kBf16Hopper, kFp16Turing};
  static const std::vector<Form> list{
      {"single pass", "paper 3.4", all, false, true, single_pass},
      {"split, contiguous chunks", "paper 3.4, 5.1, 5.18", all, false, true, split_chunks},
      {"two slices in order", "paper 3.4", all, false, false, two_slices_in_order},
      {"four slices", "paper 3.4", all, false, false, four_slices},
      {"Turing split of four slices", "paper 3.4", f32, false, true, turing_split},
      {"legacy interleaved chain", "paper 5.18", f32, false, false, legacy_interleaved},
      {"round robin tiles of 8", "paper 5.21", {kFloat32, kBf16Hopper}, false, false, round_robin},
      {"balanced runs of tiles", "paper 5.21", all, false, false, balanced},
      {"tail first", "paper 7", all, false, false, tail_first},
      {"algorithm 30, 64x64", "paper 4", narrow_ones, false, true, algorithm_30_64x64},
      {"algorithm 30, 128x64", "paper 4", narrow_ones, false, true, algorithm_30_128x64},
      {"algorithm 30, split", "paper 4", narrow_ones, false, false, algorithm_30_split},
      {"algorithm 24, groups of 8", "paper 4", hopper, false, false, groups_of_8},
      {"algorithm 24, split", "paper 4", hopper, false, false, groups_of_8_split},
      {"dropped tail", "cublas_match", all, false, false, dropped_tail},
      {"dropped tail of a split", "cublas_match", all, false, false, dropped_tail_of_a_split},
      {"CUTLASS, short tile first", "cublas_match", narrow_ones, false, false, cutlass},
      {"CUTLASS, split", "cublas_match", narrow_ones, false, false, cutlass_split},
      {"closed every 128", "cublas_match", narrow_ones, false, false, closed_every_128},
      {"magma chain", "cublas_match", narrow_ones, false, false, magma_chain},
      {"gemmSN", "cublas_match", {kBf16Turing, kBf16Hopper, kFp16Turing, kBf16Chain}, false, false, gemm_sn},
      {"gemv lanes", "cublas_match", all, true, false, gemv_lanes},
      {"gemv closed lanes", "cublas_match", all, true, false, gemv_closed},
      {"gemv slices", "cublas_match", all, true, false, gemv_slice},
      {"dot_kernel", "cublas_match", all, true, false, dot_kernel},
  };
  return list;
}

const std::vector<Form>& strangers() {
  const std::vector<Kind> all(std::begin(kKinds), std::end(kKinds));
  static const std::vector<Form> list{
      {"k from its end", "none", all, false, false, from_the_end},
      {"three slices of five", "none", all, false, false, three_slices_of_five},
  };
  return list;
}

Drawn draw(const Form& form, Kind kind, std::mt19937& gen) {
  Drawn out;
  Problem& p = out.problem;
  p.kind = kind;
  p.m = form.vector ? 1 : 2 + gen() % 3, p.n = (form.vector ? 50 : 21) + gen() % 30, p.k = 131 + gen() % 400;
  p.wide = narrow(kind) && gen() % 2;
  std::normal_distribution<float> normal;
  if (form.bias && gen() % 2)
    for (std::int64_t j = 0; j < p.n; ++j) p.bias.push_back(to_kind(p.wide ? Kind::kFloat32 : kind, 3 * normal(gen)));
  const Case c = form.draw(gen, p);
  out.plan = c.plan;
  const auto factor = [&] {  // no subnormal float16, whose exponent the adder counts in another way
    const float x = normal(gen);
    return to_kind(kind, std::fabs(x) < 1e-4f ? 1e-4f : x);
  };
  for (std::int64_t i = 0; i < p.m * p.k; ++i) p.a.push_back(factor());
  for (std::int64_t i = 0; i < p.k * p.n; ++i) p.b.push_back(factor());
  for (std::int64_t i = 0; i < p.m; ++i)
    for (std::int64_t j = 0; j < p.n; ++j) {
      const float x = c.at(p, i, j);
      const float rounded = p.wide ? x : to_kind(kind, x);
      std::uint32_t bits;
      if (kind == Kind::kFp16Turing && !p.wide) {
        bits = fp16_bits(rounded);
      } else {
        std::memcpy(&bits, &rounded, 4);
        if (narrow(kind) && !p.wide) bits >>= 16;
      }
      const int bytes = narrow(kind) && !p.wide ? 2 : 4;
      for (int byte = 0; byte < bytes; ++byte) out.d.push_back(static_cast<std::uint8_t>(bits >> (8 * byte)));
    }
  return out;
}

}  // namespace step_oracle::slow
