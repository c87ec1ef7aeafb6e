// One row's part of the loss, for the body and for the definition [src Loss.cu].
#pragma once
#include <cstdint>

#include "csrc/kernels/arith/element.h"
#include "csrc/kernels/loss/loss.h"

SO_ISA_BEGIN
namespace loss_ops {

inline std::int64_t target_of(const void* target, DType type, std::int64_t row) {
  return type == DType::kI64 ? static_cast<const std::int64_t*>(target)[row]
                             : static_cast<const std::uint8_t*>(target)[row];
}

template <class T>
inline float rounded(float x) {
  return widen(narrow<T>(x));
}

template <class T>
inline float weight_of(const void* weight, std::int64_t t) {
  return weight ? widen(static_cast<const T*>(weight)[t]) : 1.0f;
}

// acc - x * w: float32 fuses it, 16-bit types round the product.
template <class T>
inline float minus_product(float acc, float x, float w) {
  return sizeof(T) == 4 ? fma(-x, w, acc) : acc - rounded<T>(x * w);
}

}  // namespace loss_ops
SO_ISA_END
