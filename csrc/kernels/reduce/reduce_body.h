// What the instruction sets provide for the generic reduction.
#pragma once
#include <cstdint>

#include "csrc/kernels/core/isa_body.h"
#include "csrc/kernels/reduce/reduce.h"

namespace step_oracle {

// The work of one CTA on one output (x splits the input) or on a tile of neighbouring outputs (it does not) is a task.
// `values` leaves each CTA's value at staging[output * ctas + cta]; `finish` folds an output's CTAs and stores.
struct ReduceBody {
  std::int64_t (*value_size)(const reduce::Params& p);  // bytes of one staged value; 0: the operation is not there
  std::int64_t (*tasks)(const reduce::Params& p, const reduce::Plan& plan);
  void (*values)(const reduce::Params& p, const reduce::Plan& plan, std::int64_t begin, std::int64_t end,
                 void* staging);
  void (*finish)(const reduce::Params& p, const reduce::Plan& plan, std::int64_t begin, std::int64_t end,
                 const void* staging);
  // Operations whose result no order changes, and integers: outputs [begin, end).
  bool (*exact)(const reduce::Params& p, std::int64_t begin, std::int64_t end);
  void (*scan)(const reduce::ScanParams& p, std::int64_t begin, std::int64_t end);  // of p.outer
};
SO_DECLARE_BODY(ReduceBody, reduce_body)

}  // namespace step_oracle
