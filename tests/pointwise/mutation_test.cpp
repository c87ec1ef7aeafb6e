// Would the golden vectors notice? Each mutant drops a fusion, adds one or swaps two products; its bytes must differ.
#include <gtest/gtest.h>

#include "csrc/kernels/arith/libdevice.h"
#include "csrc/kernels/core/bits.h"
#include "tests/pointwise/mutants.h"

namespace step_oracle {
namespace {

float gelu_unfused(float x, float, float) {
  const float u = float_of(0x3f4c422a) * (x * (x * x) * float_of(0x3d372713) + x);
  return (0.5f * x) * (1.0f + libdevice::tanhf(u));
}
float gelu_backward_unfused(float dy, float x, float) {
  const float q = x * x;
  const float t = libdevice::tanhf(float_of(0x3f4c422a) * fma(x * q, float_of(0x3d372713), x));
  const float inner = float_of(0x3f4c422a) * fma(q, float_of(0x3e095d4e), 1.0f);
  return dy * fma(1.0f + t, 0.5f, inner * ((0.5f * x) * (1.0f - t * t)));
}
// The product that the compiler left alone is fused here.
float gelu_erf_backward_fused(float dy, float x, float) {
  const float pdf = libdevice::expf((x * -0.5f) * x) * float_of(0x3ecc422a);
  return dy * fma(x, pdf, 0.5f * (1.0f + libdevice::erff(x * float_of(0x3f3504f3))));
}
float silu_backward_unfused(float dy, float x, float) {
  const float s = 1.0f / (1.0f + libdevice::expf(-x));
  return (dy * s) * (1.0f + x * (1.0f - s));
}

const test::Mutant kMutants[] = {
    {"add_alpha_f32.", [](float x, float y, float) { return x + 0.3f * y; }},
    {"addcmul_f32.", [](float x, float y, float z) { return x + 0.05f * (y * z); }},
    {"addcmul_one_f32.", [](float x, float y, float z) { return x + y * z; }},
    {"addcdiv_f32.", [](float x, float y, float z) { return x + -0.001f * (y / z); }},
    {"lerp_f32.", [](float x, float y, float) { return x + 0.1f * (y - x); }},
    {"lerp_high_f32.", [](float x, float y, float) { return y - (y - x) * (1.0f - 0.9f); }},
    {"lerp_high_f32.", [](float x, float y, float) { return fma(0.9f, y - x, x); }},
    {"div_scalar_f32.", [](float x, float, float) { return x / 0.3f; }},
    {"tanh_bwd_f32.", [](float x, float y, float) { return x * (1.0f - y * y); }},
    {"sigmoid_bwd_f32.", [](float x, float y, float) { return x * ((1.0f - y) * y); }},
    {"mse_bwd_f32.", [](float x, float y, float z) { return static_cast<float>(2.0 / 3000) * ((x - y) * z); }},
    {"pow_minus2_f32.", [](float x, float, float) { return (1.0f / x) * (1.0f / x); }},
    {"relu_f32.", [](float x, float, float) { return x < 0.0f ? 0.0f : x; }},
    {"gelu_tanh_f32.", &gelu_unfused},
    {"gelu_tanh_bwd_f32.", &gelu_backward_unfused},
    {"gelu_erf_bwd_f32.", &gelu_erf_backward_fused},
    {"silu_bwd_f32.", &silu_backward_unfused},
};

TEST(PointwiseMutations, VectorsNotice) {
  test::expect_noticed(kMutants);
}

}  // namespace
}  // namespace step_oracle
