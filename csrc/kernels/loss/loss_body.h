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
};
SO_DECLARE_BODY(LossBody, loss_body)

}  // namespace step_oracle
