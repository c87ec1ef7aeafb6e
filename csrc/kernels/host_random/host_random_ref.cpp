// torch's loops as they stand, one word at a time; the functions operation by operation.
#include <cmath>
#include <cstring>

#include "csrc/kernels/arith/convert.h"
#include "csrc/kernels/core/bits.h"
#include "csrc/kernels/host_random/host_math.h"
#include "csrc/kernels/host_random/host_random.h"

namespace step_oracle::host_random::ref {
namespace {

// [src ATen/core/MT19937RNGEngine.h @2.13]
void next_state(Generator& g) {
  const std::uint32_t first_mask = 0x80000000u, rest_mask = 0x7fffffffu;
  for (int j = 0; j < 624; ++j) {
    const std::uint32_t u = g.state[j], v = g.state[(j + 1) % 624];
    const std::uint32_t mix = (u & first_mask) | (v & rest_mask);
    g.state[j] = g.state[(j + 397) % 624] ^ (mix >> 1) ^ (v % 2 == 1 ? 0x9908b0dfu : 0u);
  }
  g.left = 624;
  g.next = 0;
}
std::uint32_t random(Generator& g) {
  if (--g.left == 0) next_state(g);
  std::uint32_t y = g.state[g.next++];
  y ^= y >> 11;
  y ^= (y << 7) & 0x9d2c5680u;
  y ^= (y << 15) & 0xefc60000u;
  y ^= y >> 18;
  return y;
}
std::uint64_t random64(Generator& g) {
  const std::uint32_t first = random(g), second = random(g);
  return (static_cast<std::uint64_t>(first) << 32) | second;
}

// A product whose only use is a sum, where the compiler fuses the two.
template <class T>
T sum_of(bool fused, T a, T b, T c) {
  if (fused) return fma(a, b, c);
  const T product = a * b;
  return product + c;
}
float uniform_real(Generator& g, bool fused, float from, float to) {
  const float x = static_cast<float>(random(g) & ((1u << 24) - 1)) * (1.0f / static_cast<float>(1u << 24));
  return sum_of(fused, x, to - from, from);
}
double uniform_real64(Generator& g, bool fused, double from, double to) {
  const double x =
      static_cast<double>(random64(g) & ((1ull << 53) - 1)) * (1.0 / static_cast<double>(1ull << 53));
  return sum_of(fused, x, to - from, from);
}

// [src avx_mathfun.h log256_ps @2.13] as compiled with -mfma.
float log256(float x) {
  int imm0 = static_cast<int>(bits_of(x) >> 23);
  x = float_of((bits_of(x) & ~0x7f800000u) | bits_of(0.5f));
  imm0 -= 0x7f;
  float e = static_cast<float>(imm0);
  e = e + 1.0f;
  const bool mask = x < 0.707106781186547524f;
  const float tmp = mask ? x : 0.0f;
  x = x - 1.0f;
  e = e - (mask ? 1.0f : 0.0f);
  x = x + tmp;
  const float z = x * x;
  const float p[9] = {7.0376836292E-2f,  -1.1514610310E-1f, 1.1676998740E-1f,  -1.2420140846E-1f, 1.4249322787E-1f,
                      -1.6668057665E-1f, 2.0000714765E-1f,  -2.4999993993E-1f, 3.3333331174E-1f};
  float y = p[0];
  for (int i = 1; i < 9; ++i) y = fma(y, x, p[i]);
  y = y * x;
  y = fma(y, z, e * -2.12194440e-4f);
  y = fma(-z, 0.5f, y);
  x = x + y;
  return fma(e, 0.693359375f, x);
}

// [src avx_mathfun.h sincos256_ps @2.13] as compiled with -mfma.
void sincos256(float x, float* s, float* c) {
  std::uint32_t sign_bit_sin = bits_of(x) & 0x80000000u;
  x = float_of(bits_of(x) & 0x7fffffffu);
  float y = x * 1.27323954473516f;
  std::uint32_t j = static_cast<std::uint32_t>(static_cast<int>(y));
  j = (j + 1) & ~1u;
  y = static_cast<float>(static_cast<int>(j));
  const std::uint32_t swap_sign_bit_sin = (j & 4u) << 29;
  const bool poly = (j & 2u) == 0;
  x = fma(y, -0.78515625f, x);
  x = fma(y, -2.4187564849853515625e-4f, x);
  x = fma(y, -3.77489497744594108e-8f, x);
  const std::uint32_t sign_bit_cos = (~(j - 2u) & 4u) << 29;
  sign_bit_sin ^= swap_sign_bit_sin;
  const float z = x * x;
  y = 2.443315711809948E-005f;
  y = fma(y, z, -1.388731625493765E-003f);
  y = fma(y, z, 4.166664568298827E-002f);
  y = y * z;
  y = fma(y, z, -(z * 0.5f));
  y = y + 1.0f;
  float y2 = -1.9515295891E-4f;
  y2 = fma(y2, z, 8.3321608736E-3f);
  y2 = fma(y2, z, -1.6666654611E-1f);
  y2 = y2 * z;
  y2 = fma(y2, x, x);
  const float ysin2 = poly ? y2 : 0.0f, ysin1 = poly ? 0.0f : y;
  y2 = y2 - ysin2;
  y = y - ysin1;
  *s = float_of(bits_of(ysin1 + ysin2) ^ sign_bit_sin);
  *c = float_of(bits_of(y + y2) ^ sign_bit_cos);
}

void normal_fill_16(Dispatch d, float* data, float mean, float std) {
  for (int j = 0; j < 8; ++j) {
    const float u1 = 1 - data[j], u2 = data[j + 8];
    float log, sine, cosine;
    if (d == Dispatch::kAvx2 || d == Dispatch::kAvx512) {
      log = log256(u1);
      sincos256(static_cast<float>(2.0f * 3.14159265358979323846) * u2, &sine, &cosine);
    } else {
      log = host_math::libm::log(u1);
      const auto a = host_math::libm::sincos(static_cast<float>(2.0f * 3.14159265358979323846 * u2));
      sine = a.sin, cosine = a.cos;
    }
    const float radius = __builtin_sqrtf(-2 * log);
    data[j] = fma(radius * cosine, std, mean);
    data[j + 8] = fma(radius * sine, std, mean);
  }
}

// The float16 nearest to a double, of two equally near the even one: on aarch64 the conversion is one instruction.
std::uint16_t nearest_half(double x) {
  const std::uint16_t start = convert::to_fp16(static_cast<float>(x));
  std::uint16_t best = start;
  for (int step : {-1, 1}) {
    const auto other = static_cast<std::uint16_t>(start + step);
    const double d = std::fabs(static_cast<double>(convert::from_fp16(other)) - x);
    const double least = std::fabs(static_cast<double>(convert::from_fp16(best)) - x);
    if (d < least || (d == least && other % 2 == 0)) best = other;
  }
  return best;
}
void put(const Fill& f, std::int64_t i, float x) {
  switch (f.dtype) {
    case DType::kBF16: static_cast<std::uint16_t*>(f.out)[i] = convert::to_bf16(x); return;
    case DType::kF16: static_cast<std::uint16_t*>(f.out)[i] = convert::to_fp16(x); return;
    default: static_cast<float*>(f.out)[i] = x;
  }
}
float as_type(DType t, float x) {
  if (t == DType::kBF16) return convert::from_bf16(convert::to_bf16(x));
  if (t == DType::kF16) return convert::from_fp16(convert::to_fp16(x));
  return x;
}

// [src ATen/native/cpu/DistributionTemplates.h normal_fill @2.13]
void normal_fill(Generator& g, Dispatch d, const Fill& f, float mean, float std) {
  if (f.dtype == DType::kF32) {
    float* data = static_cast<float*>(f.out);
    for (std::int64_t i = 0; i < f.n; ++i) data[i] = uniform_real(g, false, 0.0f, 1.0f);
    for (std::int64_t i = 0; i < f.n - 15; i += 16) normal_fill_16(d, data + i, mean, std);
    if (f.n % 16 != 0) {
      data += f.n - 16;
      for (int i = 0; i < 16; ++i) data[i] = uniform_real(g, false, 0.0f, 1.0f);
      normal_fill_16(d, data, mean, std);
    }
    return;
  }
  const auto block = [&](std::int64_t at) {
    float buffer[16];
    for (float& x : buffer) x = uniform_real(g, false, 0.0f, 1.0f);
    normal_fill_16(d, buffer, mean, std);
    for (int j = 0; j < 16; ++j) put(f, at + j, buffer[j]);
  };
  for (std::int64_t i = 0; i < f.n - 15; i += 16) block(i);
  if (f.n % 16 != 0) block(f.n - 16);
}

}  // namespace

void uniform(Generator& g, Dispatch d, const Fill& f, double from, double to) {
  const bool fused = d != Dispatch::kDefault;
  for (std::int64_t i = 0; i < f.n; ++i) {
    if (f.dtype == DType::kF64) {
      const double v = uniform_real64(g, fused, from, to);
      static_cast<double*>(f.out)[i] = v == to ? from : v;
      continue;
    }
    const float low = static_cast<float>(from), high = static_cast<float>(to);
    const float v = as_type(f.dtype, uniform_real(g, fused, low, high));
    put(f, i, v == as_type(f.dtype, high) ? low : v);
  }
}

void normal(Generator& g, Dispatch d, const Fill& f, bool contiguous, double mean, double std) {
  if (f.n >= 16 && contiguous) return normal_fill(g, d, f, static_cast<float>(mean), static_cast<float>(std));
  for (std::int64_t i = 0; i < f.n; ++i) {
    double ret;
    if (g.has_normal) {
      ret = g.normal;
      g.has_normal = false;
    } else {
      const double u1 = uniform_real64(g, false, 0.0, 1.0), u2 = uniform_real64(g, false, 0.0, 1.0);
      const double r = u2 == 0 ? 0.0 : __builtin_sqrt(-2.0 * host_math::wide::log1m(u2));
      const auto a = host_math::wide::sincos(2.0 * 3.14159265358979323846 * u1);
      g.normal = r * a.sin, g.has_normal = true;
      ret = r * a.cos;
    }
    const double value = sum_of(d != Dispatch::kDefault, ret, std, mean);
    if (d == Dispatch::kAarch64 && f.dtype == DType::kF16)
      static_cast<std::uint16_t*>(f.out)[i] = nearest_half(value);
    else
      put(f, i, static_cast<float>(value));
  }
}

void skip(Generator& g, std::uint64_t words) {
  for (std::uint64_t i = 0; i < words; ++i) random(g);
}

}  // namespace step_oracle::host_random::ref
