#include "csrc/oracle/aten/iterator.h"

#include "csrc/oracle/aten/adapter.h"

namespace step_oracle::aten {

Loop loop_of(const at::TensorIteratorBase& iter, std::string_view op) {
  Loop loop;
  TORCH_INTERNAL_ASSERT(iter.ndim() <= kMaxDims && iter.ntensors() <= kMaxOperands);
  loop.ndim = iter.ndim();
  loop.operands = iter.ntensors();
  for (int d = 0; d < loop.ndim; ++d) loop.shape[d] = iter.shape()[d];
  for (int k = 0; k < loop.operands; ++k) {
    Operand& operand = loop.operand[k];
    operand.data = iter.data_ptr(k);
    operand.dtype = dtype_of(iter.dtype(k), op);
    const at::IntArrayRef strides = iter.strides(k);
    for (int d = 0; d < loop.ndim; ++d) operand.stride[d] = strides[d];
  }
  return loop;
}

}  // namespace step_oracle::aten
