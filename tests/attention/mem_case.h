// One case of the memory-efficient kernels: its inputs, its outputs, and the parameters that point at them.
#pragma once
#include <cstring>

#include "csrc/kernels/attention/mem_efficient.h"
#include "tests/attention/vectors.h"

namespace step_oracle::test {

struct MemCase {
  using Bytes = std::vector<std::uint8_t>;
  attention::MemForward forward;
  attention::MemBackward backward;  // reads the outputs of the case's forward, once they are there
  bool has_backward = false, has_bias = false;
  Bytes q, k, v, bias, grad_out, out, dq, dk, dv, dbias;
  std::vector<float> lse, delta;

  explicit MemCase(const AttentionCase& c);
  MemCase(const MemCase&) = delete;
  std::size_t element() const { return size_of(forward.shape.type); }
  std::vector<float> lse_rows() const;  // without the padding
};

inline DType dtype_of_case(const std::string& name) {
  return name == "f32" ? DType::kF32 : name == "bf16" ? DType::kBF16 : DType::kF16;
}

// The order in which the vectors with several thread blocks were made.
inline std::vector<std::int32_t> blocks_one_after_another(const attention::MemBackward& p) {
  const attention::MemTiles tiles = attention::mem_backward_tiles(p.shape, p.dropout.p > 0.0f);
  const std::int64_t query_tiles = (p.shape.queries + tiles.queries - 1) / tiles.queries,
                     key_tiles = (p.shape.keys + tiles.keys - 1) / tiles.keys;
  std::vector<std::vector<std::int32_t>> rows(static_cast<std::size_t>(query_tiles));
  for (std::int64_t split = 0; split < p.key_splits; ++split)
    for (std::int64_t j = split; j < key_tiles; j += p.key_splits)
      for (std::int64_t step = 0; step < mem_query_tiles(p, j); ++step)
        rows[static_cast<std::size_t>((mem_first_query_tile(p, j) + step) % query_tiles)].push_back(
            static_cast<std::int32_t>(j));
  std::vector<std::int32_t> order;
  for (std::int64_t head = 0; head < p.shape.batch * p.shape.heads; ++head)
    for (auto row : rows) {
      row.resize(static_cast<std::size_t>(key_tiles), -1);
      order.insert(order.end(), row.begin(), row.end());
    }
  return order;
}

inline MemCase::MemCase(const AttentionCase& c) {
  const auto& meta = c.meta();
  attention::MemShape s;
  s.compute_capability = c.compute_capability();
  s.type = dtype_of_case(meta["dtype"]);
  s.batch = c.integer("batch"), s.heads = c.integer("heads");
  s.queries = c.integer("queries"), s.keys = c.integer("keys"), s.head_dim = c.integer("head_dim");
  s.value_dim = meta.value("value_dim", s.head_dim);
  const std::int64_t h = s.heads, d = s.head_dim, e = s.value_dim;
  const attention::Strides of_q{s.queries * h * d, h * d, d}, of_k{s.keys * h * d, h * d, d},
      of_v{s.keys * h * e, h * e, e}, of_o{s.queries * h * e, h * e, e};
  const attention::BiasStrides of_bias{h * s.queries * s.keys, s.queries * s.keys, s.keys};
  has_bias = meta["generated"].contains("bias"), has_backward = meta["generated"].contains("dout");
  q = c.input("q"), k = c.input("k"), v = c.input("v");
  if (has_bias) bias = c.input("bias");
  out.resize(static_cast<std::size_t>(s.batch * s.queries * h * e) * size_of(s.type));
  lse.resize(static_cast<std::size_t>(s.batch * h * attention::padded_queries(s.queries)));
  const std::int64_t causal = c.integer("causal");
  const attention::Mask mask = causal == 0   ? attention::Mask::kNone
                               : causal == 1 ? attention::Mask::kCausalTopLeft
                                             : attention::Mask::kCausalBottomRight;
  const attention::MemDropout dropout{c.from_bits("dropout_p_bits"), meta["seed"].get<std::uint64_t>(),
                                      meta["offset"].get<std::uint64_t>()};
  auto fill = [&](auto& p) {
    p.shape = s, p.query = q.data(), p.key = k.data(), p.value = v.data(), p.bias = has_bias ? bias.data() : nullptr;
    p.query_strides = of_q, p.key_strides = of_k, p.value_strides = of_v, p.out_strides = of_o;
    p.bias_strides = of_bias, p.mask = mask, p.scale = c.from_bits("scale_bits"), p.dropout = dropout;
    p.out = out.data();
  };
  fill(forward);
  forward.logsumexp = lse.data();
  if (!has_backward) return;
  fill(backward);
  grad_out = c.input("dout");
  if (s.type == DType::kF32) {
    const Bytes given = c.input("delta");
    delta.resize(given.size() / 4);
    std::memcpy(delta.data(), given.data(), given.size());
  } else {
    delta.resize(static_cast<std::size_t>(s.batch * h * s.queries));
  }
  dq.resize(q.size()), dk.resize(k.size()), dv.resize(v.size()), dbias.resize(has_bias ? bias.size() : 0);
  backward.grad_out = grad_out.data(), backward.grad_out_strides = of_o;
  backward.logsumexp = lse.data(), backward.logsumexp_pitch = attention::padded_queries(s.queries);
  backward.delta = delta.data();
  backward.grad_query = dq.data(), backward.grad_key = dk.data(), backward.grad_value = dv.data();
  backward.grad_query_strides = of_q, backward.grad_key_strides = of_k, backward.grad_value_strides = of_v;
  if (has_bias) backward.grad_bias = dbias.data(), backward.grad_bias_strides = of_bias;
  backward.key_splits = meta.value("splits", std::int64_t{1});
  if (meta.contains("order")) backward.dq_order = blocks_one_after_another(backward);
}

inline std::vector<float> MemCase::lse_rows() const {
  const attention::MemShape& s = forward.shape;
  const std::int64_t pitch = attention::padded_queries(s.queries);
  std::vector<float> rows;
  for (std::int64_t r = 0; r < s.batch * s.heads; ++r)
    rows.insert(rows.end(), lse.begin() + r * pitch, lse.begin() + r * pitch + s.queries);
  return rows;
}

}  // namespace step_oracle::test
