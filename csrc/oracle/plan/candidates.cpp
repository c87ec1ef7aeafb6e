// Candidates: the forms that cards have been seen to take, and where each was seen.
//   [paper 3.4 ..]  "The step oracle", that section
//   [cublas_match]  facebookexperimental/triton, bitequiv/cublas_match, arch/sm90_lt13_1.py and kernels.py: cuBLASLt
//                   13.1.1 on an H100
#include <algorithm>
#include <array>

#include "csrc/oracle/plan/fit.h"

namespace step_oracle::plan {
namespace {

using gemm::Plan;
using enum gemm::Combine;

// Collects plans, each once: different spellings of one walk are one candidate.
class Candidates {
 public:
  explicit Candidates(const Shape& shape) : shape_(shape) {}

  // A plan with every reduction and place of the bias that this product can have.
  void add(Plan plan) {
    if (!is_a_walk_of_its_own(plan)) return;
    std::vector<gemm::Reduction> reductions{gemm::Reduction::kComputeType};
    if (plan.splits > 1 && shape_.sixteen_bit && plan.unit == gemm::Unit::kClass)
      reductions = {gemm::Reduction::kComputeType, gemm::Reduction::kInPlace, gemm::Reduction::kOutputType};
    for (const gemm::Reduction reduction : reductions) {
      if (reduction == gemm::Reduction::kInPlace && plan.order != gemm::SumOrder::kAscending) continue;
      plan.reduction = reduction;
      plan.bias = gemm::BiasPlace::kLast;
      push(plan);
      if (!shape_.bias) continue;
      if (plan.splits > 1 && plan.order == gemm::SumOrder::kAscending) plan.bias = gemm::BiasPlace::kFirst, push(plan);
      if (plan.slices > 1) plan.bias = gemm::BiasPlace::kSliceZero, push(plan);
    }
  }
  std::vector<Plan> take() { return std::move(plans_); }

