// Elements of the types by DType, for the definitions of this family.
#pragma once
#include "csrc/kernels/arith/element.h"
#include "csrc/kernels/core/dtype.h"

namespace step_oracle::pool::ref {

inline float load(DType type, const void* data, std::int64_t i) {
  switch (type) {
    case DType::kF32:
      return static_cast<const float*>(data)[i];
    case DType::kBF16:
      return widen(static_cast<const Bf16*>(data)[i]);
    default:
      return widen(static_cast<const F16*>(data)[i]);
  }
}
inline void store(DType type, void* data, std::int64_t i, float v) {
  switch (type) {
    case DType::kF32:
      static_cast<float*>(data)[i] = v;
      break;
    case DType::kBF16:
      static_cast<Bf16*>(data)[i] = narrow<Bf16>(v);
      break;
    default:
      static_cast<F16*>(data)[i] = narrow<F16>(v);
  }
}
inline float through(DType type, float v) {
  return type == DType::kF32 ? v : type == DType::kBF16 ? widen(narrow<Bf16>(v)) : widen(narrow<F16>(v));
}

}  // namespace step_oracle::pool::ref
