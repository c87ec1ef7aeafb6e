// CUDA's accurate device functions for float32, of toolkit 13.0, as PyTorch compiles them (no flush to zero).
//
// Types     float32. One scalar rule each, branch-free but for the far arguments of sinf and cosf: loops vectorise.
// Order     as written; every operation rounds once to nearest even, fma(...) once.
// NaN       0x7fffffff from every function: callers need no canonical() of their own for the result.
// Source    libdevice.10.bc of CUDA 13.0 [src libdevice.10.bc@13.0 __nv_<name>]: constants and steps, written anew.
// Evidence  docs/evidence.md, row arith expf ..: vendor code.
#pragma once
#include <cstdint>

#include "csrc/kernels/arith/mufu.h"
#include "csrc/kernels/core/bits.h"

SO_ISA_BEGIN
namespace libdevice {

[[gnu::always_inline]] inline float copysign(float magnitude, float sign) {
  return float_of((bits_of(magnitude) & 0x7fffffffu) | (bits_of(sign) & 0x80000000u));
}
[[gnu::always_inline]] inline float absolute(float x) { return float_of(bits_of(x) & 0x7fffffffu); }
inline constexpr float kInfinity = __builtin_inff();
// To the nearest integer, ties to even, for magnitudes below 2^22; larger ones keep their order. Zero comes out as +0.
[[gnu::always_inline]] inline float nearest(float x) { return (x + 0x1.8p23f) - 0x1.8p23f; }

// Toward zero. From 2^24 on all floats are whole (NaN passes).
[[gnu::always_inline]] inline float truncate(float x) {
  const bool small = absolute(x) < 0x1p24f;
  return pick(small, static_cast<float>(static_cast<std::int32_t>(pick(small, x, 0.0f))), x);
}

inline constexpr float kLog2e = 0x1.715476p+0f;  // 0x3fb8aa3b
inline constexpr float kLn2 = 0x1.62e43p-1f;     // 0x3f317218

// [src libdevice.10.bc@13.0 __nv_expf]
[[gnu::always_inline]] inline float expf(float a) {
  // n = floor(252 saturate(a log2(e) / 252 + 1/2)): the device adds 3 2^22 + 1 with rounding down. As integers, words of
  // floats keep their order; a NaN may saturate either way.
  const std::int32_t t = static_cast<std::int32_t>(bits_of(fma(a, 0x1.77313ap-8f, 0.5f)));
  const std::int32_t low = t > 0 ? t : 0;
  const float s = float_of(static_cast<std::uint32_t>(low < 0x3f800000 ? low : 0x3f800000));
  const float near = fma(s, 252.0f, 0x1.8p23f);
  const std::uint32_t up = bits_of(fma(s, 252.0f, 0x1.8p23f - near)) >> 31;  // 1 where it was rounded up
  const std::uint32_t n = bits_of(near) - up;                                // its low bits are the whole number
  const float i = float_of(n) - 0x1.8000fcp23f;                              // less 126
  const float f = fma(a, 0x1.4ae0c0p-26f, fma(a, kLog2e, -i));
  return canonical(mufu::ex2_ftz(f) * float_of((n + 1) << 23));
}

// [src libdevice.10.bc@13.0 __nv_exp2f]
[[gnu::always_inline]] inline float exp2f(float a) { return canonical(mufu::ex2(a)); }

// [src libdevice.10.bc@13.0 __nv_rsqrtf]
[[gnu::always_inline]] inline float rsqrtf(float a) { return canonical(mufu::rsqrt(a)); }

// The argument of a logarithm: a = m 2^e with m in [2/3, 4/3) (or as `pivot` says), e as a float.
struct Split {
  float a, m, e;
};
[[gnu::always_inline]] inline Split split(float a, std::int32_t pivot) {
  const bool tiny = a < 0x1p-126f;  // negative ones too
  Split r;
  r.a = tiny ? a * 0x1p23f : a;
  const std::int32_t u = static_cast<std::int32_t>(bits_of(r.a));
  const std::int32_t k = static_cast<std::int32_t>(static_cast<std::uint32_t>(u) - static_cast<std::uint32_t>(pivot)) &
                         static_cast<std::int32_t>(0xff800000u);
  r.m = float_of(static_cast<std::uint32_t>(u) - static_cast<std::uint32_t>(k));
  r.e = fma(static_cast<float>(k), 0x1p-23f, tiny ? -23.0f : 0.0f);
  return r;
}
// Infinity and NaN, negative numbers, zeros.
[[gnu::always_inline]] inline float log_special(float a, float r) {
  const float s = bits_of(a) >= 0x7f800000u ? fma(a, kInfinity, kInfinity) : r;
  return canonical(a == 0.0f ? -kInfinity : s);
}
[[gnu::always_inline]] inline float log_natural(const Split& s) {
  const float f = s.m - 1.0f;
  float p = fma(-0x1.0aa04ep-3f, f, 0x1.2073ecp-3f);
  p = fma(p, f, -0x1.f19b98p-4f);
  p = fma(p, f, 0x1.1e52aap-3f);
  p = fma(p, f, -0x1.55b172p-3f);
  p = fma(p, f, 0x1.99da16p-3f);
  p = fma(p, f, -0x1.fffe44p-3f);
  p = fma(p, f, 0x1.5554f0p-2f);
  p = fma(p, f, -0.5f);
  p = fma(p * f, f, f);
  return fma(s.e, kLn2, p);
}

// [src libdevice.10.bc@13.0 __nv_logf]
[[gnu::always_inline]] inline float logf(float a) {
  const Split s = split(a, 0x3f2aaaab);
  return log_special(s.a, log_natural(s));
}

// [src libdevice.10.bc@13.0 __nv_log10f]
[[gnu::always_inline]] inline float log10f(float a) {
  const Split s = split(a, 0x3f2aaaab);
  return log_special(s.a, (bits_of(s.a) >= 0x7f800000u ? s.a : log_natural(s)) * 0x1.bcb7b2p-2f);
}

// [src libdevice.10.bc@13.0 __nv_log2f]
[[gnu::always_inline]] inline float log2f(float a) {
  const Split s = split(a, 0x3f3504f3);
  const float f = s.m - 1.0f;
  float p = fma(0x1.8d64fep-4f, f, -0x1.58fe60p-3f);
  p = fma(p, f, 0x1.5f9e54p-3f);
  p = fma(p, f, -0x1.6e9c86p-3f);
  p = fma(p, f, 0x1.a417e8p-3f);
  p = fma(p, f, -0x1.ec7916p-3f);
  p = fma(p, f, 0x1.277f32p-2f);
  p = fma(p, f, -0x1.715492p-2f);
  p = fma(p, f, 0x1.ec7094p-2f);
  p = fma(p, f, -0x1.715476p-1f);
  p = fma(f, kLog2e, (p * f) * f);
  return log_special(s.a, p + s.e);
}

// a + 1 rounded toward zero, |a| finite: the error of the nearest sum tells its direction.
[[gnu::always_inline]] inline float one_more_toward_zero(float a) {
  const float s = a + 1.0f, b = s - a;
  const float error = (a - (s - b)) + (1.0f - b);
  const bool away = (error < 0.0f && s > 0.0f) || (error > 0.0f && s < 0.0f);
  return float_of(bits_of(s) - (away ? 1u : 0u));
}

// [src libdevice.10.bc@13.0 __nv_log1pf]
[[gnu::always_inline]] inline float log1pf(float a) {
  const std::uint32_t u = bits_of(a);
  const std::uint32_t k = (bits_of(one_more_toward_zero(a)) - 0x3f400000u) & 0xff800000u;
  const float f = fma(float_of(0x40800000u - k), 0.25f, -1.0f) + float_of(u - k);
  const float e = static_cast<float>(static_cast<std::int32_t>(k)) * 0x1p-23f;
  float p = fma(f, -0x1.737efp-5f, 0x1.b00024p-4f);
  p = fma(p, f, -0x1.0ef1cp-3f);
  p = fma(p, f, 0x1.28c8eap-3f);
  p = fma(p, f, -0x1.54d1bap-3f);
  p = fma(p, f, 0x1.995f3cp-3f);
  p = fma(p, f, -0x1.000084p-2f);
  p = fma(p, f, 0x1.5555ccp-2f);
  p = fma(p, f, -0.5f);
  p = fma(p * f, f, f);
  float r = fma(e, kLn2, p);
  // As integers: infinity and NaN, and what is below -1.
  const bool beyond = static_cast<std::int32_t>(u) > static_cast<std::int32_t>(0xbf800000u);
  const bool special = u > 0x7f7fffffu;  // infinity, NaN, and all negative numbers
  r = special & beyond ? fma(a, kInfinity, kInfinity) : r;
  r = special & (a == 0.0f) ? -0.0f : r;
  return canonical(r);
}

// [src libdevice.10.bc@13.0 __nv_expm1f]
[[gnu::always_inline]] inline float expm1f(float a) {
  const float t = absolute(a) < 0x1.a3d70ap-2f ? 0.0f : nearest(a * kLog2e);
  const float f = fma(-t, 0x1.7f7d1cp-20f, fma(-t, 0x1.62e4p-1f, a));
  const bool top = t == 128.0f;
  const float j = top ? t - 1.0f : t;
  // ex2 of a whole number is exact; outside (-25, 128) the result is chosen below.
  const float inside = j > -26.0f ? (j < 127.0f ? j : 127.0f) : -26.0f;
  const float scale = float_of(static_cast<std::uint32_t>(static_cast<std::int32_t>(inside) + 127) << 23);
  float p = fma(f, 0x1.6bd7ccp-10f, 0x1.12acc6p-7f);
  p = fma(p, f, 0x1.5557c6p-5f);
  p = fma(p, f, 0x1.5553ecp-3f);
  p = fma(p, f, 0x1.fffffcp-2f);
  p = fma(p * f, f, f);
  float r = fma(p, scale, scale - 1.0f);
  r = top ? r + r : r;
  r = j > 128.0f ? kInfinity : r;
  r = j < -25.0f ? -1.0f : r;
  r = a == 0.0f ? a + a : r;
  return canonical(r);
}

// [src libdevice.10.bc@13.0 __nv_tanhf]
[[gnu::always_inline]] inline float tanhf(float a) {
  const float x = absolute(a);
  const float e = mufu::ex2_ftz(x * 0x1.715476p+1f) + 1.0f;
  const float far = fma(mufu::rcp_ftz(e), -2.0f, 1.0f);
  const float saturated = copysign(pick(x >= 0x1.205968p+3f, 1.0f, far), a);
  const float q = a * a;
  float p = fma(q, 0x1.01e104p-6f, -0x1.ac795cp-5f);
  p = fma(p, q, 0x1.10b282p-3f);
  p = fma(p, q, -0x1.5553dap-2f);
  p = fma(p, q, 0.0f);
  return canonical(pick(x >= 0x1.333334p-1f, saturated, fma(p, a, a)));
}

// [src libdevice.10.bc@13.0 __nv_erff]
[[gnu::always_inline]] inline float erff(float a) {
  const float x = absolute(a);
  const bool far = x >= 0x1.00c1fcp+0f;
  const float t = far ? x : a * a;
  float p = far ? 0x1.d69874p-14f : 0x1.63d2d4p-14f;
  p = fma(p, t, far ? -0x1.5c00b6p-10f : -0x1.ae9a4p-11f);
  p = fma(p, t, far ? 0x1.13233ep-7f : 0x1.55abd4p-8f);
  p = fma(p, t, far ? -0x1.49b334p-5f : -0x1.b837cep-6f);
  p = fma(p, t, far ? 0x1.46aa32p-3f : 0x1.ce315ep-4f);
  p = fma(p, t, far ? 0x1.d369f2p-1f : -0x1.812758p-2f);
  p = fma(p, t, far ? 0x1.421428p-1f : 0x1.06eba6p-3f);
  const float r = fma(p, far ? -t : a, far ? -t : a);
  return canonical(pick(far, copysign(1.0f - mufu::ex2_ftz(r), a), r));
}

// [src libdevice.10.bc@13.0 __nv_erfcf]
[[gnu::always_inline]] inline float erfcf(float a) {
  const float x = absolute(a);
  const float d = mufu::rcp_ftz(x + 4.0f);
  const float q = (x - 4.0f) * d;
  const float t = fma(d, fma(-q, x, fma(q + 1.0f, -4.0f, x)), q);
  float p = fma(t, 0x1.d34122p-11f, 0x1.cdc0b6p-8f);
  p = fma(p, t, -0x1.03f696p-6f);
  p = fma(p, t, 0x1.2a6e76p-5f);
  p = fma(p, t, -0x1.10f8b4p-4f);
  p = fma(p, t, 0x1.8043aap-4f);
  p = fma(p, t, -0x1.9da848p-4f);
  p = fma(p, t, 0x1.16e9bcp-4f);
  p = fma(p, t, 0x1.f7e2ep-7f);
  p = fma(p, t, -0x1.1df1a8p-3f);
  p = fma(p, t, 0x1.3ba592p+0f);
  const float g = mufu::rcp_ftz(fma(x, 2.0f, 1.0f));
  const float h = p * g;
  const float ratio = fma(fma(x, h * -2.0f, p) - h, g, h);
  const float square = x * -x;
  const float z = square * kLog2e;
  const float j = truncate(pick(z > -126.0f, z, -126.0f));
  const float f = fma(j, 0x1.05c61p-29f, fma(j, -kLn2, square)) * kLog2e;
  const float scale = float_of(static_cast<std::uint32_t>(static_cast<std::int32_t>(j) + 127) << 23);
  const float e = mufu::ex2_ftz(f) * scale;
  const float y = ratio * fma(e, fma(-x, x, -square), e);
  const float r = pick(x > 0x1.41c29p+3f, 0.0f, y);
  return canonical(pick(a < 0.0f, 2.0f - r, r));
}

// [src libdevice.10.bc@13.0 __nv_powf]
[[gnu::always_inline]] inline float powf(float a, float b) {
  const Split s = [&] {
    const float x = absolute(a);
    Split r;
    const bool tiny = x < 0x1p-126f;
    r.a = tiny ? x * 0x1p24f : x;
    const std::uint32_t u = bits_of(r.a), k = (u - 0x3f3504f3u) & 0xff800000u;
    r.m = float_of(u - k);
    r.e = fma(static_cast<float>(static_cast<std::int32_t>(k)), 0x1p-23f, tiny ? -24.0f : 0.0f);
    return r;
  }();
  // log2 |a| as high + low
  const float f = s.m - 1.0f, d = mufu::rcp_ftz(s.m + 1.0f);
  const float u = (f * 2.0f) * d, v = u * u;
  const float w = d * fma(-u, f, (f - u) * 2.0f);
  float p = fma(v, 0x1.5865c8p-11f, 0x1.a5cfb6p-9f);
  p = fma(p, v, 0x1.2776e6p-6f);
  p = fma(p, v, 0x1.ec709ep-4f);
  p = p * v;
  const float big = fma(u, kLog2e, s.e);
  float rest = fma(u, kLog2e, s.e - big);
  rest = fma(w, kLog2e, rest);
  rest = fma(u, 0x1.4abc68p-26f, rest);
  rest = fma(p * 3.0f, w, rest);
  rest = fma(p, u, rest);
  const float high = big + rest, low = rest - (high - big);
  // 2^(b (high + low))
  const float y = high * b;
  const float y_low = fma(low, b, fma(high, b, -y));
  const float i = nearest(y);
  const float g = (y - i) + y_low;
  float e = fma(g, 0x1.3f971cp-13f, 0x1.5f0bdap-10f);
  e = fma(e, g, 0x1.3b30acp-7f);
  e = fma(e, g, 0x1.c6af76p-5f);
  e = fma(e, g, 0x1.ebfbd8p-3f);
  e = fma(e, g, kLn2);
  e = fma(e, g, 1.0f);
  const float clamped = i > -200.0f ? (i < 200.0f ? i : 200.0f) : -200.0f;
  const std::uint32_t n = static_cast<std::uint32_t>(static_cast<std::int32_t>(clamped));
  const std::uint32_t first = i > 0.0f ? 0u : 0x83000000u;  // two steps, so that a subnormal result rounds once
  float r = (e * float_of(first + 0x7f000000u)) * float_of((n << 23) - first);
  r = absolute(y) > 152.0f ? (y < 0.0f ? 0.0f : kInfinity) : r;
  // special cases, the last one that applies wins
  const bool odd = absolute(b - truncate(b * 0.5f) * 2.0f) == 1.0f;
  const float negative = truncate(b) != b ? card_nan() : (odd ? -r : r);
  r = a < 0.0f ? negative : r;
  r = (a == -1.0f) & (absolute(b) == kInfinity) ? 1.0f : r;
  const std::uint32_t t = bits_of(a + a) ^ (b < 0.0f ? 0x7f800000u : 0u);
  r = (a == 0.0f) | (absolute(a) == kInfinity) ? float_of(odd ? t : t & 0x7fffffffu) : r;
  r = (a != a) | (b != b) ? a + b : r;
  r = (a == 1.0f) | (b == 0.0f) ? 1.0f : r;
  return canonical(r);
}

// Far arguments of sinf and cosf: the fraction of a / (pi / 2) from 192 bits of 2 / pi.
// [src libdevice.10.bc@13.0 __internal_trig_reduction_slowpath]
[[gnu::always_inline]] inline float far_quadrant(float a, std::int32_t* quadrant) {
  const std::uint32_t two_over_pi[6] = {0x3c439041u, 0xdb629599u, 0xf534ddc0u, 0xfc2757d1u, 0x4e441529u, 0xa2f9836eu};
  const std::uint32_t u = bits_of(a), m = (u << 8) | 0x80000000u;
  std::uint32_t product[7], carry = 0;
  for (int i = 0; i < 6; ++i) {
    const std::uint64_t t = static_cast<std::uint64_t>(two_over_pi[i]) * m + carry;
    product[i] = static_cast<std::uint32_t>(t);
    carry = static_cast<std::uint32_t>(t >> 32);
  }
  product[6] = carry;
  const std::uint32_t e = ((u >> 23) & 255u) - 128u, word = e >> 5, shift = e & 31u;
  std::uint32_t high = product[6 - word], low = product[5 - word];
  if (shift != 0) {
    high = (high << shift) + (low >> (32 - shift));
    low = (low << shift) + (product[4 - word] >> (32 - shift));
  }
  std::uint64_t fraction = (static_cast<std::uint64_t>(high) << 32 | low) << 2;
  std::int32_t q = static_cast<std::int32_t>(high >> 30) + static_cast<std::int32_t>(fraction >> 63);
  std::uint32_t sign = u & 0x80000000u;
  *quadrant = sign ? -q : q;
  if (fraction >> 63) {
    sign ^= 0x80000000u;
    fraction = ~fraction;
  }
  const double turn = static_cast<double>(static_cast<std::int64_t>(fraction)) * 0x1.921fb54442d19p-64;
  return float_of(bits_of(static_cast<float>(turn)) ^ sign);
}
// What a is above q quarters of a turn, at most an eighth either way; NaN of an infinity.
[[gnu::always_inline]] inline float reduced_angle(float a, std::int32_t* q) {
  const bool far = absolute(a) >= 105615.0f;
  const float near = far || a != a ? 0.0f : a;
  *q = static_cast<std::int32_t>(nearest(near * 0x1.45f306p-1f));
  const float k = static_cast<float>(*q);
  float t = fma(k, -0x1.846988p-48f, fma(k, -0x1.4442dp-24f, fma(k, -0x1.921fb4p+0f, a)));
  if (far) t = absolute(a) == kInfinity ? card_nan() : far_quadrant(a, q);
  return t;
}
// sinf is wave(a, 0), cosf is wave(a, 1).
[[gnu::always_inline]] inline float wave(float a, std::int32_t ahead) {
  std::int32_t q;
  const float t = reduced_angle(a, &q);
  q += ahead;
  const bool odd = q & 1;
  const float z = t * t, w = odd ? 1.0f : t;
  float p = odd ? fma(z, 0x1.9758p-16f, -0x1.6c0fdap-10f) : -0x1.9a82a6p-13f;
  p = fma(p, z, odd ? 0x1.555576p-5f : 0x1.110bc8p-7f);
  p = fma(p, z, odd ? -0x1.fffffep-2f : -0x1.55555p-3f);
  p = fma(p, fma(z, w, 0.0f), w);
  return canonical(q & 2 ? fma(p, -1.0f, 0.0f) : p);
}
// [src libdevice.10.bc@13.0 __nv_sinf] [src libdevice.10.bc@13.0 __nv_cosf]
[[gnu::always_inline]] inline float sinf(float a) { return wave(a, 0); }
[[gnu::always_inline]] inline float cosf(float a) { return wave(a, 1); }

}  // namespace libdevice
SO_ISA_END
