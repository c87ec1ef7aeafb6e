// The adder of a tensor core: a few products and the accumulator, added as one.
//
// Types     bfloat16 or float16 factors (as 16-bit patterns), float32 accumulator and result.
// Order     `terms` products at a time; fewer than that are filled up with zeros.
// Rounding  Products are exact. Products and accumulator are aligned to the largest exponent among them (a product's is
//           the sum of its factors' exponents, so its significand lies in [0, 4)); each is truncated toward zero to
//           `fraction_bits` bits after the point; the sum is exact; the result is truncated toward zero to float32,
//           subnormal results too. A zero counts with the exponent `zero_exponent`; a subnormal keeps the smallest
//           exponent of its format, unnormalised. A result of zero is +0.
// NaN       0x7fffffff: from a NaN, from infinity times zero, from infinities of both signs. Else infinity wins; a sum
//           beyond float32 is an infinity.
// Source    MMA-Sim, arXiv:2511.10909, section 4 ("truncated fused dot product add"); "The step oracle", section 3.4.
// Evidence  docs/evidence.md, row arith tensor-core adder: peer (mmasim 2.1.1, tests/gemm/adder_test.cpp).
#pragma once
#include <cstdint>

#include "csrc/kernels/core/bits.h"

SO_ISA_BEGIN

struct Adder {
  int terms;
  int fraction_bits;
  int zero_exponent;
};
// [src mmasim 2.1.1 nv_ptx: F bits, L bytes / 2, e_zero of fp32 results]
inline constexpr Adder kAdderTuring{8, 24, -132};   // Turing, Ampere, Ada (mma)
inline constexpr Adder kAdderHopper{16, 25, -133};  // Hopper, Blackwell (mma, wgmma, tcgen05)

struct Bf16Format {
  static constexpr int kFraction = 7, kBias = 127, kExponentMask = 0xff;
};
struct Fp16Format {
  static constexpr int kFraction = 10, kBias = 15, kExponentMask = 0x1f;
};

namespace dot_add_detail {

// A factor taken apart: value = significand * 2^(exponent - fraction bits of its format).
struct Factor {
  std::int32_t significand, exponent;
  bool negative, nan, infinite, zero;
};

template <class Format>
inline Factor factor(std::uint16_t bits) {
  constexpr int kOne = 1 << Format::kFraction;
  const int field = (bits >> Format::kFraction) & Format::kExponentMask, fraction = bits & (kOne - 1);
  const bool top = field == Format::kExponentMask;
  return {field ? fraction | kOne : fraction,
          (field ? field : 1) - Format::kBias,
          (bits & 0x8000) != 0,
          top && fraction != 0,
          top && fraction == 0,
          field == 0 && fraction == 0};
}

// sum * 2^exponent, truncated toward zero to float32.
inline float truncated(std::int64_t sum, int exponent) {
  if (sum == 0) return 0.0f;
  const std::uint32_t sign = sum < 0 ? 0x80000000u : 0u;
  const std::uint64_t magnitude = static_cast<std::uint64_t>(sum < 0 ? -sum : sum);
  const int leading = 63 - __builtin_clzll(magnitude) + exponent;  // exponent of the first one bit
  if (leading > 127) return float_of(sign | 0x7f800000u);
  const int last = leading < -126 ? -149 : leading - 23;  // exponent of the result's last place
  const int shift = last - exponent;
  const std::uint32_t digits = static_cast<std::uint32_t>(shift > 63  ? 0
                                                          : shift > 0 ? magnitude >> shift
                                                                      : magnitude << -shift);
  if (digits == 0) return 0.0f;
  const std::uint32_t field = leading < -126 ? 0u : static_cast<std::uint32_t>(leading + 127) << 23;
  return float_of(sign | field | (digits & 0x7fffffu));
}

}  // namespace dot_add_detail

// acc + sum of a[i * a_step] * b[i * b_step] for i < n, n <= adder.terms.
template <class Format>
inline float dot_add(const std::uint16_t* a, std::int64_t a_step, const std::uint16_t* b, std::int64_t b_step, int n,
                     float acc, Adder adder) {
  using dot_add_detail::Factor;
  const std::uint32_t c = bits_of(acc);
  const int c_field = static_cast<int>((c >> 23) & 0xff);
  const std::int64_t c_digits = static_cast<std::int64_t>(c & 0x7fffffu) | (c_field ? 0x800000 : 0);
  const int c_exponent = c_digits ? (c_field ? c_field : 1) - 127 : adder.zero_exponent;

  bool nan = c_field == 0xff && (c & 0x7fffffu) != 0;
  bool plus = c == 0x7f800000u, minus = c == 0xff800000u;
  std::int64_t digits[32];
  int exponents[32], largest = c_exponent > adder.zero_exponent ? c_exponent : adder.zero_exponent;
  for (int i = 0; i < n; ++i) {
    const Factor x = dot_add_detail::factor<Format>(a[i * a_step]), y = dot_add_detail::factor<Format>(b[i * b_step]);
    const bool negative = x.negative != y.negative, infinite = x.infinite || y.infinite;
    nan |= x.nan || y.nan || (x.infinite && y.zero) || (y.infinite && x.zero);
    plus |= infinite && !negative;
    minus |= infinite && negative;
    const std::int64_t product = static_cast<std::int64_t>(x.significand) * y.significand;
    exponents[i] = product ? x.exponent + y.exponent : adder.zero_exponent;
    digits[i] = negative ? -product : product;
    largest = exponents[i] > largest ? exponents[i] : largest;
  }
  if (nan || (plus && minus)) return card_nan();
  if (plus || minus) return float_of(plus ? 0x7f800000u : 0xff800000u);

  // Truncation toward zero is of magnitudes: signs are put back after the shift.
  const auto aligned = [&](std::int64_t value, int fraction, int exponent) {
    const std::int64_t wide = (value < 0 ? -value : value) << (adder.fraction_bits - fraction);
    const int shift = largest - exponent;
    const std::int64_t kept = shift > 62 ? 0 : wide >> shift;
    return value < 0 ? -kept : kept;
  };
  std::int64_t sum = aligned((c >> 31) ? -c_digits : c_digits, 23, c_exponent);
  for (int i = 0; i < n; ++i) sum += aligned(digits[i], 2 * Format::kFraction, exponents[i]);
  return dot_add_detail::truncated(sum, largest - adder.fraction_bits);
}

SO_ISA_END
