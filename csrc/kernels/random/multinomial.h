// torch.multinomial of several samples with replacement: what the two kernels around the running sum compute.
//
// Shapes    (rows, cols) probabilities; (rows, samples) indices.
// Types     float32, bfloat16, float16: 16-bit types round after every addition.
// Order     a block of min(1024, cols in whole warps) threads sums a row: thread t takes t, t + threads, ...; shuffles
//           down a warp, then down the warps' sums.
// Rounding  one a sum and a quotient; the uniform number to the type.
// NaN       refused, as is a row that sums to nothing: the kernels assert there.
// Errors    negative sizes and probabilities; other types.
// Source    [src aten/src/ATen/native/cuda/MultinomialKernel.cu, block_reduce.cuh @2.13]
// Evidence  docs/evidence.md, rows random/*.
#pragma once
#include <cstdint>

#include "csrc/kernels/core/dtype.h"
#include "csrc/kernels/random/random.h"

namespace step_oracle::random {

// Every row over its sum, in place; a row that sums to 0 stays.
struct Rows {
  DType dtype;
  std::int64_t rows, cols;
  void* data;
};
void normalise(const Rows& params);

// sums: the running sums of dist's rows. Returns the generator's advance.
struct Search {
  DType dtype;
  std::int64_t rows, cols, samples;
  const void *dist, *sums;
  std::int64_t* out;
};
std::uint64_t multinomial(const Stream& stream, const Search& params);

namespace ref {
void normalise(const Rows& params);
std::uint64_t multinomial(const Stream& stream, const Search& params);
}  // namespace ref

}  // namespace step_oracle::random
