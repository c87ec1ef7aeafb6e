// Negative log likelihood of class indices.
//
// Shapes    x: rows x classes with any row and column stride (elements); target: rows; weight: classes or null.
// Types     float32, bfloat16, float16, accumulated in float32; targets int64 or uint8.
// Order     sum and mean: one block of T = 2^round(log2(rows / 16)) threads, 32 to 1024; thread t takes rows t, t + T,
//           ...; T's values by halves (T/2 .. 1). nll2d, sum and mean: of each sample one block, more from 131,072
//           places on, 1024 threads; thread t takes places t, t + 1024 blocks, ...; block tree; the blocks' values are
//           added to 0 atomically, which has one order for at most two blocks.
// Rounding  float32 fma(-x, weight, acc); 16-bit types round x * weight to the type, then acc - product; mean: sum /
//           total weight, one division. kNone: (-weight) * x. A single row given as a vector: -x for the mean.
//           Backward:
//           -(grad / total weight), times the weight. 16-bit types round every operation of the backward.
// NaN       0x7fffffff.
// Errors    a target outside [0, classes) that is not ignore_index: kBadInput (a device assertion on the card).
// Source    Loss.cu, NLLLoss2d.cu, contractions.md section 4, upstream-arithmetic.md section 4.
// Evidence  docs/evidence.md, rows loss/*.
#pragma once
#include <cstdint>

#include "csrc/kernels/core/dtype.h"

namespace step_oracle::loss {

enum class Reduction : std::uint8_t { kNone, kMean, kSum };  // the numbers of at::Reduction

struct NllParams {
  DType type;
  DType target_type;
  Reduction reduction;
  bool vector;  // x has one dimension: rows is 1, and another kernel runs
  std::int64_t rows, classes;
  std::int64_t x_row, x_col;  // elements
  const void* x;
  const void* target;
  const void* weight;  // of `type`, or null
  std::int64_t ignore_index;
  void* loss;          // rows values for kNone, else one
  void* total_weight;  // one value of `type`
};

struct NllBackwardParams {
  DType type;
  DType target_type;
  Reduction reduction;
  std::int64_t rows, classes;
  const void* grad;  // rows values for kNone (stride grad_stride), else one
  std::int64_t grad_stride;
  const void* target;
  const void* weight;
  std::int64_t ignore_index;
  const void* total_weight;
  void* grad_x;  // rows x classes, contiguous; every element is written
};

// Class indices of places: x is batch x classes x places, contiguous, target batch x places of int64.
struct Nll2dParams {
  DType type;
  Reduction reduction;
  std::int64_t batch, classes, places;
  const void* x;
  const std::int64_t* target;
  const void* weight;  // of `type`, or null
  std::int64_t ignore_index;
  void* loss;          // batch x places values for kNone, else one
  void* total_weight;  // one value; not written for kNone
};
struct Nll2dBackwardParams {
  DType type;
  Reduction reduction;
  std::int64_t batch, classes, places;
  const void* grad;  // batch x places values for kNone, contiguous, else one
  const std::int64_t* target;
  const void* weight;
  std::int64_t ignore_index;
  const void* total_weight;
  void* grad_x;  // batch x classes x places; every element is written
};
// Blocks whose sums meet in one atomic addition.
std::int64_t nll2d_blocks(std::int64_t batch, std::int64_t places);
void nll2d_forward(const Nll2dParams& params);  // sum and mean: the blocks in order
void nll2d_backward(const Nll2dBackwardParams& params);

int nll_threads(std::int64_t rows);
void nll_forward(const NllParams& params);
void nll_backward(const NllBackwardParams& params);

namespace ref {
void nll2d_forward(const Nll2dParams& params);
void nll2d_backward(const Nll2dBackwardParams& params);
void nll_forward(const NllParams& params);
void nll_backward(const NllBackwardParams& params);
}  // namespace ref

}  // namespace step_oracle::loss
