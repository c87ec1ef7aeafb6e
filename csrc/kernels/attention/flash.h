// FlashAttention-2, forward and backward, as torch's CUDA build compiles it.
//
// Shapes    query [batch, queries, heads, head_dim], key and value [batch, keys, key_heads, head_dim]; heads a multiple
//           of key_heads; head_dim a multiple of 8, at most 256. logsumexp [batch, heads, queries], contiguous. The
//           backward's dK and dV are [batch, keys, heads, head_dim], one for each head of the queries.
// Types     bfloat16 and float16; logsumexp float32. Compute capability 8.0 and later.
// Order     Forward: a query tile visits its key tiles from the last to the first, with the running maximum and sum of
//           a row; four lanes share a row's sum. With several key splits each split does so over its own tiles; a
//           second kernel combines them. Backward: a thread block a key tile, query tiles from the last to the first;
//           dQ is the sum, over key tiles, of products of their own, in float32 buffers (`dq_buffers`). Products are
//           chains of depth-16 tensor-core steps in ascending depth.
// Rounding  x = S scale_log2, then exp2f(x - m), each rounded (not fused). Fused: the row sum's rescaling with the
// first
//           addition of a later tile, and the logsumexp. Weights are rounded to the type before they are multiplied;
//           the row sum has them unrounded. Additions to dQ flush subnormal addends and sums to zero.
// NaN       as arith/convert.h. A row without keys: out 0, logsumexp +infinity.
// Errors    sizes below zero or out of range, types and compute capabilities that the card's library has no kernel for.
// Source    [src third_party/flash-attention/csrc/flash_attn/src at torch 2.13.0: flash_fwd_kernel.h,
//           flash_bwd_kernel.h, flash_bwd_preprocess_kernel.h, softmax.h, dropout.h, *_launch_template.h;
//           aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp]
// Evidence  docs/evidence.md, rows attention/flash: vendor code.
#pragma once
#include <cstdint>

#include "csrc/kernels/attention/shape.h"
#include "csrc/kernels/core/dtype.h"

namespace step_oracle::attention {

struct FlashShape {
  int compute_capability = 0;
  DType type = DType::kBF16;
  std::int64_t batch = 0, queries = 0, keys = 0, heads = 0, key_heads = 0, head_dim = 0;
  bool causal = false;  // key <= query + keys - queries
};

struct FlashDropout {
  float p = 0.0f;                      // of dropping; 0: none
  std::uint64_t seed = 0, offset = 0;  // of the generator at the launch
};

// How a row's logsumexp is composed of its maximum and its sum. The compiled kernels of 8.0 and 9.0 have the first; the
// others are what another build could do as plausibly, and each changes bytes.
enum class FlashLogsumexp : std::uint8_t {
  kFused,         // fma(max, scale, lg2(sum) ln 2)
  kLogFused,      // fma(lg2(sum), ln 2, max scale)
  kUnfused,       // max scale + lg2(sum) ln 2
  kNearestLg2,    // kFused, lg2's exponent and fraction added to the nearest and not cut
};
inline constexpr const char* kFlashLogsumexps[] = {"fma(max, scale, log)", "fma(lg2, ln 2, max scale)",
                                                   "max scale + log", "fma(max, scale, log), lg2 to nearest"};

struct FlashForward {
  FlashShape shape;
  const std::uint16_t *query = nullptr, *key = nullptr, *value = nullptr;
  Strides query_strides{}, key_strides{}, value_strides{};
  float scale = 0.0f;
  FlashDropout dropout;
  std::int64_t key_splits = 1;  // of flash_key_splits
  std::uint16_t* out = nullptr;
  Strides out_strides{};
  float* logsumexp = nullptr;
  FlashLogsumexp logsumexp_form = FlashLogsumexp::kFused;
  float* split_logsumexp = nullptr;  // [splits, batch, heads, queries]; may be null
};

struct FlashBackward {
  FlashShape shape;
  const std::uint16_t *query = nullptr, *key = nullptr, *value = nullptr, *out = nullptr, *grad_out = nullptr;
  Strides query_strides{}, key_strides{}, value_strides{}, out_strides{}, grad_out_strides{};
  float scale = 0.0f;
  FlashDropout dropout;
  const float* logsumexp = nullptr;
  // Key tile j is added to buffer j mod dq_buffers, a buffer's tiles in ascending order; the buffers are then added in
  // ascending order. 1: the default algorithm, whose order is the card's choice where flash_races says so.
  std::int64_t dq_buffers = 1;
  std::uint16_t *grad_query = nullptr, *grad_key = nullptr, *grad_value = nullptr;
  Strides grad_query_strides{}, grad_key_strides{}, grad_value_strides{};
  float* sums = nullptr;  // [batch, heads, queries]: the row sums of grad_out * out; may be null
};

// --- what the host chooses ---

struct FlashTiles {
  std::int64_t queries, keys;
};
FlashTiles flash_forward_tiles(const FlashShape& shape, bool dropout);
FlashTiles flash_split_tiles(const FlashShape& shape);
FlashTiles flash_backward_tiles(const FlashShape& shape, bool dropout);
// How many splits of the keys the forward without dropout takes on a card of `sms` multiprocessors.
std::int64_t flash_key_splits(const FlashShape& shape, int sms);
// The buffers of dQ of the deterministic algorithm.
std::int64_t flash_dq_buffers(const FlashShape& shape, int sms);
// Whether three or more key tiles add to one element of dQ in one buffer: two additions to zero commute.
bool flash_races(const FlashShape& shape, bool dropout);

void flash_forward(const FlashForward& params);
void flash_backward(const FlashBackward& params);

namespace ref {
// The definition: thread block by thread block, the lanes of a row where the order is theirs.
void flash_forward(const FlashForward& params);
void flash_backward(const FlashBackward& params);
}  // namespace ref

}  // namespace step_oracle::attention
