// Which ops of the host (CPU tensors only) a replay runs: those whose bytes a move or one IEEE 754 operation an element
// defines, so that every host gives the same.
#pragma once
#include "csrc/record/trace/records.h"

namespace step_oracle::program {

bool host_op_is_exact(const rec::OpT& op);

}  // namespace step_oracle::program
