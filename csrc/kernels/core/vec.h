// Vectors of the instruction set that is being compiled: what tiles of products need, nothing more. Intrinsics, because
// gcc 12 does not keep a 12 x 32 tile of arrays in registers. kIntVecs says whether there are integer ones too.
#pragma once
#include <cstdint>
#include <cstring>

#include "csrc/kernels/core/bits.h"

#if defined(__AVX2__)
// gcc 12 warns of its own headers: _mm512_undefined_ps() is meant to be undefined.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

SO_ISA_BEGIN

#define SO_ALWAYS_INLINE inline __attribute__((always_inline))

#if defined(__AVX512F__)
using Vec = __m512;
inline constexpr int kLanes = 16, kTileRows = 12, kTileVecs = 2;
SO_ALWAYS_INLINE Vec zeros() { return _mm512_setzero_ps(); }
SO_ALWAYS_INLINE Vec load(const float* p) { return _mm512_loadu_ps(p); }
SO_ALWAYS_INLINE void store(float* p, Vec v) { _mm512_storeu_ps(p, v); }
SO_ALWAYS_INLINE Vec broadcast(float x) { return _mm512_set1_ps(x); }
SO_ALWAYS_INLINE Vec add(Vec a, Vec b) { return _mm512_add_ps(a, b); }
SO_ALWAYS_INLINE Vec sub(Vec a, Vec b) { return _mm512_sub_ps(a, b); }
SO_ALWAYS_INLINE Vec mul(Vec a, Vec b) { return _mm512_mul_ps(a, b); }
SO_ALWAYS_INLINE Vec fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
SO_ALWAYS_INLINE Vec larger(Vec a, Vec b) { return _mm512_max_ps(a, b); }  // a > b ? a : b
SO_ALWAYS_INLINE Vec canonical(Vec v) {
  return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q), v, broadcast(card_nan()));
}
#elif defined(__AVX2__)
using Vec = __m256;
inline constexpr int kLanes = 8, kTileRows = 6, kTileVecs = 2;
SO_ALWAYS_INLINE Vec zeros() { return _mm256_setzero_ps(); }
SO_ALWAYS_INLINE Vec load(const float* p) { return _mm256_loadu_ps(p); }
SO_ALWAYS_INLINE void store(float* p, Vec v) { _mm256_storeu_ps(p, v); }
SO_ALWAYS_INLINE Vec broadcast(float x) { return _mm256_set1_ps(x); }
SO_ALWAYS_INLINE Vec add(Vec a, Vec b) { return _mm256_add_ps(a, b); }
SO_ALWAYS_INLINE Vec sub(Vec a, Vec b) { return _mm256_sub_ps(a, b); }
SO_ALWAYS_INLINE Vec mul(Vec a, Vec b) { return _mm256_mul_ps(a, b); }
SO_ALWAYS_INLINE Vec fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
SO_ALWAYS_INLINE Vec larger(Vec a, Vec b) { return _mm256_max_ps(a, b); }  // a > b ? a : b
SO_ALWAYS_INLINE Vec canonical(Vec v) {
  return _mm256_blendv_ps(v, broadcast(card_nan()), _mm256_cmp_ps(v, v, _CMP_UNORD_Q));
}
#elif defined(__ARM_NEON)
using Vec = float32x4_t;
inline constexpr int kLanes = 4, kTileRows = 6, kTileVecs = 4;
SO_ALWAYS_INLINE Vec zeros() { return vdupq_n_f32(0.0f); }
SO_ALWAYS_INLINE Vec load(const float* p) { return vld1q_f32(p); }
SO_ALWAYS_INLINE void store(float* p, Vec v) { vst1q_f32(p, v); }
SO_ALWAYS_INLINE Vec broadcast(float x) { return vdupq_n_f32(x); }
SO_ALWAYS_INLINE Vec mul(Vec a, Vec b) { return vmulq_f32(a, b); }
SO_ALWAYS_INLINE Vec fma(Vec a, Vec b, Vec c) { return vfmaq_f32(c, a, b); }
SO_ALWAYS_INLINE Vec canonical(Vec v) { return vbslq_f32(vceqq_f32(v, v), v, broadcast(card_nan())); }
#else
struct Vec {
  float lane[4];
};
inline constexpr int kLanes = 4, kTileRows = 4, kTileVecs = 1;
SO_ALWAYS_INLINE Vec zeros() { return {}; }
SO_ALWAYS_INLINE Vec load(const float* p) {
  Vec v;
  std::memcpy(v.lane, p, sizeof v.lane);
  return v;
}
SO_ALWAYS_INLINE void store(float* p, Vec v) { std::memcpy(p, v.lane, sizeof v.lane); }
SO_ALWAYS_INLINE Vec broadcast(float x) { return {{x, x, x, x}}; }
SO_ALWAYS_INLINE Vec mul(Vec a, Vec b) {
  for (int i = 0; i < 4; ++i) a.lane[i] = a.lane[i] * b.lane[i];
  return a;
}
SO_ALWAYS_INLINE Vec fma(Vec a, Vec b, Vec c) {
  for (int i = 0; i < 4; ++i) c.lane[i] = fma(a.lane[i], b.lane[i], c.lane[i]);
  return c;
}
SO_ALWAYS_INLINE Vec canonical(Vec v) {
  for (int i = 0; i < 4; ++i) v.lane[i] = canonical(v.lane[i]);
  return v;
}
#endif

