#include "csrc/kernels/host_random/host_random_body.h"

#include "csrc/kernels/core/bits.h"
#include "csrc/kernels/host_random/host_math.h"

SO_ISA_BEGIN
namespace {

constexpr int kN = 624, kM = 397;  // [src MT19937RNGEngine.h @2.13]

[[gnu::always_inline]] inline std::uint32_t mixed(std::uint32_t u, std::uint32_t v) {
  return (((u & 0x80000000u) | (v & 0x7fffffffu)) >> 1) ^ ((0u - (v & 1u)) & 0x9908b0dfu);
}
void twist(std::uint32_t* p) {
  for (int i = 0; i < kN - kM; ++i) p[i] = p[i + kM] ^ mixed(p[i], p[i + 1]);
  for (int i = kN - kM; i < kN - 1; ++i) p[i] = p[i + kM - kN] ^ mixed(p[i], p[i + 1]);
  p[kN - 1] = p[kM - 1] ^ mixed(p[kN - 1], p[0]);
}

[[gnu::always_inline]] inline std::uint32_t tempered(std::uint32_t y) {
  y ^= y >> 11;
  y ^= (y << 7) & 0x9d2c5680u;
  y ^= (y << 15) & 0xefc60000u;
  return y ^ (y >> 18);
}
void temper(const std::uint32_t* __restrict state, std::int64_t n, std::uint32_t* __restrict words) {
  for (std::int64_t i = 0; i < n; ++i) words[i] = tempered(state[i]);
}
void uniforms(const std::uint32_t* __restrict state, std::int64_t n, float* __restrict u) {
  for (std::int64_t i = 0; i < n; ++i)
    u[i] = static_cast<float>(static_cast<std::int32_t>(tempered(state[i]) & 0xffffffu)) * 0x1p-24f;
}

void range(float* u, std::int64_t n, float width, float from, float to, bool fused) {
  if (fused) {
    for (std::int64_t i = 0; i < n; ++i) {
      const float v = fma(u[i], width, from);
      u[i] = v == to ? from : v;
    }
  } else {
    for (std::int64_t i = 0; i < n; ++i) {
      const float v = u[i] * width + from;
      u[i] = v == to ? from : v;
    }
  }
}

constexpr float kTwoPi = 0x1.921fb6p+2f;

void normals_cephes(float* x, std::int64_t blocks, float mean, float std) {
  for (std::int64_t b = 0; b < blocks; ++b, x += 16) {
    float first[8], second[8];
    for (int j = 0; j < 8; ++j) {
      const float radius = __builtin_sqrtf(-2.0f * host_math::cephes::log(1.0f - x[j]));
      const host_math::SinCos a = host_math::cephes::sincos(kTwoPi * x[j + 8]);
      first[j] = fma(radius * a.cos, std, mean);
      second[j] = fma(radius * a.sin, std, mean);
    }
    for (int j = 0; j < 8; ++j) x[j] = first[j], x[j + 8] = second[j];
  }
}

void normals_libm(float* x, std::int64_t blocks, float mean, float std) {
  for (std::int64_t b = 0; b < blocks; ++b, x += 16)
    for (int j = 0; j < 8; ++j) {
      const float radius = __builtin_sqrtf(-2.0f * host_math::libm::log(1.0f - x[j]));
      // 2.0f * pi as a double, rounded after the product.
      const float theta = static_cast<float>(0x1.921fb54442d18p+2 * static_cast<double>(x[j + 8]));
      const host_math::SinCos a = host_math::libm::sincos(theta);
      x[j] = fma(radius * a.cos, std, mean);
      x[j + 8] = fma(radius * a.sin, std, mean);
    }
}

}  // namespace

extern const HostRandomBody host_random_body;
const HostRandomBody host_random_body = {&twist, &temper, &uniforms, &range, &normals_cephes, &normals_libm};
SO_ISA_END
