#include "csrc/kernels/gemm/plan.h"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <tuple>
#include <vector>

#include "csrc/kernels/arith/convert.h"
#include "csrc/kernels/core/error.h"
#include "tests/support/same_bytes.h"

namespace step_oracle::gemm {
namespace {

Plan random_plan(std::mt19937& gen, std::int64_t k) {
  Plan p;
  const int widths[] = {8, 16, 32, 64};
  if (gen() % 3) {
    p.splits = 2 + static_cast<int>(gen() % 4);
    p.deal = static_cast<Deal>(gen() % 3);
    p.width = p.deal == Deal::kChunks ? std::max<std::int64_t>(1, chunk_width(k, p.splits, widths[gen() % 4]))
                                      : widths[gen() % 4];
  }
  if (gen() % 2) p.slices = 2 << gen() % 4, p.slice_width = gen() % 4 ? widths[gen() % 3] : 1;
  p.combine = static_cast<Combine>(gen() % 4);
  p.tail = static_cast<Tail>(gen() % 4);
  if (gen() % 3 == 0) p.block = 1 + gen() % 40;
  if (p.tail != Tail::kLast) p.tail_width = widths[gen() % 3];
  p.reduction = static_cast<Reduction>(gen() % 3);
  if (p.reduction != Reduction::kInPlace) p.order = static_cast<SumOrder>(gen() % 4);
  p.bias = static_cast<BiasPlace>(gen() % 3);
  if (p.bias == BiasPlace::kFirst) p.order = SumOrder::kAscending;
  return p;
}

std::vector<float> normal(std::mt19937& gen, std::int64_t n) {
  std::normal_distribution<float> draw;
  std::vector<float> out(static_cast<std::size_t>(n));
  for (auto& x : out) x = draw(gen);
  return out;
}

// Bias, beta, or neither; a bias inside the sum needs alpha 1.
int random_epilogue(std::mt19937& gen, const Plan& plan, float& alpha, float& beta) {
  const int kind = static_cast<int>(gen() % 3);
  if (kind == 1) beta = gen() % 2 ? 1.0f : 0.3f;
  if ((kind != 2 || plan.bias == BiasPlace::kLast) && gen() % 3 == 0) alpha = 0.7f;
  return kind;
}

TEST(Plan, FloatProductsEqualTheSlowTranscription) {
  std::mt19937 gen(1);
  for (int i = 0; i < 150; ++i) {
    const std::int64_t m = 1 + gen() % 5, n = 1 + gen() % 40, k = gen() % 200, batch = 1 + gen() % 2;
    const Plan plan = random_plan(gen, k);
    const auto a = normal(gen, batch * m * k + 1), b = normal(gen, batch * k * n + 1), c = normal(gen, batch * m * n);
    std::vector<float> expected(static_cast<std::size_t>(batch * m * n)), actual(expected);
    Params p;
    p.m = m, p.n = n, p.k = k, p.batch = batch;
    p.a = {a.data(), k, 1, m * k}, p.d = {expected.data(), n, 1, m * n};
    p.b = gen() % 2 ? Matrix{b.data(), n, 1, k * n} : Matrix{b.data(), 1, k, k * n};
    const int kind = random_epilogue(gen, plan, p.epilogue.alpha, p.epilogue.beta);
    if (kind == 1) p.epilogue.c = {c.data(), n, 1, m * n};
    if (kind == 2) p.epilogue.bias = c.data();
    ref::run(p, plan);
    p.d.data = actual.data();
    run(p, plan);
    ASSERT_SAME_BYTES(expected.data(), actual.data(), batch * m * n) << "case " << i;
  }
}

TEST(Plan, TensorCoreProductsEqualTheSlowTranscription) {
  std::mt19937 gen(2);
  for (int i = 0; i < 150; ++i) {
    const std::int64_t m = 1 + gen() % 5, n = 1 + gen() % 40, k = gen() % 200;
    Plan plan = random_plan(gen, k);
    TensorCoreParams p;
    p.factors = gen() % 2 ? DType::kBF16 : DType::kF16;
    p.results = gen() % 4 ? p.factors : DType::kF32;
    p.adder = static_cast<AdderClass>(gen() % 3);
    if (gen() % 5 == 0)
      plan.unit = Unit::kChain;
    else if (p.adder != AdderClass::kFmaChain && gen() % 3 == 0)
      plan.group = p.adder == AdderClass::kHopper && gen() % 2 ? 8 : 4;
    const auto narrow = [&](const std::vector<float>& from) {
      std::vector<std::uint16_t> out;
      for (float x : from) out.push_back(p.factors == DType::kBF16 ? convert::to_bf16(x) : convert::to_fp16(x));
      return out;
    };
    const auto wide_a = normal(gen, m * k + 1), wide_b = normal(gen, k * n + 1), c32 = normal(gen, m * n);
    const auto a = narrow(wide_a), b = narrow(wide_b), c16 = narrow(normal(gen, m * n));
    std::vector<std::uint32_t> expected(static_cast<std::size_t>(m * n)), actual(expected);
    p.m = m, p.n = n, p.k = k, p.a = a.data(), p.b = b.data(), p.d = expected.data();
    if (gen() % 3 == 0)  // TF32
      p.factors = p.results = DType::kF32, p.a = wide_a.data(), p.b = wide_b.data(), p.rounds_tf32 = gen() % 2;
    p.a_strides = {k, 1, 0}, p.d_strides = {n, 1, 0};
    p.b_strides = gen() % 2 ? Strides{n, 1, 0} : Strides{1, k, 0};
    const void* c = p.results == DType::kF32 ? static_cast<const void*>(c32.data()) : c16.data();
    const int kind = random_epilogue(gen, plan, p.alpha, p.beta);
    if (kind == 1) p.c = c, p.c_strides = {n, 1, 0};
    if (kind == 2) p.bias = c;
    ref::run(p, plan);
    p.d = actual.data();
    run(p, plan);
    ASSERT_SAME_BYTES(expected.data(), actual.data(), m * n) << "case " << i;
  }
}

// Every form of the vocabulary is a form of its own: on one product with cancelling data all give different bytes.
TEST(Plan, FormsAreDistinct) {
  std::mt19937 gen(3);
  const std::int64_t m = 16, n = 16, k = 200;
  const auto a = normal(gen, m * k), b = normal(gen, k * n), bias = normal(gen, n);
  std::vector<Plan> plans(1);
  const auto add = [&](auto change) {
    Plan p;
    change(p);
    plans.push_back(p);
  };
  add([](Plan& p) { p.splits = 3, p.width = 72; });
  add([](Plan& p) { p.splits = 3, p.width = 72, p.bias = BiasPlace::kFirst; });
  add([](Plan& p) { p.splits = 3, p.width = 72, p.order = SumOrder::kDescending; });
  add([](Plan& p) { p.splits = 4, p.width = 56, p.order = SumOrder::kPairwise; });
  add([](Plan& p) { p.splits = 4, p.width = 56; });
  add([](Plan& p) { p.splits = 3, p.width = 8, p.deal = Deal::kRoundRobin; });
  add([](Plan& p) { p.splits = 3, p.width = 8, p.deal = Deal::kBalanced; });
  add([](Plan& p) { p.slices = 4, p.slice_width = 16; });
  add([](Plan& p) { p.slices = 4, p.slice_width = 16, p.combine = Combine::kHalves; });
  add([](Plan& p) { p.slices = 4, p.slice_width = 16, p.combine = Combine::kHalves, p.bias = BiasPlace::kSliceZero; });
  add([](Plan& p) { p.slices = 4, p.slice_width = 16, p.combine = Combine::kAdjacent; });
  add([](Plan& p) { p.slices = 2, p.slice_width = 32; });
  add([](Plan& p) { p.tail = Tail::kFirst, p.tail_width = 64; });
  add([](Plan& p) { p.tail = Tail::kDropped, p.tail_width = 64; });
  add([](Plan& p) { p.block = 64; });
  add([](Plan& p) { p.slices = 4, p.slice_width = 16, p.block = 8; });
  add([](Plan& p) { p.slices = 8, p.slice_width = 1, p.combine = Combine::kHalves; });
  add([](Plan& p) { p.slices = 8, p.slice_width = 1, p.combine = Combine::kPairs; });
  add([](Plan& p) { p.slices = 4, p.slice_width = 16, p.tail = Tail::kShortFirst, p.tail_width = 64; });
  add([](Plan& p) { p.splits = 12, p.deal = Deal::kRoundRobin, p.width = 8; });
  add([](Plan& p) { p.splits = 12, p.deal = Deal::kRoundRobin, p.width = 8, p.order = SumOrder::kOneBlock; });
  std::set<std::vector<float>> seen;
  for (const Plan& plan : plans) {
    std::vector<float> d(static_cast<std::size_t>(m * n));
    Params p;
    p.m = m, p.n = n, p.k = k, p.a = {a.data(), k, 1, 0}, p.b = {b.data(), n, 1, 0}, p.d = {d.data(), n, 1, 0};
    p.epilogue.bias = bias.data();
    run(p, plan);
    EXPECT_TRUE(seen.insert(d).second) << "plan " << seen.size() << " repeats another's bytes";
  }
  EXPECT_EQ(seen.size(), plans.size());
}

TEST(Plan, PublishedChunks) {  // [paper, sections 5.18 and 5.24]
  EXPECT_EQ(chunk_width(3072, 3, 64), 1024);
  EXPECT_EQ(chunk_width(50304, 8, 64), 6336);
  EXPECT_EQ(chunk_width(50304, 5, 64), 10112);
}

// 135 whole tiles of 64 shared by nine parts: k = 8648 leaves its last 8 positions to nobody
// [src facebookexperimental/triton bitequiv/cublas_match/cublas_gemm_bug_reproduce.py].
TEST(Plan, ADroppedTailIsCountedByAProductOfOnes) {
  const std::vector<float> ones(57608, 1.0f);
  for (const auto& [k, splits, expected] :
       {std::tuple{8648, 9, 8640}, std::tuple{57608, 45, 57600}, std::tuple{11528, 9, 11520}}) {
    Plan plan;
    plan.splits = splits, plan.width = expected / splits, plan.tail = Tail::kDropped, plan.tail_width = 64;
    EXPECT_NO_THROW(check(plan, k));
    float d = 0;
    Params p;
    p.m = p.n = 1, p.k = k, p.a = {ones.data(), k, 1, 0}, p.b = {ones.data(), 1, 1, 0}, p.d = {&d, 1, 1, 0};
    run(p, plan);
    EXPECT_EQ(d, static_cast<float>(expected));
    plan.tail = Tail::kLast;
    EXPECT_THROW(run(p, plan), Error) << "without the defect the chunks do not cover k";
  }
}

// A tensor core's groups start anew behind the short first tile; the chain itself is the same.
TEST(Plan, AShortFirstTileMovesTheGroups) {
  std::mt19937 gen(5);
  const std::int64_t k = 71;
  std::vector<std::uint16_t> a, b;
  for (float x : normal(gen, k)) a.push_back(convert::to_bf16(x));
  for (float x : normal(gen, k * 200)) b.push_back(convert::to_bf16(x));
  Plan plan;
  plan.tail = Tail::kShortFirst, plan.tail_width = 32;
  std::vector<float> whole(200), parts(200);
  TensorCoreParams p;
  p.m = 1, p.n = 200, p.k = k, p.a = a.data(), p.b = b.data(), p.results = DType::kF32;
  p.a_strides = {k, 1, 0}, p.b_strides = {200, 1, 0}, p.d_strides = {200, 1, 0};
  p.d = whole.data();
  run(p, plan);
  // By hand: 7 positions filled up with one zero, then 64 from a group's beginning.
  std::vector<std::uint16_t> a2(72), b2(72 * 200);
  for (std::int64_t q = 0; q < k; ++q) {
    const std::int64_t to = q < 7 ? q : q + 1;
    a2[to] = a[q];
    for (int j = 0; j < 200; ++j) b2[to * 200 + j] = b[q * 200 + j];
  }
  p.k = 72, p.a = a2.data(), p.b = b2.data(), p.a_strides.row = 72, p.d = parts.data();
  run(p, Plan{});
  EXPECT_SAME_BYTES(parts.data(), whole.data(), 200);
  p.k = k, p.a = a.data(), p.b = b.data(), p.a_strides.row = k;
  run(p, Plan{});
  EXPECT_NE(parts, whole) << "the data must tell the two apart";
}

TEST(Plan, RefusesContradictions) {
  const auto refused = [](auto change) {
    Plan p;
    change(p);
    EXPECT_THROW(check(p), Error);
  };
  refused([](Plan& p) { p.splits = 0; });
  refused([](Plan& p) { p.splits = 2; });
  refused([](Plan& p) { p.slices = 3, p.slice_width = 8; });
  refused([](Plan& p) { p.slices = 2; });
  refused([](Plan& p) { p.tail = Tail::kDropped; });
  refused([](Plan& p) { p.group = 5; });
  refused([](Plan& p) { p.block = -1; });
  refused([](Plan& p) { p.slices = 512, p.slice_width = 1; });
  refused([](Plan& p) { p.unit = Unit::kChain, p.group = 8; });
  refused([](Plan& p) { p.splits = 2, p.width = 8, p.reduction = Reduction::kInPlace, p.order = SumOrder::kPairwise; });
  float x[4] = {};
  Params p;
  p.m = p.n = 1, p.k = 4, p.a = {x, 4, 1, 0}, p.b = {x, 1, 1, 0}, p.d = {x, 1, 1, 0};
  Plan plan;
  plan.splits = 2, plan.width = 1;
  EXPECT_THROW(run(p, plan), Error) << "two chunks of 1 do not cover 4";
}

}  // namespace
}  // namespace step_oracle::gemm
