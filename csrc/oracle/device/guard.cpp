// torch's view of the device: the current index, and streams and events that do nothing, because every kernel has
// ended when its call returns.
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "csrc/oracle/device/device.h"

namespace step_oracle::device {
namespace {

using c10::Device;
using c10::DeviceIndex;
using c10::Stream;

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kOracle; }
  Device exchangeDevice(Device d) const override {
    const Device old = getDevice();
    setDevice(d);
    return old;
  }
  Device getDevice() const override { return {kOracle, current()}; }
  void setDevice(Device d) const override {
    TORCH_CHECK_VALUE(d.index() < count(), "oracle: this process has ", static_cast<int>(count()),
                      " virtual card(s), and ", d, " is not among them. Add one with step_oracle.set_card(name, index=",
                      static_cast<int>(count()), ").");
    if (d.index() >= 0 && d.index() != current()) set_current(d.index());
  }
  void uncheckedSetDevice(Device d) const noexcept override {
    if (d.index() >= 0 && d.index() < count()) set_current(d.index());
  }
  DeviceIndex deviceCount() const noexcept override { return count(); }

  Stream getStream(Device d) const override { return Stream(Stream::DEFAULT, d); }
  Stream getDefaultStream(Device d) const override { return Stream(Stream::DEFAULT, d); }
  Stream getStreamFromGlobalPool(Device d, bool) const override { return Stream(Stream::DEFAULT, d); }
  Stream getNewStream(Device d, int) const override { return Stream(Stream::DEFAULT, d); }
  Stream exchangeStream(Stream s) const override { return Stream(Stream::DEFAULT, s.device()); }
  bool queryStream(const Stream&) const override { return true; }
  void synchronizeStream(const Stream&) const override {}
  void synchronizeDevice(DeviceIndex) const override {}

  void record(void** event, const Stream&, DeviceIndex, c10::EventFlag) const override {
    static int only;  // events have no state: one address stands for all
    *event = &only;
  }
  void block(void*, const Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void synchronizeEvent(void*) const override {}
  void destroyEvent(void*, DeviceIndex) const noexcept override {}
  void recordDataPtrOnStream(const c10::DataPtr&, const Stream&) const override {}
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

}  // namespace
}  // namespace step_oracle::device
