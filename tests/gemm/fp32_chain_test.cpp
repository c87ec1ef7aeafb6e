#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "csrc/kernels/core/bits.h"
#include "csrc/kernels/core/error.h"
#include "csrc/kernels/gemm/gemm.h"
#include "tests/support/same_bytes.h"

namespace step_oracle::gemm {
namespace {

enum class Data { kNormal, kWide, kSpecial };

std::vector<float> fill(std::mt19937& gen, std::int64_t n, Data kind) {
  std::vector<float> out(static_cast<std::size_t>(n));
  std::normal_distribution<float> normal;
  for (auto& x : out) {
    x = normal(gen);
    if (kind == Data::kWide) x = std::ldexp(x, static_cast<int>(gen() % 240) - 130);
    if (kind == Data::kSpecial && gen() % 40 == 0) {
      const std::uint32_t patterns[] = {0x7f800000, 0xff800000, 0x7fc00001, 0xffa5a5a5, 0x80000000,
                                        0,          1,          0x007fffff, 0x7f7fffff};
      x = float_of(patterns[gen() % std::size(patterns)]);
    }
  }
  return out;
}

// One problem with its storage: strides by layout, with a gap of `pad` elements after each line.
struct Problem {
  Params p;
  std::vector<float> a, b, c, bias, d;

