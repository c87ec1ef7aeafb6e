// The memory-efficient (CUTLASS) attention kernels, forward and backward.
//
// Shapes    query [batch, queries, heads, head_dim], key [batch, keys, heads, head_dim], value [batch, keys, heads,
//           value_dim]; a bias [batch, heads, queries, keys] of their type, any of its strides 0 but the last.
// Types     float32, float16; bfloat16 from sm_80 on; logsumexp and delta float32.
// Order     `tiles_of` gives the tile. Forward: a query tile visits its key tiles in ascending order with the running
//           maximum and sum of a row; backward: key tiles outer, query tiles inner. Products: an FMA chain over
//           ascending depth (float32 on sm_75), 3xTF32 with a staged accumulator (float32 from sm_80 on), one
//           tensor-core chain of depth-8 steps (16-bit types). The order in which the backward's key tiles reach a
//           query tile's dQ is an argument (`dq_order`).
// Rounding  forward x = S scale (+ bias), times log2(e), exp2f(x - max), each rounded; backward x - logsumexp, expf.
//           Nothing is fused but what the products fuse. Weights are rounded to the type before they are multiplied.
// NaN       0x7fffffff (16-bit: as arith/convert.h). A fully masked row: out 0, logsumexp 0.
// Errors    sizes below zero, a type the card lacks, an order that is no permutation of a query tile's key tiles.
// Source    [src aten/src/ATen/native/transformers/cuda/mem_eff_attention/kernel_forward.h, kernel_backward.h,
//           gemm/*.h of the wheel of torch 2.13.0]
// Evidence  docs/evidence.md, rows attention/memory-efficient: vendor code.
#pragma once
#include <cstdint>
#include <vector>

#include "csrc/kernels/attention/shape.h"
#include "csrc/kernels/core/dtype.h"

namespace step_oracle::attention {

struct MemShape {
  int compute_capability = 0;
  DType type = DType::kF32;
  std::int64_t batch = 0, heads = 0, queries = 0, keys = 0, head_dim = 0, value_dim = 0;
};

// Rows of logsumexp and delta are padded to a multiple of this [src kernel_forward.h kAlignLSE].
inline constexpr std::int64_t kLseAlignment = 32;
constexpr std::int64_t padded_queries(std::int64_t queries) {
  return (queries + kLseAlignment - 1) / kLseAlignment * kLseAlignment;
}

struct BiasStrides {
  std::int64_t batch, head, query;
};

struct MemDropout {
  float p = 0.0f;                      // of dropping; 0: none
  std::uint64_t seed = 0, offset = 0;  // of the generator at the launch
};

struct MemForward {
  MemShape shape;
  const void *query = nullptr, *key = nullptr, *value = nullptr, *bias = nullptr;
  Strides query_strides{}, key_strides{}, value_strides{};
  BiasStrides bias_strides{};
  Mask mask = Mask::kNone;
  float scale = 0.0f;
  MemDropout dropout;
  void* out = nullptr;  // [batch, queries, heads, value_dim]
  Strides out_strides{};
  float* logsumexp = nullptr;  // [batch, heads, padded_queries], contiguous; rows beyond `queries` +inf. May be null.
};

struct MemBackward {
  MemShape shape;
  const void *query = nullptr, *key = nullptr, *value = nullptr, *bias = nullptr;
  const void *out = nullptr, *grad_out = nullptr;
  Strides query_strides{}, key_strides{}, value_strides{}, out_strides{}, grad_out_strides{};
  BiasStrides bias_strides{};
  Mask mask = Mask::kNone;
  float scale = 0.0f;
  MemDropout dropout;
  const float* logsumexp = nullptr;  // [batch, heads, logsumexp_pitch]
  std::int64_t logsumexp_pitch = 0;
  float* delta = nullptr;  // [batch, heads, queries]: read for float32, written for 16-bit types
  void *grad_query = nullptr, *grad_key = nullptr, *grad_value = nullptr;
  Strides grad_query_strides{}, grad_key_strides{}, grad_value_strides{};
  void* grad_bias = nullptr;  // strides of its own; null: not wanted
  BiasStrides grad_bias_strides{};
  std::int64_t key_splits = 1;  // thread blocks a (batch, head), each with every key_splits-th key tile
  // The order in which key tiles are added to the dQ of (batch, head, query tile): `order` holds
  // batch * heads * query tiles rows of `key tiles` entries, -1 behind the tiles that the mask leaves. Empty: the order
  // of mem_default_order.
  std::vector<std::int32_t> dq_order;
};

struct MemTiles {
  int queries, keys;
  bool in_registers;  // forward: the output accumulator; else it lies in memory
};
MemTiles mem_forward_tiles(const MemShape& shape);
MemTiles mem_backward_tiles(const MemShape& shape, bool dropout);

// The query tiles that key tile `key_tile` visits: the first one, and how many in ascending order; behind the last
// query tile comes the first one (only without a mask, where block y of several begins with query tile y).
std::int64_t mem_first_query_tile(const MemBackward& params, std::int64_t key_tile);
std::int64_t mem_query_tiles(const MemBackward& params, std::int64_t key_tile);

// One thread block: ascending. Several: as they would arrive if all blocks of a head ran in step, so later key tiles
// first under a causal mask. [fit "The step oracle", section 3.7: recordings of two and four blocks]
std::vector<std::int32_t> mem_default_order(const MemBackward& params);
// Whether the order is open: several thread blocks, and three or more key tiles, or two that meet a query tile at once.
bool mem_is_race(const MemBackward& params);

// Whether the sums of dK and dV lie in memory between two query tiles as float32: 16-bit types with wide heads
// [src kernel_backward.h kOutputInRF].
bool mem_keeps_grads_in_workspace(const MemShape& shape, bool dropout);

void mem_forward(const MemForward& params);
void mem_backward(const MemBackward& params);

namespace ref {
// The definition: thread by thread where the order is the threads'.
void mem_forward(const MemForward& params);
void mem_backward(const MemBackward& params);
}  // namespace ref

}  // namespace step_oracle::attention
