// What the instruction sets provide for norm: rows [begin, end); parameters: columns [begin, end).
#pragma once
#include <cstdint>

#include "csrc/kernels/core/isa_body.h"
#include "csrc/kernels/norm/norm.h"

namespace step_oracle {

// Threads and rows that fold into one column of dgamma and dbeta.
struct ParameterTile {
  int threads;          // of a column in a block
  std::int64_t each;    // consecutive rows of a thread in a tile
  std::int64_t blocks;  // partial results a column; 1: none
};

struct NormBody {
  void (*forward)(const norm::ForwardParams& p, bool vectorised, std::int64_t begin, std::int64_t end);
  void (*backward_input)(const norm::BackwardParams& p, std::int64_t begin, std::int64_t end);
  // Columns [begin, end) of partial result `block`, stored to row `block` of dgamma and dbeta.
  void (*parameters)(const norm::ParameterParams& p, const ParameterTile& tile, std::int64_t block, std::int64_t begin,
                     std::int64_t end);
};
SO_DECLARE_BODY(NormBody, norm_body)

}  // namespace step_oracle
