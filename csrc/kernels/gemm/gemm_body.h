// What the instruction sets provide for gemm.
#pragma once
#include <cstdint>

#include "csrc/kernels/core/isa_body.h"
#include "csrc/kernels/gemm/gemm.h"

namespace step_oracle {

struct GemmBody {
  // Rows [row_begin, row_end) and columns [col_begin, col_end) of matrix `batch` of D.
  void (*fp32_chain)(const gemm::Params& params, std::int64_t batch, std::int64_t row_begin, std::int64_t row_end,
                     std::int64_t col_begin, std::int64_t col_end);
};
SO_DECLARE_BODY(GemmBody, gemm_body)

}  // namespace step_oracle
