#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <cstring>

#include "csrc/oracle/device/device.h"

namespace step_oracle::device {
namespace {

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return count(); }
  void setCurrentDevice(c10::DeviceIndex index) const override { set_current(index); }
  c10::DeviceIndex getCurrentDevice() const override { return current(); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    const c10::DeviceIndex old = current();
    if (index >= 0) set_current(index);
    return old;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override { return exchangeDevice(index); }

  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override { return default_generator(index); }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override { return new_generator(index); }

  at::Device getDeviceFromPtr(void*) const override { return {kOracle, current()}; }
  // Host memory needs no pinning to be read at once.
  bool isPinnedPtr(const void*) const override { return false; }
  c10::Allocator* getPinnedMemoryAllocator() const override { return c10::GetCPUAllocator(); }

  void resizePrivateUse1Bytes(const c10::Storage& storage, std::size_t bytes) const override {
    const c10::DeviceGuard guard(storage.device());
    Access access;
    access.open(storage.data());
    c10::DataPtr data = allocator()->allocate(bytes);
    if (bytes != 0 && storage.data() != nullptr) {
      std::memcpy(data.get(), storage.data(), std::min(bytes, storage.nbytes()));
    }
    storage.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(data));
    storage.unsafeGetStorageImpl()->set_nbytes(bytes);
  }
};

const bool g_registered = [] {
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  watch_forks();
  return true;
}();

}  // namespace
}  // namespace step_oracle::device
