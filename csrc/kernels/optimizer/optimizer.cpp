#include "csrc/kernels/optimizer/optimizer.h"

#include <fmt/format.h>

#include <atomic>
#include <cmath>
#include <vector>

#include "csrc/kernels/core/bits.h"
#include "csrc/kernels/core/error.h"
#include "csrc/kernels/core/parallel.h"
#include "csrc/kernels/optimizer/optimizer_body.h"

namespace step_oracle::optimizer {
namespace {

// Elements worth a thread.
constexpr std::int64_t kGrain = 32768;

void require_type(DType t, const char* what) {
  if (t != DType::kF32 && t != DType::kBF16)
    throw Error(ErrorKind::kUnsupported,
                fmt::format("{}: {} has no kernel here; use float32 or bfloat16", what, name_of(t)));
}

struct TwoDoubles {
  double high, low;
};
// The product to twice double's precision [src Dekker 1971; fma gives the error of a product exactly].
TwoDoubles product(TwoDoubles a, TwoDoubles b) {
  const double high = a.high * b.high;
  const double low = std::fma(a.high, b.high, -high) + (a.high * b.low + a.low * b.high);
  const double sum = high + low;
  return {sum, low - (sum - high)};
}

// base^n in double, as good as rounded once: what CUDA's double pow gives to within its last place.
double integer_power(double base, std::int64_t n) {
  TwoDoubles result{1.0, 0.0}, square{base, 0.0};
  for (; n > 0; n /= 2) {
    if (n % 2 == 1) result = product(result, square);
    square = product(square, square);
  }
  return result.high + result.low;
}

// The kernel for bfloat16 moments computes the bias corrections in double and rounds them to float.
void wide_bias_corrections(const AdamParams& p, float* bc1, float* root2) {
  if (!(p.step >= 0.0f && p.step < 0x1p24f) || p.step != std::floor(p.step))
    throw Error(ErrorKind::kUnsupported,
                fmt::format("adam with bfloat16 moments: step {} is not a whole number below 2^24; "
                            "use float32 moments",
                            p.step));
  const auto n = static_cast<std::int64_t>(p.step);
  *bc1 = static_cast<float>(1.0 - integer_power(p.beta1, n));
  *root2 = static_cast<float>(std::sqrt(1.0 - integer_power(p.beta2, n)));
}

Apart apart_of(const AdamParams& p) {
  if (p.mode == WeightDecay::kDecoupled || p.grad_scale || p.fuses_everywhere || p.max_v) return Apart::kNone;
  if (p.maximize) return Apart::kAll;
  return p.vectorised ? Apart::kFirstOf4 : Apart::kFirst512;
}

}  // namespace

AdamNumbers numbers_of(const AdamParams& p) {
  AdamNumbers k;
  const float lr = static_cast<float>(p.lr);
  k.beta1 = static_cast<float>(p.beta1);
  k.beta2 = static_cast<float>(p.beta2);
  k.weight_decay = static_cast<float>(p.weight_decay);
  k.eps = static_cast<float>(p.eps);
  float bc1;
  if (p.state_dtype != p.dtype)
    wide_bias_corrections(p, &bc1, &k.root2);
  else
    SO_BODY(optimizer_body).bias_corrections(k.beta1, k.beta2, p.step, &bc1, &k.root2);
  k.step_size = lr / bc1;
  k.decay = -(lr * k.weight_decay);
  k.coupled = p.mode == WeightDecay::kCoupled && k.weight_decay != 0.0f;
  k.decoupled = p.mode == WeightDecay::kDecoupled && k.weight_decay != 0.0f;
  k.maximize = p.maximize;
  k.scaled = p.grad_scale != nullptr;
  k.scale = p.grad_scale ? *p.grad_scale : 1.0f;
  k.apart = apart_of(p);
  return k;
}

SgdNumbers numbers_of(const SgdParams& p) {
  SgdNumbers k;
  k.weight_decay = static_cast<float>(p.weight_decay);
  k.momentum = static_cast<float>(p.momentum);
  k.lr = static_cast<float>(p.lr);
  k.one_minus_dampening = 1.0f - static_cast<float>(p.dampening);
  k.nesterov = p.nesterov, k.maximize = p.maximize, k.first_step = p.first_step;
  k.scaled = p.grad_scale != nullptr;
  k.scale = p.grad_scale ? *p.grad_scale : 1.0f;
  return k;
}

void adam(const AdamParams& p) {
  require_type(p.dtype, "adam");
  if (p.state_dtype != p.dtype && !(p.dtype == DType::kF32 && p.state_dtype == DType::kBF16))
    throw Error(ErrorKind::kUnsupported,
                fmt::format("adam: parameters {} with moments {}; the moments must have the parameters' "
                            "type, or be bfloat16 beside float32",
                            name_of(p.dtype), name_of(p.state_dtype)));
  const AdamNumbers k = numbers_of(p);
  const auto& body = SO_BODY(optimizer_body);
  parallel_for(p.n, kGrain, [&](std::int64_t begin, std::int64_t end) { body.adam(p, k, begin, end); });
}

void sgd(const SgdParams& p) {
  require_type(p.dtype, "sgd");
  const SgdNumbers k = numbers_of(p);
  const auto& body = SO_BODY(optimizer_body);
  parallel_for(p.n, kGrain, [&](std::int64_t begin, std::int64_t end) { body.sgd(p, k, begin, end); });
}

float norm(const NormParams& p, float* partials) {
  require_type(p.dtype, "norm");
  const std::int64_t chunks = (p.n + kChunk - 1) / kChunk;
  if (p.max_chunks < chunks)
    throw Error(ErrorKind::kInternal,
                fmt::format("norm: {} elements are {} chunks, more than {}", p.n, chunks, p.max_chunks));
  const auto& body = SO_BODY(optimizer_body);
  std::vector<float> parts(static_cast<std::size_t>(p.max_chunks), 0.0f);
  parallel_for(chunks, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t c = begin; c < end; ++c) parts[static_cast<std::size_t>(c)] = canonical(body.norm_chunk(p, c));
  });
  if (partials)
    for (std::size_t c = 0; c < parts.size(); ++c) partials[c] = parts[c];
  const float sum = body.norm_fold(parts.data(), p.max_chunks, p.kind);
  return canonical(p.kind == NormKind::kL2 && !p.power_sum ? std::sqrt(sum) : sum);
}

void unscale(void* g, DType dtype, std::int64_t n, float inv_scale, float* found_inf, std::uint16_t bf16_nan) {
  require_type(dtype, "_amp_foreach_non_finite_check_and_unscale_");
  const auto& body = SO_BODY(optimizer_body);
  const auto size = static_cast<std::int64_t>(size_of(dtype));
  std::atomic<bool> strange{false};
  parallel_for(n, kGrain, [&](std::int64_t begin, std::int64_t end) {
    if (body.unscale(static_cast<char*>(g) + begin * size, dtype, end - begin, inv_scale, bf16_nan)) strange = true;
  });
  if (strange) *found_inf = 1.0f;
}

}  // namespace step_oracle::optimizer
