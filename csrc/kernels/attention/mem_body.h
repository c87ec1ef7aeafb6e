// What the instruction sets provide for memory-efficient attention.
#pragma once
#include <cstddef>
#include <cstdint>

#include "csrc/kernels/attention/mem_efficient.h"
#include "csrc/kernels/core/isa_body.h"

namespace step_oracle {

// How the backward walks: one pass in which every query tile meets its key tiles in this direction, or, for any other
// order, one pass for dK and dV and one for dQ.
enum class MemWalk : std::uint8_t { kAscending, kDescending, kTwoPasses };

struct MemBackwardPlan {
  attention::MemTiles tiles;
  MemWalk walk;
  const std::int32_t* order;        // [batch, heads, query tiles, key tiles], read for two passes
  const std::int64_t* first_query;  // of a key tile
  const std::int64_t* query_tiles;  // of a key tile
};

struct MemBody {
  std::size_t (*forward_workspace)(const attention::MemForward& p, const attention::MemTiles& t);
  // Query tiles [begin, end), counted over batch, heads and tiles.
  void (*forward)(const attention::MemForward& p, const attention::MemTiles& t, std::int64_t begin, std::int64_t end,
                  void* workspace);
  std::size_t (*backward_workspace)(const attention::MemBackward& p, const MemBackwardPlan& plan);
  // Heads [begin, end), counted over batch and heads.
  void (*backward)(const attention::MemBackward& p, const MemBackwardPlan& plan, std::int64_t begin, std::int64_t end,
                   void* workspace);
  // The same in two passes, where heads are fewer than threads: dK and dV of key tiles [begin, end), counted over
  // batch, heads and tiles, and dQ of query tiles. Weights and dS are made in both.
  void (*backward_keys)(const attention::MemBackward& p, const MemBackwardPlan& plan, std::int64_t begin,
                        std::int64_t end, void* workspace);
  void (*backward_queries)(const attention::MemBackward& p, const MemBackwardPlan& plan, std::int64_t begin,
                           std::int64_t end, void* workspace);
};
SO_DECLARE_BODY(MemBody, mem_body)

}  // namespace step_oracle
