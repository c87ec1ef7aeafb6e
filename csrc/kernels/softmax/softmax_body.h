// What the instruction sets provide for softmax: outer indices [begin, end).
#pragma once
#include <cstdint>

#include "csrc/kernels/core/isa_body.h"
#include "csrc/kernels/softmax/softmax.h"

namespace step_oracle {

struct SoftmaxBody {
  void (*forward)(const softmax::Params& p, const softmax::Plan& plan, std::int64_t begin, std::int64_t end);
  void (*backward)(const softmax::BackwardParams& p, const softmax::Plan& plan, std::int64_t begin, std::int64_t end);
};
SO_DECLARE_BODY(SoftmaxBody, softmax_body)

}  // namespace step_oracle
