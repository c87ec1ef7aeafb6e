// What the instruction sets provide for gemm.
#pragma once
#include <cstdint>

#include "csrc/kernels/core/isa_body.h"
#include "csrc/kernels/gemm/gemm.h"

namespace step_oracle {

struct GemmBody {
  std::int64_t tile_rows, tile_cols;  // regions are best cut at multiples of these
  std::int64_t workspace;             // floats that fp32_chain needs, aligned to 64 bytes
  std::int64_t k_panel;               // beyond this k, D holds partial sums while fp32_chain runs: C must not be D
  // Rows [row_begin, row_end) and columns [col_begin, col_end) of matrix `batch` of D. Here D's column stride is 1 and
  // the bias is already spelled as C with beta 1.
  void (*fp32_chain)(const gemm::Params& params, std::int64_t batch, std::int64_t row_begin, std::int64_t row_end,
                     std::int64_t col_begin, std::int64_t col_end, float* workspace);
};
SO_DECLARE_BODY(GemmBody, gemm_body)

}  // namespace step_oracle
