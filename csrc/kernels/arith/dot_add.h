// The adder of a tensor core: a few products and the accumulator, added as one.
//
// Types     factors of one format below, as their patterns; accumulator and result float32, of fewer bits where the
//           adder says so.
// Order     `terms` products at a time; fewer than that are filled up with zeros.
// Rounding  Products are exact. Products and accumulator are aligned to the largest exponent among them (a product's is
//           the sum of its factors' exponents, so its significand lies in [0, 4)); each is truncated toward zero to
//           `fraction_bits` bits after the point; the sum is exact; the result is rounded once as `result` says,
//           subnormal results too. A zero counts with the exponent `zero_exponent`; a subnormal keeps the smallest
//           exponent of its format, unnormalised. A result of zero is +0.
//           tf32 factors are float32 words of which the tensor core reads the upper 19 bits: truncated, a NaN whose
//           payload lies in the lower 13 bits becomes an infinity.
// NaN       0x7fffffff (as float16: 0x7fff): from a NaN, from infinity times zero, from infinities of both signs. Else
//           infinity wins; a sum beyond the result's format is an infinity.
// Source    MMA-Sim, arXiv:2511.10909, section 4 ("truncated fused dot product add"); "The step oracle", section 3.4;
//           [probe witness, attention.md section 0: PyTorch's compiled attention kernels] for tf32 and 16-bit factors.
// Evidence  docs/evidence.md, rows arith tensor-core adder: peer (mmasim 2.1.1, tests/gemm/adder_test.cpp).
#pragma once
#include <cstdint>

#include "csrc/kernels/arith/tf32.h"
#include "csrc/kernels/core/bits.h"

SO_ISA_BEGIN

enum class AdderResult {
  kFloat32,  // truncated toward zero
  kE8M13,    // truncated toward zero to 13 fraction bits: a float32 whose lower 10 bits are 0
  kFloat16,  // nearest even; the accumulator is a float16 too
};

struct Adder {
  int terms;  // of 16-bit factors; see adder_for
  int fraction_bits;
  int zero_exponent;
  AdderResult result = AdderResult::kFloat32;
};
// [src mmasim 2.1.1 nv_ptx: F bits, L bytes / 2, e_zero of fp32 results]
inline constexpr Adder kAdderVolta{4, 23, -131};
inline constexpr Adder kAdderTuring{8, 24, -132};   // Turing, Ampere, Ada (mma)
inline constexpr Adder kAdderHopper{16, 25, -133};  // Hopper, Blackwell (mma, wgmma, tcgen05)
// The same with float16 accumulators: half the exponent range, zero at float16's smallest exponent less the same margin.
constexpr Adder with_float16_results(Adder a) {
  return {a.terms, a.fraction_bits, a.zero_exponent + 112, AdderResult::kFloat16};  // 112: 126 - 14
}
// FP8 products on Ada (mma) and Hopper (wgmma) keep 13 bits [src mmasim 2.1.1]; Hopper's mma and Blackwell keep 25.
constexpr Adder with_13_bits(Adder a) {
  return {a.terms, 13, a.zero_exponent, a.result == AdderResult::kFloat16 ? a.result : AdderResult::kE8M13};
}
// An adder takes a fixed number of bytes at once: twice as many 8-bit factors, half as many tf32 ones.
constexpr Adder adder_for(Adder a, int factor_bytes) {
  a.terms = a.terms * 2 / factor_bytes;
  return a;
}

struct Bf16Format {
  using Storage = std::uint16_t;
  static constexpr int kBytes = 2, kFraction = 7, kBias = 127, kExponentMask = 0xff, kIgnored = 0;
  static constexpr bool kInfinities = true;
};
struct Fp16Format {
  using Storage = std::uint16_t;
  static constexpr int kBytes = 2, kFraction = 10, kBias = 15, kExponentMask = 0x1f, kIgnored = 0;
  static constexpr bool kInfinities = true;
};
struct Tf32Format {  // float32 words; the lower 13 bits are not read
  using Storage = std::uint32_t;
  static constexpr int kBytes = 4, kFraction = 10, kBias = 127, kExponentMask = 0xff, kIgnored = 13;
  static constexpr bool kInfinities = true;
};
// The same where the kernel rounds its factors to TF32 before the tensor core reads them (arith/tf32.h).
struct Tf32RoundedFormat : Tf32Format {};
template <class Format>
inline constexpr bool kRoundsFactors = false;
template <>
inline constexpr bool kRoundsFactors<Tf32RoundedFormat> = true;

struct E5m2Format {
  using Storage = std::uint8_t;
  static constexpr int kBytes = 1, kFraction = 2, kBias = 15, kExponentMask = 0x1f, kIgnored = 0;
  static constexpr bool kInfinities = true;
};
struct E4m3Format {  // no infinities: the top exponent's last pattern is NaN, the others are numbers
  using Storage = std::uint8_t;
  static constexpr int kBytes = 1, kFraction = 3, kBias = 7, kExponentMask = 0xf, kIgnored = 0;
  static constexpr bool kInfinities = false;
};

