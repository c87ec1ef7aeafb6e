// What the definition and the body of FlashAttention-2 share: constants of a launch, the dropout mask, the end of a
// row.
#pragma once
#include <cstdint>

#include "csrc/kernels/arith/convert.h"
#include "csrc/kernels/arith/dot_add.h"
#include "csrc/kernels/arith/libdevice.h"
#include "csrc/kernels/arith/mufu.h"
#include "csrc/kernels/arith/philox.h"
#include "csrc/kernels/attention/flash.h"
#include "csrc/kernels/core/bits.h"

SO_ISA_BEGIN
namespace flash {

inline float minus_infinity() { return float_of(0xff800000u); }
inline float plus_infinity() { return float_of(0x7f800000u); }

inline constexpr double kLog2e = 0x1.71547652b82fep0;  // M_LOG2E [spec IEEE 754 double nearest to log2(e)]
inline constexpr float kLog2eFloat = 0x1.715476p0f;

// [src flash_api.cpp set_params_fprop]
struct Scales {
  float scale, scale_log2;  // scale log2(e), rounded once
  float keep, inverse_keep;
  float gradient;  // inverse_keep scale
  int threshold;   // an element is kept iff its random byte is at most this
};
inline Scales scales(float scale, float dropout_p) {
  Scales s{};
  s.scale = scale;
  s.scale_log2 = static_cast<float>(static_cast<double>(scale) * kLog2e);
  s.keep = 1.0f - dropout_p;
  s.inverse_keep = 1.0f / s.keep;
  s.gradient = s.inverse_keep * scale;
  s.threshold = static_cast<int>(static_cast<double>(s.keep) * 255.0);  // not negative: the floor
  return s;
}

inline std::int64_t head_class(std::int64_t head_dim) {  // [src static_switch.h HEADDIM_SWITCH]
  return head_dim <= 32    ? 32
         : head_dim <= 64  ? 64
         : head_dim <= 96  ? 96
         : head_dim <= 128 ? 128
         : head_dim <= 192 ? 192
                           : 256;
}

// Lanes that share a row of grad_out * out in the backward's first kernel [src kernel_traits.h kBlockKSmem].
inline int sum_lanes(std::int64_t head_dim) { return head_class(head_dim) % 64 == 0 ? 8 : 4; }

// Rows and columns of the score matrix that one Philox block serves; a lane has 16 bytes of it [src dropout.h].
inline constexpr std::int64_t kRandomRows = 16, kRandomCols = 32;
inline int random_lane(std::int64_t row, std::int64_t col) { return static_cast<int>(row % 8 * 4 + col % 8 / 2); }
inline int random_byte(std::int64_t row, std::int64_t col) {
  return static_cast<int>(col % 32 / 16 * 8 + col % 16 / 8 * 4 + row % 16 / 8 * 2 + col % 2);
}
// The block of a lane; `head` counts batch * heads + head.
inline philox::Block random_block(const attention::FlashDropout& d, std::int64_t head, int lane, std::int64_t row,
                                  std::int64_t col) {
  const std::uint64_t tile =
      static_cast<std::uint64_t>(row / kRandomRows) | static_cast<std::uint64_t>(col / kRandomCols) << 32;
  return philox::block<7>(d.seed, tile, d.offset + static_cast<std::uint64_t>(head * 32 + lane));
}

// log(x) as __logf: lg2.approx of a normal number, then one product.
inline constexpr float kLn2 = 0x1.62e43p-1f;
inline float fast_lg2(float x) {
  const bool tiny = x < 0x1p-126f;
  const float r = mufu::lg2_ftz(pick(tiny, x * 0x1p24f, x));
  return pick(tiny, r - 24.0f, r);
}
inline float fast_log(float x) { return fast_lg2(x) * kLn2; }
// The same with an lg2 that adds exponent and fraction to the nearest.
inline float nearest_lg2(float x) {
  if ((bits_of(x) & 0x7f800000u) == 0x7f800000u || x < 0x1p-126f) return fast_lg2(x);
  const std::int32_t e = static_cast<std::int32_t>(bits_of(x) >> 23) - 127;
  return static_cast<float>(e) + mufu::lg2_ftz(float_of((bits_of(x) & 0x7fffffu) | 0x3f800000u));
}
inline float logsumexp_of(float max, float sum, float scale, attention::FlashLogsumexp form) {
  if (form == attention::FlashLogsumexp::kLogFused) return fma(fast_lg2(sum), kLn2, max * scale);
  if (form == attention::FlashLogsumexp::kUnfused) return max * scale + fast_log(sum);
  if (form == attention::FlashLogsumexp::kNearestLg2) return fma(max, scale, nearest_lg2(sum) * kLn2);
  return fma(max, scale, fast_log(sum));
}

// The end of a row: factor of the output, logsumexp.
struct RowEnd {
  float inverse, logsumexp;
};
inline RowEnd end_of_row(float max, float sum, float scale, bool split, attention::FlashLogsumexp form) {
  if (sum == 0.0f || sum != sum) return {1.0f, split ? minus_infinity() : plus_infinity()};
  return {1.0f / sum, canonical(logsumexp_of(max, sum, scale, form))};
}

// Key tiles of a query tile: [begin, end), visited from the end. [src flash_fwd_kernel.h n_block_max]
inline std::int64_t key_tiles_end(const attention::FlashShape& s, std::int64_t row_end, std::int64_t tile_keys) {
  const std::int64_t all = (s.keys + tile_keys - 1) / tile_keys;
  if (!s.causal) return all;
  const std::int64_t seen = row_end + s.keys - s.queries;
  const std::int64_t end = seen <= 0 ? 0 : (seen + tile_keys - 1) / tile_keys;
  return end < all ? end : all;
}
// The first query tile that sees a key tile. [src flash_bwd_kernel.h m_block_min]
inline std::int64_t first_query_tile(const attention::FlashShape& s, std::int64_t first_key,
                                     std::int64_t tile_queries) {
  const std::int64_t row = first_key + s.queries - s.keys;
  return s.causal && row > 0 ? row / tile_queries : 0;
}

// Addends and sums of the card's float atomics: a subnormal becomes a zero of its sign.
inline float flushed(float x) { return (bits_of(x) & 0x7f800000u) == 0 ? float_of(bits_of(x) & 0x80000000u) : x; }
inline float atomic_add(float sum, float addend) { return flushed(flushed(sum) + flushed(addend)); }

// The second kernel of a forward with key splits: rows it treats in one block decide how many lanes share a row's
// logsumexps [src flash_fwd_launch_template.h kBlockM of the combine kernel, flash_fwd_kernel.h kRowsPerLoadLSE].
inline int combine_lanes(std::int64_t head_dim, std::int64_t splits) {
  const std::int64_t c = head_class(head_dim);
  int slots = 2;
  while (slots < splits) slots *= 2;
  const int lanes = 128 / (c % 128 == 0 ? 4 : c % 64 == 0 ? 8 : 16);
  return slots < lanes ? slots : lanes;
}
// The logsumexp over the splits of a row. `at(s)` is split s's; s past the splits reads as -infinity.
template <class At>
inline float combined_logsumexp(int lanes, std::int64_t splits, At at) {
  float max = minus_infinity();
  for (std::int64_t s = 0; s < splits; ++s) max = at(s) > max ? at(s) : max;
  if (max == minus_infinity()) max = 0.0f;
  float lane[32];
  for (int t = 0; t < lanes; ++t) {
    lane[t] = libdevice::expf((t < splits ? at(t) : minus_infinity()) - max);
    for (std::int64_t s = t + lanes; s < splits; s += lanes) lane[t] = lane[t] + libdevice::expf(at(s) - max);
  }
  for (int o = lanes / 2; o > 0; o /= 2)
    for (int t = 0; t < o; ++t) lane[t] = lane[t] + lane[t + o];
  const float sum = lane[0];
  return sum == 0.0f || sum != sum ? plus_infinity() : libdevice::logf(sum) + max;
}

}  // namespace flash
SO_ISA_END
