// Elements as they lie in memory, and their exact or once-rounded passage to and from the type computed in.
#pragma once
#include <cstdint>

#include "csrc/kernels/arith/convert.h"
#include "csrc/kernels/core/bits.h"
#include "csrc/kernels/core/isa_namespace.h"

SO_ISA_BEGIN

struct Bf16 {
  std::uint16_t bits;
};
struct F16 {
  std::uint16_t bits;
};

inline float widen(float x) { return x; }
inline double widen(double x) { return x; }
inline float widen(Bf16 x) { return convert::from_bf16(x.bits); }
inline float widen(F16 x) { return convert::from_fp16(x.bits); }

// One rounding to nearest even; NaN as sm_80 and later give it.
template <class T>
T narrow(float x);
template <>
inline float narrow<float>(float x) {
  return x;
}
template <>
inline Bf16 narrow<Bf16>(float x) {
  return {convert::to_bf16(x)};
}
template <>
inline F16 narrow<F16>(float x) {
  return {convert::to_fp16(x)};
}

// Back from a value that is one of T's: nothing is rounded, a NaN keeps its payload.
template <class T>
T narrow_exact(float x);
template <>
inline float narrow_exact<float>(float x) {
  return x;
}
template <>
inline Bf16 narrow_exact<Bf16>(float x) {
  return {static_cast<std::uint16_t>(bits_of(x) >> 16)};
}
template <>
inline F16 narrow_exact<F16>(float x) {
  const std::uint32_t u = bits_of(x);
  const std::uint16_t nan = static_cast<std::uint16_t>((u >> 16 & 0x8000u) | 0x7c00u | (u >> 13 & 0x3ffu));
  return {x != x ? nan : convert::to_fp16(x)};
}

SO_ISA_END
