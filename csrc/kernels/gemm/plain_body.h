// What the instruction sets provide for float64 and int8 products.
#pragma once
#include <cstdint>

#include "csrc/kernels/core/isa_body.h"
#include "csrc/kernels/gemm/plain.h"

namespace step_oracle {

inline constexpr std::int64_t kPlainRows = 4, kPlainCols = 32;

struct PlainBody {
  // acc[r][j] of kPlainRows rows and kPlainCols columns, over the whole k: a holds kPlainRows values for each k, b
  // kPlainCols of them.
  void (*fp64_tile)(std::int64_t k, const double* a, const double* b, double* acc);
  void (*int8_tile)(std::int64_t k, const std::int32_t* a, const std::int32_t* b, std::int32_t* acc);
};
SO_DECLARE_BODY(PlainBody, plain_body)

}  // namespace step_oracle
