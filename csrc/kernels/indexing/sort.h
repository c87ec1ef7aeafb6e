// Sorting along the last dimension, and the k largest or smallest elements: values and where they stood.
//
// Shapes    x: rows x n, contiguous; values and indices rows x n (sort) or rows x k (top).
// Types     any; elements are moved, never computed.
// Order     which of equal elements comes first is the kernel's affair. sort: up to 32 elements, not stable: a bitonic
//           network of 32 places; up to 128: a stable merge by comparison; more: a stable radix sort by bits. top: the
//           elements beyond the k-th in the order of x, then those equal to it in the order of x until k are there;
//           `sorted` sorts these k as above.
// NaN       compares as the largest. A radix sort goes by bits instead: a NaN with its sign set is the smallest there.
//           -0 equals +0 in all sorts; top's choice puts -0 below +0, and all NaNs are one there.
// Errors    n above 2^31 - 1: kUnsupported. top of bool: kUnsupported (CUDA has no kernel).
// Source    SortUtils.cuh, SortingRadixSelect.cuh of torch 2.13.0; Sort.cu, TensorTopK.cu.
// Evidence  docs/evidence.md, row indexing sort.
#pragma once
#include <cstdint>

#include "csrc/kernels/core/dtype.h"

namespace step_oracle::indexing {

struct SortParams {
  DType type;
  std::int64_t rows, n;
  bool descending, stable;
  const void* x;
  void* values;
  std::int64_t* indices;
};
void sort(const SortParams& params);

struct TopParams {
  DType type;
  std::int64_t rows, n, k;
  bool largest, sorted;
  const void* x;
  void* values;
  std::int64_t* indices;
};
void top(const TopParams& params);

namespace ref {
// The definition: networks place by place, merges and counts as insertions.
void sort(const SortParams& params);
void top(const TopParams& params);
}  // namespace ref

}  // namespace step_oracle::indexing
