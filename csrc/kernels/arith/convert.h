// Conversions between element types.
//
// Types     float32 <-> bfloat16, float16 (as their 16-bit patterns); float32, float64 -> integers; integers -> float.
// Rounding  to a narrower float or from an integer: nearest even. Float -> integer: toward zero, saturating.
// NaN       to bfloat16: 0x7fff, on compute capability 7.5 (which rounds in software) 0x7fc0; to float16: 0x7fff;
//           widening keeps the payload; to 32-bit integers 0, to 64-bit integers 2^63.
// Source    [probe witness, contractions.md section 1], [spec PTX ISA cvt].
// Evidence  docs/evidence.md, row arith/convert.
#pragma once
#include <cstdint>

#include "csrc/kernels/core/bits.h"

SO_ISA_BEGIN
namespace convert {

inline constexpr std::uint16_t kBf16Nan = 0x7fff;      // sm_80 and later
inline constexpr std::uint16_t kBf16NanSm75 = 0x7fc0;  // rounded in software there
inline constexpr std::uint16_t kFp16Nan = 0x7fff;
constexpr std::uint16_t bf16_nan(int compute_capability) { return compute_capability < 80 ? kBf16NanSm75 : kBf16Nan; }

[[gnu::always_inline]] inline float from_bf16(std::uint16_t h) { return float_of(static_cast<std::uint32_t>(h) << 16); }
[[gnu::always_inline]] inline std::uint16_t to_bf16(float x, std::uint16_t nan = kBf16Nan) {
  const std::uint32_t u = bits_of(x);
  const std::uint32_t r = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  return static_cast<std::uint16_t>((u & 0x7fffffffu) > 0x7f800000u ? nan : r);
}

[[gnu::always_inline]] inline float from_fp16(std::uint16_t h) {
  const std::uint32_t sign = static_cast<std::uint32_t>(h & 0x8000u) << 16, magnitude = h & 0x7fffu;
  // The significand placed as a float's: a scaling by 2^112 mends the exponent and subnormals, exactly.
  const std::uint32_t scaled = bits_of(float_of(magnitude << 13) * 0x1p112f);
  return float_of(sign | (magnitude >= 0x7c00u ? 0x7f800000u | (magnitude & 0x3ffu) << 13 : scaled));
}
[[gnu::always_inline]] inline std::uint16_t to_fp16(float x) {
  const std::uint32_t u = bits_of(x), sign = (u >> 16) & 0x8000u, a = u & 0x7fffffffu;
  // Normal results: rounded in place. Subnormal ones: adding 1/2 aligns the last place to 2^-24.
  const std::uint32_t normal = (a - 0x38000000u + 0xfffu + ((a >> 13) & 1u)) >> 13;
  const std::uint32_t subnormal = bits_of(float_of(a) + 0.5f) - 0x3f000000u;
  std::uint32_t r = a < 0x38800000u ? subnormal : normal;
  r = a >= 0x477ff000u ? 0x7c00u : r;  // 65520 and above
  r |= sign;
  return static_cast<std::uint16_t>(a > 0x7f800000u ? kFp16Nan : r);
}

[[gnu::always_inline]] inline std::int32_t to_int32(float x) {
  const float inside = x >= -0x1p31f ? (x < 0x1p31f ? x : 0.0f) : -0x1p31f;  // NaN goes to the low end, chosen below
  const std::int32_t r = static_cast<std::int32_t>(inside);
  return x != x ? 0 : (x >= 0x1p31f ? INT32_MAX : r);
}
[[gnu::always_inline]] inline std::int64_t to_int64(double x) {
  const double inside = x >= -0x1p63 ? (x < 0x1p63 ? x : 0.0) : -0x1p63;
  const std::int64_t r = static_cast<std::int64_t>(inside);
  return x >= 0x1p63 ? INT64_MAX : r;  // NaN: the low end
}
[[gnu::always_inline]] inline std::int64_t to_int64(float x) { return to_int64(static_cast<double>(x)); }
// PyTorch converts floats to uint8 through int64: modulo 256, not saturating [src c10/util/TypeCast.h@2.13].
[[gnu::always_inline]] inline std::uint8_t to_uint8(float x) { return static_cast<std::uint8_t>(to_int64(x)); }

}  // namespace convert
SO_ISA_END
