// The special function unit (MUFU instructions) of the cards.
//
// Types     float32 in, float32 out. Names follow PTX: ex2_ftz is ex2.approx.ftz.f32, ex2 is ex2.approx.f32.
// Order     a quadratic interpolator over equal segments: floor(C0 + C1 x + C2 S(x)), x the 17 low bits of the reduced
//           argument. S is a squarer that drops the columns below 2^19: with the exact square no coefficients exist.
// Rounding  truncation to 24 significant bits.
// NaN       0x7fffffff.
// Source    mufu_tables.inc [fit scripts/fit_mufu]; the rules around the tables [probe words of MUFU instructions].
// Evidence  docs/evidence.md, rows arith/mufu.*: ex2, rcp, rsqrt published digests; sin, cos published digests of
//           normal_; lg2 first-generation words, supported on an RTX 4090 for arguments below 1.
#pragma once
#include <cstdint>

#include "csrc/kernels/core/bits.h"

SO_ISA_BEGIN
namespace mufu {

// ---- coefficients ----
struct Raw {
  std::int64_t c0, c1, c2;
};
#define SO_MUFU_TABLE(name, segments) inline constexpr Raw k_##name[segments] = {
#define SO_MUFU_ROW(c0, c1, c2) {c0, c1, c2},
#define SO_MUFU_END };
#include "csrc/kernels/arith/mufu_tables.inc"
#undef SO_MUFU_TABLE
#undef SO_MUFU_ROW
#undef SO_MUFU_END

// The same numbers in 32-bit columns, so that a loop over the functions becomes gathers: C0 = high 2^bits + low, and
// the slope less `base` 2^15, so that its product with x fits 32 bits.
template <int kSegments>
struct Columns {
  std::int32_t high[kSegments], low[kSegments], slope[kSegments], square[kSegments];
};
template <int kSegments>
constexpr Columns<kSegments> columns(const Raw (&raw)[kSegments], int bits, int base) {
  Columns<kSegments> t{};
  for (int i = 0; i < kSegments; ++i) {
    t.high[i] = static_cast<std::int32_t>(raw[i].c0 >> bits);
    t.low[i] = static_cast<std::int32_t>(raw[i].c0 & ((std::int64_t{1} << bits) - 1));
    t.slope[i] = static_cast<std::int32_t>(raw[i].c1 - base * 32768);
    t.square[i] = static_cast<std::int32_t>(raw[i].c2);
  }
  return t;
}
inline constexpr Columns<64> kEx2 = columns(k_ex2, 15, 1);
inline constexpr Columns<128> kRcp = columns(k_rcp, 16, -1);
inline constexpr Columns<128> kRsqrt = columns(k_rsqrt, 16, -1);

template <int kSegments>
struct Doubles {
  double c0[kSegments], c1[kSegments], c2[kSegments];
};
template <int kSegments>
constexpr Doubles<kSegments> doubles(const Raw (&raw)[kSegments]) {
  Doubles<kSegments> t{};
  for (int i = 0; i < kSegments; ++i) {
    t.c0[i] = static_cast<double>(raw[i].c0);
    t.c1[i] = static_cast<double>(raw[i].c1);
    t.c2[i] = static_cast<double>(raw[i].c2);
  }
  return t;
}
inline constexpr Doubles<64> kLg2 = doubles(k_lg2);
inline constexpr Doubles<64> kSin = doubles(k_sin);

// ---- the interpolator ----
// S(x) >> 19 for 17-bit x. The exact square less its columns 16, 17 and 18 exceeds S by the columns below 16, which
// sum to less than 2^19 (455,000 at most): so the quotient is exact though the float square is rounded (by 2^9 at most).
inline std::int32_t squarer(std::int32_t x) {
  std::int32_t dropped = 0;  // columns 16 to 18, in units of 2^16
  for (int i = 0; i < 8; ++i) dropped += (x >> (15 - i)) & 7 & -((x >> i) & 1);
  const std::int32_t b8 = (x >> 8) & 1, b9 = (x >> 9) & 1;
  dropped += b8 + 4 * ((b8 & b9) + b9);
  const float f = static_cast<float>(x);
  const std::int32_t square = static_cast<std::int32_t>((f * f) * 0x1p-12f);
  return (square + 2 - (dropped << 4)) >> 7;
}

// Significand of 2^(k / 2^23), k in [0, 2^23), in units of 2^-23: in [2^23, 2^24).
inline std::int32_t ex2_significand(std::int32_t k) {
  const std::int32_t i = k >> 17, x = k & 0x1ffff;
  return kEx2.high[i] + x + ((kEx2.slope[i] * x + kEx2.square[i] * squarer(x) + kEx2.low[i]) >> 15);
}

// Falling functions on the grid 2^-16, in units of 2^-24. The last bit of x is taken apart: else the product has 33 bits.
inline std::int32_t falling(const Columns<128>& t, std::int32_t i, std::int32_t x) {
  const std::int32_t half = x >> 1, slope = t.slope[i];
  const std::int32_t rest = (-(x & 1) & (slope - 32768)) + t.square[i] * squarer(x) + t.low[i];
  return t.high[i] - half + ((slope * half + (rest >> 1)) >> 15);
}

// The fixed-point functions: an integer below 2^53 in a double.
inline double fixed_point(const Doubles<64>& t, std::int32_t k) {
  const std::int32_t i = k >> 17, x = k & 0x1ffff;
  return t.c0[i] + t.c1[i] * static_cast<double>(x) + t.c2[i] * static_cast<double>(squarer(x));
}
// Cut to 24 significant bits (then the conversion is exact).
inline float truncated(double v) { return static_cast<float>(double_of(bits_of(v) & ~0x1fffffffull)); }

// ---- ex2 ----
inline float ex2_ftz(float x) {
  const std::uint32_t u = bits_of(x), magnitude = u & 0x7fffffffu;
  // 255 stands for all that overflow or underflow anyway, so that k fits 32 bits.
  const float a = float_of(magnitude < 0x437f0000u ? magnitude : 0x437f0000u);
  const std::int32_t k = static_cast<std::int32_t>(a * 0x1p23f);
  const std::int32_t sign = static_cast<std::int32_t>(u) >> 31;
  // A negative argument reads the table from its end (ones' complement), but for whole numbers.
  const std::int32_t whole = (k & 0x7fffff) == 0 ? sign : 0;
  const std::int32_t f = (k ^ sign) - whole;
  const std::int32_t e = (f >> 23) + 127;
  const std::int32_t word = (ex2_significand(f & 0x7fffff) & 0x7fffff) | static_cast<std::int32_t>(static_cast<std::uint32_t>(e) << 23);
  std::int32_t r = e >= 255 ? 0x7f800000 : word;
  r = e <= 0 ? 0 : r;
  r = magnitude > 0x7f800000u ? 0x7fffffff : r;
  return float_of(static_cast<std::uint32_t>(r));
}
inline float ex2(float x) {
  const bool low = x < -126.0f;
  const float r = ex2_ftz(low ? x * 0.5f : x);
  return low ? r * r : r;
}

// ---- rcp, rsqrt ----
inline float rcp_ftz(float x) {
  const std::int32_t u = static_cast<std::int32_t>(bits_of(x)), sign = u & static_cast<std::int32_t>(0x80000000u);
  const std::int32_t e = (u >> 23) & 255, m = u & 0x7fffff;
  const std::int32_t v = falling(kRcp, m >> 16, (m & 0xffff) << 1);  // (2^23, 2^24]
  const std::int32_t word = v - 0x800000 + ((253 - e) << 23);
  std::int32_t r = word < 0x800000 ? 0 : word;
  r = e == 0 ? 0x7f800000 : r;
  r = e == 255 ? 0 : r;
  r |= sign;
  r = e == 255 && m != 0 ? 0x7fffffff : r;
  return float_of(static_cast<std::uint32_t>(r));
}
inline float rsqrt_ftz(float x) {
  const std::int32_t u = static_cast<std::int32_t>(bits_of(x)), sign = u & static_cast<std::int32_t>(0x80000000u);
  const std::int32_t e = (u >> 23) & 255, m = u & 0x7fffff;
  const std::int32_t odd = (e & 1) ^ 1;              // exponents count from 127
  const std::int32_t half = (e - 127 - odd) >> 1;
  std::int32_t v = falling(kRsqrt, (odd << 6) | (m >> 17), m & 0x1ffff);
  v = (odd | m) == 0 ? 0x1000000 : v;                // powers of four are exact, beside the table
  std::int32_t r = v - 0x800000 + ((126 - half) << 23);
  r = e == 255 ? 0 : r;
  r = sign != 0 || (e == 255 && m != 0) ? 0x7fffffff : r;
  r = e == 0 ? (sign | 0x7f800000) : r;
  return float_of(static_cast<std::uint32_t>(r));
}
inline float rsqrt(float x) {
  const bool tiny = (bits_of(x) & 0x7fffffffu) < 0x00800000u;
  const float r = rsqrt_ftz(tiny ? x * 0x1p24f : x);
  return tiny ? r * 4096.0f : r;
}

// ---- lg2 ----
// log2 in fixed point 2^-36 (the table has four more bits); below 1 the exponent and the fraction are one negative
// number, whose magnitude is its ones' complement.
inline float lg2_ftz(float x) {
  const std::int32_t u = static_cast<std::int32_t>(bits_of(x));
  const std::int32_t e = (u >> 23) & 255, m = u & 0x7fffff;
  // floor to the grid 2^-36: adding and removing 2^56 would round; so the four bits are cut as an integer's
  const double fine = fixed_point(kLg2, m) * 0x1p-4;
  const double cut = (fine - 0.46875) + 0x1.8p52 - 0x1.8p52;  // multiples of 2^-4 to the integer below
  const double v = static_cast<double>(e - 127) * 0x1p36 + cut;
  const double magnitude = v < 0.0 ? -1.0 - v : v;
  const float t = truncated(magnitude) * 0x1p-36f;
  float r = e < 127 ? -t : t;
  r = u == 0x3f800000 ? 0.0f : r;
  r = e == 255 ? x : r;
  r = u < 0 || (e == 255 && m != 0) ? card_nan() : r;
  return (u & 0x7f800000) == 0 ? float_of(0xff800000u) : r;
}

// ---- sin, cos ----
// The argument in 2^-25 turns, truncated, modulo one turn.
inline std::int32_t turns(float t) {
  const float a = float_of(bits_of(t) & 0x7fffffffu);
  const float b = a < 0x1p24f ? a : 0.0f;  // beyond, all floats are whole turns
  const float f = b - static_cast<float>(static_cast<std::int32_t>(b));
  return static_cast<std::int32_t>(f * 0x1p25f);
}
inline float wave(float t, std::int32_t k, std::uint32_t sign) {
  const std::int32_t q = (k >> 23) & 3;
  const std::int32_t r = (k ^ -(q & 1)) & 0x7fffff;
  const float y = truncated(fixed_point(kSin, r)) * 0x1p-37f;
  const float z = float_of(bits_of(y) | (sign ^ (static_cast<std::uint32_t>(q >> 1) << 31)));
  return (bits_of(t) & 0x7f800000u) == 0x7f800000u ? card_nan() : z;
}
// MUFU.SIN and MUFU.COS themselves: the argument is in turns.
inline float sin_turns(float t) { return wave(t, turns(t), bits_of(t) & 0x80000000u); }
inline float cos_turns(float t) { return wave(t, turns(t) + 0x800000, 0); }

// sin.approx.ftz.f32 and cos.approx.ftz.f32: radians, multiplied by 1/(2 pi), toward zero, first.
inline float to_turns(float x) {
  const float a = float_of((bits_of(x) & 0x7f800000u) == 0 ? bits_of(x) & 0x80000000u : bits_of(x));
  const double p = static_cast<double>(a) * static_cast<double>(float_of(0x3e22f983u));  // exact
  const float r = truncated(p);
  return float_of((bits_of(r) & 0x7f800000u) == 0 ? bits_of(r) & 0x80000000u : bits_of(r));
}
inline float sin_ftz(float x) { return sin_turns(to_turns(x)); }
inline float cos_ftz(float x) { return cos_turns(to_turns(x)); }

}  // namespace mufu
SO_ISA_END
