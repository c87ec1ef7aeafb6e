// What the functions of libdevice.10.bc call on a card, for this CPU; build_vendor_library links it with them.
// Subnormals are kept, as PyTorch is compiled. The function unit (ex2, rcp, rsqrt) is arith/mufu.h: its words have
// published digests, which the sweeps do not repeat.
#include <cstdint>

#include "csrc/kernels/arith/mufu.h"
#include "csrc/kernels/core/bits.h"
#include "tests/exhaustive/vendor.h"

using namespace step_oracle;

#define SO_INTRINSIC extern "C" __attribute__((always_inline))

namespace {
// The sum of three parts in double: `high` rounded, `error` what it lacks; exact for products and sums of floats.
struct Sum {
  double high, error;
};
__attribute__((always_inline)) inline Sum sum(double a, double b) {
  const double s = a + b, z = s - a;
  return {s, (a - (s - z)) + (b - z)};
}
__attribute__((always_inline)) inline bool above(double r, Sum exact) {
  return r > exact.high || (r == exact.high && exact.error < 0.0);
}
__attribute__((always_inline)) inline bool below(double r, Sum exact) {
  return r < exact.high || (r == exact.high && exact.error > 0.0);
}
__attribute__((always_inline)) inline float step_down(float r) {
  const std::uint32_t u = bits_of(r);
  return float_of(u == 0 ? 0x80000001u : u >> 31 ? u + 1 : u - 1);
}
__attribute__((always_inline)) inline std::int32_t to_int(float r) {
  return r != r ? 0 : r >= 0x1p31f ? INT32_MAX : r < -0x1p31f ? INT32_MIN : static_cast<std::int32_t>(r);
}
}  // namespace

SO_INTRINSIC float nvvm_ex2_approx_ftz_f(float x) { return mufu::ex2_ftz(x); }
SO_INTRINSIC float nvvm_ex2_approx_f(float x) { return mufu::ex2(x); }
SO_INTRINSIC float nvvm_rcp_approx_ftz_f(float x) { return mufu::rcp_ftz(x); }
SO_INTRINSIC float nvvm_rsqrt_approx_f(float x) { return mufu::rsqrt(x); }
SO_INTRINSIC float nvvm_fma_rn_f(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
SO_INTRINSIC float nvvm_add_rn_f(float a, float b) { return a + b; }
SO_INTRINSIC float nvvm_mul_rn_f(float a, float b) { return a * b; }
SO_INTRINSIC float nvvm_fabs_f(float a) { return __builtin_fabsf(a); }
SO_INTRINSIC float nvvm_floor_f(float a) { return __builtin_floorf(a); }
SO_INTRINSIC float nvvm_trunc_f(float a) { return __builtin_truncf(a); }
SO_INTRINSIC float nvvm_round_f(float a) { return __builtin_rintf(a); }
SO_INTRINSIC float nvvm_saturate_f(float a) { return a != a || a <= 0.0f ? 0.0f : a >= 1.0f ? 1.0f : a; }
SO_INTRINSIC std::int32_t nvvm_f2i_rn(float a) { return to_int(__builtin_rintf(a)); }
// Rounded down: the nearest float to the sum, or the one below it.
SO_INTRINSIC float nvvm_fma_rm_f(float a, float b, float c) {
  const double product = static_cast<double>(a) * static_cast<double>(b);
  const Sum exact = sum(product, static_cast<double>(c));
  const float r = static_cast<float>(exact.high);
  if (exact.high == 0.0) return (bits_of(product) | bits_of(static_cast<double>(c))) >> 63 ? -0.0f : r;
  return above(static_cast<double>(r), exact) ? step_down(r) : r;
}
// Rounded toward zero.
SO_INTRINSIC float nvvm_add_rz_f(float a, float b) {
  const Sum exact = sum(static_cast<double>(a), static_cast<double>(b));
  const float r = static_cast<float>(exact.high);
  const bool away = exact.high > 0.0 ? above(static_cast<double>(r), exact) : below(static_cast<double>(r), exact);
  return float_of(bits_of(r) - (away && exact.high != 0.0 ? 1u : 0u));
}

#define SO_X(name)                                                                                        \
  extern "C" float vendor_##name(float);                                                                  \
  extern "C" __attribute__((visibility("default"))) void array_##name(const float* x, float* y, long n) { \
    for (long i = 0; i < n; ++i) y[i] = vendor_##name(x[i]);                                              \
  }
SO_VENDOR_UNARY(SO_X)
extern "C" float vendor_powf(float, float);
extern "C" __attribute__((visibility("default"))) void array_powf(const float* x, const float* y, float* z, long n) {
  for (long i = 0; i < n; ++i) z[i] = vendor_powf(x[i], y[i]);
}
