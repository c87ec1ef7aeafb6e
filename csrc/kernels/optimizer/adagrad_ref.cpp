// adagrad_math, an element a thread's lane.
#include <cmath>
#include <type_traits>

#include "csrc/kernels/arith/element.h"
#include "csrc/kernels/optimizer/adagrad.h"

namespace step_oracle::optimizer::ref {
namespace {

template <class T>
void math(const AdagradParams& a) {
  const auto put = [&](void* data, std::int64_t i, float v) {
    T out = narrow<T>(canonical(v));
    if constexpr (std::is_same_v<T, Bf16>)
      if (v != v) out.bits = a.bf16_nan;
    static_cast<T*>(data)[i] = out;
  };
  const auto get = [](const void* data, std::int64_t i) { return widen(static_cast<const T*>(data)[i]); };
  for (std::int64_t i = 0; i < a.n; ++i) {
    const double denom = fma(static_cast<double>(a.step - 1.0f), a.lr_decay, 1.0), corrected_lr = a.lr / denom;
    float param = get(a.p, i), grad = get(a.g, i), state_sum = get(a.state, i);
    if (a.grad_scale) grad = static_cast<float>(static_cast<double>(grad) / static_cast<double>(*a.grad_scale));
    const float grad_to_store = grad;
    if (a.maximize) grad = -grad;
    if (a.weight_decay != 0) grad = static_cast<float>(fma(double{param}, a.weight_decay, double{grad}));
    state_sum = fma(grad, grad, state_sum);
    param = static_cast<float>(double{param} - corrected_lr * double{grad} / (double{std::sqrt(state_sum)} + a.eps));
    put(a.p, i, param);
    if (a.grad_scale) put(a.g, i, grad_to_store);
    put(a.state, i, state_sum);
  }
}

}  // namespace

void adagrad(const AdagradParams& a) {
  a.dtype == DType::kF32 ? math<float>(a) : a.dtype == DType::kBF16 ? math<Bf16>(a) : math<F16>(a);
}

}  // namespace step_oracle::optimizer::ref
