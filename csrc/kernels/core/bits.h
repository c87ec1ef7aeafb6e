// Bit patterns, and the only spelling of a fused multiply-add.
#pragma once
#include <cstdint>
#include <cstring>

#include "csrc/kernels/core/isa_namespace.h"

SO_ISA_BEGIN

inline std::uint32_t bits_of(float x) { std::uint32_t u; std::memcpy(&u, &x, 4); return u; }
inline std::uint64_t bits_of(double x) { std::uint64_t u; std::memcpy(&u, &x, 8); return u; }
inline float float_of(std::uint32_t u) { float x; std::memcpy(&x, &u, 4); return x; }
inline double double_of(std::uint64_t u) { double x; std::memcpy(&x, &u, 8); return x; }

// One rounding. The sources are compiled with -ffp-contract=off: an expression a * b + c rounds twice.
inline float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline double fma(double a, double b, double c) { return __builtin_fma(a, b, c); }

// The NaN that arithmetic gives on the card, whatever the inputs' payloads [probe witness, contractions.md "NaN"].
inline constexpr std::uint32_t kCardNan32 = 0x7fffffffu;
inline float card_nan() { return float_of(kCardNan32); }
// The host's NaN has another pattern (x86: 0xffc00000, or an input's payload): each arithmetic result that can be
// NaN and can be seen passes through this once. Selections and copies do not: they keep the payload on the card too.
inline float canonical(float x) { return x != x ? card_nan() : x; }

// condition ? a : b by bit masks, for values that are dear to compute: a compiler may move the computation of an operand
// of ?: into a branch, and a loop with a branch does not vectorise.
[[gnu::always_inline]] inline std::uint32_t pick(bool condition, std::uint32_t a, std::uint32_t b) {
  const std::uint32_t mask = -static_cast<std::uint32_t>(condition);
  return (a & mask) | (b & ~mask);
}
[[gnu::always_inline]] inline float pick(bool condition, float a, float b) {
  return float_of(pick(condition, bits_of(a), bits_of(b)));
}

SO_ISA_END