// 32-bit integers in the lanes of Vec, and the same register as bytes.
#if defined(__AVX512F__)
inline constexpr bool kIntVecs = true;
using IntVec = __m512i;
SO_ALWAYS_INLINE IntVec load_int(const void* p) { return _mm512_loadu_si512(p); }
SO_ALWAYS_INLINE void store_int(void* p, IntVec v) { _mm512_storeu_si512(p, v); }
SO_ALWAYS_INLINE IntVec broadcast_int(std::uint32_t x) { return _mm512_set1_epi32(static_cast<int>(x)); }
SO_ALWAYS_INLINE IntVec bits_of(Vec v) { return _mm512_castps_si512(v); }
SO_ALWAYS_INLINE Vec float_of(IntVec v) { return _mm512_castsi512_ps(v); }
SO_ALWAYS_INLINE IntVec add_int(IntVec a, IntVec b) { return _mm512_add_epi32(a, b); }
SO_ALWAYS_INLINE IntVec sub_int(IntVec a, IntVec b) { return _mm512_sub_epi32(a, b); }
SO_ALWAYS_INLINE IntVec max_int(IntVec a, IntVec b) { return _mm512_max_epi32(a, b); }
SO_ALWAYS_INLINE IntVec min_unsigned(IntVec a, IntVec b) { return _mm512_min_epu32(a, b); }
SO_ALWAYS_INLINE IntVec and_int(IntVec a, IntVec b) { return _mm512_and_si512(a, b); }
SO_ALWAYS_INLINE IntVec sub_bytes_saturated(IntVec a, IntVec b) { return _mm512_subs_epu8(a, b); }
SO_ALWAYS_INLINE IntVec max_bytes(IntVec a, IntVec b) { return _mm512_max_epu8(a, b); }
SO_ALWAYS_INLINE IntVec sub_halves_saturated(IntVec a, IntVec b) { return _mm512_subs_epu16(a, b); }
template <int n>
SO_ALWAYS_INLINE IntVec shift_left(IntVec a) {
  return _mm512_slli_epi32(a, n);
}
template <int n>
SO_ALWAYS_INLINE IntVec shift_right(IntVec a) {
  return _mm512_srli_epi32(a, n);
}
SO_ALWAYS_INLINE IntVec truncated(Vec v) { return _mm512_cvttps_epi32(v); }
// Toward zero.
SO_ALWAYS_INLINE Vec float_toward_zero(IntVec v) {
  return _mm512_cvt_roundepi32_ps(v, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
}
SO_ALWAYS_INLINE Vec larger_magnitude(Vec a, Vec b) { return _mm512_max_ps(a, _mm512_abs_ps(b)); }
// The one of larger magnitude, its sign cleared; neither is a NaN.
SO_ALWAYS_INLINE IntVec larger_magnitude_bits(IntVec a, Vec b) {
  constexpr int kMagnitudes = 0b1011;  // [spec Intel SDM, VRANGEPS]
  return bits_of(_mm512_range_ps(float_of(a), b, kMagnitudes));
}
SO_ALWAYS_INLINE bool any_not_below(Vec v, float limit) {
  return _mm512_cmp_ps_mask(v, broadcast(limit), _CMP_NLT_UQ) != 0;
}
SO_ALWAYS_INLINE bool any_unsigned_at_most(IntVec v, std::uint32_t limit) {
  return _mm512_cmple_epu32_mask(v, broadcast_int(limit)) != 0;
}
#elif defined(__AVX2__)
inline constexpr bool kIntVecs = true;
using IntVec = __m256i;
SO_ALWAYS_INLINE IntVec load_int(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
SO_ALWAYS_INLINE void store_int(void* p, IntVec v) { _mm256_storeu_si256(static_cast<__m256i*>(p), v); }
SO_ALWAYS_INLINE IntVec broadcast_int(std::uint32_t x) { return _mm256_set1_epi32(static_cast<int>(x)); }
SO_ALWAYS_INLINE IntVec bits_of(Vec v) { return _mm256_castps_si256(v); }
SO_ALWAYS_INLINE Vec float_of(IntVec v) { return _mm256_castsi256_ps(v); }
SO_ALWAYS_INLINE IntVec add_int(IntVec a, IntVec b) { return _mm256_add_epi32(a, b); }
SO_ALWAYS_INLINE IntVec sub_int(IntVec a, IntVec b) { return _mm256_sub_epi32(a, b); }
SO_ALWAYS_INLINE IntVec max_int(IntVec a, IntVec b) { return _mm256_max_epi32(a, b); }
SO_ALWAYS_INLINE IntVec min_unsigned(IntVec a, IntVec b) { return _mm256_min_epu32(a, b); }
SO_ALWAYS_INLINE IntVec and_int(IntVec a, IntVec b) { return _mm256_and_si256(a, b); }
SO_ALWAYS_INLINE IntVec sub_bytes_saturated(IntVec a, IntVec b) { return _mm256_subs_epu8(a, b); }
SO_ALWAYS_INLINE IntVec max_bytes(IntVec a, IntVec b) { return _mm256_max_epu8(a, b); }
template <int n>
SO_ALWAYS_INLINE IntVec shift_left(IntVec a) {
  return _mm256_slli_epi32(a, n);
}
template <int n>
SO_ALWAYS_INLINE IntVec shift_right(IntVec a) {
  return _mm256_srli_epi32(a, n);
}
SO_ALWAYS_INLINE IntVec truncated(Vec v) { return _mm256_cvttps_epi32(v); }
// Toward zero, for |v| < 2^31 - 64: rounded to nearest, then one place back where that grew.
SO_ALWAYS_INLINE Vec float_toward_zero(IntVec v) {
  const Vec near = _mm256_cvtepi32_ps(v);
  const IntVec grew = _mm256_cmpgt_epi32(_mm256_abs_epi32(_mm256_cvttps_epi32(near)), _mm256_abs_epi32(v));
  return float_of(_mm256_add_epi32(bits_of(near), grew));
}
SO_ALWAYS_INLINE Vec larger_magnitude(Vec a, Vec b) { return _mm256_max_ps(a, _mm256_andnot_ps(broadcast(-0.0f), b)); }
SO_ALWAYS_INLINE bool any_not_below(Vec v, float limit) {
  return _mm256_movemask_ps(_mm256_cmp_ps(v, broadcast(limit), _CMP_NLT_UQ)) != 0;
}
SO_ALWAYS_INLINE bool any_unsigned_at_most(IntVec v, std::uint32_t limit) {
  const IntVec within = _mm256_cmpeq_epi32(_mm256_min_epu32(v, broadcast_int(limit)), v);
  return _mm256_movemask_epi8(within) != 0;
}
#else
inline constexpr bool kIntVecs = false;
#endif

// The first n lanes, 0 < n < kLanes; the others are 0, and are not read or written in memory.
SO_ALWAYS_INLINE Vec load_first(const float* p, int n) {
#if defined(__AVX512F__)
  return _mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << n) - 1), p);
