// The definition: every element's bin by the card's expression, every bin's elements counted on their own.
#include "csrc/kernels/indexing/counts.h"

namespace step_oracle::indexing::ref {
namespace {

std::int64_t element(const CountParams& p, std::int64_t i) {
  switch (p.type) {
    case DType::kI64: return static_cast<const std::int64_t*>(p.x)[i];
    case DType::kI32: return static_cast<const std::int32_t*>(p.x)[i];
    case DType::kI16: return static_cast<const std::int16_t*>(p.x)[i];
    case DType::kI8: return static_cast<const std::int8_t*>(p.x)[i];
    default: return static_cast<const std::uint8_t*>(p.x)[i];
  }
}

}  // namespace

void count(const CountParams& p) {
  const std::int64_t least = 0, most = p.bins;
  for (std::int64_t b = 0; b < p.bins; ++b) {
    p.counts[b] = 0;
    for (std::int64_t i = 0; i < p.n; ++i) {
      std::int64_t bin = (element(p, i) - least) * p.bins / (most - least);
      if (bin == p.bins) --bin;
      p.counts[b] += bin == b;
    }
  }
}

}  // namespace step_oracle::indexing::ref
