// Rows of scores: what the memory-efficient kernels do between their products, in loops that become vectors.
#pragma once
#include <cstdint>
#include <cstring>

#include "csrc/kernels/arith/convert.h"
#include "csrc/kernels/arith/libdevice.h"
#include "csrc/kernels/arith/philox.h"
#include "csrc/kernels/attention/mem_efficient.h"
#include "csrc/kernels/core/bits.h"
#include "csrc/kernels/core/vec.h"

SO_ISA_BEGIN
namespace mem_rows {

using Int = std::int64_t;
inline constexpr Int kMostKeys = 128;  // of a tile
inline constexpr float kLog2e = 0x1.715476p+0f;
inline constexpr float kInfinity = __builtin_inff();

inline void widen(DType type, const void* from, Int at, Int n, float* to) {
  if (type == DType::kF32) {
    std::memcpy(to, static_cast<const float*>(from) + at, static_cast<std::size_t>(n) * sizeof(float));
    return;
  }
  const std::uint16_t* h = static_cast<const std::uint16_t*>(from) + at;
  if (type == DType::kBF16)
    for (Int i = 0; i < n; ++i) to[i] = convert::from_bf16(h[i]);
  else
    for (Int i = 0; i < n; ++i) to[i] = convert::from_fp16(h[i]);
}

inline void narrow(DType type, const float* from, Int n, void* to, Int at) {
  if (type == DType::kF32) {
    float* out = static_cast<float*>(to) + at;
    for (Int i = 0; i < n; ++i) out[i] = canonical(from[i]);
    return;
  }
  std::uint16_t* out = static_cast<std::uint16_t*>(to) + at;
  if (type == DType::kBF16)
    for (Int i = 0; i < n; ++i) out[i] = convert::to_bf16(from[i]);
  else
    for (Int i = 0; i < n; ++i) out[i] = convert::to_fp16(from[i]);
}

inline float rounded(DType type, float x) {
  if (type == DType::kBF16) return convert::from_bf16(convert::to_bf16(x));
  return type == DType::kF16 ? convert::from_fp16(convert::to_fp16(x)) : x;
}
inline void round_row(DType type, float* x, Int n) {
  if (type == DType::kBF16)
    for (Int i = 0; i < n; ++i) x[i] = convert::from_bf16(convert::to_bf16(x[i]));
  if (type == DType::kF16)
    for (Int i = 0; i < n; ++i) x[i] = convert::from_fp16(convert::to_fp16(x[i]));
}

// factor[i] = a draw above p ? kept : dropped, for n draws from number `first` on.
inline void draw(const attention::MemDropout& d, std::uint64_t first, Int n, float kept, float dropped, float* factor) {
  constexpr Int kMostBlocks = kMostKeys / 4 + 2;
  std::uint32_t words[4 * kMostBlocks];
  const Int skip = static_cast<Int>(first % 4), blocks = (skip + n + 3) / 4;
  for (Int b = 0; b < blocks; ++b) {
    const philox::Block block = philox::block(d.seed, 0, first / 4 + static_cast<std::uint64_t>(b));
    for (int w = 0; w < 4; ++w) words[4 * b + w] = block.word[w];
  }
  const float p = d.p;
  for (Int i = 0; i < n; ++i) factor[i] = philox::uniform(words[skip + i]) > p ? kept : dropped;
}

// The largest of x and `start`; NaN is no candidate. n a multiple of 16.
inline float largest(const float* x, Int n, float start) {
#if defined(__AVX2__)
  Vec most = broadcast(start);
  for (Int j = 0; j < n; j += kLanes) most = larger(load(x + j), most);
  alignas(64) float lane[kLanes];
  store(lane, most);
#else
  constexpr int kLanes = 16;
  float lane[kLanes];
  for (int i = 0; i < kLanes; ++i) lane[i] = start;
  for (Int j = 0; j < n; j += kLanes)
    for (int i = 0; i < kLanes; ++i) lane[i] = x[j + i] > lane[i] ? x[j + i] : lane[i];
#endif
  for (int half = kLanes / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) lane[i] = lane[half + i] > lane[i] ? lane[half + i] : lane[i];
  return lane[0];
}

// A warp's 32 columns: eight lanes with four adjacent ones, or four with two of every eight; then the xor tree.
inline float warp_sum(bool simt, const float* p) {
  if (simt) {
    float lane[8];
    for (int t = 0; t < 8; ++t) lane[t] = ((p[4 * t] + p[4 * t + 1]) + p[4 * t + 2]) + p[4 * t + 3];
    return ((lane[0] + lane[1]) + (lane[2] + lane[3])) + ((lane[4] + lane[5]) + (lane[6] + lane[7]));
  }
  // The sums of pairs are in the even places, what the odd ones hold is not read.
  using Eight = float __attribute__((vector_size(32)));
  using Places = std::int32_t __attribute__((vector_size(32)));
  const Places neighbours = {1, 0, 3, 2, 5, 4, 7, 6};
  Eight sum = {};
  for (int j = 0; j < 32; j += 8) {
    Eight x;
    std::memcpy(&x, p + j, sizeof x);
    sum = (j == 0 ? x : sum + x) + __builtin_shuffle(x, neighbours);
  }
  return (sum[0] + sum[2]) + (sum[4] + sum[6]);
}

struct Row {
  float max, sum, rescale;
};

// x, the row's scores times log2(e) of a key tile of which `keys` are there, becomes its weights.
inline void softmax_row(bool simt, Row& row, float* x, Int keys, Int tile_keys) {
  for (Int k = keys; k < tile_keys; ++k) x[k] = -kInfinity;
  const float max = largest(x, tile_keys, row.max);
  row.rescale = 1.0f;
  if (row.max < max) {
    row.rescale = libdevice::exp2f(row.max - max);
    row.sum = row.sum * row.rescale;
  }
  row.max = max;
  const float base = max == -kInfinity ? 0.0f : max;
  for (Int k = 0; k < tile_keys; ++k) x[k] = libdevice::exp2f(x[k] - base);
  for (Int k = keys; k < tile_keys; ++k) x[k] = 0.0f;
  for (Int group = 0; group < tile_keys; group += 32) row.sum = row.sum + warp_sum(simt, x + group);
}

}  // namespace mem_rows
SO_ISA_END
