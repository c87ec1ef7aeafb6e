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
#define SO_MUFU_END \
  }                 \
  ;
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
// ex2's four numbers in two words: two gathers in place of four.
struct Packed {
  std::uint32_t high_square[64];  // 23 bits of high (the leading one is left out), 9 bits of square - 494
  std::int32_t slope_low[64];     // 17 bits of slope, signed; 15 bits of low
};
constexpr std::int32_t kSquareBase = 494;
constexpr Packed packed(const Columns<64>& t) {
  Packed p{};
  for (int i = 0; i < 64; ++i) {
    const std::int32_t high = t.high[i] - 0x800000;
    p.high_square[i] = static_cast<std::uint32_t>(high << 9 | (t.square[i] - kSquareBase));
    p.slope_low[i] = t.slope[i] * 32768 + t.low[i];
  }
  return p;
}
inline constexpr Packed kEx2 = packed(columns(k_ex2, 15, 1));
inline constexpr Columns<128> kRcp = columns(k_rcp, 16, -1);
inline constexpr Columns<128> kRsqrt = columns(k_rsqrt, 16, -1);

inline constexpr Columns<64> kLg2 = columns(k_lg2, 16, 0);
inline constexpr Columns<64> kSin = columns(k_sin, 16, 0);

// ---- the interpolator ----
// S(x) >> 19 for 17-bit x. With x = 2^10 h + 2^8 l + low (h 7 bits, l 2, low 8): of (4 h + l)^2 the columns that stay
// are 2^3 h (2 h + l); of the products of a bit i of low with 4 h + l those that reach 2^19: (4 h + l) >> (10 - i), of
// bits 2 to 7; of low^2 none.
[[gnu::always_inline]] inline std::int32_t squarer(std::int32_t x) {
  const std::int32_t top = x >> 8, h = x >> 10;
  const auto row = [x, top](int i) {
    return (top >> (10 - i)) & (static_cast<std::int32_t>(static_cast<std::uint32_t>(x) << (31 - i)) >> 31);
  };
  return h * (top - 2 * h) + ((row(2) + row(3)) + (row(4) + row(5)) + (row(6) + row(7)));
}

// Significand of 2^(k / 2^23), k in [0, 2^23), less its leading one: 23 bits.
[[gnu::always_inline]] inline std::int32_t ex2_fraction(std::int32_t k) {
  const std::int32_t i = k >> 17, x = k & 0x1ffff;
  const std::int32_t high = static_cast<std::int32_t>(kEx2.high_square[i] >> 9);
  const std::int32_t square = static_cast<std::int32_t>(kEx2.high_square[i] & 511) + kSquareBase;
  const std::int32_t slope = kEx2.slope_low[i] >> 15, low = kEx2.slope_low[i] & 0x7fff;
  return high + x + ((slope * x + square * squarer(x) + low) >> 15);
}

// Falling functions on the grid 2^-16, in units of 2^-24. The last bit of x is apart: else the product has 33 bits.
[[gnu::always_inline]] inline std::int32_t falling(const Columns<128>& t, std::int32_t i, std::int32_t x) {
  const std::int32_t half = x >> 1, slope = t.slope[i];
  const std::int32_t rest = (-(x & 1) & (slope - 32768)) + t.square[i] * squarer(x) + t.low[i];
  return t.high[i] - half + ((slope * half + (rest >> 1)) >> 15);
}

// The fixed-point functions: an integer below 2^53 in a double.
[[gnu::always_inline]] inline double fixed_point(const Columns<64>& t, std::int32_t k) {
  const std::int32_t i = k >> 17, x = k & 0x1ffff;
  const double c0 = static_cast<double>(t.high[i]) * 65536.0 + static_cast<double>(t.low[i]);
  return c0 + static_cast<double>(t.slope[i]) * static_cast<double>(x) + static_cast<double>(t.square[i] * squarer(x));
}
// Cut to 24 significant bits (then the conversion is exact).
[[gnu::always_inline]] inline float truncated(double v) {
  return static_cast<float>(double_of(bits_of(v) & ~0x1fffffffull));
}

