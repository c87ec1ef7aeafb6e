// The generator Philox4x32-10 and curand's transformations of its words.
//
// Types     a block is four 32-bit words. Floats as curand makes them.
// Order     key = seed, counter = (offset / 4 + draw, subsequence), 64 bits each; ten rounds (FlashAttention: 7).
// Rounding  uniform: fma(float(word), 2^-32, 2^-33), in (0, 1]. normal: one of the pair (s sin, s cos), s =
//           sqrt(-2 logf(u)), with the special function unit's sine and cosine.
// Source    [src curand_philox4x32_x.h, curand_uniform.h, curand_normal.h of CUDA 13.0]
// Evidence  docs/evidence.md, row arith/philox.
#pragma once
#include <cstdint>

#include "csrc/kernels/arith/libdevice.h"
#include "csrc/kernels/arith/mufu.h"
#include "csrc/kernels/core/bits.h"

SO_ISA_BEGIN
namespace philox {

struct Block {
  std::uint32_t word[4];
};

// Block number `draw` (counted from the generator's start: offset / 4 + draws of this kernel) of a thread.
template <int kRounds = 10>
[[gnu::always_inline]] inline Block block(std::uint64_t seed, std::uint64_t subsequence, std::uint64_t draw) {
  std::uint32_t k0 = static_cast<std::uint32_t>(seed), k1 = static_cast<std::uint32_t>(seed >> 32);
  std::uint32_t c0 = static_cast<std::uint32_t>(draw), c1 = static_cast<std::uint32_t>(draw >> 32);
  std::uint32_t c2 = static_cast<std::uint32_t>(subsequence), c3 = static_cast<std::uint32_t>(subsequence >> 32);
  for (int round = 0; round < kRounds; ++round) {
    const std::uint64_t p = static_cast<std::uint64_t>(c0) * 0xd2511f53u,
                        q = static_cast<std::uint64_t>(c2) * 0xcd9e8d57u;
    c0 = static_cast<std::uint32_t>(q >> 32) ^ c1 ^ k0;
    c1 = static_cast<std::uint32_t>(q);
    c2 = static_cast<std::uint32_t>(p >> 32) ^ c3 ^ k1;
    c3 = static_cast<std::uint32_t>(p);
    k0 += 0x9e3779b9u;
    k1 += 0xbb67ae85u;
  }
  return {{c0, c1, c2, c3}};
}

// (0, 1]
[[gnu::always_inline]] inline float uniform(std::uint32_t word) {
  return fma(static_cast<float>(word), 0x1p-32f, 0x1p-33f);
}
// (0, 1], 53 bits of two words
[[gnu::always_inline]] inline double uniform_double(std::uint32_t x, std::uint32_t y) {
  const std::uint64_t z = static_cast<std::uint64_t>(x) ^ (static_cast<std::uint64_t>(y) << 21);
  return fma(static_cast<double>(z), 0x1p-53, 0x1p-54);
}

struct Pair {
  float first, second;
};
[[gnu::always_inline]] inline Pair normal(std::uint32_t x, std::uint32_t y) {
  const float u = uniform(x);
  const float v = fma(static_cast<float>(y), float_of(0x30c90fdbu), float_of(0x30490fdbu));  // 2^-32 2 pi, half of it
  const float s = __builtin_sqrtf(-2.0f * libdevice::logf(u));
  const float t = mufu::to_turns(v);
  return {mufu::sin_turns(t) * s, mufu::cos_turns(t) * s};
}

}  // namespace philox
SO_ISA_END
