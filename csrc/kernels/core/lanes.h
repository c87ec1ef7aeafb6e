// Trees of a 32-lane warp and of a block of warps, as values: what lane 0 of thread 0 holds at the end.
//
// A shuffle-down tree with offsets 16, 8, 4, 2, 1 and an xor tree with the same offsets both give lane 0 the fold of
// halves: v[i] = op(v[i], v[i + o]) for i < o. (What the shuffles leave in the other lanes never reaches lane 0, and
// the xor tree of a commutative operation gives every lane lane 0's bits.)
#pragma once
#include "csrc/kernels/core/isa_namespace.h"

SO_ISA_BEGIN

inline constexpr int kWarp = 32;  // [spec PTX ISA, WARP_SZ]

// Own on the left, other on the right; n is a power of two; v is overwritten.
template <class V, class Op>
inline V fold_halves(V* v, int n, Op op) {
  for (int o = n / 2; o > 0; o /= 2)
    for (int i = 0; i < o; ++i) v[i] = op(v[i], v[i + o]);
  return v[0];
}

// `threads` values, a multiple of 32, at most 1024: each warp's tree, its leader's value, then the first warp's tree
// over the leaders, with `identity` for the warps that are not there [src block_reduce.cuh@v2.13.0 BlockReduce].
template <class V, class Op>
inline V fold_block(V* v, int threads, V identity, Op op) {
  V leaders[kWarp];
  for (int w = 0; w < kWarp; ++w) leaders[w] = w < threads / kWarp ? fold_halves(v + w * kWarp, kWarp, op) : identity;
  return fold_halves(leaders, kWarp, op);
}

SO_ISA_END
