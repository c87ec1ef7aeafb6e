#include "csrc/kernels/arith/convert.h"
#include "csrc/kernels/arith/philox.h"
#include "csrc/kernels/core/bits.h"
#include "csrc/kernels/random/random_body.h"
#include "csrc/kernels/random/random_rules.h"

SO_ISA_BEGIN
namespace {

void words(std::uint64_t seed, std::uint64_t draw, std::uint64_t thread, int n, std::uint32_t* __restrict w) {
  constexpr int kTile = RandomBody::kTile;
  for (int i = 0; i < n; ++i) {
    const philox::Block b = philox::block(seed, thread + static_cast<std::uint64_t>(i), draw);
    w[i] = b.word[0];
    w[kTile + i] = b.word[1];
    w[2 * kTile + i] = b.word[2];
    w[3 * kTile + i] = b.word[3];
  }
}
void uniforms(const std::uint32_t* __restrict w, int n, float* __restrict u) {
  for (int i = 0; i < n; ++i) u[i] = philox::uniform(w[i]);
}
void uniforms_by_thread(const std::uint32_t* __restrict w, int n, int stride, float* __restrict u) {
  constexpr int kTile = RandomBody::kTile;
  for (int i = 0; i < n; ++i)
    for (int c = 0; c < 4; ++c) u[stride * i + c] = philox::uniform(w[kTile * c + i]);
}
void uniform_range(float* u, int n, float range, float from, float to) {
  for (int i = 0; i < n; ++i) {
    const float v = fma(u[i], range, from);
    u[i] = canonical(v == to ? from : v);
  }
}
void normals(const std::uint32_t* __restrict x, const std::uint32_t* __restrict y, int n, float* __restrict first,
             float* __restrict second) {
  for (int i = 0; i < n; ++i) {
    const philox::Pair pair = philox::normal(x[i], y[i]);
    first[i] = pair.first;
    second[i] = pair.second;
  }
}
void affine(float* r, int n, float factor, float shift) {
  for (int i = 0; i < n; ++i) r[i] = canonical(fma(r[i], factor, shift));
}
void exponentials(float* u, int n, float factor) {
  for (int i = 0; i < n; ++i) u[i] = draw::exponential_of(u[i], factor);
}
void fast_exps(float* x, int n) {
  for (int i = 0; i < n; ++i) x[i] = draw::fast_exp(x[i]);
}
void geometrics(float* u, int n, float log_miss) {
  for (int i = 0; i < n; ++i) u[i] = draw::geometric_of(u[i], log_miss);
}
void cauchys(float* u, int n, float median, float sigma) {
  for (int i = 0; i < n; ++i) u[i] = draw::cauchy_of(u[i], median, sigma);
}
void below(float* u, int n, float p) {
  for (int i = 0; i < n; ++i) u[i] = u[i] < p ? 1.0f : 0.0f;
}
void to_bf16(const float* __restrict x, int n, std::uint16_t nan, std::uint16_t* __restrict y) {
  for (int i = 0; i < n; ++i) y[i] = convert::to_bf16(x[i], nan);
}
void to_fp16(const float* __restrict x, int n, std::uint16_t* __restrict y) {
  for (int i = 0; i < n; ++i) y[i] = convert::to_fp16(x[i]);
}
void dropout(const float* __restrict u, const float* __restrict x, int n, float p, float scale, float* __restrict y,
             std::uint8_t* __restrict mask) {
  for (int i = 0; i < n; ++i) {
    y[i] = canonical((x[i] * (u[i] < p ? 1.0f : 0.0f)) * scale);
    mask[i] = u[i] < p ? 1 : 0;
  }
}
void dropout_backward(const float* __restrict grad, const std::uint8_t* __restrict mask, int n, float scale,
                      float* __restrict y) {
  for (int i = 0; i < n; ++i) y[i] = canonical((static_cast<float>(mask[i]) * grad[i]) * scale);
}

}  // namespace

extern const RandomBody random_body;
const RandomBody random_body = {&words,        &uniforms,  &uniforms_by_thread, &normals, &affine, &uniform_range,
                                &exponentials, &fast_exps, &geometrics,         &cauchys, &below,  &to_bf16,
                                &to_fp16,      &dropout,   &dropout_backward};
SO_ISA_END
