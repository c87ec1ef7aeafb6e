// The tensor core's adder for many outputs at once: arith/dot_add.h in loops that compilers turn into vectors, for
// kernels of other families that hold a matrix product inside (attention).
//
//   tf32:    a and b hold float32 values as the tensor core reads them (arith/tf32.h);
//   16-bit:  a and b hold the factors widened to float32.
//
// Shapes    acc[j] = dot_add(a[0 .. kTerms), b[0 .. kTerms)[j], acc[j]) for j < kLanes; rows of b lie b_pitch apart.
//           Beside each factor stands its exponent as the adder aligns by it (lane_exponent<Format>), computed once.
// Rounding, NaN  as arith/dot_add.h, for the float32 results.
// Forms     fast: float32 and int32 lanes, where every lane's largest exponent is far from the ends of the range; wide:
//           doubles, any finite values; scalar: where an infinity or a NaN is among the operands. The bytes are the
//           same.
#pragma once
#include <cstdint>

#include "csrc/kernels/arith/dot_add.h"

SO_ISA_BEGIN
namespace lanes {

// A product with a zero counts for nothing; one with an infinity or a NaN is seen, whatever the other factor is.
inline constexpr std::int32_t kExponentOfZero = -1024, kExponentOfSpecial = 4096;
inline constexpr std::int32_t kOnlyZeros = -800;  // a largest exponent below this: all products are zeros

// Of a factor of Format, widened to float32.
template <class Format>
[[gnu::always_inline]] inline std::int32_t lane_exponent(float x) {
  constexpr std::int32_t kLowest = 1 - Format::kBias;
  const std::uint32_t magnitude = bits_of(x) & 0x7fffffffu;
  const std::int32_t own = static_cast<std::int32_t>(magnitude >> 23) - 127;
  const std::int32_t finite = own > kLowest ? own : kLowest;
  const std::int32_t some = magnitude >= 0x7f800000u ? kExponentOfSpecial : finite;
  return magnitude == 0 ? kExponentOfZero : some;
}

namespace detail {

// float32 toward zero, |v| < 2^31 - 64: to nearest, then one place back where that grew.
[[gnu::always_inline]] inline float float_toward_zero(std::int32_t v) {
  const float near = static_cast<float>(v);
  const std::int32_t back = static_cast<std::int32_t>(near);
  const std::int32_t grew = (back < 0 ? -back : back) > (v < 0 ? -v : v) ? 1 : 0;
  return float_of(bits_of(near) - static_cast<std::uint32_t>(grew));
}

template <class Format>
typename Format::Storage pattern_of(float x);
template <>
inline std::uint32_t pattern_of<Tf32Format>(float x) {
  return bits_of(x);
}
template <>
inline std::uint16_t pattern_of<Bf16Format>(float x) {
  return static_cast<std::uint16_t>(bits_of(x) >> 16);
}
template <>
inline std::uint16_t pattern_of<Fp16Format>(float x) {  // x is a float16 value: exact
  const std::uint32_t u = bits_of(x), sign = u >> 16 & 0x8000u, magnitude = u & 0x7fffffffu;
  if (magnitude >= 0x7f800000u) return static_cast<std::uint16_t>(sign | 0x7c00u | (magnitude >> 13 & 0x3ffu));
  if (magnitude < 0x38800000u) return static_cast<std::uint16_t>(sign | (bits_of(float_of(magnitude) + 0.5f) & 0x3ffu));
  return static_cast<std::uint16_t>(sign | (magnitude - 0x38000000u) >> 13);
}

template <class Format, int kTerms>
[[gnu::noinline]] float one(const float* a, const float* b, std::int64_t b_pitch, float acc, Adder adder) {
  typename Format::Storage x[kTerms], y[kTerms];
  for (int s = 0; s < kTerms; ++s) x[s] = pattern_of<Format>(a[s]), y[s] = pattern_of<Format>(b[s * b_pitch]);
  return dot_add<Format>(x, 1, y, 1, kTerms, acc, adder);
}

// Any finite values. A double holds each product and each aligned sum.
template <int kTerms, int kFractionBits, int kLanes>
[[gnu::noinline]] void wide(const float* a, const float* b, std::int64_t b_pitch, const std::int32_t* exponents,
                            float* acc) {
  double scale[kLanes], sum[kLanes];
  for (int j = 0; j < kLanes; ++j) {
    scale[j] = double_of(static_cast<std::uint64_t>(1023 + kFractionBits - exponents[j]) << 52);
    sum[j] = static_cast<double>(static_cast<std::int32_t>(static_cast<double>(acc[j]) * scale[j]));
  }
  for (int s = 0; s < kTerms; ++s) {
    const double x = a[s];
    for (int j = 0; j < kLanes; ++j)
      sum[j] += static_cast<double>(static_cast<std::int32_t>(x * static_cast<double>(b[s * b_pitch + j]) * scale[j]));
  }
  for (int j = 0; j < kLanes; ++j)
    acc[j] = dot_add_detail::truncated(static_cast<std::int64_t>(sum[j]), exponents[j] - kFractionBits);
}

}  // namespace detail

// kTerms and kFractionBits are those of adder_for(adder, Format::kBytes); a group that holds fewer products is filled
// up with zeros, which count for nothing.
template <class Format, int kTerms, int kFractionBits, int kLanes>
inline void dot_add(const float* a, const std::int32_t* a_exponent, const float* b, const std::int32_t* b_exponent,
                    std::int64_t b_pitch, float* acc, Adder adder) {
  std::int32_t largest[kLanes], sum[kLanes];
  for (int j = 0; j < kLanes; ++j) {
    const std::int32_t field = static_cast<std::int32_t>(bits_of(acc[j]) >> 23 & 0xffu);
    largest[j] = acc[j] == 0.0f ? kExponentOfZero : field - 127;
  }
  for (int s = 0; s < kTerms; ++s) {
    const std::int32_t x = a_exponent[s];
    for (int j = 0; j < kLanes; ++j) {
      const std::int32_t e = x + b_exponent[s * b_pitch + j];
      largest[j] = e > largest[j] ? e : largest[j];
    }
  }
  // The scale and its inverse are normal floats, a product that is not exact in float32 is truncated to nothing, and no
  // product overflows.
  constexpr std::int32_t kLow = kFractionBits - 120, kHigh = 120;
  std::int32_t outside = 0;
  for (int j = 0; j < kLanes; ++j)
    outside |= ((largest[j] < kLow ? 1 : 0) & (largest[j] > kOnlyZeros ? 1 : 0)) | (largest[j] > kHigh ? 1 : 0);
  if (outside == 0) {
    float scale[kLanes];
    for (int j = 0; j < kLanes; ++j) {
      largest[j] = largest[j] > kLow ? largest[j] : kLow;
      scale[j] = float_of(static_cast<std::uint32_t>(127 + kFractionBits - largest[j]) << 23);
      sum[j] = static_cast<std::int32_t>(acc[j] * scale[j]);
    }
    // 17 aligned terms do not fit an int32 always: the second half is kept apart there.
    constexpr int kFirst = kTerms > 8 ? 8 : kTerms;
    std::int32_t more[kLanes] = {}, wraps = 0;
    for (int s = 0; s < kFirst; ++s) {
      const float x = a[s];
      for (int j = 0; j < kLanes; ++j) sum[j] += static_cast<std::int32_t>(x * b[s * b_pitch + j] * scale[j]);
    }
    for (int s = kFirst; s < kTerms; ++s) {
      const float x = a[s];
      for (int j = 0; j < kLanes; ++j) more[j] += static_cast<std::int32_t>(x * b[s * b_pitch + j] * scale[j]);
    }
    if constexpr (kTerms > 8) {
      constexpr std::int32_t kMost = (1 << 30) - 64;
      for (int j = 0; j < kLanes; ++j)
        wraps |= (sum[j] > kMost ? 1 : 0) | (sum[j] < -kMost ? 1 : 0) | (more[j] > kMost ? 1 : 0) |
                 (more[j] < -kMost ? 1 : 0);
      for (int j = 0; j < kLanes; ++j)
        sum[j] = static_cast<std::int32_t>(static_cast<std::uint32_t>(sum[j]) + static_cast<std::uint32_t>(more[j]));
    }
    if (wraps == 0) {
      for (int j = 0; j < kLanes; ++j) {
        const float inverse = float_of(static_cast<std::uint32_t>(127 - kFractionBits + largest[j]) << 23);
        acc[j] = detail::float_toward_zero(sum[j]) * inverse;
      }
      return;
    }
  }
  std::int32_t special = 0;
  for (int j = 0; j < kLanes; ++j) {
    const float c = acc[j];
    const std::int32_t field = static_cast<std::int32_t>(bits_of(c) >> 23 & 0xffu);
    special |= field == 255 ? 1 : 0;
    // An accumulator of zero counts with the adder's exponent of zero, a subnormal one with -126.
    const std::int32_t own = c == 0.0f ? adder.zero_exponent : field ? field - 127 : -126;
    largest[j] = own > adder.zero_exponent ? own : adder.zero_exponent;
  }
  for (int s = 0; s < kTerms; ++s)
    for (int j = 0; j < kLanes; ++j) {
      const std::int32_t e = a_exponent[s] + b_exponent[s * b_pitch + j];
      special |= a_exponent[s] == kExponentOfSpecial || b_exponent[s * b_pitch + j] == kExponentOfSpecial ? 1 : 0;
      largest[j] = e > largest[j] ? e : largest[j];
    }
  if (special == 0) return detail::wide<kTerms, kFractionBits, kLanes>(a, b, b_pitch, largest, acc);
  for (int j = 0; j < kLanes; ++j) acc[j] = detail::one<Format, kTerms>(a, b + j, b_pitch, acc[j], adder);
}

}  // namespace lanes
SO_ISA_END
