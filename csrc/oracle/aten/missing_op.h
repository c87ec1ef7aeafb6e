#pragma once
#include <ATen/core/dispatch/Dispatcher.h>

namespace step_oracle::aten {

// Boxed kernel that refuses the operator it is called for, by name.
void missing_op(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

}  // namespace step_oracle::aten
