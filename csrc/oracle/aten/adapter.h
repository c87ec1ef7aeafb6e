// What every adapter of this folder shares: the guard and checks around it, the card, types, refusals, generators.
//
// An adapter is a free function with the operator's C++ signature that turns tensors into a family's Params:
//
//   at::Tensor& mm_out(const at::Tensor& a, const at::Tensor& b, at::Tensor& out) { ... gemm::fp32_chain(params); ... }
//   TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
//   #define SO_OP(name, fn, klass) m.impl(name, SO_ADAPTER(fn));
//   #include "csrc/oracle/ops/gemm.inc"
//   #undef SO_OP
//   }
//
// SO_ADAPTER gives it what torch generates for CUDA and not for PrivateUse1: the device of the first oracle tensor is
// current while it runs, tensors of two devices are refused, and Error becomes the Python exception of its kind.
#pragma once
#include <ATen/core/Generator.h>
#include <ATen/core/IListRef.h>
#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <optional>
#include <string_view>
#include <utility>

#include "csrc/kernels/card/card.h"
#include "csrc/kernels/core/dtype.h"
#include "csrc/kernels/core/error.h"
#include "csrc/oracle/device/device.h"

namespace step_oracle::aten {

using device::kOracle;

inline bool is_oracle(const at::TensorBase& t) { return t.defined() && t.device().type() == kOracle; }

// The card that computes: of a tensor's device, or of the current device.
inline const Card& card_of(const at::TensorBase& t) { return device::card(t.device().index()); }
inline const Card& current_card() { return device::card(-1); }

// NotImplementedError: "oracle: 'op' ...: reason. remedy".
[[noreturn]] void refuse(std::string_view op, std::string_view reason, std::string_view remedy);

// The element type of a kernel's operand; NotImplementedError that names op and dtype for a type no kernel has.
DType dtype_of(at::ScalarType type, std::string_view op);
inline DType dtype_of(const at::TensorBase& t, std::string_view op) { return dtype_of(t.scalar_type(), op); }
// Refuses (NotImplementedError, naming op, argument and dtype) unless t has the one type that this kernel computes.
void require_dtype(const at::TensorBase& t, at::ScalarType type, std::string_view op, std::string_view argument);
// Throws Error (kUnsupported) with the same text, from a branch over types: default: unsupported_dtype(op, t).
[[noreturn]] void unsupported_dtype(std::string_view op, at::ScalarType type);

// Philox state for one launch, from the caller's generator or the device's default one; see device::take_philox.
device::Philox take_philox(const std::optional<at::Generator>& generator, std::uint64_t increment);

// The numeric switches of this process, as torch.backends.cuda.* sets them; they choose kernels on a card.
struct NumericSwitches {
  bool allow_tf32;                     // float32 matrix products may use TF32
  bool allow_bf16_reduced_precision;   // split-K partial sums may be reduced in bfloat16
  bool allow_fp16_reduced_precision;   //   "   in float16
  bool allow_fp16_accumulation;
  bool deterministic;                  // torch.use_deterministic_algorithms
};
NumericSwitches numeric_switches();

// Runs `fn` and turns step_oracle::Error into ValueError, NotImplementedError or RuntimeError ("StepOracleError: ...").
[[noreturn]] void rethrow_as_torch(const Error& error);
[[noreturn]] void rethrow_fork();

namespace detail {

// Finds the device of an adapter's oracle tensors, and refuses a second one; opens their memory in debugging mode.
class DeviceScan {
 public:
  explicit DeviceScan(bool same_device) : same_device_(same_device) {}
  void see(const at::Tensor& t) {
    if (!t.defined()) return;
    const c10::Device d = t.device();
    if (d.type() == kOracle) access_.open(t.storage().data());
    if (d.type() == kOracle && !found_) {
      device_ = d;
      found_ = true;
      if (strange_ && same_device_) mixed(*strange_);
    } else if (found_ ? d != device_ : d.type() != kOracle) {
      if (d.is_cpu() && t.dim() == 0) return;  // a Python number in tensor's clothes
      if (found_ && same_device_) mixed(d);
      strange_ = d;
    }
  }
  void see(const std::optional<at::Tensor>& t) {
    if (t) see(*t);
  }
  void see(at::TensorList list) {
    for (const at::Tensor& t : list) see(t);
  }
  void see(const at::ITensorListRef& list) {
    for (const at::Tensor& t : list) see(t);
  }
  void see(const c10::List<std::optional<at::Tensor>>& list) {
    for (const std::optional<at::Tensor> t : list) see(t);
  }
  template <class T>
  void see(const T&) {}
  std::optional<c10::Device> device() const { return found_ ? std::optional(device_) : std::nullopt; }

 private:
  [[noreturn]] void mixed(c10::Device other) const;
  device::Access access_;
  bool same_device_, found_ = false;
  c10::Device device_{kOracle, 0};
  std::optional<c10::Device> strange_;
};

template <auto kFn, bool kSameDevice, class Sig = decltype(kFn)>
struct Edge;
template <auto kFn, bool kSameDevice, class R, class... A>
struct Edge<kFn, kSameDevice, R (*)(A...)> {
  static R call(A... args) {
    if (device::forked()) rethrow_fork();
    DeviceScan scan(kSameDevice);
    (scan.see(args), ...);
    const c10::OptionalDeviceGuard guard(scan.device());
    try {
      return kFn(std::forward<A>(args)...);
    } catch (const Error& error) {
      rethrow_as_torch(error);
    }
  }
};

}  // namespace detail
}  // namespace step_oracle::aten

// For m.impl: the adapter with its guard, same-device check and translation of errors.
#define SO_ADAPTER(fn) TORCH_FN((::step_oracle::aten::detail::Edge<fn, true>::call))
// The same without the same-device check: for copies, and for operators that take tensors of several devices.
#define SO_ADAPTER_ANY_DEVICE(fn) TORCH_FN((::step_oracle::aten::detail::Edge<fn, false>::call))
