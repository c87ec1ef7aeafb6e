#include "csrc/kernels/gemm/tensor_core.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "csrc/kernels/arith/convert.h"
#include "csrc/kernels/core/error.h"
#include "tests/support/same_bytes.h"

namespace step_oracle::gemm {
namespace {

const char* name_of(AdderClass adder) {
  return adder == AdderClass::kTuring ? "Turing" : adder == AdderClass::kHopper ? "Hopper" : "FmaChain";
}

enum class Data { kNormal, kWide, kTiny, kHuge, kSparse, kCancelling, kSpecial, kAnyBits, kSmall, kCount };

std::uint16_t draw16(std::mt19937& gen, DType type, Data kind) {
  std::normal_distribution<float> normal;
  const bool bf16 = type == DType::kBF16;
  const auto narrow = [&](float x) { return bf16 ? convert::to_bf16(x) : convert::to_fp16(x); };
  const float x = normal(gen);
  switch (kind) {
    case Data::kWide:
      return narrow(std::ldexp(x, static_cast<int>(gen() % (bf16 ? 150 : 30)) - (bf16 ? 90 : 20)));
    case Data::kTiny:
      return gen() % 3 ? narrow(std::ldexp(x, bf16 ? -126 : -20)) : static_cast<std::uint16_t>(gen() & 0x807f);
    case Data::kSmall:  // times kTiny: results that are subnormal float32, exponent bytes of 0
      return narrow(std::ldexp(x, -12));
    case Data::kHuge:
      return narrow(std::ldexp(x, bf16 ? 62 : 14));
    case Data::kSparse:
      return gen() % 8 ? static_cast<std::uint16_t>(gen() & 0x8000) : narrow(x);
    case Data::kCancelling:
      return narrow(static_cast<float>(static_cast<int>(gen() % 5) - 2) * (gen() % 9 ? 1.0f : 0x1p-9f));
    case Data::kSpecial: {
      const std::uint16_t inf = bf16 ? 0x7f80 : 0x7c00,
                          patterns[] = {inf, static_cast<std::uint16_t>(inf | 0x8000), 0x7fff, 0, 0x8000};
      return gen() % 400 ? narrow(x) : patterns[gen() % 5];
    }
    case Data::kAnyBits:
      return static_cast<std::uint16_t>(gen());
    default:
      return narrow(x);
  }
}

// TF32 factors are bfloat16 patterns with more bits below.
std::uint32_t draw(std::mt19937& gen, DType type, Data kind) {
  if (type != DType::kF32) return draw16(gen, type, kind);
  const std::uint32_t upper = draw16(gen, DType::kBF16, kind);
  const bool whole = kind == Data::kCancelling || upper == 0 || (kind == Data::kSpecial && gen() % 8);
  return upper << 16 | (whole ? 0u : gen() & 0xffffu);
}

struct Problem {
  TensorCoreParams p;
  std::vector<std::uint16_t> a, b, c16, d16;  // a and b: two words a factor for TF32
  std::vector<float> c32, d32;

  Problem(std::mt19937& gen, std::int64_t m, std::int64_t n, std::int64_t k, std::int64_t batch, DType type,
          AdderClass adder, Data kind_a, Data kind_b, bool float_result = false) {
    float_result |= type == DType::kF32;
    p.m = m, p.n = n, p.k = k, p.batch = batch, p.factors = type, p.adder = adder;
    p.rounds_tf32 = gen() % 2;
    const auto strides = [&](std::int64_t rows, std::int64_t cols) {
      const std::int64_t line_gap = gen() % 3;
      return gen() % 2 ? Strides{cols + line_gap, 1, rows * (cols + line_gap)}
                       : Strides{1, rows + line_gap, (rows + line_gap) * cols};
    };
    p.a_strides = strides(m, k), p.b_strides = strides(k, n), p.c_strides = strides(m, n), p.d_strides = strides(m, n);
    fill(gen, a, batch * p.a_strides.batch + 1, kind_a);
    fill(gen, b, batch * p.b_strides.batch + 1, kind_b);
    p.a = a.data(), p.b = b.data();
    const auto size = static_cast<std::size_t>(batch * std::max(p.c_strides.batch, p.d_strides.batch) + 1);
    p.results = float_result ? DType::kF32 : type;
    c16.resize(size), d16.assign(size, 0x1234), c32.resize(size), d32.assign(size, -7.0f);
    for (auto& x : c16) x = draw16(gen, type, Data::kNormal);
    for (auto& x : c32) x = static_cast<float>(gen() % 1000) * 0.01f;
    p.c = float_result ? static_cast<const void*>(c32.data()) : c16.data();
    p.d = float_result ? static_cast<void*>(d32.data()) : d16.data();
  }

