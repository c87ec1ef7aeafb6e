// What the instruction sets provide for FlashAttention-2.
#pragma once
#include <cstddef>
#include <cstdint>

#include "csrc/kernels/attention/flash.h"
#include "csrc/kernels/core/isa_body.h"

namespace step_oracle {

// What the splits of a forward leave: logsumexp [splits, batch, heads, queries], out the same with head_dim.
struct FlashParts {
  float *logsumexp, *out;
};

struct FlashBody {
  std::size_t (*forward_workspace)(const attention::FlashForward& p, const attention::FlashTiles& t);
  // Query tiles [begin, end), counted over batch, heads and tiles; with key splits all of a tile's.
  void (*forward)(const attention::FlashForward& p, const attention::FlashTiles& t, const FlashParts& parts,
                  std::int64_t begin, std::int64_t end, void* workspace);
  // Rows [begin, end), counted over batch, heads and queries.
  void (*combine)(const attention::FlashForward& p, const FlashParts& parts, std::int64_t begin, std::int64_t end);
  std::size_t (*backward_workspace)(const attention::FlashBackward& p, const attention::FlashTiles& t);
  // Heads [begin, end), counted over batch and heads.
  void (*backward)(const attention::FlashBackward& p, const attention::FlashTiles& t, std::int64_t begin,
                   std::int64_t end, void* workspace);
};
SO_DECLARE_BODY(FlashBody, flash_body)

}  // namespace step_oracle
