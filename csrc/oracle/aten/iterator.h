// TensorIterator -> Loop: what torch decided about shapes, types and strides, without torch.
#pragma once
#include <ATen/TensorIterator.h>

#include <string_view>

#include "csrc/kernels/core/loop.h"

namespace step_oracle::aten {

// All operands of a built iterator, outputs first; dimensions as the iterator coalesced them.
// NotImplementedError naming op and dtype for a type no kernel has.
Loop loop_of(const at::TensorIteratorBase& iter, std::string_view op);

}  // namespace step_oracle::aten
