// bfloat16 products of a card without tensor cores for them (AdderClass::kFmaChain), against a twin that knows no fma.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "csrc/kernels/arith/convert.h"
#include "csrc/kernels/core/error.h"
#include "csrc/kernels/gemm/plan.h"
#include "csrc/kernels/gemm/tensor_core.h"
#include "tests/support/same_bytes.h"

namespace step_oracle::gemm {
namespace {

// x + y, rounded once to float32: doubles rounded to odd lose nothing that the second rounding could miss.
float added_once(double x, double y) {
  double sum = x + y;
  const double rest = (x - (sum - (sum - x))) + (y - (sum - x));  // exact: what the sum lost
  std::uint64_t bits;
  std::memcpy(&bits, &sum, sizeof bits);
  if (std::isfinite(sum) && std::isfinite(rest) && rest != 0.0 && bits % 2 == 0) {
    bits += (rest > 0) == (sum > 0) ? 1 : static_cast<std::uint64_t>(-1);
    std::memcpy(&sum, &bits, sizeof sum);
  }
  return static_cast<float>(sum);
}

TEST(FmaChainTwin, AddsAsFmaDoes) {
  std::mt19937 gen(1);
  for (int i = 0; i < 300'000; ++i) {
    const float a = convert::from_bf16(static_cast<std::uint16_t>(gen()));
    const float b = convert::from_bf16(static_cast<std::uint16_t>(gen()));
    float c = float_of(gen());
    if (i % 2)
      c = std::ldexp(a * b, static_cast<int>(gen() % 60) - 30) * (1.0f + 0x1p-20f * static_cast<float>(gen() % 999));
    const float expected = canonical(fma(a, b, c)), actual = canonical(added_once(static_cast<double>(a) * b, c));
    ASSERT_EQ(bits_of(expected), bits_of(actual)) << a << " * " << b << " + " << c;
  }
}

std::uint16_t rounded_to_bf16(float x) {
  if (std::isnan(x)) return 0x7fff;
  const auto word = bits_of(x), rest = word & 0xffffu, upper = word >> 16;
  return static_cast<std::uint16_t>(upper + (rest > 0x8000u || (rest == 0x8000u && upper % 2)));
}

enum class Data { kNormal, kCancelling, kSpread, kSpecial };

struct Problem {
  TensorCoreParams p;
  std::vector<std::uint16_t> a, b, c, bias, d;

  Problem(std::mt19937& gen, std::int64_t m, std::int64_t n, std::int64_t k, std::int64_t batch, bool ta, bool tb,
          bool td, Data kind) {
    const auto view = [&](std::int64_t rows, std::int64_t cols, bool t, Strides& s) {
      s = t ? Strides{1, rows + 1, (rows + 1) * cols} : Strides{cols + 3, 1, rows * (cols + 3)};
      return static_cast<std::size_t>(s.batch * batch + 1);
    };
    p.adder = AdderClass::kFmaChain, p.factors = p.results = DType::kBF16;
    p.m = m, p.n = n, p.k = k, p.batch = batch;
    fill(gen, a, view(m, k, ta, p.a_strides), kind), fill(gen, b, view(k, n, tb, p.b_strides), kind);
    fill(gen, c, view(m, n, tb, p.c_strides), kind), fill(gen, bias, static_cast<std::size_t>(n), kind);
    d.assign(view(m, n, td, p.d_strides), 0x1234);
    p.a = a.data(), p.b = b.data(), p.d = d.data();
  }

  static void fill(std::mt19937& gen, std::vector<std::uint16_t>& v, std::size_t count, Data kind) {
    std::normal_distribution<float> normal;
    v.resize(count);
    for (auto& x : v) {
      float value = normal(gen);
      if (kind == Data::kSpread) value = std::ldexp(value, static_cast<int>(gen() % 150) - 90);
      if (kind == Data::kCancelling)
        value = static_cast<float>(static_cast<int>(gen() % 5) - 2) * (gen() % 9 ? 1.0f : 0x1p-9f);
      x = rounded_to_bf16(value);
      const std::uint16_t specials[] = {0x7f80, 0xff80, 0x7fc1, 0xffff, 0x8000, 0, 1, 0x807f, 0x7f7f};
      if (kind == Data::kSpecial && gen() % 60 == 0) x = specials[gen() % std::size(specials)];
    }
  }

