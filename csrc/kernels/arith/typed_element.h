// Elements of a type that is known at run time: float32, bfloat16 or float16.
#pragma once
#include "csrc/kernels/arith/element.h"
#include "csrc/kernels/core/dtype.h"

SO_ISA_BEGIN
namespace typed {

inline float load(DType type, const void* data, std::int64_t i) {
  if (type == DType::kF32) return static_cast<const float*>(data)[i];
  return type == DType::kBF16 ? widen(static_cast<const Bf16*>(data)[i]) : widen(static_cast<const F16*>(data)[i]);
}
// One rounding, as narrow.
inline void store(DType type, void* data, std::int64_t i, float v) {
  if (type == DType::kF32)
    static_cast<float*>(data)[i] = v;
  else if (type == DType::kBF16)
    static_cast<Bf16*>(data)[i] = narrow<Bf16>(v);
  else
    static_cast<F16*>(data)[i] = narrow<F16>(v);
}
// The value that a store leaves.
inline float rounded(DType type, float v) {
  return type == DType::kF32 ? v : type == DType::kBF16 ? widen(narrow<Bf16>(v)) : widen(narrow<F16>(v));
}

}  // namespace typed
SO_ISA_END
