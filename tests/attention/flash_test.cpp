// FlashAttention-2: the definition and the bodies against the card's compiled kernels, and against each other.
#include "csrc/kernels/attention/flash.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/attention/vectors.h"
#include "tests/support/same_bytes.h"

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

}  // namespace
}  // namespace step_oracle
