#include "csrc/kernels/arith/element.h"
#include "csrc/kernels/arith/libdevice.h"
#include "csrc/kernels/reduce/power_body.h"

SO_ISA_BEGIN
namespace {

template <class T>
void powers_typed(const T* x, std::int64_t n, float order, float* out) {
  for (std::int64_t i = 0; i < n; ++i) out[i] = libdevice::powf(libdevice::absolute(widen(x[i])), order);
}
void powers(DType type, const void* x, std::int64_t n, float order, float* out) {
  if (type == DType::kF32)
    powers_typed(static_cast<const float*>(x), n, order, out);
  else if (type == DType::kBF16)
    powers_typed(static_cast<const Bf16*>(x), n, order, out);
  else
    powers_typed(static_cast<const F16*>(x), n, order, out);
}

}  // namespace

extern const PowerBody power_body;
const PowerBody power_body = {&powers};
SO_ISA_END
