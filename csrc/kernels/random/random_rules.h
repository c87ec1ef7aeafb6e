// What a thread makes of one uniform number: the transformations of ATen/core/TransformationHelper.h, with the fast
// functions of ATen/NumericUtils.h (__logf, __expf, __tanf), as nvcc compiles them.
#pragma once
#include <cstdint>

#include "csrc/kernels/arith/libdevice.h"
#include "csrc/kernels/arith/mufu.h"
#include "csrc/kernels/core/bits.h"

SO_ISA_BEGIN
namespace draw {

[[gnu::always_inline]] inline float fast_log(float x) { return mufu::lg2_ftz(x) * libdevice::kLn2; }
[[gnu::always_inline]] inline float fast_exp(float x) { return canonical(mufu::ex2(x * libdevice::kLog2e)); }

// factor = -1 / lambda. Near 1 the logarithm is replaced: it must not be 0.
[[gnu::always_inline]] inline float exponential_of(float u, float factor) {
  return canonical(factor * pick(u >= 0x1.fffffep-1f, -0x1p-24f, fast_log(u)));
}
// log_miss = __logf(1 + -p).
[[gnu::always_inline]] inline float geometric_of(float u, float log_miss) {
  const float q = fast_log(u) / log_miss;
  const float t = libdevice::truncate(q);
  return canonical(t < q ? t + 1.0f : t);  // the integer above
}
// __tanf is sin.approx times the reciprocal of cos.approx.
[[gnu::always_inline]] inline float cauchy_of(float u, float median, float sigma) {
  const float high = 1.0f - 0x1p-23f, low = 0x1p-23f;
  float v = u > high ? high : u;
  v = v < low ? low : v;
  const float x = 0x1.921fb6p+1f * (v - 0.5f);
  const float tangent = mufu::sin_ftz(x) * mufu::rcp_ftz(mufu::cos_ftz(x));
  return canonical(fma(sigma, tangent, median));
}

}  // namespace draw
SO_ISA_END
