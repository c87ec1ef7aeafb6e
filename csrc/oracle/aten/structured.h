// Structured operators: torch's own shape, type and stride rules (`meta`), then a kernel of ours.
//
//   at::Tensor& sqrt_out(const at::Tensor& self, at::Tensor& out) {
//     Structured<at::meta::structured_sqrt> op(out);   // #include <ATen/ops/sqrt_meta.h>
//     op.meta(self);                                   // for TensorIterator operators `op` now is the iterator
//     ... compute into op.output(0) ...
//     op.finish();
//     return out;
//   }
//
// As the code that torch generates for CUDA's out= variants: the output is resized (with torch's warning) and takes
// the strides of `meta` only when it was resized; where `meta` demands strides that the output does not have, the
// kernel writes into a proxy and finish() copies it.
#pragma once
#include <ATen/TensorMeta.h>
#include <ATen/core/Tensor.h>

#include <array>
#include <functional>
#include <optional>
#include <type_traits>

namespace at {
struct TensorIteratorBase;
}

namespace step_oracle::aten {

// Resizes and checks dtype and device, as torch's resize_out.
void resize_structured_output(const at::Tensor& out, at::IntArrayRef sizes, at::IntArrayRef strides,
                              const at::TensorOptions& options);
// An empty tensor with these strides when `out` has others.
std::optional<at::Tensor> proxy_output(const at::Tensor& out, at::IntArrayRef sizes, at::IntArrayRef strides,
                                       const at::TensorOptions& options);
void copy_proxy(const at::Tensor& proxy, const at::Tensor& out);

template <class Meta, int kOutputs = 1>
class Structured final : public Meta {
 public:
  template <class... T>
  explicit Structured(T&... outputs) : outputs_{std::ref(outputs)...} {
    static_assert(sizeof...(T) == kOutputs);
  }

  void set_output_strided(int64_t i, at::IntArrayRef sizes, at::IntArrayRef strides, at::TensorOptions options) override {
    resize_structured_output(outputs_[i], sizes, strides, options);
    proxies_[i] = proxy_output(outputs_[i], sizes, strides, options);
    tell_iterator(i, sizes, strides, options);
  }
  void set_output_raw_strided(int64_t i, at::IntArrayRef sizes, at::IntArrayRef strides, at::TensorOptions options) override {
    resize_structured_output(outputs_[i], sizes, strides, options);
    tell_iterator(i, sizes, strides, options);
  }
  const at::Tensor& maybe_get_output(int64_t i) override { return output(i); }

  const at::Tensor& output(int64_t i) const { return proxies_[i] ? *proxies_[i] : outputs_[i].get(); }
  void finish() {
    for (int i = 0; i < kOutputs; ++i) {
      if (proxies_[i]) copy_proxy(*proxies_[i], outputs_[i]);
    }
  }

 private:
  // A TensorIterator keeps the output too; for other operators the base function is an assertion.
  void tell_iterator(int64_t i, at::IntArrayRef sizes, at::IntArrayRef strides, at::TensorOptions options) {
    if constexpr (std::is_base_of_v<at::TensorIteratorBase, Meta>) {
      Meta::set_output_raw_strided(i, sizes, strides, options);
    }
  }

  std::array<std::reference_wrapper<const at::Tensor>, kOutputs> outputs_;
  std::array<std::optional<at::Tensor>, kOutputs> proxies_;
};

}  // namespace step_oracle::aten
