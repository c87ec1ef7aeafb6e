// Operators that touch sizes, strides and storages only: torch's own functions, which read no element.
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/is_set_to_native.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_cpu_dispatch.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>

#include "csrc/oracle/aten/adapter.h"

namespace step_oracle::aten {
namespace {

at::Tensor as_strided(const at::Tensor& self, at::IntArrayRef size, at::IntArrayRef stride,
                      std::optional<std::int64_t> offset) {
  return at::native::as_strided_tensorimpl(self, size, stride, offset);
}
at::Tensor view(const at::Tensor& self, at::IntArrayRef size) { return at::native::view(self, size); }
at::Tensor reshape_alias(const at::Tensor& self, at::IntArrayRef size, at::IntArrayRef stride) {
  return at::native::_reshape_alias(self, size, stride);
}
at::Tensor unfold(const at::Tensor& self, std::int64_t dim, std::int64_t size, std::int64_t step) {
  return at::native::unfold(self, dim, size, step);
}
const at::Tensor& resize_(const at::Tensor& self, at::IntArrayRef size, std::optional<at::MemoryFormat> format) {
  return at::native::resize_(self, size, format);
}
at::Tensor& set_storage_offset(at::Tensor& self, at::Storage source, std::int64_t offset, at::IntArrayRef size,
                               at::IntArrayRef stride) {
  return at::cpu::set_(self, std::move(source), offset, size, stride);
}
at::Tensor& set_storage(at::Tensor& self, at::Storage source) { return at::native::set_(self, std::move(source)); }
at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& source) { return at::native::set_tensor_(self, source); }
at::Tensor& set_empty(at::Tensor& self) {
  c10::Storage nothing(c10::Storage::use_byte_size_t(), 0, device::allocator(), /*resizable=*/true);
  self.set_(std::move(nothing), 0, {0}, {});
  return self;
}
bool is_set_to(const at::Tensor& self, const at::Tensor& other) { return at::native::is_set_to(self, other); }
// Every kernel has ended when its call returns: no stream uses the memory later.
void record_stream(at::Tensor&, c10::Stream) {}

// Module.to("oracle") keeps the Parameter objects, and with them tied weights and optimizers that hold them, only
// where this says that a host tensor may become a card's in place; it does for CUDA.
bool has_compatible_shallow_copy_type(const at::Tensor& self, const at::Tensor& from) {
  const auto dense = [](const at::Tensor& t) { return t.layout() == at::kStrided && (t.is_cpu() || is_oracle(t)); };
  return dense(self) && dense(from);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
#define SO_OP(name, fn, klass) m.impl(name, SO_ADAPTER(fn));
#include "csrc/oracle/ops/views.inc"
#undef SO_OP
  m.impl("_has_compatible_shallow_copy_type", SO_ADAPTER_ANY_DEVICE(has_compatible_shallow_copy_type));
}
TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, m) {
  m.impl("_has_compatible_shallow_copy_type", SO_ADAPTER_ANY_DEVICE(has_compatible_shallow_copy_type));
}

}  // namespace
}  // namespace step_oracle::aten
