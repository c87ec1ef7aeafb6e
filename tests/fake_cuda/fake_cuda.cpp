// A device guard, hooks and an attention chooser for CUDA in a process without CUDA. The registry's key must be
// "CUDAHooks", the name under which torch looks for it.
#include <ATen/core/Generator.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/native/DispatchStub.h>
#include <ATen/native/transformers/attention.h>
#include <c10/core/impl/FakeGuardImpl.h>

#include <cstdint>

namespace {

C10_REGISTER_GUARD_IMPL(CUDA, c10::impl::FakeGuardImpl<c10::DeviceType::CUDA>);

struct FakeHooks : at::CUDAHooksInterface {
  explicit FakeHooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return false; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    static const at::Generator none;
    return none;
  }
};

std::int64_t g_backend = 0;
std::int64_t backend(const at::Tensor&, const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&, double,
                     bool, std::optional<double>, bool) {
  return g_backend;
}
const bool g_chooser = [] {
  at::native::_fused_sdp_choice_stub.set_cuda_dispatch_ptr(&backend);
  return true;
}();

}  // namespace

namespace at {
C10_REGISTER_CLASS(CUDAHooksRegistry, CUDAHooks, FakeHooks)
}

// 0 math, 1 flash, 2 efficient.
extern "C" __attribute__((visibility("default"))) void fake_cuda_choose_attention(std::int64_t chosen) {
  g_backend = chosen;
}
