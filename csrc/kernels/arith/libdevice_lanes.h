// Functions of libdevice.h for the lanes of a vector (AVX-512, AVX2), and over arrays under every instruction set. The
// bytes are libdevice.h's: on all floats, by scripts/check_exhaustive.
#pragma once
#include <cstdint>

#include "csrc/kernels/arith/libdevice.h"
#include "csrc/kernels/arith/mufu_lanes.h"

SO_ISA_BEGIN
namespace libdevice {

#ifdef SO_EX2_LANES
#if defined(__AVX512F__)
inline constexpr std::int64_t kFloats = 16;
using Floats = __m512;
using mufu::Lanes;
using Mask = __mmask16;
[[gnu::always_inline]] inline Floats load(const float* p) { return _mm512_loadu_ps(p); }
[[gnu::always_inline]] inline void store(float* p, Floats v) { _mm512_storeu_ps(p, v); }
[[gnu::always_inline]] inline Floats all(float x) { return _mm512_set1_ps(x); }
[[gnu::always_inline]] inline Lanes words(Floats v) { return _mm512_castps_si512(v); }
[[gnu::always_inline]] inline Floats floats(Lanes v) { return _mm512_castsi512_ps(v); }
[[gnu::always_inline]] inline Floats fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
[[gnu::always_inline]] inline Floats larger(Floats a, Floats b) { return _mm512_max_ps(a, b); }
[[gnu::always_inline]] inline Lanes truncated(Floats v) { return _mm512_cvttps_epi32(v); }
[[gnu::always_inline]] inline Lanes larger_unsigned(Lanes a, Lanes b) { return _mm512_max_epu32(a, b); }
[[gnu::always_inline]] inline bool equal(Lanes a, Lanes b) { return _mm512_cmpneq_epi32_mask(a, b) == 0; }
[[gnu::always_inline]] inline Mask not_below(Floats a, Floats b) { return _mm512_cmp_ps_mask(a, b, _CMP_GE_OQ); }
[[gnu::always_inline]] inline Mask unordered(Floats a) { return _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q); }
[[gnu::always_inline]] inline Floats pick(Mask m, Floats a, Floats b) { return _mm512_mask_mov_ps(b, m, a); }
// floor(252 s) on 1.5 2^23, 0 <= s <= 1.
[[gnu::always_inline]] inline Floats floor_252(Floats s) {
  return _mm512_fmadd_round_ps(s, all(252.0f), all(0x1.8p23f), _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
}
// k, less one where k is not a multiple of 2^23.
[[gnu::always_inline]] inline Lanes broken_down(Lanes k) {
  return _mm512_mask_add_epi32(k, _mm512_test_epi32_mask(k, mufu::all(0x7fffff)), k, mufu::all(-1));
}
#else
inline constexpr std::int64_t kFloats = 8;
using Floats = __m256;
using mufu::Lanes;
using Mask = __m256;
[[gnu::always_inline]] inline Floats load(const float* p) { return _mm256_loadu_ps(p); }
[[gnu::always_inline]] inline void store(float* p, Floats v) { _mm256_storeu_ps(p, v); }
[[gnu::always_inline]] inline Floats all(float x) { return _mm256_set1_ps(x); }
[[gnu::always_inline]] inline Lanes words(Floats v) { return _mm256_castps_si256(v); }
[[gnu::always_inline]] inline Floats floats(Lanes v) { return _mm256_castsi256_ps(v); }
[[gnu::always_inline]] inline Floats fma(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
[[gnu::always_inline]] inline Floats larger(Floats a, Floats b) { return _mm256_max_ps(a, b); }
[[gnu::always_inline]] inline Lanes truncated(Floats v) { return _mm256_cvttps_epi32(v); }
[[gnu::always_inline]] inline Lanes larger_unsigned(Lanes a, Lanes b) { return _mm256_max_epu32(a, b); }
[[gnu::always_inline]] inline bool equal(Lanes a, Lanes b) {
  return _mm256_movemask_epi8(_mm256_cmpeq_epi32(a, b)) == -1;
}
[[gnu::always_inline]] inline Mask not_below(Floats a, Floats b) { return _mm256_cmp_ps(a, b, _CMP_GE_OQ); }
[[gnu::always_inline]] inline Mask unordered(Floats a) { return _mm256_cmp_ps(a, a, _CMP_UNORD_Q); }
[[gnu::always_inline]] inline Floats pick(Mask m, Floats a, Floats b) { return _mm256_blendv_ps(b, a, m); }
// floor(252 s) on 1.5 2^23, 0 <= s <= 1: to nearest, and one back where that was up.
[[gnu::always_inline]] inline Floats floor_252(Floats s) {
  const Floats near = _mm256_fmadd_ps(s, all(252.0f), all(0x1.8p23f));
  const Floats rest = _mm256_fmadd_ps(s, all(252.0f), _mm256_sub_ps(all(0x1.8p23f), near));
  return floats(_mm256_sub_epi32(words(near), _mm256_srli_epi32(words(rest), 31)));
}
// k, less one where k is not a multiple of 2^23.
[[gnu::always_inline]] inline Lanes broken_down(Lanes k) {
  const Lanes whole = _mm256_cmpeq_epi32(_mm256_slli_epi32(k, 9), _mm256_setzero_si256());
  return _mm256_sub_epi32(_mm256_sub_epi32(k, mufu::all(1)), whole);
}
#endif
[[gnu::always_inline]] inline Floats fma(Floats a, Floats b, float c) { return fma(a, b, all(c)); }
[[gnu::always_inline]] inline Floats negated(Floats v) { return floats(words(v) ^ mufu::all(INT32_MIN)); }
[[gnu::always_inline]] inline Floats absolute(Floats v) { return floats(words(v) & mufu::all(INT32_MAX)); }
[[gnu::always_inline]] inline Floats canonical(Floats v) { return pick(unordered(v), all(card_nan()), v); }

// Within it expf neither over- nor underflows, and no step of it does.
inline constexpr float kExpInside = 87.0f;
// Whether the n floats (a multiple of kFloats) are numbers of at most this magnitude.
[[gnu::always_inline]] inline bool all_within(const float* x, std::int64_t n, float limit) {
  Lanes most = words(all(limit));  // words of positive floats keep their order, NaN comes last
  for (std::int64_t i = 0; i < n; i += kFloats) most = larger_unsigned(most, words(absolute(load(x + i))));
  return equal(most, words(all(limit)));
}

// expf of magnitudes up to kExpInside: the multiplication by a power of two is an addition to the exponent.
[[gnu::always_inline]] inline Floats exp_inside(Floats a) {
  const Floats floor = floor_252(fma(a, all(0x1.77313ap-8f), 0.5f));
  const Floats i = all(0x1.8000fcp23f) - floor;  // negative
  const Floats f = fma(a, all(0x1.4ae0c0p-26f), fma(a, all(kLog2e), i));
  const Lanes k = truncated(f * all(0x1p23f));
  // Below zero by a rounding at most: the ones' complement, but for zero.
  const Lanes fixed = mufu::add(k, mufu::sign_of(k));
  return floats(mufu::ex2_word(fixed, mufu::add(mufu::shift_left<23>(words(floor)), mufu::all(1 << 23))));
}

// erff, before canonical(). Lanes that are not far have an exponential that nobody reads.
[[gnu::always_inline]] inline Floats erf_lanes(Floats a) {
  const Floats x = absolute(a), q = a * a;
  const Mask far = not_below(x, all(0x1.00c1fcp+0f));
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
  const Floats r = larger(fma(p, negated(x), negated(x)), all(-64.0f));
  const Floats rest =
      all(1.0f) - floats(mufu::ex2_word(broken_down(truncated(r * all(0x1p23f))), mufu::all(0x3f800000)));
  const Lanes sign = words(a) & mufu::all(INT32_MIN);
  return pick(far, floats(words(rest) | sign), fma(n, a, a));
}
#endif

// v[i] = expf(v[i]).
inline void exp_in_place(float* v, std::int64_t n) {
  std::int64_t at = 0;
#ifdef SO_EX2_LANES
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

// out[i] = expf(x[i] - shift), where all differences are within kExpInside.
inline void exp_of_differences(const float* x, float shift, float* out, std::int64_t n) {
  std::int64_t i = 0;
#ifdef SO_EX2_LANES
  for (; i + kFloats <= n; i += kFloats) store(out + i, exp_inside(load(x + i) - all(shift)));
#endif
#pragma GCC ivdep
  for (; i < n; ++i) out[i] = expf(x[i] - shift);
}

}  // namespace libdevice
SO_ISA_END
