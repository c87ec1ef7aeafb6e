// mufu.h for the lanes of a vector (AVX-512; of AVX2 ex2 only). On AVX-512 permutations of registers replace
// gathers, which cost more than all the rest; loops that these are inlined into keep the tables in registers.
#pragma once
#include "csrc/kernels/arith/mufu.h"

#if defined(SO_ISA) && defined(__AVX2__)
#define SO_EX2_LANES 1
// gcc 12 calls the undefined vectors of its own header uninitialised (its bug 105593).
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#endif

#ifdef SO_MUFU_LANES
SO_ISA_BEGIN
namespace mufu {
using Lanes = __m512i;
[[gnu::always_inline]] inline Lanes all(std::int32_t v) { return _mm512_set1_epi32(v); }
[[gnu::always_inline]] inline Lanes add(Lanes a, Lanes b) { return _mm512_add_epi32(a, b); }
[[gnu::always_inline]] inline Lanes sign_of(Lanes a) { return _mm512_srai_epi32(a, 31); }
template <int kBits>
[[gnu::always_inline]] inline Lanes shift_left(Lanes a) {
  return _mm512_slli_epi32(a, kBits);
}
[[gnu::always_inline]] inline Lanes load(const void* p) { return _mm512_loadu_si512(p); }

// t[i & 63]
[[gnu::always_inline]] inline Lanes look(const std::int32_t* t, Lanes i) {
  const Lanes low = _mm512_permutex2var_epi32(load(t), i, load(t + 16));
  const Lanes high = _mm512_permutex2var_epi32(load(t + 32), i, load(t + 48));
  return _mm512_mask_blend_epi32(_mm512_test_epi32_mask(i, all(32)), low, high);
}
[[gnu::always_inline]] inline Lanes look128(const std::int32_t* t, Lanes i) {
  return _mm512_mask_blend_epi32(_mm512_test_epi32_mask(i, all(64)), look(t, i), look(t + 64, i));
}

// The rows of mufu::squarer, three bits of low with three bits of the top at a time: 64 results each. Index: bits of
// low, then bits of the top.
struct Products {
  std::int16_t outer[64];  // bits 5 to 7 with bits 14 to 16
  std::int16_t inner[64];  // bits 5 to 7 with bits 11 to 13
  std::int16_t last[64];   // bits 2 to 4 with bits 14 to 16
};
constexpr Products products() {
  Products p{};
  for (int i = 0; i < 64; ++i) {
    const int low = i & 7, top = i >> 3;
    p.outer[i] = static_cast<std::int16_t>(2 * low * top);
    for (int bit = 0; bit < 3; ++bit)
      if (low >> bit & 1) p.inner[i] = p.last[i] = static_cast<std::int16_t>(p.inner[i] + (top >> (2 - bit)));
  }
  return p;
}
alignas(64) constexpr Products kProducts = products();
[[gnu::always_inline]] inline Lanes look(const std::int16_t (&t)[64], Lanes i) {
  return _mm512_permutex2var_epi16(load(t), i, load(t + 32));
}
constexpr int kSelect = 0xca;  // vpternlog: a ? b : c
[[gnu::always_inline]] inline Lanes squarer(Lanes x) {
  const Lanes top = _mm512_srli_epi32(x, 8), h = _mm512_srli_epi32(x, 10);
  const Lanes square = _mm512_mullo_epi32(h, _mm512_sub_epi32(top, _mm512_add_epi32(h, h)));
  const Lanes low = _mm512_srli_epi32(x, 5), high = _mm512_srli_epi32(x, 11);
  const auto index = [](Lanes low_bits, Lanes top_bits) {  // a permutation reads six bits of each word
    return _mm512_ternarylogic_epi32(all(7), low_bits, top_bits, kSelect);
  };
  const Lanes outer = look(kProducts.outer, index(low, high)), inner = look(kProducts.inner, index(low, top));
  const Lanes last = look(kProducts.last, index(_mm512_srli_epi32(x, 2), high));
  return _mm512_add_epi32(_mm512_add_epi32(square, outer), _mm512_add_epi32(inner, last));
}

// 2^(f / 2^23) as a float's word: mufu::ex2_fraction of the 23 lower bits, and the bits above on `exponent`, which is
// the word of 1 or of another power of two. The result is normal.
[[gnu::always_inline]] inline Lanes ex2_word(Lanes f, Lanes exponent = all(0x3f800000)) {
  const Lanes i = _mm512_srli_epi32(f, 17), x = _mm512_and_si512(f, all(0x1ffff));
  const Lanes high_square = look(reinterpret_cast<const std::int32_t*>(kEx2.high_square), i);
  const Lanes slope_low = look(kEx2.slope_low, i);
  const Lanes square = _mm512_add_epi32(_mm512_and_si512(high_square, all(511)), all(kSquareBase));
  const Lanes product = _mm512_mullo_epi32(_mm512_srai_epi32(slope_low, 15), x);
  const Lanes bent = _mm512_mullo_epi32(square, squarer(x));
  const Lanes low = _mm512_and_si512(slope_low, all(0x7fff));
  const Lanes rest = _mm512_srai_epi32(_mm512_add_epi32(_mm512_add_epi32(product, bent), low), 15);
  const Lanes fraction = _mm512_add_epi32(_mm512_add_epi32(_mm512_srli_epi32(high_square, 9), x), rest);
  return _mm512_add_epi32(fraction, _mm512_add_epi32(_mm512_and_si512(f, all(~0x7fffff)), exponent));
}

// mufu::ex2_ftz
[[gnu::always_inline]] inline __m512 ex2_lanes(__m512 v) {
  const Lanes u = _mm512_castps_si512(v), magnitude = _mm512_and_si512(u, all(0x7fffffff));
  const __m512 a = _mm512_castsi512_ps(_mm512_min_epu32(magnitude, all(0x437f0000)));
  const Lanes k = _mm512_cvttps_epi32(_mm512_mul_ps(a, _mm512_set1_ps(0x1p23f)));
  const Lanes complement = _mm512_xor_si512(k, _mm512_srai_epi32(u, 31));
  const __mmask16 whole = _mm512_mask_testn_epi32_mask(_mm512_movepi32_mask(u), k, all(0x7fffff));
  const Lanes f = _mm512_mask_add_epi32(complement, whole, complement, all(1));
  const __mmask16 over_zero = _mm512_cmpge_epi32_mask(f, all(-126 * 0x800000));
  Lanes r = _mm512_maskz_mov_epi32(over_zero, ex2_word(f));
  r = _mm512_mask_mov_epi32(r, _mm512_cmpge_epi32_mask(f, all(128 * 0x800000)), all(0x7f800000));
  const __mmask16 nan = _mm512_cmpgt_epu32_mask(magnitude, all(0x7f800000));
  return _mm512_castsi512_ps(_mm512_mask_mov_epi32(r, nan, all(static_cast<std::int32_t>(kCardNan32))));
}

[[gnu::always_inline]] inline Lanes falling_lanes(const Columns<128>& t, Lanes i, Lanes x) {
  const Lanes half = _mm512_srli_epi32(x, 1), slope = look128(t.slope, i);
  const Lanes odd =
      _mm512_and_si512(_mm512_sub_epi32(all(0), _mm512_and_si512(x, all(1))), _mm512_sub_epi32(slope, all(32768)));
  const Lanes rest =
      _mm512_add_epi32(_mm512_add_epi32(odd, _mm512_mullo_epi32(look128(t.square, i), squarer(x))), look128(t.low, i));
  const Lanes sum = _mm512_add_epi32(_mm512_mullo_epi32(slope, half), _mm512_srai_epi32(rest, 1));
  return _mm512_add_epi32(_mm512_sub_epi32(look128(t.high, i), half), _mm512_srai_epi32(sum, 15));
}
[[gnu::always_inline]] inline Lanes rcp_lanes(Lanes m) {
  return falling_lanes(kRcp, _mm512_srli_epi32(m, 16), _mm512_slli_epi32(_mm512_and_si512(m, all(0xffff)), 1));
}
[[gnu::always_inline]] inline Lanes rsqrt_lanes(Lanes m) {
  return falling_lanes(kRsqrt, _mm512_srli_epi32(m, 17), _mm512_and_si512(m, all(0x1ffff)));
}

// fixed_point of eight lanes; every step is exact.
struct Halves {
  __m512d low, high;
};
[[gnu::always_inline]] inline __m256i half(Lanes v, bool high) {
  return high ? _mm512_extracti64x4_epi64(v, 1) : _mm512_castsi512_si256(v);
}
[[gnu::always_inline]] inline Halves fixed_point_lanes(const Columns<64>& t, Lanes k) {
  const Lanes i = _mm512_srli_epi32(k, 17), x = _mm512_and_si512(k, all(0x1ffff));
  const Lanes c0 = look(t.high, i), low = look(t.low, i), slope = look(t.slope, i);
  const Lanes rest = _mm512_mullo_epi32(look(t.square, i), squarer(x));
  const auto sum = [&](bool h) {
    const __m512d base =
        _mm512_fmadd_pd(_mm512_cvtepi32_pd(half(c0, h)), _mm512_set1_pd(65536.0), _mm512_cvtepi32_pd(half(low, h)));
    const __m512d line = _mm512_fmadd_pd(_mm512_cvtepi32_pd(half(slope, h)), _mm512_cvtepi32_pd(half(x, h)), base);
    return _mm512_add_pd(line, _mm512_cvtepi32_pd(half(rest, h)));
  };
  return {sum(false), sum(true)};
}
[[gnu::always_inline]] inline __m512 floats(__m512d low, __m512d high) {
  return _mm512_insertf32x8(_mm512_castps256_ps512(_mm512_cvtpd_ps(low)), _mm512_cvtpd_ps(high), 1);
}
[[gnu::always_inline]] inline __m512d cut(__m512d v) {
  return _mm512_castsi512_pd(_mm512_and_si512(_mm512_castpd_si512(v), _mm512_set1_epi64(~0x1fffffffll)));
}
[[gnu::always_inline]] inline __m512 sin_lanes(Lanes r) {
  const Halves v = fixed_point_lanes(kSin, r);
  return floats(cut(v.low), cut(v.high));
}

}  // namespace mufu
SO_ISA_END
#elif defined(SO_EX2_LANES)
SO_ISA_BEGIN
namespace mufu {
using Lanes = __m256i;
[[gnu::always_inline]] inline Lanes all(std::int32_t v) { return _mm256_set1_epi32(v); }
[[gnu::always_inline]] inline Lanes add(Lanes a, Lanes b) { return _mm256_add_epi32(a, b); }
[[gnu::always_inline]] inline Lanes sign_of(Lanes a) { return _mm256_srai_epi32(a, 31); }
template <int kBits>
[[gnu::always_inline]] inline Lanes shift_left(Lanes a) {
  return _mm256_slli_epi32(a, kBits);
}

// Both words of a segment of kEx2 side by side: a gather of eight pairs costs half as much as two of eight words.
struct Pairs {
  std::int64_t of[64];  // high_square below, slope_low above
};
constexpr Pairs pairs() {
  Pairs p{};
  for (int i = 0; i < 64; ++i) {
    const auto above = static_cast<std::uint64_t>(static_cast<std::uint32_t>(kEx2.slope_low[i]));
    p.of[i] = static_cast<std::int64_t>(above << 32 | kEx2.high_square[i]);
  }
  return p;
}
alignas(64) constexpr Pairs kPairs = pairs();
struct Segment {
  Lanes high_square, slope_low;
};
[[gnu::always_inline]] inline Segment segment(Lanes i) {
  const Lanes order = _mm256_permute4x64_epi64(i, 0xd8);  // 0 1 4 5, 2 3 6 7: the shuffles work in halves
  const auto* from = reinterpret_cast<const long long*>(kPairs.of);
  const __m256 a = _mm256_castsi256_ps(_mm256_i32gather_epi64(from, _mm256_castsi256_si128(order), 8));
  const __m256 b = _mm256_castsi256_ps(_mm256_i32gather_epi64(from, _mm256_extracti128_si256(order, 1), 8));
  return {_mm256_castps_si256(_mm256_shuffle_ps(a, b, 0x88)), _mm256_castps_si256(_mm256_shuffle_ps(a, b, 0xdd))};
}

// mufu::squarer: the rows' sum of cut products a_i floor(b / 2^(2 - i)) is (a b - a_0 (b mod 4) - 2 a_1 (b mod 2)) / 4,
// for two pairs of three bits at a time in the halves of a word: bits 5 to 7 with 11 to 13 (with 14 to 16 above them:
// products that are not cut), bits 2 to 4 with 14 to 16.
[[gnu::always_inline]] inline Lanes squarer(Lanes x) {
  const Lanes top = _mm256_srli_epi32(x, 8), h = _mm256_srli_epi32(x, 10);
  const Lanes square = _mm256_madd_epi16(h, _mm256_sub_epi32(top, _mm256_add_epi32(h, h)));
  const Lanes a =
      _mm256_and_si256(_mm256_blend_epi16(_mm256_srli_epi32(x, 5), shift_left<14>(x), 0xaa), all(0x00070007));
  const Lanes b = _mm256_blend_epi16(_mm256_srli_epi32(x, 11), shift_left<2>(x), 0xaa);
  const Lanes first = _mm256_madd_epi16(_mm256_and_si256(a, all(0x00010001)), _mm256_and_si256(b, all(0x00030003)));
  const Lanes second = _mm256_madd_epi16(_mm256_and_si256(a, all(0x00020002)), _mm256_and_si256(b, all(0x00010001)));
  const Lanes rows = _mm256_sub_epi32(_mm256_madd_epi16(a, b), add(first, second));
  return add(square, _mm256_srli_epi32(rows, 2));
}

// As for AVX-512.
[[gnu::always_inline]] inline Lanes ex2_word(Lanes f, Lanes exponent) {
  const Lanes x = _mm256_and_si256(f, all(0x1ffff));
  const auto [high_square, slope_low] = segment(_mm256_and_si256(_mm256_srli_epi32(f, 17), all(63)));
  const Lanes square = add(_mm256_and_si256(high_square, all(511)), all(kSquareBase));
  const Lanes product = _mm256_mullo_epi32(_mm256_srai_epi32(slope_low, 15), x);
  const Lanes bent = _mm256_madd_epi16(square, squarer(x));
  const Lanes low = _mm256_and_si256(slope_low, all(0x7fff));
  const Lanes rest = _mm256_srai_epi32(add(add(product, bent), low), 15);
  const Lanes fraction = add(add(_mm256_srli_epi32(high_square, 9), x), rest);
  return add(fraction, add(_mm256_and_si256(f, all(~0x7fffff)), exponent));
}
}  // namespace mufu
SO_ISA_END
#endif
