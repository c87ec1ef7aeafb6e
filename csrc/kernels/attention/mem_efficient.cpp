#include "csrc/kernels/attention/mem_efficient.h"

#include <fmt/format.h>

#include <algorithm>

#include "csrc/kernels/attention/mem_body.h"
#include "csrc/kernels/core/error.h"
#include "csrc/kernels/core/parallel.h"
#include "csrc/kernels/core/workspace.h"

namespace step_oracle::attention {
namespace {

using Int = std::int64_t;

Int tile_count(Int n, Int size) { return (n + size - 1) / size; }

void check(const MemShape& s, const MemDropout& dropout) {
  if (s.batch < 0 || s.heads < 0 || s.queries < 0 || s.keys < 0 || s.head_dim < 0 || s.value_dim < 0)
    throw Error(
        ErrorKind::kBadInput,
        fmt::format("memory-efficient attention: batch {} heads {} queries {} keys {} head sizes {} {}; none may "
                    "be negative",
                    s.batch, s.heads, s.queries, s.keys, s.head_dim, s.value_dim));
  const bool half = s.type == DType::kF16 || (s.type == DType::kBF16 && s.compute_capability >= 80);
  if (s.type != DType::kF32 && !half)
    throw Error(ErrorKind::kUnsupported,
                fmt::format("memory-efficient attention of {} on compute capability {}.{} does not exist; use float32, "
                            "float16, or bfloat16 from 8.0 on",
                            name_of(s.type), s.compute_capability / 10, s.compute_capability % 10));
  if (s.compute_capability < 75)
    throw Error(ErrorKind::kUnsupported, fmt::format("memory-efficient attention on compute capability {}.{} is not "
                                                     "modelled; 7.5 and later are",
                                                     s.compute_capability / 10, s.compute_capability % 10));
  // The kernels count draws in 32 bits, signed in the backward.
  if (dropout.p > 0.0f && s.batch * s.heads * s.queries * s.keys >= Int{1} << 31)
    throw Error(ErrorKind::kUnsupported,
                fmt::format("memory-efficient attention with dropout over {} weights: the kernels' 32-bit counters "
                            "overflow from 2^31 on; use a smaller batch",
                            s.batch * s.heads * s.queries * s.keys));
}

void check_order(const MemBackward& p, const MemTiles& tiles) {
  const Int query_tiles = tile_count(p.shape.queries, tiles.queries), key_tiles = tile_count(p.shape.keys, tiles.keys);
  const Int heads = p.shape.batch * p.shape.heads;
  std::vector<std::vector<std::int32_t>> wanted(static_cast<std::size_t>(query_tiles));
  for (Int j = 0; j < key_tiles; ++j)
    for (Int step = 0; step < mem_query_tiles(p, j); ++step)
      wanted[static_cast<std::size_t>((mem_first_query_tile(p, j) + step) % query_tiles)].push_back(
          static_cast<std::int32_t>(j));
  bool good = static_cast<Int>(p.dq_order.size()) == heads * query_tiles * key_tiles;
  for (Int row = 0; good && row < heads * query_tiles; ++row) {
    const auto begin = p.dq_order.begin() + row * key_tiles;
    const auto& all = wanted[static_cast<std::size_t>(row % query_tiles)];
    std::vector<std::int32_t> given(begin, begin + static_cast<Int>(all.size()));
    std::sort(given.begin(), given.end());
    good = given == all &&
           std::all_of(begin + static_cast<Int>(all.size()), begin + key_tiles, [](int j) { return j == -1; });
  }
  if (!good)
    throw Error(ErrorKind::kBadInput,
                fmt::format("memory-efficient attention: dq_order is no order of the key tiles of {} x {} query tiles; "
                            "give each row its key tiles once and -1 behind them",
                            heads, query_tiles));
}

MemWalk walk_of(const std::vector<std::int32_t>& order, Int key_tiles) {
  bool up = true, down = true;
  for (std::size_t at = 0; at + 1 < order.size(); ++at) {
    if ((static_cast<Int>(at) + 1) % key_tiles == 0 || order[at + 1] < 0) continue;
    up &= order[at] < order[at + 1];
    down &= order[at] > order[at + 1];
  }
  return up ? MemWalk::kAscending : down ? MemWalk::kDescending : MemWalk::kTwoPasses;
}

// Whether a head is cut for the threads. Two passes make seven products where one pass makes five, and pack more: three
// halves of the work, unless the order of dQ wants two passes anyway.
bool splits_heads(Int heads, Int threads, MemWalk walk) {
  const Int turns = (heads + threads - 1) / threads;
  if (walk == MemWalk::kTwoPasses) return heads < turns * threads;
  return 3 * heads < 2 * turns * threads;
}

void zero(DType type, void* to, const Strides& st, const MemShape& s, Int positions, Int dim) {
  const auto size = static_cast<Int>(size_of(type));
  for (Int b = 0; b < s.batch; ++b)
    for (Int r = 0; r < positions; ++r)
      for (Int h = 0; h < s.heads; ++h)
        std::fill_n(static_cast<char*>(to) + (b * st.batch + r * st.position + h * st.head) * size, dim * size, '\0');
}

}  // namespace

void mem_forward(const MemForward& p) {
  const MemShape& s = p.shape;
  check(s, p.dropout);
  if (p.logsumexp) std::fill_n(p.logsumexp, s.batch * s.heads * padded_queries(s.queries), __builtin_inff());
  const MemTiles tiles = mem_forward_tiles(s);
  const Int query_tiles = tile_count(s.queries, tiles.queries);
  if (s.batch * s.heads * query_tiles == 0) return;
  const MemBody& body = SO_BODY(mem_body);
  const std::size_t bytes = body.forward_workspace(p, tiles);
  parallel_for(s.batch * s.heads * query_tiles, query_tiles < 8 ? query_tiles : 1,
               [&](Int begin, Int end) { body.forward(p, tiles, begin, end, workspace(bytes)); });
}

void mem_backward(const MemBackward& p) {
  const MemShape& s = p.shape;
  check(s, p.dropout);
  const MemTiles tiles = mem_backward_tiles(s, p.dropout.p > 0.0f);
  if (s.batch * s.heads * s.queries * s.keys == 0) {  // [src attention_backward.cu: the gradients are zeroed]
    zero(s.type, p.grad_query, p.grad_query_strides, s, s.queries, s.head_dim);
    zero(s.type, p.grad_key, p.grad_key_strides, s, s.keys, s.head_dim);
    zero(s.type, p.grad_value, p.grad_value_strides, s, s.keys, s.value_dim);
    return;
  }
  if (!p.dq_order.empty()) check_order(p, tiles);
  const Int key_tiles = tile_count(s.keys, tiles.keys);
  const std::vector<std::int32_t> order = p.dq_order.empty() ? mem_default_order(p) : p.dq_order;
  std::vector<Int> first, count;
  for (Int j = 0; j < key_tiles; ++j)
    first.push_back(mem_first_query_tile(p, j)), count.push_back(mem_query_tiles(p, j));
  const MemBackwardPlan plan{tiles, walk_of(order, key_tiles), order.data(), first.data(), count.data()};
  const MemBody& body = SO_BODY(mem_body);
  const std::size_t bytes = body.backward_workspace(p, plan);
  const Int heads = s.batch * s.heads, query_tiles = tile_count(s.queries, tiles.queries);
  if (!splits_heads(heads, num_threads(), plan.walk)) {
    parallel_for(heads, 1, [&](Int begin, Int end) { body.backward(p, plan, begin, end, workspace(bytes)); });
    return;
  }
  parallel_for(heads * key_tiles, 1,
               [&](Int begin, Int end) { body.backward_keys(p, plan, begin, end, workspace(bytes)); });
  parallel_for(heads * query_tiles, 1,
               [&](Int begin, Int end) { body.backward_queries(p, plan, begin, end, workspace(bytes)); });
}

}  // namespace step_oracle::attention
