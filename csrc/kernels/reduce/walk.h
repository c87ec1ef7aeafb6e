// Byte offsets of consecutive linear indices of a strided shape, the first dimension running fastest.
#pragma once
#include <cstdint>

#include "csrc/kernels/core/isa_namespace.h"
#include "csrc/kernels/reduce/reduce.h"

SO_ISA_BEGIN

struct Walk {
  int dims;
  const std::int64_t* shape;
  const std::int64_t* stride;
  std::int64_t coordinate[reduce::kMaxDims];
  std::int64_t offset;

  Walk(int dims_, const std::int64_t* shape_, const std::int64_t* stride_, std::int64_t index)
      : dims(dims_), shape(shape_), stride(stride_), offset(0) {
    for (int d = 0; d < dims; ++d) {
      coordinate[d] = index % shape[d];
      index /= shape[d];
      offset += coordinate[d] * stride[d];
    }
  }
  void next() {
    for (int d = 0; d < dims; ++d) {
      offset += stride[d];
      if (++coordinate[d] < shape[d]) return;
      offset -= shape[d] * stride[d];
      coordinate[d] = 0;
    }
  }
};

inline std::int64_t offset_of(int dims, const std::int64_t* shape, const std::int64_t* stride, std::int64_t index) {
  return dims == 1 ? index * stride[0] : Walk(dims, shape, stride, index).offset;
}

SO_ISA_END