  Problem(std::mt19937& gen, std::int64_t m, std::int64_t n, std::int64_t k, std::int64_t batch, bool ta, bool tb,
          bool td, std::int64_t pad, Data kind) {
    auto view = [&](std::int64_t rows, std::int64_t cols, bool transposed, auto& matrix) {
      const std::int64_t line = (transposed ? rows : cols) + pad;
      matrix.row = transposed ? 1 : line;
      matrix.col = transposed ? line : 1;
      matrix.batch = line * (transposed ? cols : rows) + pad;
      return matrix.batch * batch + 1;
    };
    p.m = m, p.n = n, p.k = k, p.batch = batch;
    a = fill(gen, view(m, k, ta, p.a), kind);
    b = fill(gen, view(k, n, tb, p.b), kind);
    c = fill(gen, view(m, n, ta, p.epilogue.c), kind);
    bias = fill(gen, n, kind);
    d.assign(static_cast<std::size_t>(view(m, n, td, p.d)), -7.0f);
    p.a.data = a.data(), p.b.data = b.data(), p.epilogue.c.data = c.data(), p.d.data = d.data();
  }
};

void expect_body_equals_ref(Problem& q) {
  const std::vector<float> start = q.d;
  ref::fp32_chain(q.p);
  const std::vector<float> expected = q.d;
  test::for_each_isa_and_threads([&] {
    q.d = start;
    fp32_chain(q.p);
    ASSERT_SAME_BYTES(expected.data(), q.d.data(), static_cast<std::int64_t>(expected.size()))
        << "m " << q.p.m << " n " << q.p.n << " k " << q.p.k << " batch " << q.p.batch << " a " << q.p.a.row << ','
        << q.p.a.col << " b " << q.p.b.row << ',' << q.p.b.col << " d " << q.p.d.row << ',' << q.p.d.col << " alpha "
        << q.p.epilogue.alpha << " beta " << q.p.epilogue.beta << (q.p.epilogue.bias ? " bias" : "");
  });
}

void random_epilogue(std::mt19937& gen, Problem& q) {
  auto& e = q.p.epilogue;
  if (gen() % 3 == 0) e.alpha = -0.37f;
  switch (gen() % 4) {
    case 0:
      e.beta = 1.0f;
      break;
    case 1:
      e.beta = 0.71f;
      break;
    case 2:
      e.bias = q.bias.data();
      break;
    default:
      break;
  }
  if (e.beta != 0.0f && gen() % 4 == 0) e.c = {q.d.data(), q.p.d.row, q.p.d.col, q.p.d.batch};  // in place
  if (e.beta != 0.0f && gen() % 4 == 0) e.c = {q.c.data(), 0, 1, 0};                            // an expanded row
}

TEST(Fp32Chain, BodyEqualsRefOnRandomShapesLayoutsAndEpilogues) {
  std::mt19937 gen(1);
  const std::int64_t sizes[] = {1,  2,  3,  5,  6,  7,  8,  11, 12, 13, 15, 16, 17,
                                24, 25, 31, 32, 33, 47, 48, 49, 63, 64, 65, 97};
  auto size = [&] { return sizes[gen() % std::size(sizes)]; };
  for (int i = 0; i < 400; ++i) {
    const std::int64_t batch = i % 5 == 0 ? 1 + gen() % 7 : 1;
    Problem q(gen, size(), size(), i % 17 == 0 ? 0 : size(), batch, gen() % 2, gen() % 2, gen() % 3 == 0, gen() % 3,
              static_cast<Data>(gen() % 3));
    random_epilogue(gen, q);
    expect_body_equals_ref(q);
    if (HasFatalFailure()) return;
  }
}

// Quick: a sample. scripts/check_gemm asks for ten million outputs.
TEST(Fp32Chain, ManyOutputs) {
  const std::int64_t target = std::getenv("STEP_ORACLE_SLOW") ? 10'000'000 : 100'000;
  std::mt19937 gen(5);
  std::int64_t outputs = 0;
  while (outputs < target) {
    Problem q(gen, 1 + gen() % 150, 1 + gen() % 200, 1 + gen() % 60, 1, gen() % 2, gen() % 2, gen() % 3 == 0, gen() % 3,
              static_cast<Data>(gen() % 3));
    random_epilogue(gen, q);
    expect_body_equals_ref(q);
    if (HasFatalFailure()) return;
    outputs += q.p.m * q.p.n;
  }
  std::printf("%lld outputs of the fp32 chain\n", static_cast<long long>(outputs));
}

TEST(Fp32Chain, BodyEqualsRefAcrossPanelBoundaries) {
  std::mt19937 gen(2);
  const std::int64_t shapes[][3] = {{300, 40, 390}, {13, 800, 385}, {37, 33, 1200}, {290, 770, 20},
                                    {1, 900, 400},  {900, 1, 400},  {1, 1, 5000}};
  for (const auto& s : shapes)
    for (int layout = 0; layout < 4; ++layout) {
      Problem q(gen, s[0], s[1], s[2], 1, layout & 1, layout & 2, layout == 3, layout,
                layout == 1 ? Data::kSpecial : Data::kNormal);
      random_epilogue(gen, q);
      expect_body_equals_ref(q);
      if (HasFatalFailure()) return;
    }
}

TEST(Fp32Chain, StridesMayBeZeroNegativeOrOverlapping) {
  std::mt19937 gen(3);
  Problem q(gen, 19, 35, 21, 3, false, false, false, 0, Data::kNormal);
  q.p.a.batch = 0;                                            // one A for every matrix
  q.p.b = {q.b.data() + 21 * 35 * 3 - 1, -35, -1, -21 * 35};  // backwards
  expect_body_equals_ref(q);
  q.p.a = {q.a.data(), 1, 1, 1};  // Hankel: each row is the one before, shifted
  expect_body_equals_ref(q);
  q.p.b = {q.b.data(), 0, 1, 0};  // one row of B for every k
  expect_body_equals_ref(q);
  q.p.a = {q.a.data(), 5, 3, 2};  // no stride is 1
  expect_body_equals_ref(q);
}

TEST(Fp32Chain, ChainIsFusedAndInOrder) {
  // (1 + 2^-12)^2 - (1 + 2^-11): 2^-24 remains only when the product is not rounded; the other order gives another
  // value.
  const float a[] = {1.0f, 1.0f + 0x1p-12f}, b[] = {-(1.0f + 0x1p-11f), 1.0f + 0x1p-12f};
  float d = -1;
  Params p;
  p.m = p.n = 1, p.k = 2;
  p.a = {a, 2, 1, 0}, p.b = {b, 1, 1, 0}, p.d = {&d, 1, 1, 0};
  fp32_chain(p);
  EXPECT_EQ(d, 0x1p-24f);
  const float big[] = {0x1p24f, 1.0f, -0x1p24f}, ones[] = {1, 1, 1};
  p.k = 3, p.a.data = big, p.b.data = ones;
  fp32_chain(p);
  EXPECT_EQ(d, 0.0f) << "2^24 + 1 rounds to 2^24 before the last term";
}

TEST(Fp32Chain, EmptyInnerSumBetaZeroAndMinusZero) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  float d[2] = {nan, nan};
  Params p;
  p.m = 1, p.n = 2, p.k = 0;
  p.d = {d, 2, 1, 0};
  p.epilogue.c = {d, 2, 1, 0};
  fp32_chain(p);
  EXPECT_EQ(bits_of(d[0]), 0u) << "beta 0 does not read C";
  const float a = -1.0f, b[2] = {0.0f, 2.0f};
  p.k = 1, p.a = {&a, 1, 1, 0}, p.b = {b, 2, 1, 0};
  fp32_chain(p);
  EXPECT_EQ(bits_of(d[0]), 0u) << "+0 + -0 is +0";
  EXPECT_EQ(d[1], -2.0f);
}

TEST(Fp32Chain, RefusesWhatHasNoMeaning) {
  float x[4] = {};
  Params p;
  p.m = 2, p.n = 2, p.k = -1, p.d = {x, 2, 1, 0};
  EXPECT_THROW(fp32_chain(p), Error);
  p.k = 0, p.d.col = 0;
  EXPECT_THROW(fp32_chain(p), Error);
  p.d.col = 1, p.epilogue.bias = x, p.epilogue.beta = 1;
  EXPECT_THROW(fp32_chain(p), Error);
}

}  // namespace
}  // namespace step_oracle::gemm
