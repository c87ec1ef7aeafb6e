// Matrix units of every maker against digests of an independent model (tests/gemm/make_unit_digests.py).
#include "csrc/kernels/gemm/units.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "csrc/kernels/arith/convert.h"
#include "csrc/kernels/arith/tf32.h"
#include "csrc/kernels/core/error.h"
#include "csrc/kernels/core/parallel.h"
#include "tests/gemm/adder_inputs.h"
#include "tests/gemm/vdpbf16ps.h"
#include "tests/support/same_bytes.h"

namespace step_oracle::gemm {
namespace {

struct Format {
  int fraction;
  std::int64_t bias, top;
  int bits;
};
Format format_of(const std::string& name) {
  if (name == "bf16") return {7, 127, 255, 16};
  if (name == "f16") return {10, 15, 31, 16};
  if (name == "e4m3") return {3, 7, 15, 8};
  if (name == "e5m2") return {2, 15, 31, 8};
  if (name == "fp8") return {3, 8, 15, 8};
  if (name == "bf8") return {2, 16, 31, 8};
  return {23, 127, 255, 32};  // f32, tf32, xf32
}

// A pattern as a float32, which holds the values of every format.
float value_of(std::uint64_t magnitude, bool negative, const std::string& name, const Format& f) {
  const std::uint32_t sign = negative ? 0x80000000u : 0;
  const auto digits = static_cast<std::uint32_t>(magnitude & ((1u << f.fraction) - 1));
  const auto field = static_cast<std::int64_t>(magnitude >> f.fraction);
  if (name == "tf32" || name == "xf32") return tf32::read(float_of(sign | static_cast<std::uint32_t>(magnitude)));
  if (f.bits == 32) return float_of(sign | static_cast<std::uint32_t>(magnitude));
  if (name == "bf16") return float_of(sign | static_cast<std::uint32_t>(magnitude << 16));
  const bool fnuz = name == "fp8" || name == "bf8";
  if (name == "e4m3" ? magnitude == 0x7f : !fnuz && field == f.top)
    return float_of(sign | 0x7f800000u | (name == "e4m3" || digits ? 0x400000u : 0));
  const float scale = float_of(static_cast<std::uint32_t>((field ? field : 1) - f.bias - f.fraction + 127 + 64) << 23);
  const float value = static_cast<float>(digits + (field ? 1u << f.fraction : 0)) * scale * 0x1p-64f;
  return fnuz && value == 0.0f ? 0.0f : float_of(sign | bits_of(value));
}

struct Row {
  const MatrixUnit& unit;
  std::string a, b, c;
  int k, kind;
  Format fa = format_of(a), fb = format_of(b), fc = format_of(c);
};

std::uint32_t output(const Row& row, std::uint64_t index) {
  const auto value = [&](int i, const std::string& name, const Format& f) {
    const std::uint64_t r =
        mix(mix(index * 128 + static_cast<std::uint64_t>(i)) + static_cast<std::uint64_t>(row.kind));
    return value_of(pattern(r, row.kind, f.fraction, f.bias, f.top), r >> 63, name, f);
  };
  float acc = value(2 * row.k, row.c, row.fc);
  for (int q = 0; q < row.k; q += row.unit.terms) {
    float a[32] = {}, b[32] = {};
    for (int s = 0; s < row.unit.terms && q + s < row.k; ++s)
      a[s] = value(q + s, row.a, row.fa), b[s] = value(row.k + q + s, row.b, row.fb);
    acc = step(row.unit, a, b, acc);
  }
  return acc != acc ? 0x7fffffffu : bits_of(acc);
}

TEST(Units, DigestsOfAnIndependentModel) {
  std::ifstream file(STEP_ORACLE_TEST_DATA "/adder/units.json");
  ASSERT_TRUE(file) << "tests/data/adder/units.json is missing";
  const auto json = nlohmann::json::parse(file);
  const bool whole = std::getenv("STEP_ORACLE_SLOW") != nullptr;  // scripts/check_gemm
  std::int64_t outputs = 0;
  std::set<std::string> seen;
  for (const auto& row : json.at("rows")) {
    const Row r{unit_by_name(row.at("unit").get<std::string>()),
                row.at("a"),
                row.at("b"),
                row.at("c"),
                row.at("k"),
                row.at("kind")};
    const std::int64_t count = whole ? row.at("outputs") : json.at("first");
    std::vector<std::uint32_t> out(static_cast<std::size_t>(count));
    parallel_for(count, 1024, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i)
        out[static_cast<std::size_t>(i)] = output(r, static_cast<std::uint64_t>(i));
    });
    std::uint64_t digest = 0;
    for (std::int64_t i = 0; i < count; ++i)
      digest += mix(out[static_cast<std::size_t>(i)] + (static_cast<std::uint64_t>(i) << 32));
    char text[17];
    std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(digest));
    EXPECT_EQ(row.at(whole ? "digest" : "first"), text) << row.at("instruction") << " kind " << row.at("kind");
    outputs += count;
    seen.insert(r.unit.name);
  }
  std::printf("%lld outputs of %zu units in %zu digests\n", static_cast<long long>(outputs), seen.size(),
              json.at("rows").size());
  // These have their digests in mmasim.json, or one instruction's rule under a second name.
  for (const char* elsewhere : {"nv-turing-f16", "nv-ampere-bf16", "nv-ampere-f16"}) seen.insert(elsewhere);
  for (const MatrixUnit& u : all_units()) {
    const bool must = std::string(u.source).starts_with("mmasim");
    EXPECT_TRUE(!must || seen.contains(u.name)) << u.name << " has no digest";
  }
}