// ---- table look-ups ----
#if defined(SO_ISA) && defined(__AVX512BW__)
// mufu_lanes_isa.cpp has these for vectors too.
#define SO_MUFU_LANES 1
#ifdef SO_MUFU_DEFINES_LANES
#define SO_LANES [[gnu::const, gnu::nothrow, gnu::visibility("hidden")]]
#else
#define SO_LANES [[gnu::simd("notinbranch"), gnu::const, gnu::nothrow, gnu::visibility("hidden")]]
#endif
SO_LANES float ex2_ftz(float x);
SO_LANES std::int32_t rcp_table(std::int32_t m);
SO_LANES std::int32_t rsqrt_table(std::int32_t m);
SO_LANES float sin_table(std::int32_t r);
#undef SO_LANES
#else
[[gnu::always_inline]] inline std::int32_t rcp_table(std::int32_t m) { return falling(kRcp, m >> 16, (m & 0xffff) << 1); }
[[gnu::always_inline]] inline std::int32_t rsqrt_table(std::int32_t m) { return falling(kRsqrt, m >> 17, m & 0x1ffff); }
[[gnu::always_inline]] inline float sin_table(std::int32_t r) { return truncated(fixed_point(kSin, r)); }
#endif

// ---- ex2 ----
#ifndef SO_MUFU_LANES
[[gnu::always_inline]] inline float ex2_ftz(float x) {
  const std::uint32_t u = bits_of(x), magnitude = u & 0x7fffffffu;
  // 255 stands for all that overflow or underflow anyway, so that k fits 32 bits.
  const float a = float_of(magnitude < 0x437f0000u ? magnitude : 0x437f0000u);
  const std::int32_t k = static_cast<std::int32_t>(a * 0x1p23f);
  const std::int32_t sign = static_cast<std::int32_t>(u) >> 31;
  // A negative argument reads the table from its end (ones' complement), but for whole numbers.
  const std::int32_t whole = sign & -static_cast<std::int32_t>((k & 0x7fffff) == 0);
  const std::int32_t f = (k ^ sign) - whole;
  const std::int32_t e = (f >> 23) + 127;
  std::uint32_t r = static_cast<std::uint32_t>(ex2_fraction(f & 0x7fffff)) | static_cast<std::uint32_t>(e) << 23;
  r = pick(e >= 255, 0x7f800000u, r);
  r = pick(e <= 0, 0u, r);
  return float_of(pick(magnitude > 0x7f800000u, kCardNan32, r));
}
#endif
[[gnu::always_inline]] inline float ex2(float x) {
  const bool low = x < -126.0f;
  const float r = ex2_ftz(pick(low, x * 0.5f, x));
  return pick(low, r * r, r);
}

// ---- rcp, rsqrt ----
[[gnu::always_inline]] inline float rcp_ftz(float x) {
  const std::int32_t u = static_cast<std::int32_t>(bits_of(x)), sign = u & static_cast<std::int32_t>(0x80000000u);
  const std::int32_t e = (u >> 23) & 255, m = u & 0x7fffff;
  const std::int32_t v = rcp_table(m);  // (2^23, 2^24]
  const std::int32_t word = v - 0x800000 + ((253 - e) << 23);
  std::uint32_t r = pick((word < 0x800000) | (e == 255), 0u, static_cast<std::uint32_t>(word));
  r = pick(e == 0, 0x7f800000u, r) | static_cast<std::uint32_t>(sign);
  return float_of(pick((e == 255) & (m != 0), kCardNan32, r));
}
[[gnu::always_inline]] inline float rsqrt_ftz(float x) {
  const std::int32_t u = static_cast<std::int32_t>(bits_of(x)), sign = u & static_cast<std::int32_t>(0x80000000u);
  const std::int32_t e = (u >> 23) & 255, m = u & 0x7fffff;
  const std::int32_t odd = (e & 1) ^ 1;  // exponents count from 127
  const std::int32_t half = (e - 127 - odd) >> 1;
  std::int32_t v = rsqrt_table((odd << 23) | m);
  // Powers of four are exact, beside the table.
  v = static_cast<std::int32_t>(pick((odd | m) == 0, 0x1000000u, static_cast<std::uint32_t>(v)));
  std::uint32_t r = static_cast<std::uint32_t>(v - 0x800000 + ((126 - half) << 23));
  r = pick(e == 255, 0u, r);
  r = pick((sign != 0) | ((e == 255) & (m != 0)), kCardNan32, r);
  return float_of(pick(e == 0, static_cast<std::uint32_t>(sign) | 0x7f800000u, r));
}
[[gnu::always_inline]] inline float rsqrt(float x) {
  const bool tiny = (bits_of(x) & 0x7fffffffu) < 0x00800000u;
  const float r = rsqrt_ftz(pick(tiny, x * 0x1p24f, x));
  return pick(tiny, r * 4096.0f, r);
}