#else
  float lanes[kLanes] = {};
  for (int i = 0; i < n; ++i) lanes[i] = p[i];
  return load(lanes);
#endif
}
SO_ALWAYS_INLINE void store_first(float* p, Vec v, int n) {
#if defined(__AVX512F__)
  _mm512_mask_storeu_ps(p, static_cast<__mmask16>((1u << n) - 1), v);
#else
  float lanes[kLanes];
  store(lanes, v);
  for (int i = 0; i < n; ++i) p[i] = lanes[i];
#endif
}

// to[c * to_row + r] = from[r * from_row + c] for r, c < 8.
#if defined(__AVX2__)
inline void transpose8x8(const float* from, std::int64_t from_row, float* to, std::int64_t to_row) {
  __m256 r[8], t[8], u[8];
  for (int i = 0; i < 8; ++i) r[i] = _mm256_loadu_ps(from + i * from_row);
  for (int i = 0; i < 4; ++i) {
    t[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
  }
  for (int i = 0; i < 2; ++i) {
    u[4 * i] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0x44);
    u[4 * i + 1] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0xee);
    u[4 * i + 2] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0x44);
    u[4 * i + 3] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0xee);
  }
  for (int i = 0; i < 4; ++i) {
    _mm256_storeu_ps(to + i * to_row, _mm256_permute2f128_ps(u[i], u[i + 4], 0x20));
    _mm256_storeu_ps(to + (i + 4) * to_row, _mm256_permute2f128_ps(u[i], u[i + 4], 0x31));
  }
}
#else
inline void transpose8x8(const float* from, std::int64_t from_row, float* to, std::int64_t to_row) {
  for (int c = 0; c < 8; ++c)
    for (int r = 0; r < 8; ++r) to[c * to_row + r] = from[r * from_row + c];
}
#endif

SO_ISA_END
