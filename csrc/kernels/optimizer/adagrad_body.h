// What the instruction sets provide for Adagrad.
#pragma once
#include <cstdint>

#include "csrc/kernels/core/isa_body.h"
#include "csrc/kernels/optimizer/adagrad.h"

namespace step_oracle {

struct AdagradBody {
  void (*step)(const optimizer::AdagradParams& p, std::int64_t begin, std::int64_t end);
};
SO_DECLARE_BODY(AdagradBody, adagrad_body)

}  // namespace step_oracle
