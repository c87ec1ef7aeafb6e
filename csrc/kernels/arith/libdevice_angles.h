// CUDA's accurate device functions for float32, of toolkit 13.0: tangent, inverse and hyperbolic functions, hypot.
//
// Types     float32. As libdevice.h: one scalar rule each.
// NaN       0x7fffffff.
// Source    libdevice.10.bc of CUDA 13.0 [src libdevice.10.bc@13.0 __nv_<name>]: constants and steps, written anew.
// Evidence  docs/evidence.md, row arith tanf ..: vendor code.
#pragma once
#include <cstdint>

#include "csrc/kernels/arith/libdevice.h"

SO_ISA_BEGIN
namespace libdevice {

// pi / 2 as a product, for one rounding with what is added to it.
inline constexpr float kHalfPiA = 0x1.ddcb02p-1f, kHalfPiB = 0x1.aee9d6p+0f;

// [src libdevice.10.bc@13.0 __nv_tanf]
[[gnu::always_inline]] inline float tanf(float a) {
  std::int32_t q;
  const float t = reduced_angle(a, &q);
  const float z = t * t;
  float p = fma(0x1.32p-7f, z, 0x1.acp-9f);
  p = fma(p, z, 0x1.8ep-6f);
  p = fma(p, z, 0x1.b6p-5f);
  p = fma(p, z, 0x1.11287p-3f);
  p = fma(p, z, 0x1.55551p-2f);
  const float r = absolute(t) == 0x1.016878p-11f ? t : fma(p, z * t, t);
  return canonical(q & 1 ? mufu::rcp_ftz(-r) : r);
}

// sqrt((1 - x) / 2) for x above 0.56, else x.
struct Folded {
  float x;
  bool large;
};
[[gnu::always_inline]] inline Folded folded_angle(float x) {
  const float half = fma(0.5f, -x, 0.5f), r = mufu::rsqrt_ftz(half), s = r * half;
  const float root = x == 1.0f ? 0.0f : fma(s, fma(-s, 0.5f * r, 0.5f), s);
  const bool large = x > 0x1.1eb852p-1f;
  return {large ? root : x, large};
}

// [src libdevice.10.bc@13.0 __nv_asinf]
[[gnu::always_inline]] inline float asinf(float a) {
  const Folded f = folded_angle(absolute(a));
  const float z = f.x * f.x;
  float p = fma(0x1.9ba5eep-5f, z, 0x1.33952ep-6f);
  p = fma(p, z, 0x1.7f21dp-5f);
  p = fma(p, z, 0x1.32799ep-4f);
  p = fma(p, z, 0x1.555808p-3f);
  const float r = fma(p * z, f.x, f.x);
  return canonical(copysign(f.large ? fma(kHalfPiA, kHalfPiB, -2.0f * r) : r, a));
}

// [src libdevice.10.bc@13.0 __nv_acosf]
[[gnu::always_inline]] inline float acosf(float a) {
  const Folded f = folded_angle(absolute(a));
  const float x = copysign(f.x, a), z = x * x;
  float p = fma(0x1.21d9dep-5f, z, 0x1.163576p-6f);
  p = fma(p, z, 0x1.f80518p-6f);
  p = fma(p, z, 0x1.6e4272p-5f);
  p = fma(p, z, 0x1.3327b6p-4f);
  p = fma(p, z, 0x1.55558cp-3f);
  const float r = fma(p * z, x, x);
  const float turned = fma(kHalfPiA, kHalfPiB, f.large ? r : -r);
  const float y = a > 0x1.1eb852p-1f ? r : turned;
  return canonical(f.large ? 2.0f * y : y);
}

// [src libdevice.10.bc@13.0 __nv_atanf]
[[gnu::always_inline]] inline float atanf(float a) {
  const float x = absolute(a);
  const bool large = x > 1.0f;
  const float t = large ? mufu::rcp_ftz(x) : x, z = t * t;
  float p = fma(0x1.412154p-9f, z, -0x1.d7c29ep-7f);
  p = fma(p, z, 0x1.4672fcp-5f);
  p = fma(p, z, -0x1.2914f4p-4f);
  p = fma(p, z, 0x1.aed642p-4f);
  p = fma(p, z, -0x1.223d1p-3f);
  p = fma(p, z, 0x1.995ecp-3f);
  p = fma(p, z, -0x1.55544ep-2f);
  const float r = fma(p * z, t, t);
  return canonical(copysign(large ? fma(kHalfPiA, kHalfPiB, -r) : r, a));
}

// [src libdevice.10.bc@13.0 __nv_atan2f]
[[gnu::always_inline]] inline float atan2f(float a, float b) {
  const float x = absolute(b), y = absolute(a);
  const bool steep = y > x, behind = bits_of(b) >> 31;
  const float longer = steep ? y : x, t = (steep ? x : y) / longer, z = t * t;
  float p = fma(0x1.66e216p-9f, z, -0x1.00ee9p-6f);
  p = fma(p, z, 0x1.59b564p-5f);
  p = fma(p, z, -0x1.325a2p-4f);
  p = fma(p, z, 0x1.b3d4d8p-4f);
  p = fma(p, z, -0x1.22f962p-3f);
  p = fma(p, z, 0x1.9979cp-3f);
  p = fma(p, z, -0x1.5554fap-2f);
  float r = fma(p * z, t, t);
  r = steep ? fma(kHalfPiA, kHalfPiB, behind ? r : -r) : behind ? fma(2.0f * kHalfPiA, kHalfPiB, -r) : r;
  r = x == y ? (behind ? 0x1.2d97c8p+1f : 0x1.921fb6p-1f) : r;
  r = longer == 0.0f ? (behind ? 0x1.921fb6p+1f : 0.0f) : r;
  const float sum = x + y;
  return canonical(sum != sum ? sum : copysign(r, a));
}

// exp(x) / 4 for x of 0 and more.
[[gnu::always_inline]] inline float quarter_exp(float x) {
  const float whole = truncate(x * 0x1.715476p+0f);
  const float j = whole > 126.0f ? 126.0f : whole;
  const float f = fma(j, 0x1.05c61p-29f, fma(j, -0x1.62e43p-1f, x));
  return mufu::ex2_ftz(f * 0x1.715476p+0f) * float_of(bits_of(j + 0x1.8000fap+23f) << 23);
}

// [src libdevice.10.bc@13.0 __nv_sinhf]
[[gnu::always_inline]] inline float sinhf(float a) {
  const float e = quarter_exp(absolute(a)), far = fma(2.0f, e, -0.125f * mufu::rcp_ftz(e)), z = a * a;
  float p = fma(0x1.7a15b4p-19f, z, 0x1.9ffe92p-13f);
  p = fma(p, z, 0x1.111134p-7f);
  p = fma(p, z, 0x1.555556p-3f);
  return canonical(absolute(a) >= 1.0f ? copysign(far, a) : fma(p * z, a, a));
}

// [src libdevice.10.bc@13.0 __nv_coshf]
[[gnu::always_inline]] inline float coshf(float a) {
  const float e = quarter_exp(absolute(a));
  return canonical(fma(2.0f, e, 0.125f * mufu::rcp_ftz(e)));
}

// [src libdevice.10.bc@13.0 __nv_asinhf]
[[gnu::always_inline]] inline float asinhf(float a) {
  const float x = absolute(a), square = fma(a, a, 1.0f);
  const float t = fma(x, x * mufu::rcp_ftz(fma(square, mufu::rsqrt_ftz(square), 1.0f)), x);
  const bool large = x > 0x1p+23f;
  const float r = log1pf(large ? x : t);
  return canonical(copysign(large ? r + kLn2 : r, a));
}

// [src libdevice.10.bc@13.0 __nv_acoshf]
[[gnu::always_inline]] inline float acoshf(float a) {
  const float d = a - 1.0f;
  const bool large = bits_of(d) > 0x4b000000u;  // negative numbers too
  const float square = fma(a, a, -1.0f), r = mufu::rsqrt_ftz(square), s = square * r;
  const float root = square == 0.0f ? 0.0f : fma(fma(-s, s, square), 0.5f * r, s);
  const float y = log1pf((large ? -0x1.000002p+0f : root) + d);
  return canonical(large ? y + kLn2 : y);
}

// [src libdevice.10.bc@13.0 __nv_atanhf]
[[gnu::always_inline]] inline float atanhf(float a) {
  const float x = absolute(a);
  const float t = x > 0x1p+126f ? -2.0f : (mufu::rcp_ftz(1.0f - x) * 2.0f) * x;
  return canonical(copysign(0.5f, a) * log1pf(t));
}

// [src libdevice.10.bc@13.0 __nv_hypotf]
[[gnu::always_inline]] inline float hypotf(float a, float b) {
  const std::uint32_t x = bits_of(absolute(a)), y = bits_of(absolute(b));
  const std::uint32_t low = x < y ? x : y, high = x < y ? y : x;
  const std::uint32_t shift = (high & 0xfe000000u) - 0x3f800000u + 0x00800000u;
  const float scale = float_of(0x3f800000u - shift), s = float_of(low) * scale, l = float_of(high) * scale;
  const float r = canonical(__builtin_sqrtf(fma(l, l, s * s)) * float_of(shift + 0x3f800000u));
  return low == 0x7f800000u ? kInfinity : low == 0u ? canonical(float_of(high)) : r;
}

}  // namespace libdevice
SO_ISA_END