 private:
  bool is_a_walk_of_its_own(const Plan& plan) const {
    const std::int64_t k = gemm::walked(plan, shape_.k);
    if (k == 0) return false;
    if (plan.splits > 1 && plan.width * (plan.splits - 1) >= k) return false;  // a part would be empty
    if (plan.deal == gemm::Deal::kChunks && plan.splits > 1 && plan.width * plan.splits < k) return false;
    if (plan.deal == gemm::Deal::kBalanced) {
      const std::int64_t more = (k + plan.width - 1) / plan.width % plan.splits;
      if (more == 0 || more == plan.splits - 1) return false;  // equal parts but for the last: chunks by another name
    }
    if (plan.slices > 1 && k <= plan.slice_width) return false;
    if (plan.block && k <= plan.block) return false;
    const bool whole_tiles = plan.tail_width && shape_.k % plan.tail_width == 0 &&
                             (plan.splits == 1 || plan.width % plan.tail_width == 0);
    return plan.tail == gemm::Tail::kLast || !whole_tiles;
  }
  void push(const Plan& plan) {
    if (std::find(plans_.begin(), plans_.end(), plan) == plans_.end()) plans_.push_back(plan);
  }
  Shape shape_;
  std::vector<Plan> plans_;
};

Plan sliced(Plan p, int count, std::int64_t width, gemm::Combine combine) {
  p.slices = count, p.slice_width = width, p.combine = combine;
  return p;
}
Plan with_tail(Plan p, gemm::Tail tail, std::int64_t width, int group = 0) {
  p.tail = tail, p.tail_width = width, p.group = group;
  return p;
}
Plan split(int splits, std::int64_t width, gemm::Deal deal = gemm::Deal::kChunks) {
  Plan p;
  p.splits = splits, p.width = width, p.deal = deal;
  return p;
}

// One pass over k in one block.
void add_single_passes(Candidates& out, const Shape& shape) {
  const Plan one;
  out.add(one);
  out.add(sliced(one, 4, 16, kHalves));  // algorithm 30, 64x64 [paper 4]
  out.add(sliced(one, 2, 32, kInOrder));  // .. 128x64
  out.add(sliced(one, 4, 8, kAdjacent));  // a Turing kernel: four slices, pairwise [paper 3.4]
  out.add(sliced(one, 4, 8, kInOrder));
  out.add(sliced(one, 2, 16, kInOrder));
  // algorithm 1, 64x32 sliced1x4: an interleaved sliced chain [paper 5.18]; its tile is not published
  for (const std::int64_t width : {1, 2, 4})
    for (const gemm::Combine combine : {kInOrder, kAdjacent, kHalves}) out.add(sliced(one, 4, width, combine));
  for (const std::int64_t tile : {32, 64}) out.add(with_tail(one, gemm::Tail::kFirst, tile));  // [paper 7]
  if (shape.terms) {
    // CUTLASS kernels: groups of 16, or of 8 (s1688 kernels; algorithm 24 on Hopper [paper 4]); the first tile short
    // [cublas_match]
    const bool short_groups = shape.terms > 8;
    if (short_groups) out.add(with_tail(one, gemm::Tail::kLast, 0, 8));
    for (const std::int64_t tile : {32, 64, 128}) {
      out.add(with_tail(one, gemm::Tail::kShortFirst, tile));
      if (short_groups) out.add(with_tail(one, gemm::Tail::kShortFirst, tile, 8));
    }
    Plan closed;
    closed.block = 128;  // nvjet of 8-bit factors on Hopper [cublas_match]
    out.add(closed);
  }
  for (const std::int64_t tile : {32, 64}) out.add(with_tail(one, gemm::Tail::kDropped, tile));
}

void add_splits(Candidates& out, const Shape& shape) {
  const bool short_groups = shape.terms > 8;
  for (const int splits : {2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16, 18, 20, 24, 32}) {
    for (const std::int64_t rounding : {64, 32, 16, 8, 4}) {  // chunks round to 64 [paper 4], 32, 4 [paper 5.18]
      const Plan p = split(splits, gemm::chunk_width(shape.k, splits, rounding));
      out.add(p);
      if (rounding == 64) {
        out.add(sliced(p, 4, 16, kHalves));
        out.add(sliced(p, 4, 8, kAdjacent));
        if (short_groups) out.add(with_tail(p, gemm::Tail::kLast, 0, 8));  // algorithm 24 [paper 4]
      }
    }
    if (shape.terms != 8)  // nvjet algorithm 55, a Hopper kernel [paper 5.21]
      out.add(split(splits, 8, gemm::Deal::kRoundRobin));
    for (const std::int64_t tile : {64, 32}) out.add(split(splits, tile, gemm::Deal::kBalanced));
  }
}

// [cublas_match]: CUTLASS kernels of algorithms 12, 21, 23 and 24 with split k.
void add_cutlass_splits(Candidates& out, const Shape& shape) {
  const std::int64_t grain = shape.k % 64 == 0 ? 64 : 8;
  for (const int splits : {2, 3, 4, 5, 6, 8, 10, 12, 16}) {
    const Plan p = split(splits, gemm::chunk_width(shape.k, splits, grain));
    for (const std::int64_t tile : {32, 64, 128}) {
      out.add(with_tail(p, gemm::Tail::kShortFirst, tile));
      if (shape.terms > 8 && tile == 32) out.add(with_tail(p, gemm::Tail::kShortFirst, tile, 8));
    }
  }
}

// [cublas_match]: algorithm 66 shares whole tiles of 64 out evenly, and forgets the rest.
void add_dropped_splits(Candidates& out, const Shape& shape) {
  const std::int64_t tiles = shape.k / 64, rest = shape.k % 64;
  for (int splits = 2; splits <= 64; ++splits)
    if (rest && tiles && tiles % splits == 0 && splits > rest)
      out.add(with_tail(split(splits, tiles / splits * 64), gemm::Tail::kDropped, 64));
}

Plan on_cuda_cores(Plan p) {
  p.unit = gemm::Unit::kChain;
  return p;
}

// [cublas_match]: algorithms 11 and 16 (gemmSN, magma_sgemmEx): 16-bit products on the CUDA cores.
void add_chains(Candidates& out, const Shape& shape) {
  const auto unit = [&](const Plan& p) { return shape.terms ? on_cuda_cores(p) : p; };
  out.add(unit({}));
  for (const auto& [parts, block] : {std::pair{2, 256}, std::pair{4, 128}}) {
    Plan p = split(parts, (shape.k + parts - 1) / parts);
    if (p.width > block) p.block = block;
    out.add(unit(p));
  }
}

// [cublas_match]: algorithms 13 (gemv2T, gemv2N, gemvNSP) and 14 (dot_kernel with reduce_1Block_kernel).
void add_vectors(Candidates& out, const Shape& shape) {
  const auto unit = [&](const Plan& p) { return shape.terms ? on_cuda_cores(p) : p; };
  const auto closed = [](Plan p, std::int64_t block) {
    p.block = block;
    return p;
  };
  for (const std::int64_t block : {512, 256}) out.add(unit(closed({}, block)));
  for (const int lanes : {2, 4, 8, 16, 32}) {
    out.add(unit(sliced({}, lanes, 1, kHalves)));
    const std::int64_t share = (shape.k + lanes - 1) / lanes;
    out.add(unit(sliced({}, lanes, std::min<std::int64_t>(64, share), kHalves)));
  }
  out.add(unit(sliced({}, 32, 4, kHalves)));
  for (const std::int64_t block : {16, 32}) out.add(unit(closed(sliced({}, 16, 1, kInOrder), block)));
  const std::int64_t slice = (shape.k + 31) / 32;
  if (slice > 1)
    out.add(unit(closed(split(static_cast<int>((shape.k + slice - 1) / slice), slice), slice > 16 ? 16 : 0)));
  for (const int vector : {1, 2}) {
    const std::int64_t tile = 128 * vector;
    for (const int blocks : {1, 2, 4, 8, 16, 32, 64}) {
      Plan p = blocks > 1 ? split(blocks, tile, gemm::Deal::kRoundRobin) : Plan{};
      if (blocks > 1) p.order = gemm::SumOrder::kOneBlock;
      out.add(unit(sliced(p, 128 * vector, 1, vector == 1 ? kHalves : kPairs)));
    }
  }
}

// What has been seen most, in published steps: one pass, a few parts of chunks that round to 64, the forms that a log
// leaves open. Sixty at most, whatever the shape; each is one of candidates().
class Likely {
 public:
  explicit Likely(const Shape& shape) : shape_(shape), all_(candidates(shape)) {}

