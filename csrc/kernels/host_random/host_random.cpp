#include "csrc/kernels/host_random/host_random.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "csrc/kernels/arith/convert.h"
#include "csrc/kernels/core/bits.h"
#include "csrc/kernels/core/error.h"
#include "csrc/kernels/core/fp_env.h"
#include "csrc/kernels/core/parallel.h"
#include "csrc/kernels/host_random/host_math.h"
#include "csrc/kernels/host_random/words.h"

namespace step_oracle::host_random {
namespace {

constexpr std::int64_t kTile = 4096;  // numbers that are converted at a time; a multiple of 16

bool fuses(Dispatch d) { return d != Dispatch::kDefault; }
bool is_half(DType t) { return t == DType::kBF16 || t == DType::kF16; }

float rounded(DType t, float x) {
  if (t == DType::kBF16) return convert::from_bf16(convert::to_bf16(x));
  if (t == DType::kF16) return convert::from_fp16(convert::to_fp16(x));
  return x;
}
void store(const Fill& f, std::int64_t at, const float* x, std::int64_t n) {
  auto* out = static_cast<std::uint16_t*>(f.out) + at;
  for (std::int64_t i = 0; i < n; ++i) out[i] = f.dtype == DType::kBF16 ? convert::to_bf16(x[i]) : convert::to_fp16(x[i]);
}
void check(const char* op, const Fill& f, bool with_double) {
  if (f.n < 0) throw Error(ErrorKind::kBadInput, fmt::format("{}: n is {}; it must not be negative", op, f.n));
  if (f.dtype == DType::kF32 || is_half(f.dtype) || (with_double && f.dtype == DType::kF64)) return;
  if (f.dtype == DType::kF64)
    throw Error(ErrorKind::kUnsupported,
                fmt::format("{} in float64 on the host shows its libm's last bits, which are not stated; carry the "
                            "tensor's bytes", op));
  throw Error(ErrorKind::kBadInput, fmt::format("{}: {} is not a floating-point type", op, name_of(f.dtype)));
}

void uniforms(Generator& g, float* u, std::int64_t n) {
  const auto& body = SO_BODY(host_random_body);
  draw(g, static_cast<std::uint64_t>(n), [&](const std::uint32_t* state, std::int64_t count) {
    body.uniforms(state, count, u);
    u += count;
  });
}

void box_muller(Dispatch d, float* x, std::int64_t blocks, float mean, float std) {
  const auto& body = SO_BODY(host_random_body);
  const auto fill = d == Dispatch::kAvx2 || d == Dispatch::kAvx512 ? body.normals_cephes : body.normals_libm;
  parallel_for(blocks, 256, [&](std::int64_t begin, std::int64_t end) {
    fill(x + 16 * begin, end - begin, mean, std);
  });
}

void large_normal(Generator& g, Dispatch d, const Fill& f, float mean, float std) {
  float last[16];
  if (f.dtype == DType::kF32) {
    float* out = static_cast<float*>(f.out);
    uniforms(g, out, f.n);
    box_muller(d, out, f.n / 16, mean, std);
    if (f.n % 16 == 0) return;
    uniforms(g, last, 16);
    box_muller(d, last, 1, mean, std);
    std::copy(last, last + 16, out + f.n - 16);
    return;
  }
  float x[kTile];
  for (std::int64_t at = 0; at + 16 <= f.n; at += kTile) {
    const std::int64_t n = std::min(kTile, (f.n - at) / 16 * 16);
    uniforms(g, x, n);
    box_muller(d, x, n / 16, mean, std);
    store(f, at, x, n);
  }
  if (f.n % 16 == 0) return;
  uniforms(g, last, 16);
  box_muller(d, last, 1, mean, std);
  store(f, f.n - 16, last, 16);
}

// On aarch64 a double goes to float16 in one rounding, elsewhere through float32 [src torch/headeronly/util/Half.h
// @2.13]. Rounded to odd, the float32 between does not show.
float to_odd(double x) {
  const float f = static_cast<float>(x);
  const double back = static_cast<double>(f);
  if (back == x) return f;
  const bool above = (x < 0.0 ? -back : back) > (x < 0.0 ? -x : x);
  return float_of((bits_of(f) - static_cast<std::uint32_t>(above)) | 1u);
}

double small_normal(Generator& g, bool fused, double mean, double std) {
  double x;
  if (g.has_normal) {
    x = g.normal;
    g.has_normal = false;
  } else {
    const double u1 = uniform_double(g), u2 = uniform_double(g);
    const double radius = u2 == 0.0 ? 0.0 : __builtin_sqrt(-2.0 * host_math::wide::log1m(u2));
    const host_math::wide::WideSinCos a = host_math::wide::sincos(0x1.921fb54442d18p+2 * u1);
    g.normal = radius * a.sin;
    g.has_normal = true;
    x = radius * a.cos;
  }
  return fused ? fma(x, std, mean) : x * std + mean;
}

}  // namespace

void uniform(Generator& g, Dispatch d, const Fill& f, double from, double to) {
  check("uniform_", f, true);
  const double most = f.dtype == DType::kF64 ? 0x1.fffffffffffffp+1023 : 0x1.fffffep+127;
  if (!(from <= to) || !(to - from <= most))
    throw Error(ErrorKind::kBadInput, fmt::format("uniform_: [{}, {}) is not a range of {}", from, to, name_of(f.dtype)));
  const FpEnvGuard guard;
  if (f.dtype == DType::kF64) {
    double* out = static_cast<double*>(f.out);
    const double width = to - from;
    for (std::int64_t i = 0; i < f.n; ++i) {
      const double u = uniform_double(g), v = fuses(d) ? fma(u, width, from) : u * width + from;
      out[i] = v == to ? from : v;
    }
    return;
  }
  const auto& body = SO_BODY(host_random_body);
  const float low = static_cast<float>(from), high = static_cast<float>(to), width = high - low;
  if (f.dtype == DType::kF32) {
    float* out = static_cast<float*>(f.out);
    draw(g, static_cast<std::uint64_t>(f.n), [&](const std::uint32_t* state, std::int64_t count) {
      body.uniforms(state, count, out);
      body.range(out, count, width, low, high, fuses(d));
      out += count;
    });
    return;
  }
  // The bound is compared after the conversion, so nothing is replaced before it: no number equals infinity.
  const float bound = rounded(f.dtype, high), instead = rounded(f.dtype, low);
  float x[kTile];
  for (std::int64_t at = 0; at < f.n; at += kTile) {
    const std::int64_t n = std::min(kTile, f.n - at);
    uniforms(g, x, n);
    body.range(x, n, width, low, __builtin_inff(), fuses(d));
    for (std::int64_t i = 0; i < n; ++i) x[i] = rounded(f.dtype, x[i]) == bound ? instead : x[i];
    store(f, at, x, n);
  }
}

void normal(Generator& g, Dispatch d, const Fill& f, bool contiguous, double mean, double std) {
  check("normal_", f, false);
  if (!(std >= 0.0)) throw Error(ErrorKind::kBadInput, fmt::format("normal_: std is {}; it must not be negative", std));
  const FpEnvGuard guard;
  if (f.n >= 16 && contiguous) return large_normal(g, d, f, static_cast<float>(mean), static_cast<float>(std));
  for (std::int64_t i = 0; i < f.n; ++i) {
    const double wide = small_normal(g, fuses(d), mean, std);
    const bool once = d == Dispatch::kAarch64 && f.dtype == DType::kF16;
    const float x = once ? to_odd(wide) : static_cast<float>(wide);
    if (f.dtype == DType::kF32)
      static_cast<float*>(f.out)[i] = x;
    else
      store(f, i, &x, 1);
  }
}

void random_from_to(Generator& g, std::int64_t n, std::uint64_t range, std::int64_t base, std::int64_t* out) {
  if (n < 0) throw Error(ErrorKind::kBadInput, fmt::format("random_: n is {}; it must not be negative", n));
  if (range == 0) throw Error(ErrorKind::kBadInput, "random_: the range is empty; `to` must be above `from`");
  for (std::int64_t i = 0; i < n; ++i) {
    const std::uint64_t w = range >= 1ull << 28 ? word64(g) : word(g);
    out[i] = static_cast<std::int64_t>(w % range + static_cast<std::uint64_t>(base));
  }
}

void randperm(Generator& g, std::int64_t n, std::int64_t* out) {
  if (n < 0) throw Error(ErrorKind::kBadInput, fmt::format("randperm: n is {}; it must not be negative", n));
  for (std::int64_t i = 0; i < n; ++i) out[i] = i;
  // Below this a word's modulo is near enough even [src ATen/native/TensorFactories.cpp randperm_cpu @2.13].
  const bool narrow = n < 0xffffffffll / 20;
  for (std::int64_t i = 0; i + 1 < n; ++i) {
    const std::uint64_t w = narrow ? word(g) : word64(g);
    std::swap(out[i], out[i + static_cast<std::int64_t>(w % static_cast<std::uint64_t>(n - i))]);
  }
}

std::uint64_t words_of_uniform(DType dtype, std::int64_t n) {
  return static_cast<std::uint64_t>(n) * (dtype == DType::kF64 ? 2 : 1);
}

std::uint64_t words_of_normal(DType dtype, std::int64_t n) {
  if (n > 0 && n < 16)
    throw Error(ErrorKind::kBadInput, "a normal fill of fewer than 16 numbers keeps one of a pair: draw it instead");
  const std::uint64_t last = n % 16 == 0 ? 0 : 16, all = static_cast<std::uint64_t>(n);
  if (is_half(dtype)) return all / 16 * 16 + last;
  return (all + last) * (dtype == DType::kF64 ? 2 : 1);
}

}  // namespace step_oracle::host_random