  void fill(std::mt19937& gen, std::vector<std::uint16_t>& v, std::int64_t count, Data kind) {
    v.resize(static_cast<std::size_t>(count) * size_of(p.factors) / 2);
    for (std::int64_t i = 0; i < count; ++i) put(v, i, draw(gen, p.factors, kind));
  }
  void put(std::vector<std::uint16_t>& v, std::int64_t i, std::uint32_t pattern) {
    const std::size_t bytes = size_of(p.factors);
    std::memcpy(reinterpret_cast<std::byte*>(v.data()) + static_cast<std::size_t>(i) * bytes, &pattern, bytes);
  }
};

void expect_body_equals_ref(Problem& q) {
  const auto start16 = q.d16;
  const auto start32 = q.d32;
  ref::tensor_core(q.p);
  const auto expected16 = q.d16;
  const auto expected32 = q.d32;
  test::for_each_isa_and_threads([&] {
    q.d16 = start16, q.d32 = start32;
    tensor_core(q.p);
    const auto where = testing::Message()
                       << "m " << q.p.m << " n " << q.p.n << " k " << q.p.k << ' ' << name_of(q.p.factors)
                       << ' ' << name_of(q.p.adder);
    ASSERT_SAME_BYTES(expected16.data(), q.d16.data(), static_cast<std::int64_t>(expected16.size())) << where;
    ASSERT_SAME_BYTES(expected32.data(), q.d32.data(), static_cast<std::int64_t>(expected32.size())) << where;
  });
}

class TensorCore : public testing::TestWithParam<std::tuple<DType, AdderClass>> {};

TEST_P(TensorCore, BodyEqualsRefOnEveryKindOfData) {
  const auto [type, adder] = GetParam();
  std::mt19937 gen(1);
  for (int i = 0; i < static_cast<int>(Data::kCount); ++i)
    for (int j = 0; j < static_cast<int>(Data::kCount); ++j) {
      Problem q(gen, 1 + gen() % 7, 1 + gen() % 90, gen() % 5 ? 1 + gen() % 70 : gen() % 600, 1 + gen() % 2, type,
                adder, static_cast<Data>(i), static_cast<Data>(j), gen() % 2);
      switch (gen() % 4) {
        case 0:
          q.p.bias = q.p.c;
          break;
        case 1:
          q.p.beta = 1.0f;
          break;
        case 2:
          q.p.alpha = 0.3f, q.p.beta = -0.7f;
          break;
        default:
          break;
      }
      if (q.p.beta != 0 && gen() % 3 == 0) q.p.c = q.p.d, q.p.c_strides = q.p.d_strides;
      expect_body_equals_ref(q);
      if (HasFatalFailure()) return;
    }
}

TEST_P(TensorCore, BodyEqualsRefAcrossBlocks) {
  const auto [type, adder] = GetParam();
  std::mt19937 gen(2);
  const std::int64_t shapes[][3] = {{33, 200, 300}, {1030, 5, 20},  {3, 500, 40},  {1, 1, 700},
                                    {5, 64, 0},     {64, 128, 256}, {520, 390, 40}};
  for (const auto& s : shapes) {
    Problem q(gen, s[0], s[1], s[2], 1, type, adder, Data::kNormal, s[1] == 200 ? Data::kSpecial : Data::kNormal);
    expect_body_equals_ref(q);
    if (HasFatalFailure()) return;
  }
}

// A lower triangle, as causal attention has it: whole groups of zeros beside very small weights.
TEST_P(TensorCore, BodyEqualsRefOnATriangle) {
  const auto [type, adder] = GetParam();
  std::mt19937 gen(3);
  Problem q(gen, 70, 64, 70, 1, type, adder, Data::kTiny, Data::kNormal, true);
  for (std::int64_t i = 0; i < 70; ++i)
    for (std::int64_t k = i + 1; k < 70; ++k) q.put(q.a, i * q.p.a_strides.row + k * q.p.a_strides.col, 0);
  expect_body_equals_ref(q);
}

// An accumulator just below 2 and then sixteen products just below 4: the int32 sum of the fast form wraps.
TEST_P(TensorCore, SumsThatWouldWrap) {
  const auto [type, adder] = GetParam();
  std::mt19937 gen(4);
  Problem q(gen, 4, 70, 32, 1, type, adder, Data::kNormal, Data::kNormal, true);
  const auto up = [&](std::uint32_t h) { return type == DType::kF32 ? h << 16 | (h == 0x3fff ? 0xe000u : 0u) : h; };
  const std::uint32_t most = up(0x3fff), one = up(type == DType::kF16 ? 0x3c00 : 0x3f80);  // most: 2 less one place
  const std::uint32_t minus = type == DType::kF32 ? 0x80000000u : 0x8000u;
  for (std::int64_t i = 0; i < 4; ++i)
    for (std::int64_t k = 0; k < 32; ++k)  // the sign of a whole row: to either end
      q.put(q.a, i * q.p.a_strides.row + k * q.p.a_strides.col, k == 0 || k >= 16 ? most | (i % 2 ? minus : 0) : 0);
  for (std::int64_t k = 0; k < 32; ++k)
    for (std::int64_t j = 0; j < 70; ++j)
      q.put(q.b, k * q.p.b_strides.row + j * q.p.b_strides.col, k == 0 ? one : most);
  expect_body_equals_ref(q);
}

// Products below 2^-126 whose sum float32 still holds: their exponent bytes are 0, as a zero's is.
TEST_P(TensorCore, SubnormalSums) {
  const auto [type, adder] = GetParam();
  std::mt19937 gen(5);
  Problem q(gen, 5, 70, 40, 1, type, adder, Data::kTiny, Data::kSmall, true);
  expect_body_equals_ref(q);
  if (type == DType::kBF16) {
    EXPECT_NE(q.d32[0], 0.0f);
  }
}

// Quick: a sample. scripts/check_gemm asks for ten million outputs.
TEST_P(TensorCore, ManyOutputs) {
  const auto [type, adder] = GetParam();
  const std::int64_t target = std::getenv("STEP_ORACLE_SLOW") ? 10'000'000 : 40'000;
  std::mt19937 gen(6);
  std::int64_t outputs = 0;
  while (outputs < target) {
    const auto kind = [&] {
      return gen() % 2 ? Data::kNormal : static_cast<Data>(gen() % static_cast<int>(Data::kCount));
    };
    Problem q(gen, 1 + gen() % 96, 1 + gen() % 200, 1 + gen() % 40, 1, type, adder, kind(), kind(), gen() % 2);
    expect_body_equals_ref(q);
    if (HasFatalFailure()) return;
    outputs += q.p.m * q.p.n;
  }
  std::printf("%lld outputs of %s, %s\n", static_cast<long long>(outputs), name_of(type), name_of(adder));
}

INSTANTIATE_TEST_SUITE_P(All, TensorCore,
                         testing::Combine(testing::Values(DType::kBF16, DType::kF16, DType::kF32),
                                          testing::Values(AdderClass::kTuring, AdderClass::kHopper,
                                                          AdderClass::kFmaChain)),
                         [](const auto& info) {
                           return std::string(name_of(std::get<0>(info.param))) + name_of(std::get<1>(info.param));
                         });

TEST(AdderClassOf, CardsOfEachKindAndRefusals) {
  EXPECT_EQ(adder_class(75, DType::kF16), AdderClass::kTuring);
  EXPECT_EQ(adder_class(89, DType::kBF16), AdderClass::kTuring);
  EXPECT_EQ(adder_class(90, DType::kBF16), AdderClass::kHopper);
  EXPECT_EQ(adder_class(75, DType::kBF16), AdderClass::kFmaChain);
  EXPECT_THROW(adder_class(70, DType::kBF16), Error);
  EXPECT_EQ(adder_class(80, DType::kF32), AdderClass::kTuring);
  EXPECT_THROW(adder_class(75, DType::kF32), Error);
  EXPECT_THROW(adder_class(70, DType::kF16), Error);
}

}  // namespace
}  // namespace step_oracle::gemm
