// What the instruction sets provide for sums at an index. A segment is the run of equal indices [starts[s],
// starts[s + 1]) of the stable order; segments are independent.
#pragma once
#include <cstdint>

#include "csrc/kernels/core/isa_body.h"
#include "csrc/kernels/indexing/indexing.h"

namespace step_oracle {

struct Segments {
  const std::int64_t* row;     // destination of each segment
  const std::int64_t* starts;  // one more than segments
  const std::int64_t* order;   // positions, equal indices in their original order
};

struct IndexingBody {
  void (*embedding)(const indexing::EmbeddingParams& p, const Segments& s, std::int64_t begin, std::int64_t end);
  void (*accumulate)(const indexing::AccumulateParams& p, const Segments& s, std::int64_t begin, std::int64_t end);
};
SO_DECLARE_BODY(IndexingBody, indexing_body)

}  // namespace step_oracle
