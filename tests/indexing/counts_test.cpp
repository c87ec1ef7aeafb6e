#include "csrc/kernels/indexing/counts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "csrc/kernels/core/error.h"

namespace step_oracle {
namespace {

using Counts = std::vector<std::int64_t>;

TEST(Counts, BodyEqualsDefinition) {
  std::mt19937 rng(41);
  for (const DType type : {DType::kI64, DType::kI32, DType::kI16, DType::kI8, DType::kU8})
    for (const std::int64_t n : {0, 1, 77, 3000})
      for (const std::int64_t bins : {1, 7, 100, 128}) {
        SCOPED_TRACE(std::string(name_of(type)) + " " + std::to_string(n) + " in " + std::to_string(bins));
        const std::size_t size = size_of(type);
        std::vector<std::uint8_t> x(static_cast<std::size_t>(n) * size);
        for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i) {
          const std::int64_t value = static_cast<std::int64_t>(rng()) % bins;
          std::memcpy(x.data() + i * size, &value, size);  // little-endian
        }
        Counts want(static_cast<std::size_t>(bins), -1), got(want);
        indexing::ref::count({type, n, bins, x.data(), want.data()});
        indexing::count({type, n, bins, x.data(), got.data()});
        EXPECT_EQ(want, got);
        if (n == 3000 && bins > 1) {  // mutants: a bin off by one, an element lost
          std::int64_t first = 0;
          std::memcpy(&first, x.data(), size);
          Counts shifted(got), lost(got);
          std::rotate(shifted.begin(), shifted.begin() + 1, shifted.end());
          --lost[static_cast<std::size_t>(first)];
          EXPECT_NE(want, shifted);
          EXPECT_NE(want, lost);
        }
      }
}

TEST(Counts, RefusesWhatHasNoBin) {
  const std::int64_t negative[] = {0, -1}, far[] = {0, 3};
  std::int64_t counts[3];
  EXPECT_THROW(indexing::count({DType::kI64, 2, 3, negative, counts}), Error);
  EXPECT_THROW(indexing::count({DType::kI64, 2, 3, far, counts}), Error);
  EXPECT_THROW(indexing::count({DType::kF32, 2, 3, far, counts}), Error);
  EXPECT_THROW(indexing::count({DType::kI64, 2, std::int64_t{1} << 31, far, counts}), Error);
}

}  // namespace
}  // namespace step_oracle