  std::vector<std::uint16_t> twin() const {
    std::vector<std::uint16_t> out = d;
    const auto at = [](const std::vector<std::uint16_t>& v, const Strides& s, auto z, auto i, auto j) {
      return static_cast<double>(convert::from_bf16(v[static_cast<std::size_t>(z * s.batch + i * s.row + j * s.col)]));
    };
    for (std::int64_t z = 0; z < p.batch; ++z)
      for (std::int64_t i = 0; i < p.m; ++i)
        for (std::int64_t j = 0; j < p.n; ++j) {
          float acc = 0.0f;
          for (std::int64_t q = 0; q < p.k; ++q)
            acc = added_once(at(a, p.a_strides, z, i, q) * at(b, p.b_strides, z, q, j), acc);
          const double scaled = static_cast<double>(p.alpha) * acc;
          float x = static_cast<float>(scaled);
          if (p.bias) x = added_once(scaled, convert::from_bf16(bias[static_cast<std::size_t>(j)]));
          if (p.beta != 0.0f)
            x = added_once(scaled, static_cast<float>(static_cast<double>(p.beta) * at(c, p.c_strides, z, i, j)));
          out[static_cast<std::size_t>(z * p.d_strides.batch + i * p.d_strides.row + j * p.d_strides.col)] =
              rounded_to_bf16(x);
        }
    return out;
  }
};

void expect_all_equal_the_twin(Problem& q) {
  const auto expected = q.twin(), start = q.d;
  const auto where = testing::Message() << "m " << q.p.m << " n " << q.p.n << " k " << q.p.k;
  const auto size = static_cast<std::int64_t>(expected.size());
  ref::tensor_core(q.p);
  ASSERT_SAME_BYTES(expected.data(), q.d.data(), size) << where << ", ref";
  test::for_each_isa_and_threads([&] {
    q.d = start;
    tensor_core(q.p);
    ASSERT_SAME_BYTES(expected.data(), q.d.data(), size) << where;
  });
}

TEST(FmaChain, EqualsTheTwinOnEveryKindOfData) {
  std::mt19937 gen(2);
  for (int round = 0; round < 60; ++round) {
    Problem q(gen, 1 + gen() % 15, 1 + gen() % 70, gen() % 5 ? 1 + gen() % 50 : gen() % 450, 1 + gen() % 2, gen() % 2,
              gen() % 2, gen() % 2, static_cast<Data>(round % 4));
    if (round % 3 == 1) q.p.bias = q.bias.data(), q.p.alpha = gen() % 2 ? 1.0f : 0.3f;
    if (round % 3 == 2) q.p.c = q.c.data(), q.p.beta = gen() % 2 ? 1.0f : -0.7f, q.p.alpha = gen() % 2 ? 1.0f : 1.7f;
    expect_all_equal_the_twin(q);
    if (HasFatalFailure()) return;
  }
}

// Around the tile's 12 rows and 32 columns, the block's 288 rows, the region's 384 columns and 1,024 rows, the panel's
// 384 positions of k; narrow results, which are computed on their side; nothing.
TEST(FmaChain, EqualsTheTwinAtEveryBoundary) {
  std::mt19937 gen(3);
  const std::int64_t shapes[][3] = {{12, 32, 383}, {13, 33, 384}, {11, 31, 385}, {289, 9, 6},  {3, 385, 7},
                                    {1026, 17, 3}, {70, 1, 769},  {40, 3, 5},    {1, 40, 400}, {2, 3, 0}};
  for (const auto& s : shapes)
    for (int layout = 0; layout < 4; ++layout) {
      Problem q(gen, s[0], s[1], s[2], 1, layout & 1, layout & 2, layout == 3, Data::kNormal);
      if (layout == 2) q.p.c = q.c.data(), q.p.beta = 1.0f;
      expect_all_equal_the_twin(q);
      if (HasFatalFailure()) return;
    }
}

TEST(FmaChain, CMayBeDAndIsNotReadForBetaZero) {
  std::mt19937 gen(4);
  Problem q(gen, 50, 3, 30, 2, false, true, false, Data::kNormal);
  for (auto& x : q.d) x = rounded_to_bf16(static_cast<float>(gen() % 100));
  q.c = q.d, q.p.c = q.p.d, q.p.c_strides = q.p.d_strides, q.p.beta = 1.0f;
  expect_all_equal_the_twin(q);
  q.p.beta = 0.0f, q.p.c = nullptr;
  expect_all_equal_the_twin(q);
}

// The pattern of a NaN, a sign of zero, and sums that leave the range.
TEST(FmaChain, SpecialResults) {
  const auto product = [](std::vector<std::uint16_t> a, std::vector<std::uint16_t> b) {
    std::uint16_t d = 0;
    TensorCoreParams p;
    p.adder = AdderClass::kFmaChain, p.m = p.n = 1, p.k = static_cast<std::int64_t>(a.size());
    p.a = a.data(), p.b = b.data(), p.d = &d, p.a_strides = {p.k, 1, 0}, p.b_strides = {1, 1, 0};
    p.d_strides = {1, 1, 0};
    tensor_core(p);
    return d;
  };
  EXPECT_EQ(product({0x7f80}, {0}), 0x7fff) << "inf * 0";
  EXPECT_EQ(product({0xffc1}, {0x3f80}), 0x7fff) << "a NaN, negative and with a payload";
  EXPECT_EQ(product({0x7f80, 0xff80}, {0x3f80, 0x3f80}), 0x7fff) << "inf - inf";
  EXPECT_EQ(product({0x8000}, {0x3f80}), 0) << "the sum starts from +0";
  EXPECT_EQ(product({0x7f7f, 0xff7f}, {0x7f7f, 0x7f7f}), 0x7f80) << "a product is not rounded: inf, and no -inf";
  EXPECT_EQ(product({0x7f7f, 0x7f7f}, {0x3f80, 0xbf80}), 0);
  EXPECT_EQ(product({0x0001, 0x0001}, {0x3f00, 0x3f00}), 0x0001) << "subnormals are kept";
}

TEST(FmaChain, TakesPlansButNoGroups) {
  std::mt19937 gen(5);
  Problem q(gen, 4, 9, 200, 1, false, false, false, Data::kNormal);
  Plan plan;
  plan.splits = 2, plan.width = 128;
  q.p.results = DType::kF32, q.p.d_strides = {9, 1, 0};
  std::vector<float> one_pass(4 * 9), wide(one_pass);
  q.p.d = one_pass.data(), run(q.p, Plan{});
  q.p.d = wide.data(), run(q.p, plan);
  EXPECT_NE(wide, one_pass);
  q.p.results = DType::kBF16;
  std::vector<std::uint16_t> split(4 * 9), body(split);
  for (const Reduction how : {Reduction::kComputeType, Reduction::kInPlace, Reduction::kOutputType}) {
    plan.reduction = how;
    q.p.d = split.data(), ref::run(q.p, plan);
    q.p.d = body.data(), run(q.p, plan);
    ASSERT_SAME_BYTES(split.data(), body.data(), static_cast<std::int64_t>(split.size()));
    for (std::size_t i = 0; how == Reduction::kComputeType && i < split.size(); ++i)
      ASSERT_EQ(split[i], rounded_to_bf16(wide[i]));
  }
  plan.group = 8;
  EXPECT_THROW(run(q.p, plan), Error);
}

}  // namespace
}  // namespace step_oracle::gemm
