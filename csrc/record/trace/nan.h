// Where a NaN first comes out of an op that got none, in a trace that keeps the bytes (keep="all").
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "csrc/record/trace/reader.h"

namespace step_oracle {

struct NanSite {
  std::size_t index = 0;  // of the op
  std::size_t tensor = 0;
  bool entered = false;  // it was in the op's input already, and no earlier op made it
};

// Tensors whose bytes are not kept are passed over.
std::optional<NanSite> first_nan(const Trace& trace);

}  // namespace step_oracle
