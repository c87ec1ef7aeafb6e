// How the kernels of batch norm are launched, for the body and for the definition [src Normalization.cuh@v2.13.0].
#pragma once
#include <algorithm>
#include <bit>
#include <cstdint>

#include "csrc/kernels/norm/batch_body.h"

namespace step_oracle::norm {

inline std::int64_t last_pow2(std::int64_t v) {
  return static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(std::max<std::int64_t>(v, 1))));
}

// getNumThreads
inline int batch_width(std::int64_t places) {
  for (const int width : {32, 64, 128, 256})
    if (places <= width) return width;
  return kBatchThreads;
}

// Statistics and the fused backward of planes.
inline BatchBlock batch_plane(std::int64_t places) {
  const int width = batch_width(places);
  return {width, kBatchThreads / width, 1};
}

// batch_norm_backward_reduce_cuda_template
inline BatchBlock batch_sum_plane(std::int64_t n, std::int64_t places) {
  const int height = static_cast<int>(std::min<std::int64_t>(last_pow2(n), kBatchThreads / 32));
  return {std::min(batch_width(places), kBatchThreads / height), height, 1};
}

// flexible_launch_configs of a reduction over rows.
inline BatchBlock batch_rows(std::int64_t rows, std::int64_t channels) {
  constexpr std::int64_t kPerThread = 16, kTile = 32, kWorthwhile = 8;
  std::int64_t width = std::min(last_pow2(channels), kTile);
  const std::int64_t height =
      std::min(last_pow2((rows + kPerThread - 1) / kPerThread), std::int64_t{kBatchThreads} / width);
  if (width * height != kBatchThreads) width = std::min(last_pow2(channels), std::int64_t{kBatchThreads} / height);
  const std::int64_t per_block = height * kPerThread;
  const std::int64_t blocks = std::min<std::int64_t>((rows + per_block - 1) / per_block, kBatchBlocks);
  return {static_cast<int>(width), static_cast<int>(height), static_cast<int>(blocks < kWorthwhile ? 1 : blocks)};
}

}  // namespace step_oracle::norm
