#include "csrc/kernels/arith/element.h"
#include "csrc/kernels/optimizer/adagrad_body.h"

SO_ISA_BEGIN
namespace {

using optimizer::AdagradParams;

template <class T>
T stored(float v, std::uint16_t) {
  return narrow<T>(canonical(v));
}
template <>
Bf16 stored<Bf16>(float v, std::uint16_t nan) {
  return v != v ? Bf16{nan} : narrow<Bf16>(v);
}

template <class T>
void step_typed(const AdagradParams& a, std::int64_t begin, std::int64_t end) {
  T *const p = static_cast<T*>(a.p), *const g = static_cast<T*>(a.g), *const s = static_cast<T*>(a.state);
  const double lr = a.lr / fma(static_cast<double>(a.step - 1.0f), a.lr_decay, 1.0);
  const double scale = a.grad_scale ? static_cast<double>(*a.grad_scale) : 1.0;
  for (std::int64_t i = begin; i < end; ++i) {
    const float param = widen(p[i]);
    float grad = widen(g[i]);
    if (a.grad_scale) {
      grad = static_cast<float>(static_cast<double>(grad) / scale);
      g[i] = stored<T>(grad, a.bf16_nan);
    }
    grad = a.maximize ? -grad : grad;
    if (a.weight_decay != 0.0)
      grad = static_cast<float>(fma(static_cast<double>(param), a.weight_decay, static_cast<double>(grad)));
    const float state = fma(grad, grad, widen(s[i]));
    const double by = lr * static_cast<double>(grad) / (static_cast<double>(__builtin_sqrtf(state)) + a.eps);
    p[i] = stored<T>(static_cast<float>(static_cast<double>(param) - by), a.bf16_nan);
    s[i] = stored<T>(state, a.bf16_nan);
  }
}

void step(const AdagradParams& a, std::int64_t begin, std::int64_t end) {
  if (a.dtype == DType::kF32)
    step_typed<float>(a, begin, end);
  else if (a.dtype == DType::kBF16)
    step_typed<Bf16>(a, begin, end);
  else
    step_typed<F16>(a, begin, end);
}

}  // namespace

extern const AdagradBody adagrad_body;
const AdagradBody adagrad_body = {&step};
SO_ISA_END
