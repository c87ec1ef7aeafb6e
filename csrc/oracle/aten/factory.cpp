// New tensors, and the two fills that need no arithmetic.
#include <ATen/EmptyTensor.h>
#include <ATen/Context.h>
#include <ATen/Dispatch_v2.h>
#include <ATen/TensorIterator.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/empty.h>

#include "csrc/oracle/aten/adapter.h"

namespace step_oracle::aten {
namespace {

const c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

void check_pinned(std::optional<bool> pin_memory) {
  TORCH_CHECK(!pin_memory || !*pin_memory, "Only dense CPU tensors can be pinned");
}

// CUDA fills new memory with NaN under torch.use_deterministic_algorithms.
at::Tensor finish(at::Tensor t) {
  const at::Context& context = at::globalContext();
  if (context.deterministicAlgorithms() && context.deterministicFillUninitializedMemory()) {
    at::native::fill_empty_deterministic_(t);
  }
  return t;
}

at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                 std::optional<at::Device> device, std::optional<bool> pin_memory,
                 std::optional<at::MemoryFormat> format) {
  check_pinned(pin_memory);
  const c10::DeviceGuard guard(c10::device_or_default(device));
  return finish(at::detail::empty_generic(size, device::allocator(), kKeys, c10::dtype_or_default(dtype), format));
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout> layout, std::optional<at::Device> device,
                         std::optional<bool> pin_memory) {
  check_pinned(pin_memory);
  const c10::DeviceGuard guard(c10::device_or_default(device));
  return finish(
      at::detail::empty_strided_generic(size, stride, device::allocator(), kKeys, c10::dtype_or_default(dtype)));
}

at::Tensor& fill_scalar(at::Tensor& self, const at::Scalar& value) {
  at::TensorIterator iter = at::TensorIteratorConfig()
                                .set_check_mem_overlap(false)
                                .check_all_same_dtype(false)
                                .resize_outputs(false)
                                .add_output(self)
                                .build();
  AT_DISPATCH_V2(iter.dtype(), "fill_", AT_WRAP([&] {
                   const auto v = value.to<scalar_t>();
                   iter.for_each([v](char** data, const std::int64_t* stride, std::int64_t n) {
                     for (std::int64_t i = 0; i < n; ++i) *reinterpret_cast<scalar_t*>(data[0] + i * stride[0]) = v;
                   });
                 }),
                 AT_EXPAND(AT_ALL_TYPES_AND_COMPLEX), AT_EXPAND(AT_BAREBONES_UNSIGNED_TYPES), at::kHalf, at::kBFloat16,
                 at::kBool, at::kComplexHalf);
  return self;
}

at::Tensor& fill_tensor(at::Tensor& self, const at::Tensor& value) {
  TORCH_CHECK(value.dim() == 0, "fill_ only supports 0-dimension value tensor but got tensor with ", value.dim(),
              " dimensions.");
  if (self.device() != value.device()) return fill_scalar(self, value.item());
  self.copy_(self.is_alias_of(value) ? value.clone() : value);
  return self;
}

at::Tensor& zero_(at::Tensor& self) { return fill_scalar(self, 0); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
#define SO_OP(name, fn, klass) m.impl(name, SO_ADAPTER(fn));
#include "csrc/oracle/ops/factory.inc"
#undef SO_OP
}

}  // namespace
}  // namespace step_oracle::aten
