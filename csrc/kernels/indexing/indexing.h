// Moves by index, and sums at an index.
//
// Shapes    see each function. Moves copy elements of any size byte for byte.
// Types     moves: any; sums: float32, bfloat16, float16, accumulated in float32, and integers exactly.
// Order     embedding_backward, at most 3072 indices: batches of 1024, chunks of 32 rows, equal indices of a chunk in
// row
//           order, then one addition to the table. More: stable sort, partial sums of 10 rows from 0, then the partials
//           in order from 0. accumulate (index_put): stable sort by destination; slices wider than 32 one by one onto
//           the destination, up to 32 from 0 then one addition, width 1 by 32 lanes, shuffle tree, the rest in order.
// Rounding  one an addition; 16-bit types round where the table or destination is written.
// NaN       0x7fffffff for sums; moves keep bits.
// Errors    an index outside its dimension: kBadInput, with the value (a device assertion on the card). Sums that the
//           card makes with atomic additions have no defined order: `atomic_is_chosen` says so and the adapter refuses.
// Source    EmbeddingBackwardKernel.cu, Indexing.cu, contractions.md section 9, upstream-arithmetic.md sections 8, 8.1.
// Evidence  docs/evidence.md, rows indexing/*.
#pragma once
#include <cstdint>

#include "csrc/kernels/core/dtype.h"

namespace step_oracle::indexing {

inline constexpr int kMaxDims = 25;

// out[i, :] = table[index[i], :]: rows of row_bytes.
struct RowsParams {
  std::int64_t rows, row_bytes;
  const void* table;
  std::int64_t table_rows;
  std::int64_t table_stride;  // bytes from one row to the next
  DType index_type;           // int64 or int32
  const void* index;
  std::int64_t index_stride;  // elements
  void* out;                  // contiguous
};
void gather_rows(const RowsParams& params);

// One element a point of a shape, at data + sum(point * stride) + sum over indexed dimensions of index * its stride:
// index.Tensor, index_put (not accumulating), gather and scatter.
struct PointsParams {
  int dims;
  std::int64_t shape[kMaxDims];
  int itemsize;
  bool put;  // true: data[..] = values, in point order, the last of equal points wins
  void* data;
  std::int64_t data_stride[kMaxDims];  // bytes; 0 where an index decides
  void* values;
  std::int64_t values_stride[kMaxDims];  // bytes
  int indices;
  const std::int64_t* index[kMaxDims];
  std::int64_t index_stride[kMaxDims][kMaxDims];  // bytes, per index, per dimension
  std::int64_t indexed_size[kMaxDims];    // of the data's dimension; negative indices count from its end if wrap
  std::int64_t indexed_stride[kMaxDims];  // bytes
  bool wrap;
};
void points(const PointsParams& params);

// Positions of the elements that are not zero, in row-major order.
struct NonzeroParams {
  int dims;
  std::int64_t shape[kMaxDims];
  std::int64_t stride[kMaxDims];  // bytes
  DType type;
  const void* data;
};
std::int64_t count_nonzero(const NonzeroParams& params);
// out: count x dims with the given strides in elements.
void list_nonzero(const NonzeroParams& params, std::int64_t* out, std::int64_t row_stride, std::int64_t col_stride);

struct EmbeddingParams {
  DType type;        // of grad and out
  DType index_type;  // int64 or int32
  std::int64_t n, width, table_rows;
  std::int64_t padding_index;  // -1: none
  bool scale_by_frequency;
  const void* grad;   // n x width, contiguous
  const void* index;  // n, contiguous
  void* out;          // table_rows x width, contiguous; every element is written
};
// The variant that adds partial sums atomically would run on this card without deterministic algorithms.
bool embedding_atomic_is_chosen(const EmbeddingParams& params, int sms);
void embedding_backward(const EmbeddingParams& params);

// dest[index[i], :] += values[i, :] in the order of index_put_(accumulate=True).
struct AccumulateParams {
  DType type;
  std::int64_t n, width, dest_rows;
  const std::int64_t* index;  // n, in range
  const void* values;         // n x width, contiguous
  void* dest;                 // dest_rows x width, contiguous
  bool one_by_one = false;    // any width: each value onto the destination, as an atomic addition does
};
void accumulate(const AccumulateParams& params);

namespace ref {
void embedding_backward(const EmbeddingParams& params);
void accumulate(const AccumulateParams& params);
}  // namespace ref

}  // namespace step_oracle::indexing
