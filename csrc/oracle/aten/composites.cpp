// Where torch's composites treat CUDA apart from other devices, the virtual card takes CUDA's side.
#include "csrc/oracle/aten/composites.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_log_softmax.h>
#include <ATen/ops/_softmax.h>
#include <ATen/ops/all.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/log_softmax_native.h>
#include <ATen/ops/softmax_native.h>

#include "csrc/oracle/aten/adapter.h"
#include "csrc/oracle/aten/missing_op.h"

namespace step_oracle::aten {
namespace {

// CUDA fuses the cast of a float16 input to float32 into the kernel.
bool fuses_cast(const at::Tensor& self, std::optional<at::ScalarType> dtype) {
  return self.scalar_type() == at::kHalf && dtype == at::kFloat;
}
at::Tensor softmax(const at::Tensor& self, std::int64_t dim, std::optional<at::ScalarType> dtype) {
  return fuses_cast(self, dtype) ? at::_softmax(self, dim, true) : at::native::softmax(self, dim, dtype);
}
at::Tensor log_softmax(const at::Tensor& self, std::int64_t dim, std::optional<at::ScalarType> dtype) {
  return fuses_cast(self, dtype) ? at::_log_softmax(self, dim, true) : at::native::log_softmax(self, dim, dtype);
}

bool equal(const at::Tensor& self, const at::Tensor& other) {
  if (self.sizes() != other.sizes()) return false;
  return self.numel() == 0 || at::eq(self, other).all().item<bool>();
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
#define SO_OP(name, fn, klass) m.impl(name, SO_ADAPTER(fn));
#include "csrc/oracle/ops/composites.inc"
#undef SO_OP
}
TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, m) {
  m.impl("softmax.int", SO_ADAPTER(softmax));
  m.impl("log_softmax.int", SO_ADAPTER(log_softmax));
}

}  // namespace

void refuse_silent_decompositions() {
  static auto& library = *new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__,
                                             __LINE__);
  for (const char* name : {
#define SO_CUDA_NATIVE(name) name,
#include "csrc/oracle/ops/cuda_native.inc"
#undef SO_CUDA_NATIVE
           // Composites that only raise, with advice to backend authors.
           "convolution_overrideable", "convolution_backward_overrideable",
       }) {
    const std::string full(name);
    const std::size_t dot = full.find('.');
    const c10::OperatorName op("aten::" + full.substr(0, dot), dot == std::string::npos ? "" : full.substr(dot + 1));
    const auto handle = c10::Dispatcher::singleton().findSchema(op);
    if (!handle || handle->hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1)) continue;
    library.impl(name, torch::CppFunction::makeFromBoxedFunction<&missing_op>());
  }
}

}  // namespace step_oracle::aten
