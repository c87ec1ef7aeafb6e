// What the instruction sets provide for the losses.
#pragma once
#include <cstdint>

#include "csrc/kernels/core/isa_body.h"
#include "csrc/kernels/loss/loss.h"

namespace step_oracle {

struct LossBody {
  void (*nll_each)(const loss::NllParams& p, std::int64_t begin, std::int64_t end);  // kNone, rows [begin, end)
  void (*nll_reduced)(const loss::NllParams& p, int threads);                        // kMean, kSum
  void (*nll_backward)(const loss::NllBackwardParams& p, std::int64_t begin, std::int64_t end);
  void (*nll2d_each)(const loss::Nll2dParams& p, std::int64_t begin, std::int64_t end);  // batch x places
  // Block `block` of one sample's: its sum and its weight, in float.
  void (*nll2d_block)(const loss::Nll2dParams& p, std::int64_t sample, std::int64_t block, std::int64_t blocks,
                      float* sum, float* weight);
  void (*nll2d_fold)(const loss::Nll2dParams& p, const float* sums, const float* weights, std::int64_t blocks);
  void (*nll2d_backward)(const loss::Nll2dBackwardParams& p, std::int64_t begin, std::int64_t end);  // of batch
};
SO_DECLARE_BODY(LossBody, loss_body)

}  // namespace step_oracle
