// How diff pairs ops, and what it blames where the inputs are equal and the results are not.
#include "csrc/record/trace/diff.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>

#include "csrc/record/trace/diff_align.h"
#include "csrc/record/trace/reader.h"
#include "tests/trace/sample.h"

namespace step_oracle {
namespace {

std::size_t longest(const std::vector<std::uint32_t>& a, const std::vector<std::uint32_t>& b) {
  std::vector<std::vector<std::size_t>> best(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = a.size(); i-- > 0;)
    for (std::size_t j = b.size(); j-- > 0;)
      best[i][j] = a[i] == b[j] ? best[i + 1][j + 1] + 1 : std::max(best[i + 1][j], best[i][j + 1]);
  return best[0][0];
}

TEST(Align, IsALongestCommonSubsequence) {
  std::mt19937 random(4);
  for (int round = 0; round < 3000; ++round) {
    std::vector<std::uint32_t> a(random() % 24), b(random() % 24);
    const std::uint32_t letters = 1 + random() % 5;
    for (auto& x : a) x = random() % letters;
    for (auto& x : b) x = random() % letters;
    const auto pairs = align::common(a, b);
    ASSERT_EQ(pairs.size(), longest(a, b)) << "round " << round;
    for (std::size_t p = 0; p < pairs.size(); ++p) {
      ASSERT_EQ(a[pairs[p].first], b[pairs[p].second]);
      if (p == 0) continue;
      ASSERT_TRUE(pairs[p - 1].first < pairs[p].first && pairs[p - 1].second < pairs[p].second);
    }
  }
}

TEST(Align, GivesUpQuietlyOnLongUnlikeLists) {
  std::vector<std::uint32_t> a(6000), b(6000);
  for (std::uint32_t i = 0; i < 6000; ++i) a[i] = i, b[i] = 10000 + i;
  a[0] = b[0] = 1;
  a.back() = b.back() = 2;
  EXPECT_EQ(align::common(a, b, 500).size(), 2u);
}

// One op on a card: equal inputs, results of value `result`.
struct OneOp {
  std::string name = "aten::mm";
  std::string device = "cuda:0";
  int result = 0;
  std::string split_k;
  std::vector<std::int64_t> bucket;
  rec::EnvironmentT environment = test::sample_environment();
};

std::shared_ptr<const Trace> recorded(const char* file, const OneOp& o) {
  const auto path = test::temporary_path(file);
  TraceWriter writer(path, o.environment);
  rec::OpT op;
  op.ticket = 7;
  op.name = o.name;
  for (std::uint64_t id : {1, 2}) {
    rec::StorageT s;
    s.id = id;
    s.nbytes = 64;
    s.entered = id == 1;
    writer.add(s);
    auto t = std::make_unique<rec::TensorT>();
    t->storage = id;
    t->device = o.device;
    t->dtype = rec::DType::Float32;
    t->sizes = {4, 4};
    t->strides = {4, 1};
    t->created = id == 2;
    const int content = id == 2 ? o.result : -1;
    (t->created ? t->after : t->before) = blake3(&content, sizeof content);
    (t->created ? t->after_state : t->before_state) = rec::DigestState::Known;
    op.tensors.push_back(std::move(t));
  }
  op.args.push_back(rec::tensor_value(0));
  op.returns.push_back(rec::tensor_value(1));
  if (!o.bucket.empty()) {
    op.collective = std::make_unique<rec::CollectiveT>();
    op.collective->kind = "allreduce";
    op.collective->bucket = 0;
    op.collective->bucket_sizes = o.bucket;
  }
  writer.add(std::move(op));
  if (!o.split_k.empty()) {
    rec::PlanT plan;
    plan.op = 7;
    plan.library = "cublaslt";
    auto field = std::make_unique<rec::FieldT>();
    field->key = "split-K";
    field->value = o.split_k;
    plan.fields.push_back(std::move(field));
    writer.add(std::move(plan));
  }
  test::close_sample(writer);
  return Trace::open(path);
}

std::string kind_of(const std::function<void(OneOp&)>& change, OneOp base = {}) {
  OneOp other = base;
  other.result = 1;
  change(other);
  const auto d = diff(*recorded("one_a", base), *recorded("one_b", other));
  EXPECT_FALSE(d.equal);
  if (!d.first) return "nothing";
  EXPECT_EQ(d.first->cause.rfind(d.first->kind, 0), 0u) << d.first->cause;
  EXPECT_EQ(d.first->output, "result 0");
  return d.first->kind;
}

TEST(Diff, CauseOfARoot) {
  const auto card = [](int sms, int cc) {
    return [=](OneOp& o) {
      o.environment.cards[0]->name += " II";
      o.environment.cards[0]->sms = sms;
      o.environment.cards[0]->cc_major = cc;
    };
  };
  EXPECT_EQ(kind_of(card(142, 8)), "adder class");
  EXPECT_EQ(kind_of(card(132, 9)), "SM count");
  OneOp sum;
  sum.name = "aten::sum";
  EXPECT_EQ(kind_of(card(142, 8), sum), "SM count");
  OneOp split;
  split.split_k = "1";
  EXPECT_EQ(kind_of([](OneOp& o) { o.split_k = "4"; }, split), "split-K");
  EXPECT_EQ(kind_of([&](OneOp& o) { card(132, 9)(o), o.split_k = "4"; }, split), "split-K");
  EXPECT_EQ(kind_of([](OneOp& o) { o.environment.switches[0]->value = "true"; }), "switch");
  EXPECT_EQ(kind_of([](OneOp& o) { o.environment.cuda = "13.1"; }), "software");
  OneOp host;
  host.device = "cpu";
  EXPECT_EQ(kind_of([](OneOp& o) { o.environment.threads = 8; }, host), "threads");
  EXPECT_EQ(kind_of([](OneOp& o) { o.environment.host_isa = "AVX512"; }, host), "host");
  OneOp race;
  race.name = "aten::index_add_";
  EXPECT_EQ(kind_of([](OneOp&) {}, race), "race");
  EXPECT_EQ(kind_of([](OneOp&) {}), "unknown");
  OneOp reduce;
  reduce.name = "c10d::allreduce_";
  reduce.bucket = {16, 16};
  EXPECT_EQ(kind_of([](OneOp& o) { o.bucket = {8, 8, 16}; }, reduce), "reduction order");
}

TEST(Diff, EqualAndIncomplete) {
  const OneOp one;
  const auto a = recorded("same_a", one), b = recorded("same_b", one);
  EXPECT_TRUE(diff(*a, *b).equal);
  const auto path = test::temporary_path("unfinished");
  {
    TraceWriter writer(path, one.environment);
    test::write_sample(writer);
  }
  const auto unfinished = Trace::open(path);
  const auto d = diff(*unfinished, *unfinished);
  EXPECT_FALSE(d.equal) << "what is not complete is not called equal";
  EXPECT_FALSE(d.first);
  EXPECT_EQ(d.not_complete.size(), 2u);
}

}  // namespace
}  // namespace step_oracle