namespace dot_add_detail {

// A factor taken apart: value = significand * 2^(exponent - fraction bits of its format).
struct Factor {
  std::int32_t significand, exponent;
  bool negative, nan, infinite, zero;
};

template <class Format>
inline Factor factor(typename Format::Storage pattern) {
  if constexpr (kRoundsFactors<Format>) pattern = bits_of(tf32::round_half_up(float_of(pattern)));
  constexpr int kOne = 1 << Format::kFraction;
  const std::uint32_t bits = static_cast<std::uint32_t>(pattern) >> Format::kIgnored;
  const int field = static_cast<int>(bits >> Format::kFraction) & Format::kExponentMask;
  const int fraction = static_cast<int>(bits) & (kOne - 1);
  const bool top = field == Format::kExponentMask;
  return {field ? fraction | kOne : fraction,
          (field ? field : 1) - Format::kBias,
          (static_cast<std::uint32_t>(pattern) >> (8 * Format::kBytes - 1)) != 0,
          top && (Format::kInfinities ? fraction != 0 : fraction == kOne - 1),
          top && Format::kInfinities && fraction == 0,
          field == 0 && fraction == 0};
}

// sum * 2^exponent, truncated toward zero to float32, or to `kept` bits after the leading one.
inline float truncated(std::int64_t sum, int exponent, int kept = 23) {
  if (sum == 0) return 0.0f;
  const std::uint32_t sign = sum < 0 ? 0x80000000u : 0u;
  const std::uint64_t magnitude = static_cast<std::uint64_t>(sum < 0 ? -sum : sum);
  const int leading = 63 - __builtin_clzll(magnitude) + exponent;  // exponent of the first one bit
  if (leading > 127) return float_of(sign | 0x7f800000u);
  const int last = leading < -126 ? -126 - kept : leading - kept;  // exponent of the result's last place
  const int shift = last - exponent;
  const std::uint32_t digits = static_cast<std::uint32_t>(shift > 63  ? 0
                                                          : shift > 0 ? magnitude >> shift
                                                                      : magnitude << -shift)
                               << (23 - kept);
  if (digits == 0) return 0.0f;
  const std::uint32_t field = leading < -126 ? 0u : static_cast<std::uint32_t>(leading + 127) << 23;
  return float_of(sign | field | (digits & 0x7fffffu));
}

// sum * 2^exponent rounded to nearest even to float16, as a float32.
inline float nearest_float16(std::int64_t sum, int exponent) {
  if (sum == 0) return 0.0f;
  const std::uint32_t sign = sum < 0 ? 0x80000000u : 0u;
  const std::uint64_t magnitude = static_cast<std::uint64_t>(sum < 0 ? -sum : sum);
  const int leading = 63 - __builtin_clzll(magnitude) + exponent;
  const int last = leading < -14 ? -24 : leading - 10;
  const int shift = last - exponent;
  std::uint64_t digits;
  if (shift > 62) {
    digits = 0;
  } else if (shift > 0) {
    digits = magnitude >> shift;
    const std::uint64_t rest = magnitude - (digits << shift), half = std::uint64_t{1} << (shift - 1);
    digits += rest > half || (rest == half && (digits & 1)) ? 1 : 0;
  } else {
    digits = magnitude << -shift;
  }
  if (digits == 0) return 0.0f;
  const float value = static_cast<float>(digits) * float_of(static_cast<std::uint32_t>(last + 127) << 23);
  return float_of(sign | (value > 65504.0f ? 0x7f800000u : bits_of(value)));
}

}  // namespace dot_add_detail

// acc + sum of a[i * a_step] * b[i * b_step] for i < n, n <= adder.terms. A and B may have different 8-bit formats.
template <class FormatA, class FormatB>
inline float dot_add(const typename FormatA::Storage* a, std::int64_t a_step, const typename FormatB::Storage* b,
                     std::int64_t b_step, int n, float acc, Adder adder) {
  using dot_add_detail::Factor;
  constexpr int kProductFraction = FormatA::kFraction + FormatB::kFraction;
  const std::uint32_t c = bits_of(acc);
  const int c_field = static_cast<int>((c >> 23) & 0xff);
  std::int64_t c_digits = static_cast<std::int64_t>(c & 0x7fffffu) | (c_field ? 0x800000 : 0);
  int c_exponent = c_digits ? (c_field ? c_field : 1) - 127 : adder.zero_exponent;
  if (adder.result == AdderResult::kFloat16 && c_digits && c_exponent < -14) {
    c_digits >>= -14 - c_exponent;  // a float16 subnormal, unnormalised: no bit is lost
    c_exponent = -14;
  }

  bool nan = c_field == 0xff && (c & 0x7fffffu) != 0;
  bool plus = c == 0x7f800000u, minus = c == 0xff800000u;
  std::int64_t digits[32];
  int exponents[32], largest = c_exponent > adder.zero_exponent ? c_exponent : adder.zero_exponent;
  for (int i = 0; i < n; ++i) {
    const Factor x = dot_add_detail::factor<FormatA>(a[i * a_step]), y = dot_add_detail::factor<FormatB>(b[i * b_step]);
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
    constexpr int kWide = 30;  // more than any fraction_bits, so that the shift up loses nothing
    const std::int64_t wide = (value < 0 ? -value : value) << (kWide - fraction);
    const int shift = largest - exponent + kWide - adder.fraction_bits;
    const std::int64_t kept = shift > 62 ? 0 : wide >> shift;
    return value < 0 ? -kept : kept;
  };
  std::int64_t sum = aligned((c >> 31) ? -c_digits : c_digits, 23, c_exponent);
  for (int i = 0; i < n; ++i) sum += aligned(digits[i], kProductFraction, exponents[i]);
  const int exponent = largest - adder.fraction_bits;
  if (adder.result == AdderResult::kFloat16) return dot_add_detail::nearest_float16(sum, exponent);
  return dot_add_detail::truncated(sum, exponent, adder.result == AdderResult::kE8M13 ? 13 : 23);
}

template <class Format>
inline float dot_add(const typename Format::Storage* a, std::int64_t a_step, const typename Format::Storage* b,
                     std::int64_t b_step, int n, float acc, Adder adder) {
  return dot_add<Format, Format>(a, a_step, b, b_step, n, acc, adder);
}

SO_ISA_END
