// The memory-efficient kernels against PyTorch's own compiled ones: every byte of every output.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <random>

#include "csrc/kernels/arith/convert.h"
#include "csrc/kernels/attention/mem_rivals.h"
#include "csrc/kernels/core/error.h"
#include "tests/attention/mem_case.h"
#include "tests/support/same_bytes.h"

namespace step_oracle::test {
namespace {

using attention::MemBackward;
using attention::MemForward;

// kernels.json: first found; mem_efficient.json: builds, sizes and masks beyond.
const std::vector<AttentionCase>& cases(const std::string& file) {
  static std::map<std::string, std::vector<AttentionCase>> all;
  auto& some = all[file];
  if (some.empty()) some = attention_cases(file, "memory-efficient");
  return some;
}

void check(const AttentionCase& c, void (*forward)(const MemForward&), void (*backward)(const MemBackward&)) {
  SCOPED_TRACE(c.name());
  MemCase m(c);
  forward(m.forward);
  EXPECT_TRUE(c.equals("out", m.out.data(), m.element()));
  const std::vector<float> rows = m.lse_rows();
  EXPECT_TRUE(c.equals("lse", rows.data(), 4));
  if (!m.has_backward) return;
  backward(m.backward);
  EXPECT_TRUE(c.equals("dq", m.dq.data(), m.element()));
  EXPECT_TRUE(c.equals("dk", m.dk.data(), m.element()));
  EXPECT_TRUE(c.equals("dv", m.dv.data(), m.element()));
  EXPECT_TRUE(c.equals("delta", m.delta.data(), 4));
  if (m.has_bias) {
    EXPECT_TRUE(c.equals("dbias", m.dbias.data(), m.element()));
  }
}

TEST(MemEfficient, DefinitionGivesTheKernelsBytes) {
  for (const char* file : {"kernels", "mem_efficient"}) {
    for (const AttentionCase& c : cases(file)) check(c, attention::ref::mem_forward, attention::ref::mem_backward);
    std::printf("%zu cases of %s\n", cases(file).size(), file);
  }
}

TEST(MemEfficient, EveryIsaGivesTheKernelsBytes) {
  for_each_isa_and_threads([] {
    for (const char* file : {"kernels", "mem_efficient"})
      for (const AttentionCase& c : cases(file)) check(c, attention::mem_forward, attention::mem_backward);
  });
}

// Whether all outputs of a case are the kernel's.
bool matches(const AttentionCase& c) {
  MemCase m(c);
  attention::ref::mem_forward(m.forward);
  const std::vector<float> rows = m.lse_rows();
  bool same = c.equals("out", m.out.data(), m.element()) && c.equals("lse", rows.data(), 4);
  if (!m.has_backward) return same;
  attention::ref::mem_backward(m.backward);
  return same && c.equals("dq", m.dq.data(), m.element()) && c.equals("dk", m.dk.data(), m.element()) &&
         c.equals("dv", m.dv.data(), m.element());
}

TEST(MemEfficient, RivalsFail) {
  using attention::ref::Rival;
  int noticed = 0, rivals = 0;
  for (int r = 1; r <= static_cast<int>(Rival::kChainedGradients); ++r, ++rivals) {
    attention::ref::rival = static_cast<Rival>(r);
    int failed = 0;
    for (const AttentionCase& c : cases("kernels")) failed += !matches(c);
    EXPECT_GT(failed, 0) << "rival " << r << " gives the kernels' bytes everywhere";
    noticed += failed > 0;
  }
  attention::ref::rival = Rival::kNone;
  std::printf("%d of %d rivals noticed\n", noticed, rivals);
}

// --- body == definition ---

struct Shape {
  std::int64_t batch, heads, queries, keys, head_dim, value_dim;
};
struct Setting {
  DType type;
  int cc;
  Shape shape;
  attention::Mask mask;
  float dropout;
  bool bias;
  std::int64_t splits;
  // 0 ordinary, 1 wide exponents, 2 infinities and NaN, 3 tiny, 4 sums that cancel and runs of zeros, 5 queries of which
  // only the small part is not zero
  int flavour;
};

using Bytes = std::vector<std::uint8_t>;

Bytes values(const Setting& s, std::int64_t n, std::uint32_t seed) {
  std::mt19937 random(seed);
  Bytes bytes;
  for (std::int64_t i = 0; i < n; ++i) {
    float x = (static_cast<float>(random() >> 8) * 0x1p-23f - 1.0f) * 2.0f;
    if (s.flavour == 1) x = std::ldexp(x, static_cast<int>(random() % 24) - 12);
    if (s.flavour == 2 && random() % 61 == 0) x = random() % 2 ? std::numeric_limits<float>::infinity() : std::nanf("");
    if (s.flavour == 3) x = std::ldexp(x, s.type == DType::kF32 ? -70 : -9);
    if (s.flavour == 4) x = i / 48 % 3 == 0 ? 0.0f : (random() % 2 ? 1.0f : -1.0f) + (random() % 4 ? 0.0f : 0x1.8p-12f);
    if (s.flavour == 5 && seed == 1) x = float_of(0x1000u + random() % 0x1000u);
    if (s.flavour == 5 && seed == 2) x = std::ldexp(x < 0.0f ? -1.0f : 1.0f, static_cast<int>(110 + random() % 17));
    if (random() % 13 == 0) x = 0.0f;
    const std::uint32_t f = bits_of(x);
    const std::uint16_t h = s.type == DType::kBF16 ? convert::to_bf16(x) : convert::to_fp16(x);
    const auto* p =
        s.type == DType::kF32 ? reinterpret_cast<const std::uint8_t*>(&f) : reinterpret_cast<const std::uint8_t*>(&h);
    bytes.insert(bytes.end(), p, p + size_of(s.type));
  }
  return bytes;
}

struct Outputs {
  Bytes out, dq, dk, dv, dbias;
  std::vector<float> lse, delta;
};

template <class Forward, class Backward>
Outputs run(const Setting& s, Forward&& forward, Backward&& backward, const std::vector<std::int32_t>& order = {}) {
  const Shape& n = s.shape;
  const std::int64_t h = n.heads, d = n.head_dim, e = n.value_dim, size = static_cast<std::int64_t>(size_of(s.type));
  const Bytes q = values(s, n.batch * n.queries * h * d, 1), k = values(s, n.batch * n.keys * h * d, 2),
              v = values(s, n.batch * n.keys * h * e, 3), g = values(s, n.batch * n.queries * h * e, 4);
  Bytes bias = values(s, n.batch * h * n.queries * n.keys, 5);
  // A row with nothing but -inf, as a padding mask makes it.
  for (std::int64_t k0 = 0; k0 < n.keys && n.queries > 1 && !bias.empty(); ++k0) {
    const std::uint32_t f = 0xff800000u;
    const std::uint16_t half = s.type == DType::kBF16 ? 0xff80 : 0xfc00;
    std::memcpy(bias.data() + (n.keys + k0) * size, s.type == DType::kF32 ? static_cast<const void*>(&f) : &half,
                static_cast<std::size_t>(size));
  }
  Outputs o;
  o.out.resize(g.size()), o.dq.resize(q.size()), o.dk.resize(k.size()), o.dv.resize(v.size()),
      o.dbias.resize(bias.size());
  o.lse.resize(static_cast<std::size_t>(n.batch * h * attention::padded_queries(n.queries)));
  o.delta.resize(static_cast<std::size_t>(n.batch * h * n.queries));
  for (std::size_t i = 0; i < o.delta.size(); ++i) o.delta[i] = static_cast<float>(i % 7) * 0.1f - 0.3f;
  const attention::Strides of_q{n.queries * h * d, h * d, d}, of_k{n.keys * h * d, h * d, d},
      of_v{n.keys * h * e, h * e, e}, of_o{n.queries * h * e, h * e, e};
  const attention::BiasStrides of_bias{h * n.queries * n.keys, n.queries * n.keys, n.keys};
  MemForward f;
  MemBackward b;
  const auto fill = [&](auto& p) {
    p.shape = {s.cc, s.type, n.batch, h, n.queries, n.keys, d, e};
    p.query = q.data(), p.key = k.data(), p.value = v.data(), p.bias = s.bias ? bias.data() : nullptr;
    p.query_strides = of_q, p.key_strides = of_k, p.value_strides = of_v, p.out_strides = of_o,
    p.bias_strides = of_bias;
    p.mask = s.mask, p.scale = 0.173f, p.dropout = {s.dropout, 0x123456789abcdefull, 4}, p.out = o.out.data();
  };
  fill(f), fill(b);
  f.logsumexp = o.lse.data();
  forward(f);
  b.grad_out = g.data(), b.grad_out_strides = of_o, b.logsumexp = o.lse.data();
  b.logsumexp_pitch = attention::padded_queries(n.queries), b.delta = o.delta.data();
  b.grad_query = o.dq.data(), b.grad_key = o.dk.data(), b.grad_value = o.dv.data();
  b.grad_query_strides = of_q, b.grad_key_strides = of_k, b.grad_value_strides = of_v;
  if (s.bias) b.grad_bias = o.dbias.data(), b.grad_bias_strides = of_bias;
  b.key_splits = s.splits, b.dq_order = order;
  backward(b);
  return o;
}

void expect_same(const Outputs& a, const Outputs& b) {
  const auto same = [](const Bytes& x, const Bytes& y, const char* name) {
    SCOPED_TRACE(name);
    EXPECT_SAME_BYTES(x.data(), y.data(), static_cast<std::int64_t>(x.size()));
  };
  same(a.out, b.out, "out"), same(a.dq, b.dq, "dq"), same(a.dk, b.dk, "dk"), same(a.dv, b.dv, "dv");
  same(a.dbias, b.dbias, "dbias");
  EXPECT_SAME_BYTES(a.lse.data(), b.lse.data(), static_cast<std::int64_t>(a.lse.size()));
  EXPECT_SAME_BYTES(a.delta.data(), b.delta.data(), static_cast<std::int64_t>(a.delta.size()));
}

std::vector<Setting> settings() {
  using attention::Mask;
  std::vector<Setting> all;
  const std::pair<DType, int> kinds[]{{DType::kF32, 75}, {DType::kF32, 80},  {DType::kF32, 90}, {DType::kF16, 75},
                                      {DType::kF16, 90}, {DType::kBF16, 80}, {DType::kBF16, 90}};
  for (const auto& [type, cc] : kinds) {
    const Shape small{1, 1, 1, 1, 8, 8}, ragged{2, 2, 33, 67, 24, 40}, wide{1, 1, 37, 140, 136, 16},
        square{1, 1, 65, 65, 72, 72};
    all.push_back({type, cc, small, Mask::kNone, 0.0f, false, 1, 0});
    all.push_back({type, cc, ragged, Mask::kCausalTopLeft, 0.3f, true, 1, 0});
    all.push_back({type, cc, ragged, Mask::kNone, 0.0f, true, 2, 1});
    all.push_back({type, cc, wide, Mask::kCausalBottomRight, 0.1f, false, 1, 0});
    all.push_back({type, cc, square, Mask::kCausalTopLeft, 0.0f, false, 2, 1});
    all.push_back({type, cc, ragged, Mask::kNone, 0.2f, false, 1, 2});
    all.push_back({type, cc, ragged, Mask::kCausalTopLeft, 0.0f, false, 1, 3});
    all.push_back({type, cc, ragged, Mask::kCausalTopLeft, 0.3f, true, 1, 4});
    all.push_back({type, cc, wide, Mask::kCausalBottomRight, 0.0f, false, 1, 4});
  }
  for (const int cc : {80, 90}) all.push_back({DType::kF32, cc, {1, 2, 5, 40, 24, 8}, Mask::kNone, 0.0f, false, 1, 5});
  for (const int cc : {75, 90}) all.push_back({DType::kF16, cc, {1, 1, 8, 8, 36, 44}, Mask::kNone, 0.0f, false, 1, 0});
  all.push_back({DType::kF32, 75, {1, 1, 150, 200, 8, 8}, Mask::kNone, 0.0f, false, 3, 0});
  all.push_back({DType::kF32, 86, {1, 1, 130, 130, 8, 8}, Mask::kCausalTopLeft, 0.0f, false, 3, 0});
  return all;
}

TEST(MemEfficient, BodyIsTheDefinition) {
  const std::vector<Setting> all = settings();
  for (std::size_t i = 0; i < all.size(); ++i) {
    SCOPED_TRACE(i);
    const Outputs expected = run(all[i], attention::ref::mem_forward, attention::ref::mem_backward);
    for_each_isa_and_threads(
        [&] { expect_same(expected, run(all[i], attention::mem_forward, attention::mem_backward)); });
  }
  std::printf("%zu settings\n", all.size());
}

// --- the order of dQ ---

TEST(MemEfficient, AnyOrderOfKeyTiles) {
  const Setting s{DType::kF32, 75, {1, 1, 64, 256, 8, 8}, attention::Mask::kNone, 0.0f, false, 4, 0};
  const std::vector<std::int32_t> order{2, 0, 3, 1};
  const Outputs expected = run(s, attention::ref::mem_forward, attention::ref::mem_backward, order),
                other = run(s, attention::ref::mem_forward, attention::ref::mem_backward, {0, 1, 2, 3});
  EXPECT_NE(expected.dq, other.dq);
  EXPECT_EQ(expected.dk, other.dk);
  for_each_isa_and_threads(
      [&] { expect_same(expected, run(s, attention::mem_forward, attention::mem_backward, order)); });
  for (const std::vector<std::int32_t>& wrong : {std::vector<std::int32_t>{0, 1, 2}, {0, 1, 2, 2}, {0, 1, 2, -1}})
    EXPECT_THROW(run(s, attention::mem_forward, attention::mem_backward, wrong), Error);
}

MemBackward plan_case(std::int64_t queries, std::int64_t keys, attention::Mask mask, std::int64_t splits) {
  MemBackward p;
  p.shape = {75, DType::kF32, 1, 1, queries, keys, 64, 64};
  p.mask = mask, p.key_splits = splits;
  return p;
}

TEST(MemEfficient, DefaultOrders) {
  using attention::Mask;
  using Order = std::vector<std::int32_t>;
  EXPECT_EQ(mem_default_order(plan_case(128, 128, Mask::kCausalTopLeft, 1)), (Order{0, -1, 0, 1}));
  EXPECT_EQ(mem_default_order(plan_case(128, 128, Mask::kCausalTopLeft, 2)), (Order{0, -1, 1, 0}));
  EXPECT_EQ(mem_default_order(plan_case(128, 128, Mask::kNone, 2)), (Order{0, 1, 1, 0}));
  EXPECT_FALSE(mem_is_race(plan_case(128, 128, Mask::kCausalTopLeft, 2)));
  EXPECT_FALSE(mem_is_race(plan_case(128, 256, Mask::kNone, 1)));
  EXPECT_TRUE(mem_is_race(plan_case(64, 128, Mask::kNone, 2)));
  EXPECT_TRUE(mem_is_race(plan_case(256, 256, Mask::kCausalTopLeft, 4)));
}

TEST(MemEfficient, ZeroSizes) {
  for (const Shape& shape : {Shape{0, 2, 8, 8, 8, 8}, Shape{1, 0, 8, 8, 8, 8}, Shape{1, 1, 0, 8, 8, 8}}) {
    const Setting s{DType::kF32, 80, shape, attention::Mask::kNone, 0.0f, false, 1, 0};
    const Outputs o = run(s, attention::mem_forward, attention::mem_backward);
    for (const Bytes& grad : {o.dk, o.dv})
      EXPECT_TRUE(std::all_of(grad.begin(), grad.end(), [](std::uint8_t x) { return x == 0; }));
  }
  const Setting bf16{DType::kBF16, 75, {1, 1, 8, 8, 8, 8}, attention::Mask::kNone, 0.0f, false, 1, 0};
  EXPECT_THROW(run(bf16, attention::mem_forward, attention::mem_backward), Error);
}

}  // namespace
}  // namespace step_oracle::test
