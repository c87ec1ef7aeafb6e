#include "csrc/kernels/gemm/tensor_core.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "csrc/kernels/core/error.h"
#include "csrc/kernels/core/parallel.h"
#include "csrc/kernels/core/workspace.h"
#include "csrc/kernels/gemm/tensor_core_body.h"
#include "csrc/kernels/gemm/sizes.h"

namespace step_oracle::gemm {
namespace {

void check(const TensorCoreParams& p) {
  check_sizes(p, p.d_strides);
  if (p.bias && p.beta != 0.0f)
    throw Error(ErrorKind::kBadInput, fmt::format("gemm: a bias and beta {} at once; give one of them", p.beta));
  if (p.factors != DType::kBF16 && p.factors != DType::kF16 && p.factors != DType::kF32)
    throw Error(
        ErrorKind::kUnsupported,
        fmt::format("gemm: tensor-core products of {} are not modelled; give bfloat16, float16 or float32 (TF32)",
                    name_of(p.factors)));
  if (p.results != p.factors && p.results != DType::kF32)
    throw Error(ErrorKind::kUnsupported,
                fmt::format("gemm: a product of {} stored as {} is not modelled; store {} or float32",
                            name_of(p.factors), name_of(p.results), name_of(p.factors)));
}

// Regions of the outputs: as tall as the body allows, shorter where that would leave threads without work. Each packs
// its own B, which costs what some hundred rows of products cost.
std::int64_t region_rows(const TensorCoreParams& p, const TensorCoreBody& body, std::int64_t col_regions) {
  constexpr std::int64_t kLeast = 256;
  const std::int64_t wanted = 2 * num_threads();
  const std::int64_t row_regions = std::max<std::int64_t>(1, wanted / std::max<std::int64_t>(1, p.batch * col_regions));
  const std::int64_t even = (p.m + row_regions - 1) / row_regions;
  return std::min(body.max_rows, std::max(kLeast, (even + 1) / 2 * 2));
}

void run(const TensorCoreParams& p, const TensorCoreBody& body, const FmaChainBody& chain) {
  const std::int64_t col_regions = (p.n + body.max_cols - 1) / body.max_cols;
  const std::int64_t rows = region_rows(p, body, col_regions), row_regions = (p.m + rows - 1) / rows;
  const std::int64_t each = std::max<std::int64_t>(1, std::min(p.m, rows) * std::min(p.n, body.max_cols) * p.k);
  constexpr std::int64_t kWorkWorthAThread = 1 << 19;  // products: some 20 microseconds
  const std::int64_t acc_bytes = body.max_rows * body.acc_pitch * static_cast<std::int64_t>(sizeof(float));
  const bool chained = p.adder == AdderClass::kFmaChain;
  const std::int64_t own_bytes = chained ? chain.workspace : body.workspace;
  parallel_for(p.batch * row_regions * col_regions, (kWorkWorthAThread + each - 1) / each,
               [&](std::int64_t begin, std::int64_t end) {
                 std::byte* const space =
                     static_cast<std::byte*>(workspace(static_cast<std::size_t>(acc_bytes + own_bytes)));
                 float* const acc = reinterpret_cast<float*>(space);
                 for (std::int64_t task = begin; task < end; ++task) {
                   const std::int64_t batch = task / (row_regions * col_regions);
                   const std::int64_t row = task / col_regions % row_regions * rows,
                                      col = task % col_regions * body.max_cols;
                   const Region region{row, std::min(p.m, row + rows), col, std::min(p.n, col + body.max_cols)};
                   if (chained)
                     chain.accumulate(p, batch, region, acc, body.acc_pitch, space + acc_bytes);
                   else
                     body.accumulate(p, batch, region, 0, p.k, acc, space + acc_bytes);
                   body.store(p, batch, region, acc);
                 }
               });
}

// fma does not tell its factors apart: D' = B' A' gives the same bytes with rows and columns exchanged.
TensorCoreParams transposed(const TensorCoreParams& p) {
  const auto flip = [](const Strides& s) { return Strides{s.col, s.row, s.batch}; };
  TensorCoreParams t = p;
  t.m = p.n, t.n = p.m, t.a = p.b, t.b = p.a;
  t.a_strides = flip(p.b_strides), t.b_strides = flip(p.a_strides);
  t.c_strides = flip(p.c_strides), t.d_strides = flip(p.d_strides);
  return t;
}

}  // namespace

AdderClass adder_class(int compute_capability, DType factors) {
  switch (compute_capability) {
    case 75:
      if (factors == DType::kF32)
        throw Error(ErrorKind::kUnsupported, "gemm: compute capability 7.5 has no TF32; use float16 or plain float32");
      return factors == DType::kBF16 ? AdderClass::kFmaChain : AdderClass::kTuring;
    case 80:
    case 86:
    case 87:
    case 89:
      return AdderClass::kTuring;
    case 90:
    case 100:
    case 103:
    case 120:
      return AdderClass::kHopper;
    default:
      throw Error(
          ErrorKind::kUnsupported,
          fmt::format("gemm: the tensor-core adder of compute capability {}.{} is not known; known are 7.5, 8.0, "
                      "8.6, 8.7, 8.9, 9.0, 10.0, 10.3 and 12.0",
                      compute_capability / 10, compute_capability % 10));
  }
}

void tensor_core(const TensorCoreParams& params) {
  check(params);
  if (params.m == 0 || params.n == 0 || params.batch == 0) return;
  TensorCoreParams p = params;
  if (p.bias) {
    p.c = std::exchange(p.bias, nullptr);
    p.c_strides = {0, 1, 0};
    p.beta = 1.0f;
  }
  const FmaChainBody& chain = SO_BODY(fma_chain_body);
  // A narrow D (a vector, above all) fills few lanes of a tile; on its side it fills them all.
  if (p.adder == AdderClass::kFmaChain && p.n * 2 <= chain.tile_cols && p.m >= chain.tile_cols) p = transposed(p);
  run(p, SO_BODY(tensor_core_body), chain);
}

}  // namespace step_oracle::gemm
