// float64 and int8 products: the body equals the definition under every instruction set.
#include "csrc/kernels/gemm/plain.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <random>
#include <vector>

#include "csrc/kernels/core/bits.h"
#include "csrc/kernels/core/error.h"
#include "tests/support/same_bytes.h"

namespace step_oracle::gemm {
namespace {

template <class Params>
std::pair<std::int64_t, std::int64_t> sizes(Params& p, std::mt19937& gen) {
  const auto strides = [&](std::int64_t rows, std::int64_t cols) {
    const std::int64_t gap = gen() % 3;
    return gen() % 2 ? Strides{cols + gap, 1, rows * (cols + gap)} : Strides{1, rows + gap, (rows + gap) * cols};
  };
  p.m = 1 + gen() % 40, p.n = 1 + gen() % 70, p.k = gen() % 9 ? gen() % 130 : 0, p.batch = 1 + gen() % 3;
  p.a_strides = strides(p.m, p.k), p.b_strides = strides(p.k, p.n), p.c_strides = p.d_strides = strides(p.m, p.n);
  return {p.batch * p.a_strides.batch + 1, p.batch * p.b_strides.batch + 1};
}

TEST(Fp64Chain, BodyEqualsTheDefinition) {
  std::mt19937 gen(1);
  std::normal_distribution<double> normal;
  const auto draw = [&](int kind) {
    const double x = normal(gen);
    if (kind == 1) return std::ldexp(x, static_cast<int>(gen() % 1800) - 900);
    if (kind == 2 && gen() % 90 == 0) return double_of(gen() % 2 ? 0x7ff0000000000000ull : 0x7ff8000000000123ull);
    if (kind == 3) return static_cast<double>(static_cast<int>(gen() % 5) - 2);
    return x;
  };
  const std::int64_t target = std::getenv("STEP_ORACLE_SLOW") ? 10'000'000 : 100'000;
  std::int64_t outputs = 0;
  for (int i = 0; outputs < target; ++i) {
    Fp64Params p;
    const auto [na, nb] = sizes(p, gen);
    std::vector<double> a(na), b(nb), start(p.batch * p.d_strides.batch + 1), expected, actual;
    for (auto& x : a) x = draw(i % 4);
    for (auto& x : b) x = draw(i / 4 % 4);
    for (auto& x : start) x = draw(0);
    p.a = a.data(), p.b = b.data();
    if (i % 3) p.alpha = i % 2 ? 1.0 : 0.3, p.beta = i % 5 ? 1.0 : -0.7;
    expected = start;
    p.d = expected.data(), p.c = expected.data();
    ref::fp64_chain(p);
    test::for_each_isa_and_threads([&] {
      actual = start;
      p.d = actual.data(), p.c = actual.data();
      fp64_chain(p);
      ASSERT_SAME_BYTES(expected.data(), actual.data(), static_cast<std::int64_t>(expected.size())) << i;
    });
    if (HasFatalFailure()) return;
    outputs += p.m * p.n * p.batch;
  }
  std::printf("%lld outputs of the fp64 chain\n", static_cast<long long>(outputs));
}

TEST(Fp64Chain, IsFusedAndInOrder) {
  const double a[] = {1.0, 1.0 + 0x1p-27}, b[] = {-(1.0 + 0x1p-26), 1.0 + 0x1p-27};
  double d = -1;
  Fp64Params p;
  p.m = p.n = 1, p.k = 2, p.a = a, p.b = b, p.d = &d, p.a_strides = {2, 1, 0}, p.b_strides = {1, 1, 0},
  p.d_strides = {1, 1, 0};
  fp64_chain(p);
  EXPECT_EQ(d, 0x1p-54);
}

TEST(Int8, BodyEqualsTheDefinitionAndWraps) {
  std::mt19937 gen(2);
  const std::int64_t target = std::getenv("STEP_ORACLE_SLOW") ? 10'000'000 : 100'000;
  std::int64_t outputs = 0;
  for (int i = 0; outputs < target; ++i) {
    Int8Params p;
    const auto [na, nb] = sizes(p, gen);
    std::vector<std::int8_t> a(na), b(nb);
    for (auto& x : a) x = static_cast<std::int8_t>(i % 3 ? gen() : 0x80);
    for (auto& x : b) x = static_cast<std::int8_t>(i % 5 ? gen() : 0x80);
    std::vector<std::int32_t> expected(p.batch * p.d_strides.batch + 1, 7), actual;
    p.a = a.data(), p.b = b.data(), p.d = expected.data();
    ref::int8_exact(p);
    test::for_each_isa_and_threads([&] {
      actual.assign(expected.size(), 7);
      p.d = actual.data();
      int8_exact(p);
      ASSERT_SAME_BYTES(expected.data(), actual.data(), static_cast<std::int64_t>(expected.size())) << i;
    });
    if (HasFatalFailure()) return;
    outputs += p.m * p.n * p.batch;
  }
  std::printf("%lld outputs of int8\n", static_cast<long long>(outputs));
  const std::vector<std::int8_t> most(1 << 18, -128);
  std::int32_t d = 0;
  Int8Params p;
  p.m = p.n = 1, p.k = 1 << 18, p.a = p.b = most.data(), p.d = &d;
  p.a_strides = {p.k, 1, 0}, p.b_strides = {1, 1, 0}, p.d_strides = {1, 1, 0};
  int8_exact(p);
  EXPECT_EQ(d, 0) << "2^32 modulo 2^32";
  p.k = -1;
  EXPECT_THROW(int8_exact(p), Error);
}

}  // namespace
}  // namespace step_oracle::gemm