float random_bf16(std::uint64_t r, int kind) {
  return convert::from_bf16(static_cast<std::uint16_t>(pattern(r, kind, 7, 127, 255) | r >> 63 << 15));
}

// On a CPU that has the instruction: this is the probe that the row's grade names.
TEST(Units, Vdpbf16psAsTheCpuComputesIt) {
  if (!test::has_vdpbf16ps()) {
    std::printf("NOT RUN: this CPU has no AVX512_BF16\n");
    GTEST_SKIP() << "this CPU has no AVX512_BF16";
  }
  const MatrixUnit& unit = unit_by_name("x86-vdpbf16ps");
  std::int64_t outputs = 0;
  for (int kind = 0; kind <= kSpread; ++kind)
    for (std::uint64_t i = 0; i < 20000; ++i) {
      float a[2], b[2];
      for (int s = 0; s < 2; ++s) {
        a[s] =
            random_bf16(mix(i * 8 + static_cast<std::uint64_t>(s) + static_cast<std::uint64_t>(kind) * 1000003), kind);
        b[s] = random_bf16(mix(i * 8 + 2 + static_cast<std::uint64_t>(s) + static_cast<std::uint64_t>(kind) * 1000003),
                           kind);
      }
      const std::uint64_t r = mix(i * 8 + 4 + static_cast<std::uint64_t>(kind) * 1000003);
      const float acc = float_of(static_cast<std::uint32_t>(pattern(r, kind, 23, 127, 255) | r >> 63 << 31));
      const float cpu = test::vdpbf16ps(a, b, acc), ours = step(unit, a, b, acc);
      const std::uint32_t expected = cpu != cpu ? 0x7fc00000u : bits_of(cpu);
      ASSERT_EQ(expected, bits_of(ours)) << std::hex << "kind " << kind << " a " << bits_of(a[0]) << ' '
                                         << bits_of(a[1]) << " b " << bits_of(b[0]) << ' ' << bits_of(b[1]) << " acc "
                                         << bits_of(acc);
      ++outputs;
    }
  std::printf("%lld outputs of VDPBF16PS\n", static_cast<long long>(outputs));
}

TEST(Units, RoundToOddAndTileChains) {
  const MatrixUnit& arm = unit_by_name("arm-bfdot");
  const float one[2] = {1.0f, 0x1p-30f}, ones[2] = {1.0f, 1.0f};
  EXPECT_EQ(bits_of(step(arm, one, ones, 0.0f)), 0x3f800001u) << "1 + 2^-30 becomes odd";
  EXPECT_EQ(step(arm, ones, ones, 1.0f), 3.0f);
  const float tiny[2] = {0x1p-100f, 0.0f};
  EXPECT_EQ(bits_of(step(arm, tiny, tiny, 0.0f)), 0u) << "subnormal products are flushed";
  const MatrixUnit& amx = unit_by_name("x86-amx-bf16");
  float a[32] = {}, b[32];
  for (float& x : b) x = 1.0f;
  a[0] = 0x1p24f, a[1] = 1.0f, a[3] = 1.0f;
  EXPECT_EQ(step(amx, a, b, 0.0f), 0x1p24f + 2.0f) << "the odd chain is added as a whole";
  EXPECT_EQ(step(unit_by_name("apple-bf16"), ones, ones, 2.0f), 3.0f);
}

TEST(Units, ProductsAndRefusals) {
  const MatrixUnit& unit = unit_by_name("amd-cdna3-bf16");
  const float a[6] = {1, 2, 3, 4, 5, 6}, b[6] = {1, 0, 0, 1, 1, 1};
  float d[4];
  UnitParams p{2, 2, 3, a, b, nullptr, d};
  run(unit, p);
  EXPECT_EQ(std::vector<float>(d, d + 4), (std::vector<float>{4, 5, 10, 11}));
  const float wide[6] = {1.001f, 2, 3, 4, 5, 6};
  p.a = wide;
  EXPECT_THROW(run(unit, p), Error) << "1.001 is no bfloat16";
  EXPECT_THROW(unit_by_name("vendor-x"), Error);
}

}  // namespace
}  // namespace step_oracle::gemm