  void add(Plan plan) {
    if (std::find(all_.begin(), all_.end(), plan) == all_.end()) return;  // no walk of its own for this k
    if (std::find(out_.begin(), out_.end(), plan) == out_.end()) out_.push_back(plan);
  }
  void chunks(int splits, std::int64_t rounding) {
    Plan p = split(splits, gemm::chunk_width(shape_.k, splits, rounding));
    if (shape_.sixteen_bit) {
      add(p);
      p.reduction = gemm::Reduction::kInPlace, add(p);
      return;
    }
    if (shape_.bias) p.bias = gemm::BiasPlace::kFirst;  // [paper 3.4]
    add(p);
  }
  std::vector<Plan> take() { return std::move(out_); }

 private:
  Shape shape_;
  std::vector<Plan> all_, out_;
};

Plan slice_zero(Plan p) {
  p.bias = gemm::BiasPlace::kSliceZero;
  return p;
}

void add_likely_float32(Likely& out) {
  out.add(sliced({}, 4, 8, kAdjacent));
  for (const gemm::Combine combine : {kInOrder, kAdjacent, kHalves})
    for (const std::int64_t width : {1, 2, 4}) out.add(sliced({}, 4, width, combine));
  for (const int splits : {2, 3, 4, 5, 6, 8})
    for (const std::int64_t rounding : {64, 32, 16, 8, 4}) out.chunks(splits, rounding);
  for (const int splits : {7, 9, 10, 12, 16}) out.chunks(splits, 64), out.chunks(splits, 4);
  for (const int splits : {2, 3, 4, 5, 6, 8}) out.add(split(splits, 8, gemm::Deal::kRoundRobin));
}

void add_likely_16_bit(Likely& out, const Shape& shape) {
  for (const Plan& p : {sliced({}, 4, 16, kHalves), sliced({}, 2, 32, kInOrder), sliced({}, 4, 8, kAdjacent)})
    out.add(p), out.add(slice_zero(p));
  if (shape.terms > 8) out.add(with_tail({}, gemm::Tail::kLast, 0, 8));
  for (const std::int64_t tile : {32, 64}) out.add(with_tail({}, gemm::Tail::kShortFirst, tile));
  for (const int splits : {2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 16}) out.chunks(splits, 64);
  for (const int splits : {2, 3, 4, 5, 6, 8}) {
    Plan p = split(splits, gemm::chunk_width(shape.k, splits, 64));
    p.reduction = gemm::Reduction::kOutputType, out.add(p);
    p = split(splits, gemm::chunk_width(shape.k, splits, shape.k % 64 == 0 ? 64 : 8));
    out.add(with_tail(p, gemm::Tail::kShortFirst, 32));
  }
  for (const int splits : {2, 3, 4, 5, 6, 8}) out.chunks(splits, 32);
  out.add(on_cuda_cores({}));
}

}  // namespace

std::vector<Plan> likely(const Shape& shape) {
  Likely out(shape);
  out.add({});
  if (shape.terms || shape.sixteen_bit)
    add_likely_16_bit(out, shape);
  else
    add_likely_float32(out);
  return out.take();
}

std::vector<Plan> candidates(const Shape& shape) {
  Candidates out(shape);
  add_single_passes(out, shape);
  add_splits(out, shape);
  if (shape.terms) add_cutlass_splits(out, shape);
  if (shape.terms || shape.sixteen_bit) add_chains(out, shape);
  if (shape.vector) add_vectors(out, shape);
  add_dropped_splits(out, shape);
  return out.take();
}

}  // namespace step_oracle::plan
