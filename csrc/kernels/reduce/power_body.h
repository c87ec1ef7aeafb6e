// What the instruction sets provide for norms of any order.
#pragma once
#include <cstdint>

#include "csrc/kernels/core/dtype.h"
#include "csrc/kernels/core/isa_body.h"

namespace step_oracle {

struct PowerBody {
  // out[i] = |x[i]| to the power of `order`, i < n
  void (*powers)(DType type, const void* x, std::int64_t n, float order, float* out);
};
SO_DECLARE_BODY(PowerBody, power_body)

}  // namespace step_oracle
