// Places in sorted rows, and running extremes with their places.
//
// Types     any; nothing is computed.
// Order     a search halves [first, last) as the card does, so that unsorted rows and NaNs give its places; a running
//           extreme takes the later of equal elements.
// NaN       a running extreme stays NaN from the first one on, its place is that of the latest NaN.
// Source    Bucketization.cu (cus_lower_bound, cus_upper_bound), ScanUtils.cuh of torch 2.13.0
//           (tensor_kernel_scan_innermost_dim_with_indices: its network folds to the same element as a serial scan).
// Evidence  docs/evidence.md, row indexing searchsorted.
#pragma once
#include <cstdint>

#include "csrc/kernels/core/dtype.h"

namespace step_oracle::indexing {

struct SearchParams {
  DType type;
  std::int64_t n, per_row;  // values, and how many of them look into the same row
  std::int64_t length;      // of a row
  bool one_row, right;      // one_row: all values look into row 0
  const void* rows;
  const void* values;
  const std::int64_t* order;  // of each row, as sorting gives it; null: the rows are sorted
  DType out_type;             // int64 or int32
  void* out;
};
void search(const SearchParams& params);

// x, values, indices: outer x n x inner, contiguous.
struct ExtremesParams {
  DType type;
  bool max;
  std::int64_t outer, n, inner;
  const void* x;
  void* values;
  std::int64_t* indices;
};
void running_extremes(const ExtremesParams& params);

}  // namespace step_oracle::indexing
