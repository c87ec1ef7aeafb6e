// Functions of libdevice.h for the lanes of a vector (AVX-512), and over arrays under every instruction set. The bytes
// are libdevice.h's: on all floats, by scripts/check_exhaustive.
#pragma once
#include <cstdint>

#include "csrc/kernels/arith/libdevice.h"
#include "csrc/kernels/arith/mufu_lanes.h"

SO_ISA_BEGIN
namespace libdevice {

#ifdef SO_MUFU_LANES
inline constexpr std::int64_t kFloats = 16;
using Floats = __m512;
[[gnu::always_inline]] inline Floats load(const float* p) { return _mm512_loadu_ps(p); }
[[gnu::always_inline]] inline void store(float* p, Floats v) { _mm512_storeu_ps(p, v); }
[[gnu::always_inline]] inline Floats all(float x) { return _mm512_set1_ps(x); }
[[gnu::always_inline]] inline Floats fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
[[gnu::always_inline]] inline Floats fma(Floats a, Floats b, float c) { return _mm512_fmadd_ps(a, b, all(c)); }
[[gnu::always_inline]] inline Floats canonical(Floats v) {
  return _mm512_mask_mov_ps(v, _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q), all(card_nan()));
}
[[gnu::always_inline]] inline Floats absolute(Floats v) { return _mm512_and_ps(v, all(float_of(0x7fffffffu))); }

// Within it expf neither over- nor underflows, and no step of it does.
inline constexpr float kExpInside = 87.0f;
// Whether the n floats (a multiple of kFloats) are numbers of at most this magnitude.
[[gnu::always_inline]] inline bool all_within(const float* x, std::int64_t n, float limit) {
  __m512i most = _mm512_setzero_si512();  // words of positive floats keep their order, NaN comes last
  for (std::int64_t i = 0; i < n; i += kFloats)
    most = _mm512_max_epu32(most, _mm512_castps_si512(absolute(load(x + i))));
  return _mm512_cmpgt_epu32_mask(most, _mm512_castps_si512(all(limit))) == 0;
}

// expf of magnitudes up to kExpInside: the multiplication by a power of two is an addition to the exponent.
[[gnu::always_inline]] inline Floats exp_inside(Floats a) {
  const Floats s = fma(a, all(0x1.77313ap-8f), 0.5f);
  const Floats near = _mm512_fmadd_round_ps(s, all(252.0f), all(0x1.8p23f), _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
  const Floats i = _mm512_sub_ps(near, all(0x1.8000fcp23f));
  const Floats f = fma(a, all(0x1.4ae0c0p-26f), _mm512_fmsub_ps(a, all(kLog2e), i));
  const __m512i k = _mm512_cvttps_epi32(_mm512_mul_ps(f, all(0x1p23f)));
  // Below zero by a rounding at most: the ones' complement, but for zero.
  const __m512i fixed = _mm512_add_epi32(k, _mm512_srai_epi32(k, 31));
  const __m512i exponent =
      _mm512_add_epi32(_mm512_slli_epi32(_mm512_castps_si512(near), 23), _mm512_set1_epi32(1 << 23));
  return _mm512_castsi512_ps(mufu::ex2_word(fixed, exponent));
}

// erff, before canonical(). Lanes that are not far have an exponential that nobody reads.
[[gnu::always_inline]] inline Floats erf_lanes(Floats a) {
  const Floats x = absolute(a), q = _mm512_mul_ps(a, a);
  const __mmask16 far = _mm512_cmp_ps_mask(x, all(0x1.00c1fcp+0f), _CMP_GE_OQ);
  Floats n = fma(all(0x1.63d2d4p-14f), q, -0x1.ae9a4p-11f);
  n = fma(n, q, 0x1.55abd4p-8f);
  n = fma(n, q, -0x1.b837cep-6f);
  n = fma(n, q, 0x1.ce315ep-4f);
  n = fma(n, q, -0x1.812758p-2f);
  n = fma(n, q, 0x1.06eba6p-3f);
  Floats p = fma(all(0x1.d69874p-14f), x, -0x1.5c00b6p-10f);
  p = fma(p, x, 0x1.13233ep-7f);
  p = fma(p, x, -0x1.49b334p-5f);
  p = fma(p, x, 0x1.46aa32p-3f);
  p = fma(p, x, 0x1.d369f2p-1f);
  p = fma(p, x, 0x1.421428p-1f);
  // Of a far number below -2; from -26 on 1 - 2^r is 1.
  const Floats r = _mm512_max_ps(_mm512_fnmsub_ps(p, x, x), all(-64.0f));
  const __m512i k = _mm512_cvttps_epi32(_mm512_mul_ps(r, all(0x1p23f)));
  const __mmask16 broken = _mm512_test_epi32_mask(k, _mm512_set1_epi32(0x7fffff));  // not whole: ones' complement
  const __m512i fixed = _mm512_mask_add_epi32(k, broken, k, _mm512_set1_epi32(-1));
  const Floats rest = _mm512_sub_ps(all(1.0f), _mm512_castsi512_ps(mufu::ex2_word(fixed)));
  const Floats close = fma(n, a, a);
  const __m512i sign = _mm512_set1_epi32(INT32_MIN);
  // sign ? a : rest, bit by bit
  const __m512i signed_rest = _mm512_ternarylogic_epi32(sign, _mm512_castps_si512(a), _mm512_castps_si512(rest), 0xca);
  return _mm512_mask_mov_ps(close, far, _mm512_castsi512_ps(signed_rest));
}
#endif

// v[i] = expf(v[i]).
inline void exp_in_place(float* v, std::int64_t n) {
  std::int64_t at = 0;
#ifdef SO_MUFU_LANES
  constexpr std::int64_t kBlock = 256;
  for (; at + kFloats <= n;) {
    const std::int64_t m = (n - at < kBlock ? n - at : kBlock) / kFloats * kFloats;
    if (all_within(v + at, m, kExpInside)) {
      for (std::int64_t i = at; i < at + m; i += kFloats) store(v + i, exp_inside(load(v + i)));
    } else {
#pragma GCC ivdep
      for (std::int64_t i = at; i < at + m; ++i) v[i] = expf(v[i]);
    }
    at += m;
  }
#endif
#pragma GCC ivdep
  for (std::int64_t i = at; i < n; ++i) v[i] = expf(v[i]);
}

}  // namespace libdevice
SO_ISA_END
