// Rounding to 16-bit formats by another route than arith/convert.h: whole numbers throughout.
#pragma once
#include <bit>
#include <cstdint>

#include "csrc/kernels/core/bits.h"

namespace step_oracle::exhaustive {

// A format of 16 bits: significand bits after the leading one, exponent bits.
struct Format {
  int fraction, exponent;
};
constexpr Format kBrain{7, 8}, kHalf{10, 5};

// To nearest even; NaN is 0x7fff. The number is significand * 2^(place), an integer times a power of two.
inline std::uint16_t rounded(float x, Format f) {
  const std::uint32_t u = bits_of(x), sign = u >> 16 & 0x8000u, e = u >> 23 & 255u;
  const int bias = (1 << (f.exponent - 1)) - 1;
  const std::uint32_t infinity = ((1u << f.exponent) - 1) << f.fraction;
  if (e == 255) return static_cast<std::uint16_t>(u & 0x7fffffu ? 0x7fffu : sign | infinity);
  const std::uint64_t significand = e ? (u & 0x7fffffu) | 0x800000u : u & 0x7fffffu;
  if (significand == 0) return static_cast<std::uint16_t>(sign);
  const int place = static_cast<int>(e ? e : 1) - 150;
  const int top = place + static_cast<int>(std::bit_width(significand)) - 1;  // of the leading one
  const int last = (top > 1 - bias ? top : 1 - bias) - f.fraction;            // the result's last place
  const int shift = last - place;
  std::uint64_t kept = 0;
  if (shift <= 0) {
    kept = significand << -shift;
  } else if (shift < 40) {
    const std::uint64_t rest = significand & ((std::uint64_t{1} << shift) - 1), half = std::uint64_t{1} << (shift - 1);
    kept = significand >> shift;
    kept += rest > half || (rest == half && (kept & 1));
  }
  // The leading one of `kept` carries into the exponent by itself.
  const int biased = last + f.fraction + bias;  // of a normal result; a subnormal one has 1 here and no leading one
  const std::uint64_t pattern = (static_cast<std::uint64_t>(biased - 1) << f.fraction) + kept;
  return static_cast<std::uint16_t>(sign | (pattern < infinity ? pattern : infinity));
}

inline float widened(std::uint16_t h, Format f) {
  const std::uint32_t sign = static_cast<std::uint32_t>(h & 0x8000u) << 16;
  const std::uint32_t fraction = h & ((1u << f.fraction) - 1), e = (h & 0x7fffu) >> f.fraction;
  const int bias = (1 << (f.exponent - 1)) - 1;
  if (e == (1u << f.exponent) - 1) return float_of(sign | 0x7f800000u | fraction << (23 - f.fraction));
  // An integer below 2^11 times a power of two, both floats: the product is exact.
  const std::uint32_t significand = e ? fraction | 1u << f.fraction : fraction;
  const double value =
      static_cast<double>(significand) *
      double_of(static_cast<std::uint64_t>(static_cast<int>(e ? e : 1) - bias - f.fraction + 1023) << 52);
  return float_of(bits_of(static_cast<float>(value)) | sign);
}

}  // namespace step_oracle::exhaustive
