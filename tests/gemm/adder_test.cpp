// The adder against digests of an independent model's outputs (tests/gemm/make_adder_digests.py says how they were
// made).
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

#include "csrc/kernels/arith/dot_add.h"
#include "csrc/kernels/core/parallel.h"
#include "tests/gemm/adder_inputs.h"

namespace step_oracle {
namespace {

template <class Format>
std::uint32_t output(std::uint64_t index, int kind, int k, Adder adder) {
  const auto random = [&](int i) {
    return mix(mix(index * 64 + static_cast<std::uint64_t>(i)) + static_cast<std::uint64_t>(kind));
  };
  std::uint16_t factors[32];
  for (int i = 0; i < 2 * k; ++i) {
    const std::uint64_t r = random(i);
    factors[i] = static_cast<std::uint16_t>(pattern(r, kind, Format::kFraction, Format::kBias, Format::kExponentMask) |
                                            r >> 63 << 15);
  }
  const std::uint64_t r = random(2 * k);
  float acc = float_of(static_cast<std::uint32_t>(pattern(r, kind, 23, 127, 255) | r >> 63 << 31));
  for (int q = 0; q < k; q += adder.terms)
    acc = dot_add<Format>(factors + q, 1, factors + k + q, 1, std::min(adder.terms, k - q), acc, adder);
  return bits_of(acc);
}

TEST(DotAdd, DigestsOfAnIndependentModel) {
  std::ifstream file(STEP_ORACLE_TEST_DATA "/adder/mmasim.json");
  ASSERT_TRUE(file) << "tests/data/adder/mmasim.json is missing";
  const auto json = nlohmann::json::parse(file);
  const auto count = json.at("outputs_per_digest").get<std::int64_t>();
  std::int64_t outputs = 0;
  for (const auto& row : json.at("rows")) {
    const Adder adder = row.at("adder") == "turing" ? kAdderTuring : kAdderHopper;
    const int kind = row.at("kind"), k = row.at("k");
    const bool bf16 = row.at("factors") == "bf16";
    std::vector<std::uint32_t> out(static_cast<std::size_t>(count));
    parallel_for(count, 1024, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i)
        out[static_cast<std::size_t>(i)] = bf16 ? output<Bf16Format>(static_cast<std::uint64_t>(i), kind, k, adder)
                                                : output<Fp16Format>(static_cast<std::uint64_t>(i), kind, k, adder);
    });
    std::uint64_t digest = 0;
    for (std::int64_t i = 0; i < count; ++i)
      digest += mix(out[static_cast<std::size_t>(i)] + (static_cast<std::uint64_t>(i) << 32));
    char text[17];
    std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(digest));
    EXPECT_EQ(row.at("digest"), text) << row.at("instruction") << " kind " << kind;
    outputs += count;
  }
  std::printf("%lld outputs in %zu digests\n", static_cast<long long>(outputs), json.at("rows").size());
  EXPECT_GE(outputs, 10'000'000);
}

TEST(DotAdd, TruncatesTowardZeroAndAlignsToUnnormalisedProducts) {
  const auto bf16 = [](float x) { return static_cast<std::uint16_t>(bits_of(x) >> 16); };
  // 1.5 * 1.5 = 2.25 counts with exponent 0: a 2^-24 beside it keeps its bit, where exponent 1 would drop it.
  const std::uint16_t a[] = {bf16(1.5f), bf16(-1.5f), bf16(0x1p-12f)}, b[] = {bf16(1.5f), bf16(1.5f), bf16(0x1p-12f)};
  EXPECT_EQ(dot_add<Bf16Format>(a, 1, b, 1, 3, 0.0f, kAdderTuring), 0x1p-24f);
  EXPECT_EQ(dot_add<Bf16Format>(a, 2, b, 2, 2, 0.0f, kAdderTuring), 2.25f) << "the last bit is cut, not rounded";
  // 2^-25 lies below the 24 bits of Turing, within the 25 of Hopper.
  const std::uint16_t c[] = {bf16(1.0f), bf16(0x1p-12f)}, d[] = {bf16(1.0f), bf16(0x1p-13f)};
  EXPECT_EQ(dot_add<Bf16Format>(c, 1, d, 1, 2, -1.0f, kAdderTuring), 0.0f);
  EXPECT_EQ(dot_add<Bf16Format>(c, 1, d, 1, 2, -1.0f, kAdderHopper), 0x1p-25f);
}

TEST(DotAdd, SpecialValues) {
  const std::uint16_t inf = 0x7f80, minus_inf = 0xff80, one = 0x3f80, zero = 0, minus_zero = 0x8000;
  const auto bits = [](std::uint16_t x, std::uint16_t y, float acc) {
    return bits_of(dot_add<Bf16Format>(&x, 1, &y, 1, 1, acc, kAdderTuring));
  };
  EXPECT_EQ(bits(inf, one, 1.0f), 0x7f800000u);
  EXPECT_EQ(bits(minus_inf, one, -1.0f), 0xff800000u);
  EXPECT_EQ(bits(inf, zero, 1.0f), 0x7fffffffu);
  EXPECT_EQ(bits(inf, one, float_of(0xff800000u)), 0x7fffffffu);
  EXPECT_EQ(bits(minus_zero, one, -0.0f), 0u) << "a zero result is +0";
  EXPECT_EQ(bits(0x7f7f, 0x7f7f, 0.0f), 0x7f800000u) << "beyond float32";
}

}  // namespace
}  // namespace step_oracle