// ---- lg2 ----
// log2 in fixed point 2^-36 (the table has four more bits); below 1 the exponent and the fraction are one negative
// number, whose magnitude is its ones' complement.
[[gnu::always_inline]] inline float lg2_ftz(float x) {
  const std::int32_t u = static_cast<std::int32_t>(bits_of(x));
  const std::int32_t e = (u >> 23) & 255, m = u & 0x7fffff;
  // floor to the grid 2^-36: adding and removing 2^56 would round; so the four bits are cut as an integer's
  const double fine = fixed_point(kLg2, m) * 0x1p-4;
  const double cut = (fine - 0.46875) + 0x1.8p52 - 0x1.8p52;  // multiples of 2^-4 to the integer below
  const double v = static_cast<double>(e - 127) * 0x1p36 + cut;
  const double magnitude = e < 127 ? -1.0 - v : v;
  const float t = truncated(magnitude) * 0x1p-36f;
  float r = float_of(bits_of(t) ^ (e < 127 ? 0x80000000u : 0u));
  r = pick(u == 0x3f800000, 0.0f, r);
  r = pick(e == 255, x, r);
  r = pick((u < 0) | ((e == 255) & (m != 0)), card_nan(), r);
  return pick((u & 0x7f800000) == 0, float_of(0xff800000u), r);
}

// ---- sin, cos ----
// The argument in 2^-25 turns, truncated, modulo one turn.
[[gnu::always_inline]] inline std::int32_t turns(float t) {
  const float a = float_of(bits_of(t) & 0x7fffffffu);
  const float b = a < 0x1p24f ? a : 0.0f;  // beyond, all floats are whole turns
  const float f = b - static_cast<float>(static_cast<std::int32_t>(b));
  return static_cast<std::int32_t>(f * 0x1p25f);
}
[[gnu::always_inline]] inline float wave(float t, std::int32_t k, std::uint32_t sign) {
  const std::int32_t q = (k >> 23) & 3;
  const std::int32_t r = (k ^ -(q & 1)) & 0x7fffff;
  const float y = sin_table(r) * 0x1p-37f;
  const float z = float_of(bits_of(y) | (sign ^ (static_cast<std::uint32_t>(q >> 1) << 31)));
  return pick((bits_of(t) & 0x7f800000u) == 0x7f800000u, card_nan(), z);
}
// MUFU.SIN and MUFU.COS themselves: the argument is in turns.
[[gnu::always_inline]] inline float sin_turns(float t) { return wave(t, turns(t), bits_of(t) & 0x80000000u); }
[[gnu::always_inline]] inline float cos_turns(float t) { return wave(t, turns(t) + 0x800000, 0); }

// sin.approx.ftz.f32 and cos.approx.ftz.f32: radians, multiplied by 1/(2 pi), toward zero, first.
[[gnu::always_inline]] inline float to_turns(float x) {
  const float a = float_of((bits_of(x) & 0x7f800000u) == 0 ? bits_of(x) & 0x80000000u : bits_of(x));
  const double p = static_cast<double>(a) * static_cast<double>(float_of(0x3e22f983u));  // exact
  const float r = truncated(p);
  return float_of((bits_of(r) & 0x7f800000u) == 0 ? bits_of(r) & 0x80000000u : bits_of(r));
}
[[gnu::always_inline]] inline float sin_ftz(float x) { return sin_turns(to_turns(x)); }
[[gnu::always_inline]] inline float cos_ftz(float x) { return cos_turns(to_turns(x)); }

}  // namespace mufu
SO_ISA_END
