// Elementwise loops over strided operands: torch-free, the shape of what TensorIterator hands over.
//
// Shapes    up to kMaxDims dimensions, dimension 0 is walked first. Strides in bytes; zero (broadcast) and negative
//           ones are allowed. Operand 0 is the output.
// Order     elements are independent; threads and runs split them at will, no byte depends on it.
// Errors    none of its own: callers validate.
#pragma once
#include <cstdint>

#include "csrc/kernels/core/dtype.h"
#include "csrc/kernels/core/parallel.h"

namespace step_oracle {

inline constexpr int kMaxDims = 64;  // TensorIterator's own limit is lower [src c10/core/impl/SizesAndStrides.h: 64]
inline constexpr int kMaxOperands = 8;
inline constexpr std::int64_t kGrain = 32768;  // elements that are worth a thread

struct Operand {
  void* data = nullptr;
  DType dtype = DType::kF32;
  std::int64_t stride[kMaxDims] = {};
};

struct Loop {
  int ndim = 0;
  std::int64_t shape[kMaxDims] = {};
  int operands = 0;
  Operand operand[kMaxOperands] = {};

  std::int64_t numel() const {
    std::int64_t n = 1;
    for (int d = 0; d < ndim; ++d) n *= shape[d];
    return n;
  }
};

// A loop over n contiguous elements of every operand; stride 0 where `once` has the operand's bit (a single value).
Loop contiguous_loop(std::int64_t n, const Operand* operands, int count, unsigned once = 0);

// The same elements in fewer dimensions: sizes of one dropped, the output's smallest stride first, neighbours merged.
// Never 0-dimensional unless it is empty of elements' dimensions: a single element is shape {1}.
Loop coalesced(const Loop& loop);

// The address of every operand at linear index `index` of a coalesced loop, and how many elements follow in dimension
// 0.
std::int64_t locate(const Loop& loop, std::int64_t index, char** data);

// Calls run(data, strides, n) for runs along dimension 0, from several threads. `strides` has one entry an operand.
template <class Run>
void for_each_run(const Loop& given, Run&& run) {
  const Loop loop = coalesced(given);
  std::int64_t stride[kMaxOperands];
  for (int k = 0; k < loop.operands; ++k) stride[k] = loop.operand[k].stride[0];
  parallel_for(loop.numel(), kGrain, [&](std::int64_t begin, std::int64_t end) {
    char* data[kMaxOperands];
    while (begin < end) {
      const std::int64_t left = locate(loop, begin, data);
      const std::int64_t n = left < end - begin ? left : end - begin;
      run(static_cast<char* const*>(data), static_cast<const std::int64_t*>(stride), n);
      begin += n;
    }
  });
}

}  // namespace step_oracle
