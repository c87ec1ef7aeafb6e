// What the instruction sets provide for random: loops over a tile of threads of one draw.
#pragma once
#include <cstdint>

#include "csrc/kernels/core/isa_body.h"

namespace step_oracle {

struct RandomBody {
  static constexpr int kTile = 512;  // threads at most

  // The four words of block `draw` of each of n threads: w[kTile * i + lane].
  void (*words)(std::uint64_t seed, std::uint64_t draw, std::uint64_t thread, int n, std::uint32_t* w);
  void (*uniforms)(const std::uint32_t* w, int n, float* u);
  // All four words of each thread, side by side: u[stride * lane + i].
  void (*uniforms_by_thread)(const std::uint32_t* w, int n, int stride, float* u);
  void (*normals)(const std::uint32_t* x, const std::uint32_t* y, int n, float* first, float* second);
  // In place: fma(r, factor, shift).
  void (*affine)(float* r, int n, float factor, float shift);
  // In place: fma(u, range, from), `from` where that is `to`.
  void (*uniform_range)(float* u, int n, float range, float from, float to);
  // In place: factor * log(u), with the values that curand's bounds demand near 1.
  void (*exponentials)(float* u, int n, float factor);
  void (*fast_exps)(float* x, int n);
  void (*geometrics)(float* u, int n, float log_miss);
  void (*cauchys)(float* u, int n, float median, float sigma);
  // In place: 1 where u < p, else 0.
  void (*below)(float* u, int n, float p);
  // To the 16-bit types, with the card's NaN.
  void (*to_bf16)(const float* x, int n, std::uint16_t nan, std::uint16_t* y);
  void (*to_fp16)(const float* x, int n, std::uint16_t* y);
  // x * keep * scale; keep = u < p.
  void (*dropout)(const float* u, const float* x, int n, float p, float scale, float* y, std::uint8_t* mask);
  void (*dropout_backward)(const float* grad, const std::uint8_t* mask, int n, float scale, float* y);
};
SO_DECLARE_BODY(RandomBody, random_body)

}  // namespace step_oracle
