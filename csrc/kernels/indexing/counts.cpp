#include "csrc/kernels/indexing/counts.h"

#include <fmt/format.h>

#include <algorithm>

#include "csrc/kernels/core/error.h"

namespace step_oracle::indexing {
namespace {

template <class T>
void count_typed(const CountParams& p) {
  const T* x = static_cast<const T*>(p.x);
  std::fill_n(p.counts, p.bins, std::int64_t{0});
  for (std::int64_t i = 0; i < p.n; ++i) {
    const auto bin = static_cast<std::int64_t>(x[i]);
    if (bin < 0 || bin >= p.bins)
      throw Error(ErrorKind::kBadInput,
                  fmt::format("bincount: element {} is {}; elements of 0 to {} are counted", i, bin, p.bins - 1));
    ++p.counts[bin];
  }
}

}  // namespace

void count(const CountParams& p) {
  // From there on the product of a card's bin would leave 64 bits.
  if (p.n < 0 || p.bins < 0 || p.bins > INT32_MAX)
    throw Error(ErrorKind::kUnsupported,
                fmt::format("bincount: {} elements, {} bins; up to 2^31 - 1 bins are modelled", p.n, p.bins));
  switch (p.type) {
    case DType::kI64: return count_typed<std::int64_t>(p);
    case DType::kI32: return count_typed<std::int32_t>(p);
    case DType::kI16: return count_typed<std::int16_t>(p);
    case DType::kI8: return count_typed<std::int8_t>(p);
    case DType::kU8: return count_typed<std::uint8_t>(p);
    default:
      throw Error(ErrorKind::kBadInput, fmt::format("bincount of {}; integers are counted", name_of(p.type)));
  }
}

}  // namespace step_oracle::indexing
