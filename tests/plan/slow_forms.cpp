#include "tests/plan/slow_forms.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "tests/plan/slow_sums.h"
#include "tests/plan/slow_vectors.h"

namespace step_oracle::slow {
namespace {

using gemm::BiasPlace;
using gemm::Combine;
using gemm::Deal;
using gemm::Plan;
using gemm::Reduction;
using gemm::Tail;
using gemm::Unit;

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
