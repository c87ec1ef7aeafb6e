// arith/dot_add_lanes.h as each instruction set compiles it, for the tests.
#pragma once
#include <cstdint>

#include "csrc/kernels/core/isa_body.h"

namespace step_oracle {

inline constexpr int kTestLanes = 32;

struct LanesBody {
  // depth (a multiple of 16) products for each of kTestLanes outputs; b has rows of kTestLanes; acc goes in and out.
  // format: 0 tf32, 1 bfloat16, 2 float16.
  void (*chain)(int format, bool hopper, std::int64_t depth, const float* a, const float* b, float* acc);
};
SO_DECLARE_BODY(LanesBody, lanes_body)

}  // namespace step_oracle
