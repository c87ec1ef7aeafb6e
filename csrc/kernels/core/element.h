// Elements as they lie in memory, and their exact or once-rounded passage to and from the type computed in.
#pragma once
#include <cstdint>

#include "csrc/kernels/core/bits.h"
#include "csrc/kernels/core/isa_namespace.h"

SO_ISA_BEGIN

struct Bf16 { std::uint16_t bits; };
struct F16 { std::uint16_t bits; };

inline float widen(float x) { return x; }
inline double widen(double x) { return x; }
inline float widen(Bf16 x) { return float_of(static_cast<std::uint32_t>(x.bits) << 16); }
inline float widen(F16 x) {
  const std::uint32_t sign = (x.bits & 0x8000u) << 16, rest = x.bits & 0x7fffu;
  // The exponent is rebased by a product with 2^112, which also normalises subnormals; exact.
  const float scaled = float_of(rest << 13) * 0x1p112f;
  const std::uint32_t special = rest >= 0x7c00u ? 0x7f800000u | (rest & 0x3ffu) << 13 : bits_of(scaled);
  return float_of(sign | special);
}

// One rounding to nearest even; NaN as the card's conversion gives it, 0x7fff [probe witness sm_80, sm_86, sm_90].
template <class T> T narrow(float x);
template <> inline float narrow<float>(float x) { return x; }
template <> inline Bf16 narrow<Bf16>(float x) {
  const std::uint32_t u = bits_of(x);
  const std::uint32_t r = (u + 0x7fffu + (u >> 16 & 1u)) >> 16;
  return {static_cast<std::uint16_t>(x != x ? 0x7fffu : r)};
}
template <> inline F16 narrow<F16>(float x) {
  const std::uint32_t u = bits_of(x), sign = u >> 16 & 0x8000u, a = u & 0x7fffffffu;
  // Below 2^-14 the sum with 2^-1 aligns the significand at the subnormal step 2^-24 and rounds to nearest even.
  const std::uint32_t small = bits_of(float_of(a) + 0.5f) - bits_of(0.5f);
  const std::uint32_t normal = (a + 0xfffu + (a >> 13 & 1u) - 0x38000000u) >> 13;
  const std::uint32_t finite = a < 0x38800000u ? small : normal;
  const std::uint32_t r = a > 0x7f800000u ? 0x7fffu : a >= 0x477ff000u ? 0x7c00u : finite;
  return {static_cast<std::uint16_t>((a > 0x7f800000u ? 0u : sign) | r)};
}

// Back from a value that is one of T's: nothing is rounded, a NaN keeps its payload.
template <class T> T narrow_exact(float x);
template <> inline float narrow_exact<float>(float x) { return x; }
template <> inline Bf16 narrow_exact<Bf16>(float x) { return {static_cast<std::uint16_t>(bits_of(x) >> 16)}; }
template <> inline F16 narrow_exact<F16>(float x) {
  const std::uint32_t u = bits_of(x);
  const F16 r = narrow<F16>(x);
  return x != x ? F16{static_cast<std::uint16_t>((u >> 16 & 0x8000u) | 0x7c00u | (u >> 13 & 0x3ffu))} : r;
}

SO_ISA_END
