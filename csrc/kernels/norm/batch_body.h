// What the instruction sets provide for batch norm.
#pragma once
#include <cstdint>

#include "csrc/kernels/core/isa_body.h"
#include "csrc/kernels/norm/batch.h"

namespace step_oracle {

namespace norm {
// [src Normalization.cuh@v2.13.0 MAX_BLOCK_SIZE, ELEMENTS_PER_ITER, MAX_H_BLOCK]
inline constexpr int kBatchThreads = 512, kBatchLoads = 4, kBatchBlocks = 128;

struct BatchBlock {
  int width, height;  // threads: over places or channels, over samples or rows
  int blocks;         // over rows
};
}  // namespace norm

inline constexpr int kBatchStrip = 16;  // channels side by side, for rows

struct BatchBody {
  using Range = std::int64_t;  // begin, end of: channels (planes), strips (rows), samples (element by element)
  void (*statistics_planes)(const norm::BatchStatistics& p, norm::BatchBlock block, Range begin, Range end);
  void (*statistics_rows)(const norm::BatchStatistics& p, norm::BatchBlock block, Range begin, Range end);
  void (*update)(const norm::BatchUpdate& p);
  void (*invstd)(DType type, std::int64_t channels, float eps, const void* var, float* invstd);
  void (*forward)(const norm::BatchForward& p, Range begin, Range end);
  void (*backward)(const norm::BatchBackward& p, norm::BatchBlock block, Range begin, Range end);
  void (*sums_planes)(const norm::BatchSums& p, norm::BatchBlock block, Range begin, Range end);
  void (*sums_rows)(const norm::BatchSums& p, norm::BatchBlock block, Range begin, Range end);
  void (*input)(const norm::BatchInput& p, Range begin, Range end);
};
SO_DECLARE_BODY(BatchBody, batch_body)

}  // namespace step_oracle
