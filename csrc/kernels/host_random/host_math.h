// The functions that torch's host fills call, as arithmetic.
//
// Types     float in, float out; the three of the small fill are double.
// Rounding  cephes: as GCC contracts avx_mathfun.h with -mfma (a product is fused into the sum that is its only use, in
//           statement order). libm: in double, one rounding to float. For the 2^24 arguments that a fill can have, libm's
//           results are the same with and without fused products and for either reduction (x86-64, aarch64).
// Source    [src ATen/native/cpu/avx_mathfun.h @2.13] [src ARM-software/optimized-routines math/{logf,sincosf}*]
//           [probe libtorch_cpu 2.13.0: every argument, tests/python/test_host_random.py]
#pragma once
#include <cstdint>

#include "csrc/kernels/core/bits.h"

SO_ISA_BEGIN
namespace host_math {

struct SinCos {
  float sin, cos;
};

namespace cephes {

// 0 < x <= 1 here: no special values.
[[gnu::always_inline]] inline float log(float x) {
  const std::uint32_t b = bits_of(x);
  float e = static_cast<float>(static_cast<std::int32_t>(b >> 23) - 0x7f) + 1.0f;
  x = float_of((b & 0x807fffffu) | 0x3f000000u);  // [0.5, 1)
  const std::uint32_t low = -static_cast<std::uint32_t>(x < 0x1.6a09e6p-1f);  // sqrt(1/2)
  const float again = float_of(bits_of(x) & low);
  x = (x - 1.0f) + again;
  e = e - float_of(0x3f800000u & low);
  const float z = x * x;
  float y = 0x1.204376p-4f;
  y = fma(y, x, -0x1.d7a37p-4f);
  y = fma(y, x, 0x1.de4a34p-4f);
  y = fma(y, x, -0x1.fcba9ep-4f);
  y = fma(y, x, 0x1.23d37ep-3f);
  y = fma(y, x, -0x1.555ca0p-3f);
  y = fma(y, x, 0x1.999d58p-3f);
  y = fma(y, x, -0x1.fffff8p-3f);
  y = fma(y, x, 0x1.555554p-2f);
  y = y * x;
  y = fma(y, z, e * -0x1.bd0106p-13f);
  y = fma(z, -0.5f, y);
  x = x + y;
  return fma(e, 0x1.63p-1f, x);
}

// 0 <= x < 8192
[[gnu::always_inline]] inline SinCos sincos(float x) {
  const std::int32_t j = (static_cast<std::int32_t>(x * 0x1.45f306p+0f) + 1) & ~1;
  const float n = static_cast<float>(j);
  x = fma(n, -0x1.92p-1f, x);
  x = fma(n, -0x1.fb4p-13f, x);
  x = fma(n, -0x1.4442d2p-25f, x);
  const float z = x * x;
  float c = 0x1.99eb9cp-16f;
  c = fma(c, z, -0x1.6c0c34p-10f);
  c = fma(c, z, 0x1.55554ap-5f);
  c = c * z;
  c = fma(c, z, z * -0.5f) + 1.0f;
  float s = -0x1.9943f2p-13f;
  s = fma(s, z, 0x1.11073cp-7f);
  s = fma(s, z, -0x1.555546p-3f);
  s = s * z;
  s = fma(s, x, x);
  const std::uint32_t swap = -static_cast<std::uint32_t>((j >> 1) & 1);
  const std::uint32_t sb = bits_of(s), cb = bits_of(c);
  // The selections of the source add a zero to the chosen value: -0 becomes +0.
  const float sine = float_of((sb & ~swap) | (cb & swap)) + 0.0f, cosine = float_of((cb & ~swap) | (sb & swap)) + 0.0f;
  const std::uint32_t sine_sign = static_cast<std::uint32_t>(j & 4) << 29;
  const std::uint32_t cosine_sign = static_cast<std::uint32_t>(~(j - 2) & 4) << 29;
  return {float_of(bits_of(sine) ^ sine_sign), float_of(bits_of(cosine) ^ cosine_sign)};
}

}  // namespace cephes

namespace libm {

// Intervals of [0x1.66p-1, 0x1.66p+0): 1 / c and log(c), c near the middle [src logf_data.c].
struct LogRow {
  double inverse, log;
};
inline constexpr LogRow kLogRows[16] = {
    {0x1.661ec79f8f3bep+0, -0x1.57bf7808caadep-2}, {0x1.571ed4aaf883dp+0, -0x1.2bef0a7c06ddbp-2},
    {0x1.49539f0f010bp+0, -0x1.01eae7f513a67p-2},  {0x1.3c995b0b80385p+0, -0x1.b31d8a68224e9p-3},
    {0x1.30d190c8864a5p+0, -0x1.6574f0ac07758p-3}, {0x1.25e227b0b8eap+0, -0x1.1aa2bc79c81p-3},
    {0x1.1bb4a4a1a343fp+0, -0x1.a4e76ce8c0e5ep-4}, {0x1.12358f08ae5bap+0, -0x1.1973c5a611cccp-4},
    {0x1.0953f419900a7p+0, -0x1.252f438e10c1ep-5}, {0x1p+0, 0x0p+0},
    {0x1.e608cfd9a47acp-1, 0x1.aa5aa5df25984p-5},  {0x1.ca4b31f026aap-1, 0x1.c5e53aa362eb4p-4},
    {0x1.b2036576afce6p-1, 0x1.526e57720db08p-3},  {0x1.9c2d163a1aa2dp-1, 0x1.bc2860d22477p-3},
    {0x1.886e6037841edp-1, 0x1.1058bc8a07ee1p-2},  {0x1.767dcf5534862p-1, 0x1.4043057b6ee09p-2},
};

// A positive normal x.
inline float log(float x) {
  const std::uint32_t b = bits_of(x), t = b - 0x3f330000u;
  const LogRow& row = kLogRows[(t >> 19) % 16];
  const double k = static_cast<double>(static_cast<std::int32_t>(t) >> 23);
  const double z = static_cast<double>(float_of(b - (t & 0xff800000u)));
  const double r = fma(z, row.inverse, -1.0), r2 = r * r;
  const double base = fma(k, 0x1.62e42fefa39efp-1, row.log);
  double y = fma(0x1.5575b0be00b6ap-2, r, -0x1.ffffef20a4123p-2);
  y = fma(-0x1.00ea348b88334p-2, r2, y);
  return static_cast<float>(fma(y, r2, base + r));
}

inline double sine_poly(double x, double x2) {
  const double x3 = x * x2, tail = fma(x2, -0x1.994eb3774cf24p-13, 0x1.1107605230bc4p-7);
  return fma(x3 * x2, tail, fma(x3, -0x1.555545995a603p-3, x));
}
inline double cosine_poly(double x2) {
  const double x4 = x2 * x2, tail = fma(x2, 0x1.99343027bf8c3p-16, -0x1.6c087e89a359dp-10);
  const double head = fma(x2, -0x1.ffffffd0c621cp-2, 1.0);
  return fma(x4 * x2, tail, fma(x4, 0x1.55553e1068f19p-5, head));
}
// 0 <= x < 120: sinf and cosf.
inline SinCos sincos(float given) {
  double x = static_cast<double>(given);
  // Below 2^-12 the functions return x and 1, below pi / 4 they do not reduce: the same bytes as n = 0 gives.
  const std::int32_t n = (static_cast<std::int32_t>(x * 0x1.45f306dc9c883p+23) + 0x800000) >> 24;
  x = fma(static_cast<double>(-n), 0x1.921fb54442d18p+0, x);
  const double x2 = x * x, sine = sine_poly(x, x2), cosine = cosine_poly(x2);
  const double s = (n & 1) != 0 ? cosine : sine, c = (n & 1) != 0 ? sine : cosine;
  return {static_cast<float>((n & 2) != 0 ? -s : s), static_cast<float>(((n + 1) & 2) != 0 ? -c : c)};
}

}  // namespace libm

// Double, for the fill of small tensors. The host's own log1p, sin and cos may differ from these in the last bit of a
// double; a float32 result sees that about once in 10^8 numbers, a float64 result would often: it is refused.
namespace wide {

// log(1 - u), u a multiple of 2^-53 in [0, 1): 1 - u is exact. Order of fdlibm's log, its polynomial the plain series.
inline double log1m(double u) {
  const double v = 1.0 - u;
  const std::uint64_t b = bits_of(v), t = b - 0x3fe6a09e667f3bcdull;  // sqrt(1/2)
  const double k = static_cast<double>(static_cast<std::int64_t>(t) >> 52);
  const double f = double_of(b - (t & 0xfff0000000000000ull)) - 1.0;
  const double s = f / (2.0 + f), z = s * s, half = 0.5 * f * f;
  double r = 2.0 / 23.0;
  for (int odd = 21; odd >= 3; odd -= 2) r = fma(r, z, 2.0 / odd);
  const double rest = s * fma(r, z, half) + k * 0x1.abc9e3b39803fp-56;  // ln 2, low part
  return k * 0x1.62e42fefa39efp-1 - ((half - rest) - f);
}

struct WideSinCos {
  double sin, cos;
};
// 0 <= x <= 2 pi
inline WideSinCos sincos(double x) {
  const std::int64_t n = static_cast<std::int64_t>(x * 0x1.45f306dc9c883p-1 + 0.5);
  const double high = fma(static_cast<double>(-n), 0x1.921fb54442d18p+0, x);
  const double r = fma(static_cast<double>(-n), 0x1.1a62633145c07p-54, high), z = r * r;
  double s = 1.0 / 355687428096000.0, c = -1.0 / 6402373705728000.0;  // 1 / 17!, -1 / 18!
  double factor = 355687428096000.0;
  for (int k = 15; k >= 3; k -= 2) {
    factor = factor / (static_cast<double>(k + 1) * (k + 2));  // k!
    s = fma(s, z, ((k & 2) != 0 ? -1.0 : 1.0) / factor);
  }
  factor = 6402373705728000.0;
  for (int k = 16; k >= 4; k -= 2) {
    factor = factor / (static_cast<double>(k + 1) * (k + 2));
    c = fma(c, z, ((k & 2) != 0 ? -1.0 : 1.0) / factor);
  }
  const double sine = fma(s * z, r, r), cosine = fma(c * z, z, fma(-0.5, z, 1.0));
  const double a = (n & 1) != 0 ? cosine : sine, o = (n & 1) != 0 ? sine : cosine;
  return {(n & 2) != 0 ? -a : a, ((n + 1) & 2) != 0 ? -o : o};
}

}  // namespace wide
}  // namespace host_math
SO_ISA_END
