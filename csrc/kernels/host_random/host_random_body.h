// What the instruction sets provide for host_random.
#pragma once
#include <cstdint>

#include "csrc/kernels/core/isa_body.h"

namespace step_oracle {

struct HostRandomBody {
  // The next 624 words of the state, in place.
  void (*twist)(std::uint32_t* state);
  void (*temper)(const std::uint32_t* state, std::int64_t n, std::uint32_t* words);
  // Tempers, and takes 24 bits: [0, 1).
  void (*uniforms)(const std::uint32_t* state, std::int64_t n, float* u);
  // In place: u * range + from, fused or not; `from` where that is `to`.
  void (*range)(float* u, std::int64_t n, float range, float from, float to, bool fused);
  // In place, blocks of 16 uniforms: polynomials of avx_mathfun.h, or libm.
  void (*normals_cephes)(float* x, std::int64_t blocks, float mean, float std);
  void (*normals_libm)(float* x, std::int64_t blocks, float mean, float std);
};
SO_DECLARE_BODY(HostRandomBody, host_random_body)

}  // namespace step_oracle
