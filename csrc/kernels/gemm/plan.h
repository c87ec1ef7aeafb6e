// A plan: in which order a kernel walks k, and how it adds up what it walked apart. One vocabulary for every form that
// is known; a class (gemm.h, tensor_core.h) says how a product is added, a plan what is added to what.
//
//   k is cut into `splits` parts (blocks of their own), a part into `slices` (accumulators of one block); a slice is
//   one chain of the class from +0, over its positions of k in ascending order. Slices of a part are combined in
//   float32; parts are added up as `reduction` says.
//
// Order     deal kChunks: part s holds k in [s * width, (s + 1) * width), the last what is left.
//           deal kRoundRobin: tile t of `width` positions belongs to part t mod splits.
//           deal kBalanced: tiles of `width`, whole runs of them a part, the first (tiles mod splits) parts one more.
//           Slices: the part's tiles of `slice_width` positions go to slice 0, 1, .. in turn.
//           tail: where k is no multiple of `tail_width`, the positions beyond the last whole tile are walked first
//           (kFirst), or never (kDropped: a defect of some kernels; chunks then cover the whole tiles only).
//           kShortFirst: each part's first tile is the short one, of (its length mod tail_width) positions; groups and
//           slices start anew behind it, as behind a whole tile.
//           block: a chain is closed after each `block` of its positions, and the totals are added up as they come.
// Rounding  float32 for every addition of slices and parts. kInPlace: the running sum is rounded to D's type after each
//           part. kOutputType: each part is rounded to D's type, and the rounded ones are added in float32.
//           alpha and beta act once, on the finished sum (kInPlace: alpha on each part, beta with the first).
//           unit kChain: the product is not its class's but AdderClass::kFmaChain's, on the CUDA cores.
// Errors    check() throws kBadInput and names the field.
// Source    "The step oracle", sections 3.4, 4 (algorithm 30), 5.1, 5.9, 5.18, 5.21-24; facebookexperimental/triton,
//           bitequiv/cublas_match (the orders of cuBLASLt 13.1.1 on sm_90: kShortFirst, block, unit, kPairs, kOneBlock);
//           CUTLASS's names for what it has too.
// Evidence  each form *published* where its comment says so; the order in which OUTPUT_TYPE adds is a tie.
#pragma once
#include <cstdint>

#include "csrc/kernels/gemm/gemm.h"
#include "csrc/kernels/gemm/tensor_core.h"

namespace step_oracle::gemm {

enum class Deal { kChunks, kRoundRobin, kBalanced };
enum class Tail { kLast, kFirst, kDropped, kShortFirst };
enum class Combine {
  kInOrder,   // ((s0 + s1) + s2) + s3
  kAdjacent,  // (s0 + s1) + (s2 + s3)
  kHalves,    // (s0 + s2) + (s1 + s3)
  kPairs,     // s0 + s1, s2 + s3, .. first, then their halves: dot_kernel's threads of two accumulators
};
enum class Reduction { kComputeType, kInPlace, kOutputType };
enum class SumOrder {  // of the parts
  kAscending,
  kDescending,
  kPairwise,
  kOneBlock,  // reduce_1Block_kernel: 128 lanes (absent ones +0), two halvings, then four sums of every fourth lane
};
enum class BiasPlace {
  kLast,       // added to the finished sum
  kFirst,      // the sum over the parts starts from it
  kSliceZero,  // added to slice 0 of part 0 before the slices are combined
};
enum class Unit { kClass, kChain };

struct Plan {
  int splits = 1;
  Deal deal = Deal::kChunks;
  std::int64_t width = 0;  // of a chunk or tile; 0 with splits == 1
  int slices = 1;          // 1, or a power of two
  std::int64_t slice_width = 0;
  Combine combine = Combine::kInOrder;
  Tail tail = Tail::kLast;
  std::int64_t tail_width = 0;
  // Products added at once, where fewer than the adder's terms (algorithm 24 on Hopper: 8); 0: the adder's.
  int group = 0;
  std::int64_t block = 0;  // 0: a chain is never closed before its end
  Reduction reduction = Reduction::kComputeType;
  SumOrder order = SumOrder::kAscending;
  BiasPlace bias = BiasPlace::kLast;
  Unit unit = Unit::kClass;

  bool operator==(const Plan&) const = default;
};

// The chunk that a kernel makes of k: its even share, rounded up to a multiple of `rounding`.
constexpr std::int64_t chunk_width(std::int64_t k, int splits, std::int64_t rounding) {
  const std::int64_t share = (k + splits - 1) / splits;
  return (share + rounding - 1) / rounding * rounding;
}

// The positions that a plan walks at all.
constexpr std::int64_t walked(const Plan& plan, std::int64_t k) {
  return plan.tail == Tail::kDropped ? k / plan.tail_width * plan.tail_width : k;
}

// Throws kBadInput where fields are out of range or contradict each other.
void check(const Plan& plan);
// .. and where chunks do not cover k, or leave a part empty.
void check(const Plan& plan, std::int64_t k);

void run(const Params& params, const Plan& plan);            // the fp32 chain
void run(const TensorCoreParams& params, const Plan& plan);  // the class that params.adder names

namespace ref {
// The definition: for each output, each position of k is given its part and slice by the rules above.
void run(const Params& params, const Plan& plan);
void run(const TensorCoreParams& params, const Plan& plan);
}  // namespace ref

}  // namespace step_oracle::gemm
