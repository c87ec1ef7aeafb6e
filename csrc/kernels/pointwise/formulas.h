// Expressions of maps.inc that do not fit on a line.
#pragma once
#include "csrc/kernels/arith/libdevice.h"
#include "csrc/kernels/arith/libdevice_angles.h"
#include "csrc/kernels/core/bits.h"
#include "csrc/kernels/pointwise/element.h"

SO_ISA_BEGIN

using libdevice::cosf;
using libdevice::erff;
using libdevice::expf;
using libdevice::expm1f;
using libdevice::log1pf;
using libdevice::logf;
using libdevice::powf;
using libdevice::rsqrtf;
using libdevice::sinf;
using libdevice::tanhf;

inline std::int64_t wrap_add(std::int64_t a, std::int64_t b) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
}
inline std::int64_t wrap_sub(std::int64_t a, std::int64_t b) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) - static_cast<std::uint64_t>(b));
}
inline std::int64_t wrap_mul(std::int64_t a, std::int64_t b) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
}

// By zero the card's quotient and remainder are all ones, and of 64 bits the lower 32 where the dividend has no more;
// floor_divide gives 0 [probe compiled kernels of torch 2.13.0].
inline std::int64_t ones_for(std::int64_t a) { return a >= 0 && a <= 0xffffffffll ? 0xffffffffll : -1; }
inline std::int64_t int_div(std::int64_t a, std::int64_t b) {
  return b == 0 ? ones_for(a) : b == -1 ? wrap_sub(0, a) : a / b;
}
inline std::int64_t int_fmod(std::int64_t a, std::int64_t b) { return b == 0 ? ones_for(a) : b == -1 ? 0 : a % b; }
inline std::int64_t int_remainder(std::int64_t a, std::int64_t b) {
  const std::int64_t m = int_fmod(a, b);
  return b != 0 && m != 0 && (m < 0) != (b < 0) ? m + b : m;
}
inline std::int64_t int_floor_div(std::int64_t a, std::int64_t b) {
  const std::int64_t m = int_fmod(a, b), q = int_div(a, b);
  if (b == 0) return 0;
  return m != 0 && (m < 0) != (b < 0) ? q - 1 : q;
}
// Squaring from the lowest bit [src ATen/native/Pow.h]; a negative exponent of anything but 1 and -1 gives 0.
inline std::int64_t int_pow(std::int64_t base, std::int64_t exponent) {
  if (exponent < 0) return base == 1 ? 1 : base == -1 ? (exponent % 2 == 0 ? 1 : -1) : 0;
  std::int64_t result = 1;
  for (; exponent != 0; exponent /= 2) {
    if (exponent % 2 != 0) result = wrap_mul(result, base);
    base = wrap_mul(base, base);
  }
  return result;
}

// FMNMX: of two zeros +0 is the larger. Neither argument is NaN, or the first is not and the second is ignored.
inline float larger(float a, float b) {
  return a > b ? a : a < b ? b : a != a ? b : b != b ? a : float_of(bits_of(a) & bits_of(b));
}
inline float smaller(float a, float b) {
  return a < b ? a : a > b ? b : a != a ? b : b != b ? a : float_of(bits_of(a) | bits_of(b));
}
inline double larger(double a, double b) {
  return a > b ? a : a < b ? b : a != a ? b : b != b ? a : double_of(bits_of(a) & bits_of(b));
}
inline double smaller(double a, double b) {
  return a < b ? a : a > b ? b : a != a ? b : b != b ? a : double_of(bits_of(a) | bits_of(b));
}
inline std::int64_t larger(std::int64_t a, std::int64_t b) { return a > b ? a : b; }
inline std::int64_t smaller(std::int64_t a, std::int64_t b) { return a < b ? a : b; }
// maximum, minimum: the first NaN wins and stays as it is.
template <class T>
inline T max_of(T a, T b) {
  return a != a ? a : b != b ? b : larger(a, b);
}
template <class T>
inline T min_of(T a, T b) {
  return a != a ? a : b != b ? b : smaller(a, b);
}

template <class T>
inline T magnitude_of(T x) {
  return x < T(0) ? -x : x;
}
// [contractions.md 1]; both branches fuse their second product.
template <class T>
inline T lerp_of(T start, T end, T weight) {
  const T low = fma(weight, end - start, start);
  const T high = fma(-(end - start), T(1) - weight, end);
  return magnitude_of(weight) < T(0.5) ? low : high;
}

inline float fmod_of(float a, float b) { return __builtin_fmodf(a, b); }
inline double fmod_of(double a, double b) { return __builtin_fmod(a, b); }
inline float floor_of(float a) { return __builtin_floorf(a); }
inline double floor_of(double a) { return __builtin_floor(a); }
inline float copysign_of(float a, float b) { return __builtin_copysignf(a, b); }
inline double copysign_of(double a, double b) { return __builtin_copysign(a, b); }
// [src ATen/native/cuda/BinaryRemainderKernel.cu]
template <class T>
inline T remainder_of(T a, T b) {
  const T m = fmod_of(a, b);
  return m != T(0) && (b < T(0)) != (m < T(0)) ? m + b : m;
}
// [src ATen/native/cuda/BinaryInternal.h div_floor_floating]
template <class T>
inline T floor_quotient(T a, T b) {
  if (b == T(0)) return a / b;
  const T m = fmod_of(a, b);
  T q = (a - m) / b;
  if (m != T(0) && (b < T(0)) != (m < T(0))) q = q - T(1);
  if (q == T(0)) return copysign_of(T(0), a / b);
  const T f = floor_of(q);
  return q - f > T(0.5) ? f + T(1) : f;
}

