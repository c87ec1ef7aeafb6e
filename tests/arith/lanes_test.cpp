// The adder in lanes gives the scalar adder's bytes under every instruction set; TF32's conversions.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "csrc/kernels/arith/convert.h"
#include "csrc/kernels/arith/dot_add_lanes.h"
#include "csrc/kernels/arith/tf32.h"
#include "tests/arith/lanes_body.h"
#include "tests/support/same_bytes.h"

namespace step_oracle {
namespace {

// Kinds of data: ordinary, wide exponents, cancelling, subnormal products, near the top, special, sparse, any bits.
constexpr int kKinds = 8;

float factor(std::mt19937& gen, int kind, int format) {
  const std::uint32_t r = gen();
  float x = std::ldexp(1.0f + static_cast<float>(r & 0xffffff) * 0x1p-24f, static_cast<int>(r >> 28) % 7 - 3);
  const int e = static_cast<int>(gen() % 256);
  switch (kind) {
    case 1:
      x = float_of(bits_of(x) % 0x800000u | static_cast<std::uint32_t>(e % 250 + 1) << 23);
      break;
    case 2:
      x = e % 2 ? 1.0f : 1.5f;
      break;
    case 3:
      x = std::ldexp(x, (format == 2 ? -18 : -66) - e % 8);
      break;
    case 4:
      x = std::ldexp(x, (format == 2 ? 9 : 60) + e % 4);
      break;
    case 5:
      if (e % 24 == 0) x = float_of(e % 48 ? 0x7f800000u : 0x7fc00000u);
      break;
    case 6:
      if (e % 4) x = 0.0f;
      break;
    case 7:
      x = float_of(gen());
      break;
    default:
      break;
  }
  if (gen() % 2) x = -x;
  if (format == 0) return tf32::read(x);
  if (format == 1) return convert::from_bf16(convert::to_bf16(x));
  return convert::from_fp16(convert::to_fp16(x));
}

template <class Format>
float scalar_chain(const float* a, const float* b, std::int64_t depth, float acc, Adder adder) {
  const int terms = adder_for(adder, Format::kBytes).terms;
  for (std::int64_t q = 0; q < depth; q += terms) {
    typename Format::Storage x[16], y[16];
    for (int s = 0; s < terms; ++s) {
      x[s] = lanes::detail::pattern_of<Format>(a[q + s]);
      y[s] = lanes::detail::pattern_of<Format>(b[(q + s) * kTestLanes]);
    }
    acc = dot_add<Format>(x, 1, y, 1, terms, acc, adder);
  }
  return acc;
}

TEST(DotAddLanes, GivesTheScalarAddersBytes) {
  std::mt19937 gen(7);
  std::int64_t outputs = 0;
  for (int round = 0; round < 40; ++round)
    for (int kind = 0; kind < kKinds; ++kind)
      for (int format = 0; format < 3; ++format) {
        const std::int64_t depth = 16 * (1 + round % 4);
        std::vector<float> a(depth), b(depth * kTestLanes), start(kTestLanes), expected(kTestLanes), actual;
        for (auto& x : a) x = factor(gen, kind, format);
        for (auto& x : b) x = factor(gen, round % 3 ? kind : 0, format);
        for (auto& x : start) x = round % 2 ? 0.0f : factor(gen, kind, 0);
        if (round % 5 == 0) std::fill(a.begin(), a.begin() + 16, 0.0f);
        for (bool hopper : {false, true}) {
          const Adder adder = hopper ? kAdderHopper : kAdderTuring;
          for (int j = 0; j < kTestLanes; ++j)
            expected[j] = format == 0   ? scalar_chain<Tf32Format>(a.data(), b.data() + j, depth, start[j], adder)
                          : format == 1 ? scalar_chain<Bf16Format>(a.data(), b.data() + j, depth, start[j], adder)
                                        : scalar_chain<Fp16Format>(a.data(), b.data() + j, depth, start[j], adder);
          test::for_each_isa_and_threads([&] {
            actual = start;
            SO_BODY(lanes_body).chain(format, hopper, depth, a.data(), b.data(), actual.data());
            ASSERT_SAME_BYTES(expected.data(), actual.data(), kTestLanes)
                << "kind " << kind << " format " << format << " hopper " << hopper << " round " << round;
          });
          outputs += kTestLanes;
        }
      }
  std::printf("%lld outputs\n", static_cast<long long>(outputs));
  EXPECT_GT(outputs, 50000);
}

TEST(Tf32, WhatTheTensorCoreReads) {
  EXPECT_EQ(bits_of(tf32::read(float_of(0x3f801fffu))), 0x3f800000u) << "the lower 13 bits are dropped";
  EXPECT_EQ(bits_of(tf32::read(float_of(0xbf803fffu))), 0xbf802000u) << "toward zero";
  EXPECT_EQ(bits_of(tf32::read(float_of(0x7f800001u))), 0x7f800000u) << "a NaN with a small payload";
  EXPECT_EQ(bits_of(tf32::round_half_up(float_of(0x3f801000u))), 0x3f802000u) << "half away from zero";
  EXPECT_EQ(bits_of(tf32::round_half_up(float_of(0xbf800fffu))), 0xbf800000u);
  EXPECT_EQ(bits_of(tf32::round_half_up(float_of(0x7f7fffffu))), 0x7f800000u) << "beyond the format";
  EXPECT_EQ(bits_of(tf32::round_half_up(float_of(0xff800000u))), 0xff800000u);
  EXPECT_EQ(bits_of(tf32::round_half_up(float_of(0xff800001u))), 0x7fffffffu);
}

TEST(Tf32, ThreeProductsSplit) {
  const float x = float_of(0x3f801803u);  // 1 + 2^-11 + 2^-12 + 2^-22 + 2^-23
  const tf32::Split s = tf32::split(x);
  EXPECT_EQ(s.big, 1.0f);
  EXPECT_EQ(s.small, float_of((bits_of(x - 1.0f) + 0x1000u) & 0xffffe000u));
  EXPECT_EQ(tf32::split(float_of(0x3f800800u)).small, 0x1p-12f) << "what fits is kept";
  const tf32::Split inf = tf32::split(float_of(0x7f800000u));
  EXPECT_EQ(bits_of(inf.big), 0x7f800000u);
  EXPECT_TRUE(std::isnan(inf.small)) << "inf - inf";
}

TEST(DotAdd, Tf32TakesHalfAsManyFactorsAndIgnoresTheLowerBits) {
  EXPECT_EQ(adder_for(kAdderTuring, 4).terms, 4);
  EXPECT_EQ(adder_for(kAdderHopper, 4).terms, 8);
  EXPECT_EQ(adder_for(kAdderHopper, 1).terms, 32);
  const std::uint32_t a = 0x3f801fffu, b = 0x3f800000u;
  EXPECT_EQ(dot_add<Tf32Format>(&a, 1, &b, 1, 1, 0.0f, adder_for(kAdderTuring, 4)), 1.0f);
}

TEST(DotAdd, Fp8ResultsKeep13BitsAndE4m3HasNoInfinity) {
  const std::uint8_t one = 0x38, most = 0x7e, nan = 0x7f;  // e4m3: 1, 448, NaN
  const Adder ada = adder_for(with_13_bits(kAdderTuring), 1);
  EXPECT_EQ(ada.terms, 16);
  EXPECT_EQ(dot_add<E4m3Format>(&one, 1, &one, 1, 1, 0x1p-13f, ada), 1.0f + 0x1p-13f);
  EXPECT_EQ(dot_add<E4m3Format>(&one, 1, &one, 1, 1, 0x1p-14f, ada), 1.0f) << "below the 13 bits";
  EXPECT_EQ(dot_add<E4m3Format>(&most, 1, &most, 1, 1, 0.0f, ada), 200704.0f);
  EXPECT_EQ(bits_of(dot_add<E4m3Format>(&nan, 1, &one, 1, 1, 0.0f, ada)), 0x7fffffffu);
  const std::uint8_t inf = 0x7c;  // e5m2
  EXPECT_EQ(bits_of((dot_add<E5m2Format, E4m3Format>(&inf, 1, &one, 1, 1, 0.0f, ada))), 0x7f800000u);
}

TEST(DotAdd, Float16AccumulatorsRoundToNearestEven) {
  const Adder adder = with_float16_results(kAdderTuring);
  const std::uint16_t one = 0x3c00, small = 0x1000;  // 2^-11
  EXPECT_EQ(dot_add<Fp16Format>(&one, 1, &small, 1, 1, 1.0f, adder), 1.0f) << "a tie goes to even";
  EXPECT_EQ(dot_add<Fp16Format>(&one, 1, &small, 1, 1, 1.0f + 0x1p-10f, adder), 1.0f + 0x1p-9f);
  const std::uint16_t most = 0x7bff;
  EXPECT_EQ(bits_of(dot_add<Fp16Format>(&most, 1, &one, 1, 1, 65504.0f, adder)), 0x7f800000u);
}

}  // namespace
}  // namespace step_oracle
