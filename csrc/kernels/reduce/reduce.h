// The generic reduction: sums, products, extrema, norms, moments, any and all over some dimensions of a tensor.
//
// Shapes    an iterator as ATen's reduction kernels see it: dimensions coalesced and ordered, the reduced ones first,
//           strides in bytes, an output stride of 0 in the reduced ones. At least one element in and out. The caller
//           fills empty reductions.
// Types     float32, float64, bfloat16 and float16 in (the last two accumulate in float32, one rounding at the end);
//           int64, int32, int16, int8, uint8 and bool for the exact operations. See Op.
// Order     [src ATen/native/cuda/Reduce.cuh@v2.13.0]: `plan` states the launch (block, CTAs an output). A thread folds
// its
//           elements into 4 accumulators in turn (moments: 2), or, where the reduced dimension is contiguous and long,
//           into one accumulator for each element of a vector of 4 (8 for 16-bit sums and means, 2 for moments), with
//           an unaligned head and a tail by the first threads. Then the accumulators left to right, the block's x by
//           halves, its y by halves; several CTAs an output: their values strided over a block, y, then x.
//           The number of multiprocessors, the threads of one and the ADDRESS of the input (modulo 64 bytes) enter the
//           order. The address is that on the card: CUDA's caching allocator starts every storage at a multiple of 512
//           bytes, so an address here is the byte offset in the storage.
// Rounding  each addition and product once. norm2: fma(x, x, acc), moments: see moments.h. mean: sum times the float
//           outputs/elements.
// NaN       0x7fffffff where arithmetic made it; max and min keep the payload of the one they choose.
// Errors    more than 2^31 - 1 elements or bytes of span (CUDA splits these): kUnsupported.
// Source    Reduce.cuh and SharedReduceOps.h of torch 2.13.0; which product is fused: contractions.md section 5.
// Evidence  docs/evidence.md, rows reduce/*.
#pragma once
#include <cstdint>

#include "csrc/kernels/core/dtype.h"

namespace step_oracle::reduce {

enum class Op : std::uint8_t {
  kSum,
  kMean,
  kNanSum,  // NaN counts as 0
  kProd,
  kMax,
  kMin,  // NaN wins; of equal values (+0, -0) the order decides
  kNorm0,
  kNorm1,
  kNorm2,
  kNormInf,
  kNormNegInf,
  kPowerSum2,  // norm2 without the root
  kVar,
  kStd,
  kVarMean,
  kStdMean,  // the last two have a second output, the mean
  kMaxIndex,
  kMinIndex,  // two outputs: value and int64 index, the first of equal ones
  kArgMax,
  kArgMin,  // one output: the int64 index
  kAny,
  kAll,  // bool out; the elements count as x != 0
};

inline constexpr int kMaxDims = 25;  // [src OffsetCalculator.cuh@v2.13.0 MAX_DIMS]

struct Iterator {
  int dims = 0;     // after coalescing
  int reduced = 0;  // the first `reduced` dimensions
  std::int64_t shape[kMaxDims] = {};
  std::int64_t in_stride[kMaxDims] = {};   // bytes
  std::int64_t out_stride[kMaxDims] = {};  // bytes of the first output; 0 in reduced dimensions
};

struct Params {
  Op op = Op::kSum;
  DType in = DType::kF32;
  DType out = DType::kF32;
  Iterator iter;
  const void* x = nullptr;
  void* y = nullptr;
  void* y2 = nullptr;         // kVarMean, kStdMean: the mean; kMaxIndex, kMinIndex: int64 indices. The same layout
  std::uint64_t address = 0;  // of x on the card, modulo 512
  double correction = 1.0;    // moments: the divisor is count - correction
  int sms = 0;                // multiprocessors
  int threads_per_sm = 0;
};

// The launch, as CUDA chooses it. Stated apart so that tests and `explain` can read it.
struct Plan {
  std::int64_t outputs, inputs;  // of the whole launch; inputs an output
  bool fast;                     // the reduced dimension is the fastest: x splits the input
  bool vectorize;                // the input is read in vectors
  int vector;                    // elements of such a vector
  int turns;                     // accumulators of a thread otherwise
  int out_vector;
  int width, height;  // block
  bool y_reduces;     // y splits the input
  int ctas;           // for each output
  std::int64_t step;  // threads over one output's input, all CTAs
  int threads() const { return (fast ? width : 1) * (y_reduces ? height : 1); }  // over one output, in one CTA
};
Plan plan(const Params& params);

void run(const Params& params);
// (sum |x|^order)^(1 / order); params.op is not read. float32, bfloat16, float16.
void power_norm(const Params& params, float order);

// Running sums, or products. x and y contiguous as (outer, n, inner); float types accumulate in their own type (16-bit
// types round at every addition), integers and bool in int64. `whole`: the scanned dimension holds the whole tensor:
// CUDA then uses CUB's look-back scan, whose float order is not stated; float types are refused there.
struct ScanParams {
  DType in, out;  // equal for floats; out is int64 for the rest
  std::int64_t outer, n, inner;
  const void* x;
  void* y;
  bool product = false;
};
void scan(const ScanParams& params);

namespace ref {
// The definition: the kernel thread by thread.
void run(const Params& params);
void power_norm(const Params& params, float order);
void scan(const ScanParams& params);
}  // namespace ref

}  // namespace step_oracle::reduce
