// What the instruction sets provide for tensor-core products.
#pragma once
#include <cstdint>

#include "csrc/kernels/core/isa_body.h"
#include "csrc/kernels/gemm/tensor_core.h"

namespace step_oracle {

struct Region {
  std::int64_t row_begin, row_end, col_begin, col_end;
};

inline constexpr std::int64_t kRegionCols = 384;  // at most: whole tiles of every instruction set

struct TensorCoreBody {
  std::int64_t max_rows, max_cols;  // of a region
  std::int64_t workspace;           // bytes that accumulate needs, aligned to 64
  std::int64_t acc_pitch;           // floats from one row of acc to the next; acc has max_rows rows
  // One fresh chain over k in [k_begin, k_end) for each output of the region of matrix `batch`, into acc.
  void (*accumulate)(const gemm::TensorCoreParams& params, std::int64_t batch, const Region& region,
                     std::int64_t k_begin, std::int64_t k_end, float* acc, void* workspace);
  // The epilogue: acc to D. The bias is already spelled as C with beta 1.
  void (*store)(const gemm::TensorCoreParams& params, std::int64_t batch, const Region& region, const float* acc);
};
SO_DECLARE_BODY(TensorCoreBody, tensor_core_body)

// .. and for the class that has no adder.
struct FmaChainBody {
  std::int64_t tile_cols;  // columns that are computed together: fewer leave lanes without work
  std::int64_t workspace;  // bytes that accumulate needs, aligned to 64
  // One chain over all of k for each output of the region of matrix `batch`, into acc.
  void (*accumulate)(const gemm::TensorCoreParams& params, std::int64_t batch, const Region& region, float* acc,
                     std::int64_t acc_pitch, void* workspace);
};
SO_DECLARE_BODY(FmaChainBody, fma_chain_body)

}  // namespace step_oracle
