// How often each whole number occurs.
//
// Shapes    x (n), counts (bins), both contiguous.
// Types     x integers but bool; counts int64.
// Order     none: the additions of a card's atomics are those of integers.
// Errors    an element outside [0, bins).
// Source    SummaryOps.cu of torch 2.13.0 (the bin of x is x * bins / bins, in int64).
// Evidence  docs/evidence.md, row indexing bincount.
#pragma once
#include <cstdint>

#include "csrc/kernels/core/dtype.h"

namespace step_oracle::indexing {

struct CountParams {
  DType type;
  std::int64_t n, bins;
  const void* x;
  std::int64_t* counts;
};
void count(const CountParams& params);

namespace ref {
void count(const CountParams& params);  // a bin after another
}  // namespace ref

}  // namespace step_oracle::indexing
