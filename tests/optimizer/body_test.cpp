#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

#include "csrc/kernels/core/bits.h"
#include "csrc/kernels/core/error.h"
#include "csrc/kernels/optimizer/optimizer.h"
#include "tests/support/same_bytes.h"

namespace step_oracle::optimizer {
namespace {

const std::int64_t kSizes[] = {0,   1,   3,   4,    7,    8,    16,    17,    255,   256,
                               257, 511, 513, 2047, 2048, 2052, 65536, 65539, 100001};

std::vector<float> values(std::mt19937& gen, std::int64_t n, bool square) {
  std::vector<float> out(static_cast<std::size_t>(n));
  std::normal_distribution<float> normal;
  const std::uint32_t odd[] = {0, 0x80000000, 0x7f800000, 0xff800000, 0x7fc00123, 1, 0x7f7fffff};
  for (auto& x : out) {
    x = normal(gen);
    if (square) x = x * x;
    if (gen() % 50 == 0 && !square) x = float_of(odd[gen() % std::size(odd)]);
  }
  return out;
}

// The storage of a list entry in either type.
std::vector<char> packed(const std::vector<float>& x, DType type) {
  std::vector<char> out(x.size() * size_of(type) + 1);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const std::uint32_t u = bits_of(x[i]) >> (type == DType::kBF16 ? 16 : 0);
    std::memcpy(out.data() + i * size_of(type), &u, size_of(type));
  }
  return out;
}

struct Lists {
  std::vector<std::vector<char>> lists, before;
  void restart() {
    for (std::size_t i = 0; i < lists.size(); ++i) std::memcpy(lists[i].data(), before[i].data(), lists[i].size());
  }
};

void expect_lists(const std::vector<std::vector<char>>& want, const std::vector<std::vector<char>>& got) {
  for (std::size_t i = 0; i < want.size(); ++i)
    EXPECT_SAME_BYTES(want[i].data(), got[i].data(), static_cast<std::int64_t>(want[i].size())) << "list " << i;
}

TEST(OptimizerBody, AdamEqualsDefinition) {
  std::mt19937 gen(30);
  int cases = 0;
  for (const std::int64_t n : kSizes)
    for (int variant = 0; variant < (n > 60000 ? 8 : 32); ++variant) {
      const DType type = gen() % 2 ? DType::kF32 : DType::kBF16,
                  state = type == DType::kF32 && gen() % 3 == 0 ? DType::kBF16 : type;
      Lists run;
      for (int i = 0; i < 5; ++i) run.lists.push_back(packed(values(gen, n, i > 2), i < 2 ? type : state));
      run.before = run.lists;
      const float scale = 1000.0f;
      AdamParams a{};
      a.n = n, a.dtype = type, a.state_dtype = state;
      a.p = run.lists[0].data(), a.g = run.lists[1].data(), a.m = run.lists[2].data(), a.v = run.lists[3].data();
      if (gen() % 3 == 0) a.max_v = run.lists[4].data();
      a.step = static_cast<float>(1 + gen() % 1000);
      a.lr = 3e-2, a.beta1 = .9, a.beta2 = .95, a.eps = 1e-8, a.weight_decay = gen() % 5 ? .3 : 0.0;
      a.mode = gen() % 2 ? WeightDecay::kCoupled : WeightDecay::kDecoupled;
      a.maximize = gen() % 3 == 0;
      if (gen() % 3 == 0) a.grad_scale = &scale;
      a.vectorised = n % 4 == 0 && gen() % 2;
      ref::adam(a);
      const auto want = run.lists;
      test::for_each_isa_and_threads([&] {
        run.restart();
        adam(a);
        expect_lists(want, run.lists);
      });
      ++cases;
      if (HasFailure()) return;
    }
  std::printf("%d cases\n", cases);
}

TEST(OptimizerBody, SgdEqualsDefinition) {
  std::mt19937 gen(31);
  for (const std::int64_t n : kSizes)
    for (int variant = 0; variant < 8; ++variant) {
      const DType type = gen() % 2 ? DType::kF32 : DType::kBF16;
      Lists run;
      for (int i = 0; i < 3; ++i) run.lists.push_back(packed(values(gen, n, false), type));
      run.before = run.lists;
      const float scale = 3.0f;
      SgdParams a{};
      a.n = n, a.dtype = type, a.p = run.lists[0].data(), a.g = run.lists[1].data();
      if (gen() % 2) a.buf = run.lists[2].data();
      a.momentum = a.buf ? .9 : 0.0, a.lr = .1, a.dampening = .2, a.weight_decay = gen() % 2 ? .01 : 0.0;
      a.nesterov = gen() % 2, a.maximize = gen() % 2, a.first_step = gen() % 2;
      if (gen() % 3 == 0) a.grad_scale = &scale;
      ref::sgd(a);
      const auto want = run.lists;
      test::for_each_isa_and_threads([&] {
        run.restart();
        sgd(a);
        expect_lists(want, run.lists);
      });
    }
}

TEST(OptimizerBody, NormEqualsDefinition) {
  std::mt19937 gen(32);
  for (const std::int64_t n : kSizes)
    for (const NormKind kind : {NormKind::kL1, NormKind::kL2, NormKind::kInf})
      for (const DType type : {DType::kF32, DType::kBF16})
        for (const bool vectorised : {false, true}) {
          if (vectorised && n % 4 != 0) continue;
          const auto x = packed(values(gen, n, true), type);
          const NormParams p{x.data(), type, n, (n + 65535) / 65536 + 1, kind, vectorised, gen() % 2 == 0};
          const std::uint32_t want = bits_of(ref::norm(p));
          test::for_each_isa_and_threads([&] { EXPECT_EQ(want, bits_of(norm(p))) << "n " << n; });
        }
}

TEST(OptimizerBody, UnscaleMarksInfinities) {
  test::for_each_isa_and_threads([&] {
    std::vector<float> g(70000, 3.0f);
    float found = 0.0f;
    unscale(g.data(), DType::kF32, 70000, 0.5f, &found);
    EXPECT_EQ(found, 0.0f);
    EXPECT_EQ(g[69999], 1.5f);
    g[65000] = float_of(0x7fc00123);
    unscale(g.data(), DType::kF32, 70000, 0.5f, &found);
    EXPECT_EQ(found, 1.0f);
    EXPECT_EQ(bits_of(g[65000]), 0x7fffffffu);
    EXPECT_EQ(g[0], 0.75f);
  });
}

TEST(OptimizerBody, RefusesOtherTypes) {
  AdamParams a{};
  a.dtype = a.state_dtype = DType::kF16;
  EXPECT_THROW(adam(a), Error);
  a.dtype = DType::kBF16, a.state_dtype = DType::kF32;
  EXPECT_THROW(adam(a), Error);
}

// The mutation that the golden vectors must notice: one fused weight decay instead of two roundings, and the reverse.
TEST(OptimizerBody, ThePlaceInTheGroupOfFourShows) {
  std::mt19937 gen(33);
  const std::int64_t n = 4096;
  const auto p = packed(values(gen, n, true), DType::kF32), g = packed(values(gen, n, true), DType::kF32);
  auto run = [&](bool vectorised, bool fused) {
    std::vector<std::vector<char>> lists{p, g, std::vector<char>(p.size()), std::vector<char>(p.size())};
    AdamParams a{};
    a.n = n, a.dtype = a.state_dtype = DType::kF32;
    a.p = lists[0].data(), a.g = lists[1].data(), a.m = lists[2].data(), a.v = lists[3].data();
    a.step = 1, a.lr = 3e-2, a.beta1 = .9, a.beta2 = .95, a.eps = 1e-8, a.weight_decay = .3;
    a.vectorised = vectorised, a.fuses_everywhere = fused;
    adam(a);
    return lists[2];
  };
  EXPECT_NE(run(true, false), run(false, false));
  EXPECT_NE(run(true, false), run(true, true));
}

}  // namespace
}  // namespace step_oracle::optimizer
