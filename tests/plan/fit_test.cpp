#include "csrc/oracle/plan/fit.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "csrc/kernels/arith/convert.h"
#include "csrc/kernels/core/parallel.h"

namespace step_oracle::plan {
namespace {

using gemm::Plan;

std::vector<float> normal(std::mt19937& gen, std::int64_t n) {
  std::normal_distribution<float> draw;
  std::vector<float> out(static_cast<std::size_t>(n));
  for (auto& x : out) x = draw(gen);
  return out;
}

bool contains(const std::vector<Plan>& plans, const Plan& plan) {
  return std::find(plans.begin(), plans.end(), plan) != plans.end();
}

// A product whose sizes are round numbers of nothing.
struct FloatProduct {
  std::vector<float> a, b, bias, d;
  gemm::Params p;
  FloatProduct(std::mt19937& gen, bool with_bias) {
    p.m = 8 + gen() % 20, p.n = 20 + gen() % 60, p.k = 130 + gen() % 300;
    a = normal(gen, p.m * p.k), b = normal(gen, p.k * p.n), bias = normal(gen, p.n);
    d.resize(static_cast<std::size_t>(p.m * p.n));
    p.a = {a.data(), p.k, 1, 0}, p.b = {b.data(), p.n, 1, 0}, p.d = {d.data(), p.n, 1, 0};
    if (with_bias) p.epilogue.bias = bias.data();
  }
};

struct TensorProduct {
  std::vector<std::uint16_t> a, b, bias, d;
  gemm::TensorCoreParams p;
  TensorProduct(std::mt19937& gen, bool with_bias) {
    p.m = 8 + gen() % 20, p.n = 20 + gen() % 60, p.k = 130 + gen() % 300;
    p.adder = gen() % 2 ? gemm::AdderClass::kTuring : gemm::AdderClass::kHopper;
    const auto narrow = [&](std::int64_t n) {
      std::vector<std::uint16_t> out;
      for (float x : normal(gen, n)) out.push_back(convert::to_bf16(x));
      return out;
    };
    a = narrow(p.m * p.k), b = narrow(p.k * p.n), bias = narrow(p.n);
    d.resize(static_cast<std::size_t>(p.m * p.n));
    p.a = a.data(), p.b = b.data(), p.d = d.data();
    p.a_strides = {p.k, 1, 0}, p.b_strides = {p.n, 1, 0}, p.d_strides = {p.n, 1, 0};
    if (with_bias) p.bias = bias.data();
  }
};

template <class Product>
void recover(std::uint32_t seed) {
  std::mt19937 gen(seed);
  int ties = 0;
  const int threads = num_threads();
  set_num_threads(1);  // products too small to share
  for (int i = 0; i < 24; ++i) {
    Product product(gen, gen() % 2);
    const auto plans = candidates(shape_of(product.p));
    ASSERT_GT(plans.size(), 20u);
    const Plan truth = plans[gen() % plans.size()];
    gemm::ref::run(product.p, truth);
    const Fit found = fit(product.p, plans);
    EXPECT_EQ(found.tried, static_cast<int>(plans.size()));
    EXPECT_TRUE(contains(found.matches, truth)) << "case " << i << ", " << found.matches.size() << " matches";
    ties += found.matches.size() > 1;
    // From a digest alone: a judge that knows only whether the bytes are right.
    const auto recorded = product.d;
    const Fit judged = fit(product.p, plans, [&](const void* d) {
      return std::memcmp(d, recorded.data(), recorded.size() * sizeof recorded[0]) == 0;
    });
    EXPECT_EQ(judged.matches, found.matches);
  }
  set_num_threads(threads);
  std::printf("24 plans recovered, %d of them as a tie\n", ties);
}

TEST(Fit, RecoversThePlanOfFloatProducts) { recover<FloatProduct>(1); }
TEST(Fit, RecoversThePlanOfTensorCoreProducts) { recover<TensorProduct>(2); }

TEST(Fit, SaysNoneOutsideTheVocabulary) {
  std::mt19937 gen(3);
  FloatProduct product(gen, false);
  Plan strange;
  strange.splits = 3, strange.width = 7, strange.deal = gemm::Deal::kRoundRobin;
  gemm::ref::run(product.p, strange);
  const Fit found = fit(product.p, candidates(shape_of(product.p)));
  EXPECT_TRUE(found.matches.empty());
  EXPECT_GT(found.nearest_equal, 0.0);
  EXPECT_LT(found.nearest_equal, 1.0);
}

TEST(Fit, StopsWhenAskedTo) {
  std::mt19937 gen(4);
  FloatProduct product(gen, false);
  gemm::run(product.p, Plan{});
  const Fit found = fit(product.p, candidates(shape_of(product.p)), [](int done, int) { return done < 3; });
  EXPECT_EQ(found.tried, 3);
  EXPECT_TRUE(contains(found.matches, Plan{}));
}

TEST(Candidates, HoldThePublishedPlansAndNoneTwice) {
  const auto has = [](const Shape& shape, auto change) {
    Plan p;
    change(p);
    return contains(candidates(shape), p);
  };
  const Shape bf16{3072, true, false, 8}, head{50304, true, false, 16}, biased{3072, true, true, 8};
  const auto split = [](int splits, std::int64_t width, gemm::Reduction reduction) {
    return [=](Plan& p) { p.splits = splits, p.width = width, p.reduction = reduction; };
  };
  EXPECT_TRUE(has(bf16, split(3, 1024, gemm::Reduction::kInPlace)));
  EXPECT_TRUE(has(head, split(8, 6336, gemm::Reduction::kInPlace)));
  EXPECT_TRUE(has(head, split(5, 10112, gemm::Reduction::kComputeType)));
  EXPECT_TRUE(has(biased, [](Plan& p) {
    p.slices = 4, p.slice_width = 16, p.combine = gemm::Combine::kHalves, p.bias = gemm::BiasPlace::kSliceZero;
  }));
  EXPECT_TRUE(has(head, [](Plan& p) { p.group = 8; }));
  EXPECT_TRUE(has(head, [](Plan& p) { p.splits = 4, p.deal = gemm::Deal::kRoundRobin, p.width = 8; }));
  const auto all = candidates(biased);
  for (std::size_t i = 0; i < all.size(); ++i)
    EXPECT_EQ(std::count(all.begin(), all.end(), all[i]), 1) << "candidate " << i;
  EXPECT_EQ(all.front(), Plan{});
  for (const Plan& plan : all) EXPECT_NO_THROW(gemm::check(plan));
}

TEST(Likely, AreTensAndHoldWhatPublishedStepsTook) {
  const auto split = [](int splits, std::int64_t width, gemm::Reduction reduction) {
    Plan p;
    p.splits = splits, p.width = width, p.reduction = reduction;
    return p;
  };
  // RTX A6000, H100 and L40, the 124 M step [paper 4, 5.23, 5.24]
  EXPECT_TRUE(contains(likely({3072, true, false, 8}), split(3, 1024, gemm::Reduction::kInPlace)));
  EXPECT_TRUE(contains(likely({50304, true, false, 8}), split(8, 6336, gemm::Reduction::kInPlace)));
  EXPECT_TRUE(contains(likely({50304, true, false, 16}), split(5, 10112, gemm::Reduction::kComputeType)));
  Plan thirty;
  thirty.slices = 4, thirty.slice_width = 16, thirty.combine = gemm::Combine::kHalves;
  EXPECT_TRUE(contains(likely({3072, true, false, 8}), thirty));
  thirty.bias = gemm::BiasPlace::kSliceZero;
  EXPECT_TRUE(contains(likely({3072, true, true, 8}), thirty));
  Plan dealt;  // Hopper's algorithm 55 [paper 5.21]
  dealt.splits = 4, dealt.deal = gemm::Deal::kRoundRobin, dealt.width = 8;
  EXPECT_TRUE(contains(likely({3072, false, false, 0}), dealt));
  Plan first = split(3, 1024, gemm::Reduction::kComputeType);  // the bias first [paper 3.4]
  first.bias = gemm::BiasPlace::kFirst;
  EXPECT_TRUE(contains(likely({3072, false, true, 0}), first));

  for (const std::int64_t k : {1, 7, 64, 100, 300, 768, 2048, 3072, 4099, 50257, 50304})
    for (const auto& [terms, sixteen_bit] : {std::pair{0, false}, {0, true}, {4, true}, {8, true}, {16, true}})
      for (const bool bias : {false, true})
        for (const bool vector : {false, true}) {
          const Shape shape{k, sixteen_bit, bias, terms, vector};
          const auto few = likely(shape);
          const auto all = candidates(shape);
          EXPECT_LE(few.size(), 60U) << k << " " << terms << " " << bias;
          EXPECT_EQ(few.front(), Plan{});
          for (const Plan& plan : few) {
            EXPECT_TRUE(contains(all, plan));
            EXPECT_EQ(std::count(few.begin(), few.end(), plan), 1);
          }
        }
}

}  // namespace
}  // namespace step_oracle::plan
