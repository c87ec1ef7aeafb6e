// An independent slow twin in exact integers of what the kernels take from the host: add, multiply, fma, divide, square
// root, and of the conversions.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>

#include "csrc/kernels/arith/convert.h"
#include "csrc/kernels/core/bits.h"
#include "tests/arith/samples.h"

namespace step_oracle {
namespace {

using U128 = unsigned __int128;

struct Format {
  int precision, least,
      most;  // bits of the significand; exponents of the smallest subnormal and of the largest binade's ulp
  int width;
};
constexpr Format kF32{24, -149, 104, 32}, kBf16{8, -133, 120, 16}, kFp16{11, -24, 5, 16};

// significand 2^exponent, and whether something below the last bit is missing.
struct Exact {
  bool negative;
  U128 significand;
  int exponent;
  bool more = false;
};

std::uint32_t infinity(Format f, bool negative) {
  return (f.width == 32 ? negative << 31 : negative << 15) |
         static_cast<std::uint32_t>(((1 << (f.width - f.precision)) - 1)) << (f.precision - 1);
}

// To nearest, ties to even.
std::uint32_t rounded(Exact x, Format f) {
  const std::uint32_t sign = x.negative ? 1u << (f.width - 1) : 0u;
  if (x.significand == 0) return sign;
  int bits = 0;
  for (U128 s = x.significand; s != 0; s >>= 1) ++bits;
  int shift = bits - f.precision;                                  // bits to drop
  if (x.exponent + shift < f.least) shift = f.least - x.exponent;  // subnormal
  U128 kept;
  if (shift <= 0) {
    kept = x.significand << -shift;
  } else {
    if (shift > 126) {
      kept = 0;
    } else {
      kept = x.significand >> shift;
      const U128 rest = x.significand - (kept << shift), half = U128{1} << (shift - 1);
      if (rest > half || (rest == half && (x.more || (kept & 1)))) ++kept;
    }
  }
  int exponent = x.exponent + shift;
  if (kept >> f.precision) kept >>= 1, ++exponent;
  if (exponent > f.most) return infinity(f, x.negative);
  const bool normal = kept >> (f.precision - 1);
  const std::uint32_t biased = normal ? static_cast<std::uint32_t>(exponent - f.least + 1) : 0;
  return sign | (biased << (f.precision - 1)) | (static_cast<std::uint32_t>(kept) & ((1u << (f.precision - 1)) - 1));
}

bool is_nan(std::uint32_t w) { return (w & 0x7fffffffu) > 0x7f800000u; }
bool is_inf(std::uint32_t w) { return (w & 0x7fffffffu) == 0x7f800000u; }
Exact exact(std::uint32_t w) {
  const std::uint32_t e = w >> 23 & 255, m = w & 0x7fffffu;
  return {w >> 31 != 0, e ? m | 0x800000u : m, e ? static_cast<int>(e) - 150 : -149};
}

std::uint32_t twin_fma(std::uint32_t a, std::uint32_t b, std::uint32_t c) {
  if (is_nan(a) || is_nan(b) || is_nan(c)) return kCardNan32;
  const bool sign = (a ^ b) >> 31;
  if (is_inf(a) || is_inf(b)) {
    if ((a & 0x7fffffffu) == 0 || (b & 0x7fffffffu) == 0 || (is_inf(c) && (c >> 31 != 0) != sign)) return kCardNan32;
    return infinity(kF32, sign);
  }
  if (is_inf(c)) return c;
  Exact p = exact(a), q = exact(b), s = exact(c);
  p = {sign, p.significand * q.significand, p.exponent + q.exponent};
  if (p.significand == 0 && s.significand == 0) return rounded({sign && s.negative, 0, 0}, kF32);
  if (p.significand == 0) return c;
  if (s.significand == 0) return rounded(p, kF32);
  // Both to the top of 126 bits, then the one of the smaller exponent down, with what falls off remembered.
  for (Exact* x : {&p, &s})
    while (!(x->significand >> 124)) x->significand <<= 1, --x->exponent;
  Exact *high = &p, *low = &s;
  if (low->exponent > high->exponent) std::swap(high, low);
  const int down = high->exponent - low->exponent;
  bool lost = false;
  if (down > 0) {
    lost = down > 126 || (low->significand & ((U128{1} << down) - 1)) != 0;
    low->significand = down > 126 ? 0 : low->significand >> down;
    low->exponent = high->exponent;
  }
  if (high->negative == low->negative)
    return rounded({high->negative, high->significand + low->significand, high->exponent, lost}, kF32);
  if (high->significand == low->significand && !lost) return 0;
  if (high->significand < low->significand) std::swap(high, low);
  return rounded({high->negative, high->significand - low->significand - (lost ? 1 : 0), high->exponent, lost}, kF32);
}

std::uint32_t twin_divide(std::uint32_t a, std::uint32_t b) {
  const bool sign = (a ^ b) >> 31;
  if (is_nan(a) || is_nan(b)) return kCardNan32;
  const bool zero_a = (a & 0x7fffffffu) == 0, zero_b = (b & 0x7fffffffu) == 0;
  if ((is_inf(a) && is_inf(b)) || (zero_a && zero_b)) return kCardNan32;
  if (is_inf(a) || zero_b) return infinity(kF32, sign);
  if (is_inf(b) || zero_a) return sign ? 0x80000000u : 0;
  const Exact x = exact(a), y = exact(b);
  const U128 n = x.significand << 90, q = n / y.significand;
  return rounded({sign, q, x.exponent - 90 - y.exponent, n % y.significand != 0}, kF32);
}

std::uint32_t twin_sqrt(std::uint32_t a) {
  if ((a & 0x7fffffffu) == 0) return a;
  if (is_nan(a) || a >> 31) return kCardNan32;
  if (is_inf(a)) return a;
  Exact x = exact(a);
  x.significand <<= 60, x.exponent -= 60;
  if (x.exponent & 1) x.significand <<= 1, --x.exponent;
  U128 low = 0, high = U128{1} << 62;
  while (high - low > 1) {
    const U128 middle = (low + high) / 2;
    (middle * middle <= x.significand ? low : high) = middle;
  }
  return rounded({false, low, x.exponent / 2, low * low != x.significand}, kF32);
}

std::uint64_t g_state;
std::uint32_t draw() {
  g_state = g_state * 6364136223846793005ull + 1442695040888963407ull;
  return static_cast<std::uint32_t>(g_state >> 32);
}
// Random words, every second one with an exponent near one, so that sums cancel.
std::uint32_t operand() {
  const std::uint32_t w = draw();
  return w & 64 ? w : (w & 0x807fffffu) | (118 + draw() % 18) << 23;
}

void expect_all(std::uint32_t a, std::uint32_t b, std::uint32_t c) {
  const float x = float_of(a), y = float_of(b), z = float_of(c);
  ASSERT_EQ(bits_of(canonical(fma(x, y, z))), twin_fma(a, b, c)) << std::hex << a << ' ' << b << ' ' << c;
  ASSERT_EQ(bits_of(canonical(x + y)), twin_fma(a, 0x3f800000u, b)) << std::hex << a << ' ' << b;
  ASSERT_EQ(bits_of(canonical(x - y)), twin_fma(a, 0x3f800000u, b ^ 0x80000000u)) << std::hex << a << ' ' << b;
  ASSERT_EQ(bits_of(canonical(x * y)), twin_fma(a, b, ((a ^ b) & 0x80000000u))) << std::hex << a << ' ' << b;
  ASSERT_EQ(bits_of(canonical(x / y)), twin_divide(a, b)) << std::hex << a << ' ' << b;
  ASSERT_EQ(bits_of(canonical(std::sqrt(x))), twin_sqrt(a)) << std::hex << a;
}

TEST(Exact, BoundaryValuesAndRandomOnes) {
  const auto& words = test::boundary_words();
  for (std::uint32_t a : words)
    for (std::uint32_t b : words) expect_all(a, b, words[(a ^ b * 7) % words.size()]);
  g_state = 1;
  for (int i = 0; i < 200000; ++i) expect_all(operand(), operand(), operand());
}

void expect_conversions(std::uint32_t w) {
  const float x = float_of(w);
  const std::uint32_t bf16 = is_nan(w) ? 0x7fffu : is_inf(w) ? infinity(kBf16, w >> 31) : rounded(exact(w), kBf16);
  const std::uint32_t fp16 = is_nan(w) ? 0x7fffu : is_inf(w) ? infinity(kFp16, w >> 31) : rounded(exact(w), kFp16);
  ASSERT_EQ(convert::to_bf16(x), bf16) << std::hex << w;
  ASSERT_EQ(convert::to_fp16(x), fp16) << std::hex << w;
}

TEST(Exact, Conversions) {
  for (std::uint32_t w : test::sample_words()) expect_conversions(w);
  for (std::uint32_t h = 0; h < 1u << 16; ++h) {
    // Each 16-bit number, its two neighbours at half a step, and next to them.
    const std::uint32_t base = bits_of(convert::from_fp16(static_cast<std::uint16_t>(h)));
    for (std::uint32_t d : {0u, 0xfffu, 0x1000u, 0x1001u}) expect_conversions(base + d);
    for (std::uint32_t d : {0u, 0x7fffu, 0x8000u, 0x8001u}) expect_conversions((h << 16) + d);
    if (!is_nan(base)) {
      ASSERT_EQ(convert::to_fp16(float_of(base)), h);
    }
  }
  EXPECT_EQ(convert::to_bf16(float_of(0x7fc00000u), convert::bf16_nan(75)), 0x7fc0);
  EXPECT_EQ(bits_of(convert::from_bf16(0xff81)), 0xff810000u) << "widening keeps the payload";
}

TEST(Exact, ToIntegers) {
  EXPECT_EQ(convert::to_int32(float_of(0x7fc00000u)), 0);
  EXPECT_EQ(convert::to_int32(3e9f), INT32_MAX);
  EXPECT_EQ(convert::to_int32(-3e9f), INT32_MIN);
  EXPECT_EQ(convert::to_int32(-1.75f), -1);
  EXPECT_EQ(convert::to_int64(float_of(0x7fc00000u)), INT64_MIN);
  EXPECT_EQ(convert::to_int64(1e30f), INT64_MAX);
  EXPECT_EQ(convert::to_int64(-1e30f), INT64_MIN);
  EXPECT_EQ(convert::to_uint8(300.5f), 44);
}

}  // namespace
}  // namespace step_oracle
