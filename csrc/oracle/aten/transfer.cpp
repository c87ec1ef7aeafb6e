// Every copy_ that touches the device arrives at _copy_from. A cast between host and card runs where CUDA's copy runs
// it: on the source's side when the destination is a card, on the host when it is the host [src
// aten/src/ATen/native/cuda/Copy.cu copy_kernel_cuda]. Host casts are torch's own, as they are beside a real card.
#include "csrc/oracle/aten/transfer.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <cstring>

#include "csrc/kernels/pointwise/pointwise.h"
#include "csrc/oracle/aten/adapter.h"

namespace step_oracle::aten {
namespace {

// Two tensors of one shape as a loop: dst is operand 0.
Loop pair(const at::Tensor& src, DType from, const at::Tensor& dst, DType to) {
  Loop loop;
  TORCH_CHECK(dst.dim() < kMaxDims, "oracle: a copy of ", dst.dim(), " dimensions; at most ", kMaxDims - 1);
  loop.ndim = static_cast<int>(dst.dim());
  loop.operands = 2;
  loop.operand[0] = {.data = dst.mutable_data_ptr(), .dtype = to};
  loop.operand[1] = {.data = const_cast<void*>(src.const_data_ptr()), .dtype = from};
  for (int d = 0; d < loop.ndim; ++d) {
    loop.shape[d] = dst.size(d);
    loop.operand[0].stride[d] = dst.stride(d) * static_cast<std::int64_t>(dst.element_size());
    loop.operand[1].stride[d] = src.stride(d) * static_cast<std::int64_t>(src.element_size());
  }
  return loop;
}

// Same type, any strides: bits move, whichever memory they lie in.
void move(const at::Tensor& src, const at::Tensor& dst) {
  if (dst.numel() == 0) return;
  if (src.strides() == dst.strides() && dst.is_non_overlapping_and_dense()) {
    if (src.const_data_ptr() != dst.const_data_ptr()) {
      std::memcpy(dst.mutable_data_ptr(), src.const_data_ptr(), dst.nbytes());
    }
    return;
  }
  std::int64_t words = 1;  // complex128 moves as two words
  DType bits = DType::kI64;
  switch (dst.element_size()) {
    case 1: bits = DType::kU8; break;
    case 2: bits = DType::kI16; break;
    case 4: bits = DType::kI32; break;
    case 8: break;
    default: words = static_cast<std::int64_t>(dst.element_size() / 8);
  }
  Loop loop = pair(src, bits, dst, bits);
  if (words > 1) {
    loop.shape[loop.ndim] = words;
    loop.operand[0].stride[loop.ndim] = loop.operand[1].stride[loop.ndim] = 8;
    ++loop.ndim;
  }
  pointwise::copy(loop);
}

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& dst, bool non_blocking) {
  TORCH_CHECK(self.layout() == at::kStrided && dst.layout() == at::kStrided,
              "oracle: only strided tensors are copied, not ", self.layout(), " to ", dst.layout());
  const at::Tensor src = self.sizes() == dst.sizes() ? self : self.expand(dst.sizes());
  at::assert_no_internal_overlap(dst);
  if (src.scalar_type() == dst.scalar_type()) {
    at::assert_no_partial_overlap(dst, src);
    move(src, dst);
  } else if (src.device() == dst.device()) {
    copy_on_card(src, dst);
  } else if (is_oracle(dst) || non_blocking) {
    move(src.to(dst.scalar_type()), dst);
  } else {
    dst.copy_(at::empty_like(src, src.options().device(dst.device()), at::MemoryFormat::Contiguous).copy_(src));
  }
  return dst;
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& dst) {
  dst.resize_(self.sizes());
  return copy_from(self, dst, /*non_blocking=*/false);
}

at::Scalar local_scalar_dense(const at::Tensor& self) {
  const at::Tensor host = at::empty({}, self.options().device(at::kCPU));
  std::memcpy(host.mutable_data_ptr(), self.const_data_ptr(), self.element_size());
  return host.item();
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
#define SO_OP(name, fn, klass) m.impl(name, SO_ADAPTER_ANY_DEVICE(fn));
#include "csrc/oracle/ops/transfer.inc"
#undef SO_OP
}

}  // namespace
}  // namespace step_oracle::aten
