// Every copy_ that touches the device arrives at _copy_from. A cast between host and card runs where CUDA's copy runs
// it: on the source's side when the destination is a card, on the host when it is the host [src
// aten/src/ATen/native/cuda/Copy.cu copy_kernel_cuda]. Host casts are torch's own, as they are beside a real card.
#include "csrc/oracle/aten/transfer.h"

#include <ATen/TensorIterator.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <cstring>

#include "csrc/oracle/aten/adapter.h"

namespace step_oracle::aten {
namespace {

// Same type, any strides: bits move, whichever memory they lie in.
void move(const at::Tensor& src, const at::Tensor& dst) {
  if (dst.numel() == 0) return;
  if (src.strides() == dst.strides() && dst.is_non_overlapping_and_dense()) {
    std::memcpy(dst.mutable_data_ptr(), src.const_data_ptr(), dst.nbytes());
    return;
  }
  at::TensorIterator iter = at::TensorIteratorConfig()
                                .set_check_mem_overlap(false)
                                .check_all_same_dtype(true)
                                .check_all_same_device(false)
                                .resize_outputs(false)
                                .add_output(dst)
                                .add_const_input(src)
                                .build();
  const std::size_t element = dst.element_size();
  iter.for_each([element](char** data, const std::int64_t* stride, std::int64_t n) {
    if (stride[0] == static_cast<std::int64_t>(element) && stride[1] == stride[0]) {
      std::memcpy(data[0], data[1], static_cast<std::size_t>(n) * element);
      return;
    }
    for (std::int64_t i = 0; i < n; ++i) std::memcpy(data[0] + i * stride[0], data[1] + i * stride[1], element);
  });
}

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& dst, bool non_blocking) {
  TORCH_CHECK(self.layout() == at::kStrided && dst.layout() == at::kStrided,
              "oracle: only strided tensors are copied, not ", self.layout(), " to ", dst.layout());
  const at::Tensor src = self.sizes() == dst.sizes() ? self : self.expand(dst.sizes());
  const bool same_type = src.scalar_type() == dst.scalar_type();
  if (src.device() == dst.device()) {
    copy_on_card(src, dst);
  } else if (same_type) {
    move(src, dst);
  } else if (is_oracle(dst)) {
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
  at::Tensor host = at::empty({}, self.options().device(at::kCPU));
  std::memcpy(host.mutable_data_ptr(), self.const_data_ptr(), self.element_size());
  return host.item();
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_copy_from", SO_ADAPTER_ANY_DEVICE(copy_from));
  m.impl("_copy_from_and_resize", SO_ADAPTER_ANY_DEVICE(copy_from_and_resize));
  m.impl("_local_scalar_dense", SO_ADAPTER(local_scalar_dense));
}

}  // namespace

void copy_on_card(const at::Tensor& src, const at::Tensor& dst) {
  if (src.scalar_type() == dst.scalar_type()) return move(src, dst);
  refuse("copy_", std::string("from ") + c10::toString(src.scalar_type()) + " to " + c10::toString(dst.scalar_type()) +
                      " has no kernel on the virtual card",
         "Cast on the host before .to('oracle')");
}

}  // namespace step_oracle::aten
