// TF32: what a tensor core reads of a float32, and the split of a float32 into two such values (3xTF32).
//
// Rounding  read: the lower 13 bits are dropped (toward zero). round_half_up: PTX's cvt.rna.tf32, half away from zero,
// for
//           kernels that convert before the tensor core reads.
// NaN       read: as the hardware drops bits, a NaN with a small payload becomes an infinity; round_half_up gives
//           0x7fffffff for a NaN.
// Source    [spec PTX ISA, cvt.rna.tf32.f32, mma .tf32], [probe witness, attention.md section 0: 3xTF32 of PyTorch's
//           compiled memory-efficient attention].
// Evidence  docs/evidence.md, row arith tf32.
#pragma once
#include <cstdint>

#include "csrc/kernels/core/bits.h"

SO_ISA_BEGIN
namespace tf32 {

inline constexpr std::uint32_t kKept = 0xffffe000u;  // sign, 8 exponent bits, 10 fraction bits

[[gnu::always_inline]] inline float read(float x) { return float_of(bits_of(x) & kKept); }

[[gnu::always_inline]] inline float round_half_up(float x) {
  const std::uint32_t u = bits_of(x), rounded = (u + 0x1000u) & kKept;
  const std::uint32_t magnitude = u & 0x7fffffffu;
  const std::uint32_t finite = magnitude >= 0x7f800000u ? u : rounded;  // an infinity stays
  return float_of(magnitude > 0x7f800000u ? kCardNan32 : finite);
}

// 3xTF32: x = big + small, and the tensor core multiplies small(A) big(B), big(A) small(B), big(A) big(B) in this
// order. `small` is given as the tensor core reads it: rounded half up, its lower bits dropped.
struct Split {
  float big, small;
};
[[gnu::always_inline]] inline Split split(float x) {
  const float big = read(x), rest = x - big;
  const std::uint32_t u = bits_of(rest);
  const bool finite = (u & 0x7fffffffu) < 0x7f800000u;
  return {big, float_of((finite ? u + 0x1000u : u) & kKept)};
}

}  // namespace tf32
SO_ISA_END