// Constants as the compiler folded them [contractions.md 1].
inline constexpr float kTanhScale = 0x1.988454p-1f;   // sqrt(2) * 2/sqrt(pi) / 2, bits 3f4c422a
inline constexpr float kTanhCubic = 0x1.6e4e26p-5f;   // 0.044715, bits 3d372713
inline constexpr float kTanhCubic3 = 0x1.12ba9cp-3f;  // 3 * 0.044715, bits 3e095d4e
inline constexpr float kHalfSqrt = 0x1.6a09e6p-1f;    // sqrt(1/2), bits 3f3504f3
inline constexpr float kPdfScale = 0x1.988454p-2f;    // 1/sqrt(2 pi), bits 3ecc422a

inline float gelu_tanh_of(float x) {
  const float t = tanhf(kTanhScale * fma(x * (x * x), kTanhCubic, x));
  return (0.5f * x) * (1.0f + t);
}
inline float gelu_tanh_backward_of(float dy, float x) {
  const float q = x * x;
  const float t = tanhf(kTanhScale * fma(x * q, kTanhCubic, x));
  const float inner = kTanhScale * fma(q, kTanhCubic3, 1.0f);
  return dy * fma(1.0f + t, 0.5f, inner * ((0.5f * x) * fma(-t, t, 1.0f)));
}
// x * pdf is rounded: the compiler fused the other product, which is exact.
inline float gelu_erf_backward_of(float dy, float x) {
  const float pdf = expf((x * -0.5f) * x) * kPdfScale;
  return dy * (0.5f * (1.0f + erff(x * kHalfSqrt)) + x * pdf);
}
inline float silu_backward_of(float dy, float x) {
  const float s = 1.0f / (1.0f + expf(-x));
  return (dy * s) * fma(x, 1.0f - s, 1.0f);
}

// ---- activations and losses
inline constexpr float kSixth = 1.0f / 6.0f;
// std::max and std::min: a NaN stays.
inline float at_least(float x, float low) { return x < low ? low : x; }
inline float from_0_to_6(float x) {
  const float low = at_least(x, 0.0f);
  return 6.0f < low ? 6.0f : low;
}
inline float softplus_backward_of(float dy, float x, float beta, float threshold) {
  const float z = expf(x * beta);
  return x * beta > threshold ? dy : canonical((dy * z) / (z + 1.0f));
}
inline float mish_backward_of(float dy, float x) {
  const float s = 1.0f / (1.0f + expf(-x)), t = tanhf(log1pf(expf(x)));
  return dy * fma(x * s, fma(-t, t, 1.0f), t);
}
inline float hardswish_backward_of(float dy, float x) {
  return x <= -3.0f ? 0.0f : x < 3.0f ? canonical(dy * (x / 3.0f + 0.5f)) : dy;
}
inline float log_sigmoid_backward_of(float x, float dy) {
  const float z = expf(-__builtin_fabsf(x)), q = z / (1.0f + z);
  return dy * (x < 0.0f ? 1.0f - q : 0.0f + q);
}
inline float glu_backward_gate_of(float gate, float dy, float first) {
  const float s = 1.0f / (1.0f + expf(-gate));
  return (((1.0f - s) * s) * dy) * first;
}
inline float smooth_l1_of(float z, float beta) { return z < beta ? ((0.5f * z) * z) / beta : z - 0.5f * beta; }
inline float huber_of(float z, float delta) { return z <= delta ? (0.5f * z) * z : delta * (z - 0.5f * delta); }
// `r` rounds to the 16-bit type in the rows of domain H.
struct Unrounded {
  float operator()(float x) const { return x; }
};
template <class R>
inline float smooth_l1_backward_of(float d, float dy, float norm, float beta, const R& r) {
  return d < -beta ? -norm * dy : d > beta ? norm * dy : r(r(norm * d) * dy) / beta;
}
template <class R>
inline float huber_backward_of(float d, float dy, float norm, float delta, const R& r) {
  return d < -delta ? r(-norm * dy) * delta : d > delta ? r(norm * dy) * delta : r(norm * d) * dy;
}
inline float bce_of(float log_x, float log_rest, float target) {
  return fma(target - 1.0f, log_rest, -(target * log_x));
}
template <class R>
inline float bce_rounded(float log_x, float log_rest, float target, const R& r) {
  const float a = at_least(log_x, -100.0f), b = at_least(log_rest, -100.0f);
  return r(r(target - 1.0f) * b) - r(target * a);
}
inline float logaddexp_of(float a, float b) {
  const float m = a != a ? a : b != b ? b : a > b ? a : b;
  return a == b && __builtin_fabsf(a) == __builtin_inff() ? a : m + log1pf(expf(-__builtin_fabsf(a - b)));
}

SO_ISA_END
