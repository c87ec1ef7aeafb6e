#include "csrc/kernels/random/multinomial.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "csrc/kernels/arith/convert.h"
#include "csrc/kernels/core/bits.h"
#include "csrc/kernels/core/error.h"
#include "csrc/kernels/reduce/reduce.h"
#include "tests/support/same_bytes.h"

namespace step_oracle {
namespace {

using Bytes = std::vector<std::uint8_t>;
using Indices = std::vector<std::int64_t>;
constexpr DType kTypes[] = {DType::kF32, DType::kBF16, DType::kF16};
const random::Stream kStream{0x123456789abcdefull, 8, 108, 2048, 80};

Bytes probabilities(DType type, std::int64_t n, std::mt19937& rng) {
  const std::size_t size = size_of(type);
  Bytes out(static_cast<std::size_t>(n) * size);
  for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i) {
    const float x = rng() % 5 == 0 ? 0.0f : static_cast<float>(rng() >> 8) * 0x1p-24f;
    const std::uint32_t word = type == DType::kF32    ? bits_of(x)
                               : type == DType::kBF16 ? convert::to_bf16(x)
                                                      : convert::to_fp16(x);
    std::memcpy(out.data() + i * size, &word, size);
  }
  return out;
}

struct Case {
  std::int64_t rows, cols, samples;
};
// more rows than a grid has; ragged warps; more elements than threads
constexpr Case kCases[] = {{2, 1, 3},  {3, 31, 129}, {2, 33, 128},  {5, 1000, 40},
                           {4, 1024, 7}, {3, 2500, 260}, {65540, 2, 1}};

TEST(Multinomial, BodyEqualsDefinition) {
  std::mt19937 rng(31);
  for (const auto& [rows, cols, samples] : kCases)
    for (const DType type : kTypes) {
      SCOPED_TRACE(std::to_string(rows) + "x" + std::to_string(cols) + " " + std::string(name_of(type)));
      Bytes given = probabilities(type, rows * cols, rng);
      for (std::int64_t row = 0; row < rows; ++row) {  // every row has a last element above 0
        const std::uint32_t one = type == DType::kF32 ? 0x3f800000u : type == DType::kBF16 ? 0x3f80u : 0x3c00u;
        const std::size_t size = size_of(type);
        std::memcpy(given.data() + static_cast<std::size_t>((row + 1) * cols - 1) * size, &one, size);
      }
      Bytes dist = given, sums(given.size());
      random::ref::normalise({type, rows, cols, dist.data()});
      reduce::scan({type, type, rows, cols, 1, dist.data(), sums.data()});
      Indices want(static_cast<std::size_t>(rows * samples)), got(want.size());
      const auto advance = random::ref::multinomial(
          kStream, {type, rows, cols, samples, dist.data(), sums.data(), want.data()});
      EXPECT_EQ(advance, rows > 65535 ? 8u : 4u);
      test::for_each_isa_and_threads([&] {
        Bytes mine = given;
        random::normalise({type, rows, cols, mine.data()});
        EXPECT_SAME_BYTES(dist.data(), mine.data(), static_cast<std::int64_t>(mine.size()));
        EXPECT_EQ(random::multinomial(kStream, {type, rows, cols, samples, dist.data(), sums.data(), got.data()}),
                  advance);
        EXPECT_SAME_BYTES(want.data(), got.data(), static_cast<std::int64_t>(got.size()));
      });
    }
}

TEST(Multinomial, RefusesWhatTheKernelsAssert) {
  float negative[] = {0.5f, -0.25f}, nothing[] = {0.0f, 0.0f}, sums[] = {0.0f, 0.0f};
  std::int64_t out[2];
  EXPECT_THROW(random::normalise({DType::kF32, 1, 2, negative}), Error);
  EXPECT_THROW(random::multinomial(kStream, {DType::kF32, 1, 2, 2, nothing, sums, out}), Error);
  EXPECT_THROW(random::normalise({DType::kF64, 1, 2, nothing}), Error);
  EXPECT_THROW(random::normalise({DType::kF32, -1, 2, nothing}), Error);
  EXPECT_EQ(random::multinomial(kStream, {DType::kF32, 1, 2, 0, nothing, sums, out}), 0u);
}

// Other readings of the sum of a row: would the quotients show them?
using Fold = std::function<float(const float* p, std::int64_t n)>;
float fold(std::vector<float> v, bool upwards) {
  const std::size_t n = v.size();
  for (std::size_t o = upwards ? 1 : n / 2; o > 0 && o < n; o = upwards ? o * 2 : o / 2)
    for (std::size_t i = 0; i + o < n; i += upwards ? 2 * o : 1) {
      if (!upwards && i >= o) break;
      v[i] = v[i] + v[i + o];
    }
  return v[0];
}
std::vector<float> thread_sums(const float* p, std::int64_t n, std::size_t threads) {
  std::vector<float> sum(threads, 0.0f);
  for (std::int64_t i = 0; i < n; ++i) sum[static_cast<std::size_t>(i) % threads] += p[i];
  return sum;
}
const Fold kMutants[] = {
    [](const float* p, std::int64_t n) {  // in order
      float sum = 0.0f;
      for (std::int64_t i = 0; i < n; ++i) sum = sum + p[i];
      return sum;
    },
    [](const float* p, std::int64_t n) { return fold(thread_sums(p, n, 512), false); },   // half the threads
    [](const float* p, std::int64_t n) { return fold(thread_sums(p, n, 1024), true); },   // the tree upwards
    [](const float* p, std::int64_t n) { return fold(thread_sums(p, n, 1024), false); },  // halves of the block
    [](const float* p, std::int64_t n) {                                                  // rounded once
      double sum = 0.0;
      for (std::int64_t i = 0; i < n; ++i) sum = sum + static_cast<double>(p[i]);
      return static_cast<float>(sum);
    },
};

TEST(MultinomialMutations, TheQuotientsNotice) {
  std::mt19937 rng(32);
  const std::int64_t rows = 40, cols = 3000;
  const Bytes given = probabilities(DType::kF32, rows * cols, rng);
  Bytes want = given;
  random::normalise({DType::kF32, rows, cols, want.data()});
  int killed = 0;
  for (const Fold& mutant : kMutants) {
    Bytes got = given;
    auto* p = reinterpret_cast<float*>(got.data());
    for (std::int64_t r = 0; r < rows; ++r) {
      const float sum = mutant(p + r * cols, cols);
      for (std::int64_t i = 0; i < cols; ++i) p[r * cols + i] = p[r * cols + i] / sum;
    }
    EXPECT_NE(want, got) << "mutant " << killed;
    killed += want != got;
  }
  std::printf("mutation score: %d of %zu\n", killed, std::size(kMutants));
}

}  // namespace
}  // namespace step_oracle
