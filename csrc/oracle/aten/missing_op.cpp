// An operator without a kernel raises. Nothing is computed by a host kernel, and nothing that CUDA computes with a
// kernel of its own is decomposed silently: torch decomposes before it asks a fallback, in another order of operations.
#include <torch/library.h>
#include <c10/util/Exception.h>

#include "csrc/oracle/aten/missing_op.h"
#include "csrc/oracle/device/device.h"

namespace step_oracle::aten {

void missing_op(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack*) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, "oracle: '", op.operator_name(), "' has no kernel on the virtual card (", device::card(-1).name,
      "), and no host kernel takes its place. Use operators that docs/evidence.md lists, or run this part of the script "
      "on the CPU (.cpu()) if its bytes do not matter. Schema: ", op.schema());
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&missing_op>()); }

}  // namespace step_oracle::aten
