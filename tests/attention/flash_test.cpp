// FlashAttention-2: the definition and the bodies against the card's compiled kernels, and against each other.
#include "csrc/kernels/attention/flash.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "csrc/kernels/arith/convert.h"
#include "csrc/kernels/core/error.h"
#include "tests/attention/vectors.h"
#include "tests/support/same_bytes.h"

namespace step_oracle::attention::ref {
extern int flash_rival;  // flash_ref.cpp
}

namespace step_oracle {
namespace {

using attention::FlashBackward;
using attention::FlashForward;
using attention::FlashShape;
using attention::FlashTiles;
using attention::Strides;
using test::AttentionCase;

constexpr const char* kWhole = "FlashAttention-2";
constexpr const char* kSplit = "FlashAttention-2 split keys + combine";

std::vector<AttentionCase> cases(const char* kernel) {
  std::vector<AttentionCase> all = test::attention_cases("kernels", kernel);
  for (const AttentionCase& c : test::attention_cases("flash", kernel)) all.push_back(c);
  return all;
}

FlashShape shape_of(const AttentionCase& c) {
  FlashShape s;
  s.compute_capability = c.compute_capability();
  s.type = c.meta()["dtype"] == "bf16" ? DType::kBF16 : DType::kF16;
  s.batch = c.integer("batch"), s.queries = c.integer("queries"), s.keys = c.integer("keys");
  s.heads = c.integer("heads"), s.key_heads = c.meta().value("key_heads", c.integer("heads"));
  s.head_dim = c.integer("head_dim"), s.causal = c.integer("causal") != 0;
  return s;
}

Strides packed(std::int64_t positions, std::int64_t heads, std::int64_t dim) {
  return {positions * heads * dim, heads * dim, dim};
}

// Inputs and outputs of one case.
struct Call {
  FlashShape s;
  std::vector<std::uint8_t> q, k, v, g;
  std::vector<std::uint16_t> out, dq, dk, dv;
  std::vector<float> lse, parts, sums;
  FlashForward forward;
  FlashBackward backward;
};

const std::uint16_t* halves(const std::vector<std::uint8_t>& bytes) {
  return reinterpret_cast<const std::uint16_t*>(bytes.data());
}

void prepare(const AttentionCase& c, Call& r) {
  r.s = shape_of(c);
  const FlashShape& s = r.s;
  r.q = c.input("q"), r.k = c.input("k"), r.v = c.input("v");
  const std::size_t rows = static_cast<std::size_t>(s.batch * s.heads * s.queries),
                    dim = static_cast<std::size_t>(s.head_dim);
  r.out.resize(rows * dim), r.lse.resize(rows);
  FlashForward& f = r.forward;
  f.shape = s, f.query = halves(r.q), f.key = halves(r.k), f.value = halves(r.v);
  f.query_strides = f.out_strides = packed(s.queries, s.heads, s.head_dim);
  f.key_strides = f.value_strides = packed(s.keys, s.key_heads, s.head_dim);
  f.scale = c.from_bits("scale_bits"), f.out = r.out.data(), f.logsumexp = r.lse.data();
  if (c.meta().contains("splits")) {
    f.key_splits = c.integer("splits");
    r.parts.resize(rows * static_cast<std::size_t>(f.key_splits)), f.split_logsumexp = r.parts.data();
    return;
  }
  f.dropout = {c.meta()["dropout_p"].get<float>(), c.meta()["seed"], c.meta()["offset"]};
  if (!c.has("dq")) return;
  r.g = c.input("dout");
  r.dq.resize(rows * dim), r.dk.resize(static_cast<std::size_t>(s.batch * s.keys * s.heads) * dim), r.dv = r.dk;
  r.sums.resize(rows);
  FlashBackward& b = r.backward;
  b.shape = s, b.query = f.query, b.key = f.key, b.value = f.value, b.out = f.out, b.grad_out = halves(r.g);
  b.query_strides = b.out_strides = b.grad_out_strides = b.grad_query_strides = f.query_strides;
  b.key_strides = b.value_strides = f.key_strides;
  b.grad_key_strides = b.grad_value_strides = packed(s.keys, s.heads, s.head_dim);
  b.scale = f.scale, b.dropout = f.dropout, b.logsumexp = f.logsumexp;
  const std::int64_t buffers = c.integer("deterministic");
  b.dq_buffers = buffers ? buffers : 1;
  b.grad_query = r.dq.data(), b.grad_key = r.dk.data(), b.grad_value = r.dv.data(), b.sums = r.sums.data();
}

bool equal(const AttentionCase& c, const Call& r) {
  bool same = c.equals("out", r.out.data(), 2) && c.equals("lse", r.lse.data(), 4);
  if (c.has("dq"))
    same = same && c.equals("dsum", r.sums.data(), 4) && c.equals("dq", r.dq.data(), 2) &&
           c.equals("dk", r.dk.data(), 2) && c.equals("dv", r.dv.data(), 2);
  return same;
}

void expect_equal(const AttentionCase& c, const Call& r) {
  EXPECT_TRUE(c.equals("out", r.out.data(), 2));
  EXPECT_TRUE(c.equals("lse", r.lse.data(), 4));
  if (c.has("lse_split")) {
    EXPECT_TRUE(c.equals("lse_split", r.parts.data(), 4));
  }
  if (!c.has("dq")) return;
  EXPECT_TRUE(c.equals("dsum", r.sums.data(), 4));
  EXPECT_TRUE(c.equals("dq", r.dq.data(), 2));
  EXPECT_TRUE(c.equals("dk", r.dk.data(), 2));
  EXPECT_TRUE(c.equals("dv", r.dv.data(), 2));
}

// The tiles that the vector's kernel was compiled for are the ones that the host chooses.
void expect_tiles(const AttentionCase& c, const FlashShape& s) {
  const auto same = [&](const char* key, FlashTiles t) {
    EXPECT_EQ(c.meta()[key][0].get<std::int64_t>(), t.queries) << c.name() << " " << key;
    EXPECT_EQ(c.meta()[key][1].get<std::int64_t>(), t.keys) << c.name() << " " << key;
  };
  if (c.meta().contains("splits")) return same("fwd_tile", attention::flash_split_tiles(s));
  const bool drops = c.meta()["dropout_p"].get<float>() > 0.0f;
  same("fwd_tile", attention::flash_forward_tiles(s, drops));
  if (c.has("dq")) same("bwd_tile", attention::flash_backward_tiles(s, drops));
}

TEST(FlashVectors, DefinitionGivesTheKernelsBytes) {
  int n = 0;
  for (const char* kernel : {kWhole, kSplit})
    for (const AttentionCase& c : cases(kernel)) {
      SCOPED_TRACE(c.name());
      Call r;
      prepare(c, r);
      expect_tiles(c, r.s);
      attention::ref::flash_forward(r.forward);
      if (c.has("dq")) attention::ref::flash_backward(r.backward);
      expect_equal(c, r);
      ++n;
    }
  std::printf("%d golden cases\n", n);
  EXPECT_EQ(n, 33);
}

TEST(FlashVectors, BodiesGiveTheKernelsBytes) {
  int n = 0;
  for (const char* kernel : {kWhole, kSplit})
    for (const AttentionCase& c : cases(kernel)) {
      SCOPED_TRACE(c.name());
      Call r;
      prepare(c, r);
      test::for_each_isa_and_threads([&] {
        attention::flash_forward(r.forward);
        if (c.has("dq")) attention::flash_backward(r.backward);
        expect_equal(c, r);
      });
      ++n;
    }
  EXPECT_EQ(n, 33);
}

// --- rivals: wrong rules that the vectors must notice ---

struct Rival {
  int number;  // flash_ref.cpp
  const char *rule, *needs;
  std::string noticed_by;
};

bool useful(const AttentionCase& c, const std::string& needs) {
  if (c.meta()["queries"].get<int>() > 260) return false;  // long cases prove nothing more here
  if (needs == "dropout") return c.meta()["dropout_p"].get<float>() > 0.0f;
  return needs.empty() || c.has("dq");
}

// The other compositions of the logsumexp, which a replay tries: none has the kernels' bytes.
TEST(FlashVectors, NoticeEveryLogsumexp) {
  for (const auto form : {attention::FlashLogsumexp::kLogFused, attention::FlashLogsumexp::kUnfused,
                          attention::FlashLogsumexp::kNearestLg2})
    for (const auto forward : {&attention::ref::flash_forward, &attention::flash_forward}) {
      bool noticed = false;
      for (const AttentionCase& c : cases(kWhole)) {
        if (noticed || !useful(c, "")) continue;
        Call call;
        prepare(c, call);
        call.forward.logsumexp_form = form;
        forward(call.forward);
        noticed = !c.equals("lse", call.forward.logsumexp, 4);
      }
      EXPECT_TRUE(noticed) << attention::kFlashLogsumexps[static_cast<int>(form)];
    }
}

TEST(FlashVectors, NoticeEveryRival) {
  std::vector<Rival> rivals{
      {1, "the other architectures' adder", "", ""},
      {2, "kept iff the byte is less than the threshold", "dropout", ""},
      {3, "factor exp2f(fma(m, scale_log2, -m' scale_log2))", "", ""},
      {4, "forward: exponent fused", "", ""},
      {5, "row sum of later tiles not fused", "", ""},
      {6, "key tiles ascending", "", ""},
      {7, "lanes of a row added xor 1, then xor 2", "", ""},
      {9, "four lanes a row of grad_out * out", "backward", ""},
      {10, "backward: exponent fused", "backward", ""},
      {11, "query tiles ascending", "backward", ""},
      {12, "dK not divided by the probability of keeping", "dropout", ""},
  };
  for (Rival& r : rivals) {
    attention::ref::flash_rival = r.number;
    for (const AttentionCase& c : cases(kWhole)) {
      if (!useful(c, r.needs)) continue;
      Call call;
      prepare(c, call);
      attention::ref::flash_forward(call.forward);
      if (c.has("dq")) attention::ref::flash_backward(call.backward);
      if (equal(c, call)) continue;
      r.noticed_by = c.name();
      break;
    }
    attention::ref::flash_rival = 0;
    std::printf("%2d %-55s %s\n", r.number, r.rule, r.noticed_by.c_str());
    EXPECT_FALSE(r.noticed_by.empty()) << r.rule;
  }
}

// --- the bodies against the definition ---

struct Shape {
  int compute_capability;
  DType type;
  std::int64_t batch, queries, keys, heads, key_heads, head_dim;
  bool causal;
  float dropout;
  std::int64_t splits, buffers;
};
const std::vector<Shape> kShapes{
    {80, DType::kBF16, 1, 1, 1, 1, 1, 8, true, 0.0f, 1, 1},
    {90, DType::kF16, 2, 33, 65, 2, 1, 24, true, 0.0f, 1, 2},
    {89, DType::kBF16, 1, 65, 63, 3, 3, 64, true, 0.1f, 1, 1},
    {80, DType::kF16, 1, 129, 129, 2, 2, 72, false, 0.5f, 1, 1},
    {90, DType::kBF16, 1, 127, 257, 1, 1, 128, true, 0.9f, 1, 3},
    {86, DType::kF16, 1, 40, 90, 2, 1, 200, false, 0.0f, 1, 2},
    {100, DType::kBF16, 1, 17, 31, 1, 1, 256, true, 0.2f, 1, 1},
    {80, DType::kBF16, 1, 70, 300, 2, 1, 136, true, 0.0f, 4, 1},
    {80, DType::kBF16, 2, 5, 0, 1, 1, 32, false, 0.0f, 1, 1},
    {80, DType::kBF16, 2, 0, 5, 1, 1, 32, false, 0.0f, 1, 1},
    {80, DType::kBF16, 0, 3, 5, 1, 1, 32, false, 0.0f, 1, 1},
    {90, DType::kBF16, 1, 130, 70, 1, 1, 40, true, 0.0f, 1, 1},
    {80, DType::kBF16, 1, 9, 129, 1, 1, 8, false, 0.97f, 1, 1},
    {90, DType::kF16, 1, 9, 257, 1, 1, 8, false, 0.97f, 1, 1},
    {80, DType::kBF16, 1, 5, 64, 1, 1, 72, false, 0.0f, 1, 1},  // whole tiles forward, not backward
};

// Values, some special: zeros, subnormals, the largest, infinities, NaN.
std::vector<std::uint16_t> values(std::int64_t n, std::uint64_t seed, DType type, const std::string& kind) {
  std::vector<std::uint16_t> out;
  const std::vector<float> base = test::generated(seed, n);
  const std::uint16_t infinity = type == DType::kBF16 ? 0x7f80 : 0x7c00;
  for (std::int64_t i = 0; i < n; ++i) {
    float x = base[static_cast<std::size_t>(i)];
    if (kind == "tiny") x = x * 0x1p-70f;
    if (kind == "large") x = x * (type == DType::kBF16 ? 0x1p60f : 0x1p8f);
    if (kind == "wide") x = x * (i % 3 == 0 ? 0x1p-14f : i % 3 == 1 ? 0x1p5f : 0.0f);
    std::uint16_t h = type == DType::kBF16 ? convert::to_bf16(x) : convert::to_fp16(x);
    const std::uint16_t odd[] = {0,
                                 0x8000,
                                 1,
                                 static_cast<std::uint16_t>(infinity - 1),
                                 infinity,
                                 static_cast<std::uint16_t>(infinity | 0x8000),
                                 static_cast<std::uint16_t>(infinity | 1)};
    if (kind == "special" && (i * 2654435761u + seed) % 97 == 0) h = odd[static_cast<std::size_t>(i) / 97 % 7];
    out.push_back(h);
  }
  return out;
}

struct Outputs {
  std::vector<std::uint16_t> out, dq, dk, dv;
  std::vector<float> lse, sums;
};

// The scale of a kind's scores: masked ones have weight 0 only where it is above 0.
float scale_of(const std::string& kind) { return kind == "turned" ? -0.3f : kind == "flat" ? 0.0f : 0.3f; }

TEST(Flash, BodiesEqualTheDefinition) {
  int n = 0;
  for (const Shape& z : kShapes)
    for (const std::string kind : {"plain", "tiny", "large", "wide", "special", "turned", "flat", "hot"}) {
      const bool small = z.queries * z.keys * z.head_dim <= 40 * 90 * 200;
      if (!small && (kind == "turned" || kind == "flat" || kind == "hot")) continue;
      SCOPED_TRACE(std::to_string(z.queries) + "x" + std::to_string(z.keys) + " head " + std::to_string(z.head_dim) +
                   " " + kind);
      const FlashShape s{z.compute_capability, z.type,     z.batch, z.queries, z.keys, z.heads,
                         z.key_heads,          z.head_dim, z.causal};
      const std::int64_t rows = z.batch * z.queries * z.heads, columns = z.batch * z.keys * z.key_heads;
      const auto q = values(rows * z.head_dim, 1, z.type, kind), g = values(rows * z.head_dim, 2, z.type, kind),
                 v = values(columns * z.head_dim, 4, z.type, kind);
      auto k = values(columns * z.head_dim, 3, z.type, kind);
      // The last key's scores are infinities, the first that a tile of queries meets; where their weights are dropped,
      // only the accumulators know.
      if (kind == "hot" && !k.empty())
        k[k.size() - static_cast<std::size_t>(z.head_dim)] = z.type == DType::kBF16 ? 0x7f80 : 0x7c00;
      const auto run = [&](bool ref) {
        Outputs o;
        o.out.resize(static_cast<std::size_t>(rows * z.head_dim)), o.dq = o.out,
                                                                   o.lse.resize(static_cast<std::size_t>(rows));
        o.sums = o.lse, o.dk.resize(static_cast<std::size_t>(z.batch * z.keys * z.heads * z.head_dim)), o.dv = o.dk;
        FlashForward f;
        f.shape = s, f.query = q.data(), f.key = k.data(), f.value = v.data(), f.scale = scale_of(kind);
        f.query_strides = f.out_strides = packed(z.queries, z.heads, z.head_dim);
        f.key_strides = f.value_strides = packed(z.keys, z.key_heads, z.head_dim);
        f.logsumexp_form = static_cast<attention::FlashLogsumexp>(n % 4);
        f.dropout = {z.dropout, 77, 12}, f.key_splits = z.splits, f.out = o.out.data(), f.logsumexp = o.lse.data();
        FlashBackward b;
        b.shape = s, b.query = f.query, b.key = f.key, b.value = f.value, b.out = f.out, b.grad_out = g.data();
        b.query_strides = b.out_strides = b.grad_out_strides = b.grad_query_strides = f.query_strides;
        b.key_strides = b.value_strides = f.key_strides, b.scale = f.scale, b.dropout = f.dropout,
        b.logsumexp = f.logsumexp;
        b.grad_key_strides = b.grad_value_strides = packed(z.keys, z.heads, z.head_dim), b.dq_buffers = z.buffers;
        b.grad_query = o.dq.data(), b.grad_key = o.dk.data(), b.grad_value = o.dv.data(), b.sums = o.sums.data();
        ref ? attention::ref::flash_forward(f) : attention::flash_forward(f);
        ref ? attention::ref::flash_backward(b) : attention::flash_backward(b);
        return o;
      };
      const Outputs want = run(true);
      test::for_each_isa_and_threads([&] {
        const Outputs got = run(false);
        EXPECT_SAME_BYTES(want.out.data(), got.out.data(), static_cast<std::int64_t>(want.out.size()));
        EXPECT_SAME_BYTES(want.lse.data(), got.lse.data(), static_cast<std::int64_t>(want.lse.size()));
        EXPECT_SAME_BYTES(want.sums.data(), got.sums.data(), static_cast<std::int64_t>(want.sums.size()));
        EXPECT_SAME_BYTES(want.dq.data(), got.dq.data(), static_cast<std::int64_t>(want.dq.size()));
        EXPECT_SAME_BYTES(want.dk.data(), got.dk.data(), static_cast<std::int64_t>(want.dk.size()));
        EXPECT_SAME_BYTES(want.dv.data(), got.dv.data(), static_cast<std::int64_t>(want.dv.size()));
      });
      ++n;
    }
  EXPECT_EQ(n, 111);  // 15 shapes of 5 kinds, 12 small ones of 3 more
}

TEST(Flash, TheHostsChoices) {
  const auto tiles = [](int cc, std::int64_t dim, bool causal, bool dropout) {
    const FlashTiles t = attention::flash_forward_tiles({cc, DType::kBF16, 1, 1, 1, 1, 1, dim, causal}, dropout);
    return std::pair{t.queries, t.keys};
  };
  using Pair = std::pair<std::int64_t, std::int64_t>;
  EXPECT_EQ(tiles(80, 256, false, false), Pair(128, 64));
  EXPECT_EQ(tiles(90, 256, false, false), Pair(64, 64));
  EXPECT_EQ(tiles(89, 128, true, false), Pair(64, 64));
  EXPECT_EQ(tiles(89, 128, true, true), Pair(128, 32));
  EXPECT_EQ(tiles(80, 80, true, false), Pair(128, 64));
  // [src flash_api.cpp num_splits_heuristic, run by hand] 8 blocks on 108 multiprocessors, 2 key tiles of 256.
  FlashShape s{80, DType::kBF16, 1, 128, 500, 4, 4, 64, true};
  EXPECT_EQ(attention::flash_key_splits(s, 108), 2);
  s.keys = 256;
  EXPECT_EQ(attention::flash_key_splits(s, 108), 1);
  s.keys = 500, s.batch = 22;
  EXPECT_EQ(attention::flash_key_splits(s, 108), 1);  // 176 blocks, 0.8 of 216 are 172.8
  s.batch = 1, s.queries = s.keys = 256;
  EXPECT_FALSE(attention::flash_races(s, false));  // two tiles of 128 keys: two additions commute
  s.keys = 257;
  EXPECT_TRUE(attention::flash_races(s, false));
  EXPECT_EQ(attention::flash_dq_buffers(s, 108), 27);
  s.head_dim = 256, s.compute_capability = 89;
  EXPECT_THROW(attention::flash_backward_tiles(s, true), Error);
}

}  // namespace
}  // namespace step_oracle
