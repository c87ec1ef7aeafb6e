// How a random kernel is launched [src DistributionTemplates.h calc_execution_policy @2.13], and what the element types
// do to a number.
#pragma once
#include <algorithm>
#include <cstdint>

#include "csrc/kernels/arith/convert.h"
#include "csrc/kernels/core/dtype.h"
#include "csrc/kernels/random/random.h"

namespace step_oracle::random {

constexpr std::int64_t kBlock = 256;  // threads of a block

struct Launch {
  std::int64_t blocks;
  std::int64_t threads;   // of the whole grid
  std::int64_t rounds;    // of the grid-stride loop
  std::uint64_t advance;  // of the generator's offset
};
// n >= 1; unroll: elements a thread takes from one block of words.
inline Launch launch(const Stream& s, std::int64_t n, int unroll) {
  Launch l;
  l.blocks =
      std::min<std::int64_t>(static_cast<std::int64_t>(s.sms) * (s.threads_per_sm / kBlock), (n + kBlock - 1) / kBlock);
  l.threads = l.blocks * kBlock;
  l.rounds = (n - 1) / (l.threads * unroll) + 1;
  l.advance = static_cast<std::uint64_t>(l.rounds) * 4;
  return l;
}

inline float rounded(DType t, float x) {
  if (t == DType::kBF16) return convert::from_bf16(convert::to_bf16(x));
  if (t == DType::kF16) return convert::from_fp16(convert::to_fp16(x));
  return x;
}

}  // namespace step_oracle::random
