// Drawing words from the generator, by stretches of what is left of a state.
#pragma once
#include <algorithm>
#include <cstdint>

#include "csrc/kernels/host_random/host_random.h"
#include "csrc/kernels/host_random/host_random_body.h"

namespace step_oracle::host_random {

// Calls take(state words, count) until n are taken; twists where a state is used up.
template <class Take>
void draw(Generator& g, std::uint64_t n, Take&& take) {
  while (n > 0) {
    if (g.left <= 1) {
      SO_BODY(host_random_body).twist(g.state);
      g.left = 625;
      g.next = 0;
    }
    const std::uint64_t count = std::min<std::uint64_t>(n, static_cast<std::uint64_t>(g.left - 1));
    take(static_cast<const std::uint32_t*>(g.state) + g.next, static_cast<std::int64_t>(count));
    g.next += static_cast<std::uint32_t>(count);
    g.left -= static_cast<int>(count);
    n -= count;
  }
}

inline std::uint32_t word(Generator& g) {
  std::uint32_t out = 0;
  draw(g, 1, [&](const std::uint32_t* state, std::int64_t) { SO_BODY(host_random_body).temper(state, 1, &out); });
  return out;
}
// The first word is the high one.
inline std::uint64_t word64(Generator& g) {
  const std::uint64_t high = word(g);
  return high << 32 | word(g);
}
// 53 bits of two words.
inline double uniform_double(Generator& g) {
  return static_cast<double>(word64(g) & ((1ull << 53) - 1)) * 0x1p-53;
}

}  // namespace step_oracle::host_random
