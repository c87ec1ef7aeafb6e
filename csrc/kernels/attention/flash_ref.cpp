// FlashAttention-2, thread block by thread block. Tiles lie in "shared memory": zeros beyond the matrices' ends.
#include <vector>

#include "csrc/kernels/attention/flash.h"
#include "csrc/kernels/attention/flash_rules.h"

namespace step_oracle::attention::ref {

// Tests set this to a wrong rule, and the golden vectors must notice. 0: the definition.
int flash_rival = 0;

namespace {

bool rival(int number) { return flash_rival == number; }

using Int = std::int64_t;
using flash::Scales;

struct Type {
  DType type;
  Adder adder;
  explicit Type(const FlashShape& s)
      : type(s.type), adder((s.compute_capability < 90) != rival(1) ? kAdderTuring : kAdderHopper) {}
  float widen(std::uint16_t h) const { return type == DType::kBF16 ? convert::from_bf16(h) : convert::from_fp16(h); }
  std::uint16_t narrow(float x) const { return type == DType::kBF16 ? convert::to_bf16(x) : convert::to_fp16(x); }
  // acc + sum of a[i] b[i], in depth-16 steps of the tensor core.
  float chain(const std::uint16_t* a, Int a_step, const std::uint16_t* b, Int b_step, Int depth, float acc) const {
    for (Int i = 0; i < depth; i += adder.terms) {
      const int n = static_cast<int>(depth - i < adder.terms ? depth - i : adder.terms);
      acc = type == DType::kBF16 ? dot_add<Bf16Format>(a + i * a_step, a_step, b + i * b_step, b_step, n, acc, adder)
                                 : dot_add<Fp16Format>(a + i * a_step, a_step, b + i * b_step, b_step, n, acc, adder);
    }
    return acc;
  }
};

using Half = std::vector<std::uint16_t>;
using Floats = std::vector<float>;

// Rows [row, row + rows) of a head, each filled up to `width`.
Half load(const std::uint16_t* from, const Strides& st, Int b, Int h, Int row, Int rows, Int limit, Int dim,
          Int width) {
  Half tile(static_cast<std::size_t>(rows * width), 0);
  for (Int r = 0; r < rows && row + r < limit; ++r)
    for (Int d = 0; d < dim; ++d) tile[r * width + d] = from[b * st.batch + (row + r) * st.position + h * st.head + d];
  return tile;
}

bool masked(const FlashShape& s, Int row, Int col) {
  return col >= s.keys || (s.causal && col > row + s.keys - s.queries);
}

bool kept(const FlashDropout& d, int threshold, Int head, Int row, Int col) {
  const philox::Block block = flash::random_block(d, head, flash::random_lane(row, col), row, col);
  const int byte = flash::random_byte(row, col);
  const int value = static_cast<int>(block.word[byte / 4] >> (8 * (byte % 4)) & 0xff);
  return rival(2) ? value < threshold : value <= threshold;
}

// --- forward ---

struct Block {
  Int batch, head, row, rows, width;  // of the query tile
  Int begin, end;                     // key tiles
};
struct Rows {
  Floats max, sum, out;  // sum: four lanes a row
};

void visit(const FlashForward& p, const Block& k, const FlashTiles& t, Int tile, bool first, const Half& q,
           Rows& rows) {
  const FlashShape& s = p.shape;
  const Type type(s);
  const Scales c = flash::scales(p.scale, p.dropout.p);
  const Int col0 = tile * t.keys, kv = k.head / (s.heads / s.key_heads);
  const Half key = load(p.key, p.key_strides, k.batch, kv, col0, t.keys, s.keys, s.head_dim, k.width),
             value = load(p.value, p.value_strides, k.batch, kv, col0, t.keys, s.keys, s.head_dim, k.width);
  Half weights(static_cast<std::size_t>(t.keys));
  Floats x(static_cast<std::size_t>(t.keys));
  for (Int r = 0; r < k.rows; ++r) {
    float max = rows.max[r];
    for (Int j = 0; j < t.keys; ++j) {
      x[j] = type.chain(&q[r * k.width], 1, &key[j * k.width], 1, k.width, 0.0f);
      if (masked(s, k.row + r, col0 + j)) x[j] = flash::minus_infinity();
      max = x[j] > max ? x[j] : max;
    }
    const bool none = max == flash::minus_infinity();
    const float seen = none ? 0.0f : max;
    const float factor = mufu::ex2(rival(3) ? fma(rows.max[r], c.scale_log2, -(seen * c.scale_log2))
                                            : (rows.max[r] - seen) * c.scale_log2);
    if (!first)
      for (Int d = 0; d < k.width; ++d) rows.out[r * k.width + d] = rows.out[r * k.width + d] * factor;
    const float scaled_max = none ? 0.0f : max * c.scale_log2;
    for (Int j = 0; j < t.keys; ++j)
      x[j] = canonical(mufu::ex2(rival(4) ? fma(x[j], c.scale_log2, -scaled_max) : x[j] * c.scale_log2 - scaled_max));
    for (int lane = 0; lane < 4; ++lane) {
      float& sum = rows.sum[r * 4 + lane];
      const float start = x[2 * lane];
      sum = first ? start : rival(5) ? sum * factor + start : fma(sum, factor, start);
      sum = sum + x[2 * lane + 1];
      for (Int j = 8 + 2 * lane; j < t.keys; j += 8) {
        sum = sum + x[j];
        sum = sum + x[j + 1];
      }
    }
    rows.max[r] = max;
    for (Int j = 0; j < t.keys; ++j) {
      weights[j] = type.narrow(x[j]);
      if (p.dropout.p > 0.0f && !kept(p.dropout, c.threshold, k.batch * s.heads + k.head, k.row + r, col0 + j))
        weights[j] = 0;
    }
    for (Int d = 0; d < k.width; ++d)
      rows.out[r * k.width + d] = type.chain(weights.data(), 1, &value[d], k.width, t.keys, rows.out[r * k.width + d]);
  }
}

Rows block(const FlashForward& p, const Block& k, const FlashTiles& t) {
  const FlashShape& s = p.shape;
  const Half q = load(p.query, p.query_strides, k.batch, k.head, k.row, k.rows, s.queries, s.head_dim, k.width);
  Rows rows{Floats(k.rows, flash::minus_infinity()), Floats(k.rows * 4, 0.0f), Floats(k.rows * k.width, 0.0f)};
  for (Int tile = k.end - 1; tile >= k.begin; --tile)
    visit(p, k, t, rival(6) ? k.begin + k.end - 1 - tile : tile, tile == k.end - 1, q, rows);
  return rows;
}

float total(const float* lanes) {
  if (rival(7)) return (lanes[0] + lanes[1]) + (lanes[2] + lanes[3]);
  return (lanes[0] + lanes[2]) + (lanes[1] + lanes[3]);
}

void whole_keys(const FlashForward& p) {
  const FlashShape& s = p.shape;
  const Type type(s);
  const Scales c = flash::scales(p.scale, p.dropout.p);
  const FlashTiles t = flash_forward_tiles(s, p.dropout.p > 0.0f);
  for (Int b = 0; b < s.batch; ++b)
    for (Int h = 0; h < s.heads; ++h)
      for (Int row = 0; row < s.queries; row += t.queries) {
        const Block k{
            b, h, row, t.queries, flash::head_class(s.head_dim), 0, flash::key_tiles_end(s, row + t.queries, t.keys)};
        const Rows rows = block(p, k, t);
        for (Int r = 0; r < k.rows && row + r < s.queries; ++r) {
          const flash::RowEnd end = flash::end_of_row(rows.max[r], total(&rows.sum[r * 4]), c.scale, false, p.logsumexp_form);
          const float inverse = p.dropout.p > 0.0f ? end.inverse * c.inverse_keep : end.inverse;
          for (Int d = 0; d < s.head_dim; ++d)
            p.out[b * p.out_strides.batch + (row + r) * p.out_strides.position + h * p.out_strides.head + d] =
                type.narrow(rows.out[r * k.width + d] * inverse);
          p.logsumexp[(b * s.heads + h) * s.queries + row + r] = end.logsumexp;
        }
      }
}

void split_keys(const FlashForward& p) {
  const FlashShape& s = p.shape;
  const Type type(s);
  const FlashTiles t = flash_split_tiles(s);
  const Int width = flash::head_class(s.head_dim), heads = s.batch * s.heads, all = (s.keys + t.keys - 1) / t.keys;
  const Int each = (all + p.key_splits - 1) / p.key_splits;
  Floats logsumexp(p.key_splits * heads * s.queries), out(logsumexp.size() * width);
  for (Int split = 0; split < p.key_splits; ++split)
    for (Int head = 0; head < heads; ++head)
      for (Int row = 0; row < s.queries; row += t.queries) {
        const Int last = flash::key_tiles_end(s, row + t.queries, t.keys), end = (split + 1) * each;
        const Block k{head / s.heads, head % s.heads, row, t.queries, width, split * each, end < last ? end : last};
        const Rows rows = block(p, k, t);
        for (Int r = 0; r < k.rows && row + r < s.queries; ++r) {
          const flash::RowEnd e = flash::end_of_row(rows.max[r], total(&rows.sum[r * 4]), p.scale, true, p.logsumexp_form);
          const Int at = (split * heads + head) * s.queries + row + r;
          logsumexp[at] = e.logsumexp;
          for (Int d = 0; d < width; ++d) out[at * width + d] = rows.out[r * width + d] * e.inverse;
        }
      }
  for (Int at = 0; at < heads * s.queries; ++at) {
    const auto part = [&](Int split) { return logsumexp[split * heads * s.queries + at]; };
    const float l = flash::combined_logsumexp(flash::combine_lanes(s.head_dim, p.key_splits), p.key_splits, part);
    p.logsumexp[at] = canonical(l);
    const Int b = at / s.queries / s.heads, h = at / s.queries % s.heads, row = at % s.queries;
    for (Int d = 0; d < s.head_dim; ++d) {
      float sum = 0.0f;
      for (Int split = 0; split < p.key_splits; ++split)
        sum = fma(libdevice::expf(part(split) - l), out[(split * heads * s.queries + at) * width + d], sum);
      p.out[b * p.out_strides.batch + row * p.out_strides.position + h * p.out_strides.head + d] = type.narrow(sum);
    }
  }
  if (p.split_logsumexp)
    for (std::size_t i = 0; i < logsumexp.size(); ++i) p.split_logsumexp[i] = logsumexp[i];
}

// --- backward ---

// The first kernel: sum of grad_out * out over a row, times the probability of keeping.
float row_sum(const FlashBackward& p, Int b, Int h, Int row) {
  const FlashShape& s = p.shape;
  const Type type(s);
  const Int width = flash::head_class(s.head_dim);
  const int lanes = rival(9) ? 4 : flash::sum_lanes(s.head_dim);
  const Half g = load(p.grad_out, p.grad_out_strides, b, h, row, 1, s.queries, s.head_dim, width),
             o = load(p.out, p.out_strides, b, h, row, 1, s.queries, s.head_dim, width);
  float lane[8];
  for (int t = 0; t < lanes; ++t)
    for (Int chunk = 8 * t; chunk < width; chunk += 8 * lanes)
      for (Int i = chunk; i < chunk + 8; ++i)
        lane[t] = i == 8 * t ? type.widen(g[i]) * type.widen(o[i]) : fma(type.widen(g[i]), type.widen(o[i]), lane[t]);
  for (int distance = lanes / 2; distance > 0; distance /= 2)
    for (int t = 0; t < distance; ++t) lane[t] = lane[t] + lane[t + distance];
  return canonical(lane[0] * flash::scales(p.scale, p.dropout.p).keep);
}

struct KeyBlock {
  Int batch, head, col, width;
  FlashTiles tiles;
};

// One key tile: dK and dV of its keys, and what it adds to dq (queries x width).
void key_block(const FlashBackward& p, const KeyBlock& k, const Floats& sums, Floats& dq) {
  const FlashShape& s = p.shape;
  const Type type(s);
  const Scales c = flash::scales(p.scale, p.dropout.p);
  const bool drops = p.dropout.p > 0.0f;
  const Int bm = k.tiles.queries, bn = k.tiles.keys, w = k.width, kv = k.head / (s.heads / s.key_heads);
  const Half key = load(p.key, p.key_strides, k.batch, kv, k.col, bn, s.keys, s.head_dim, w),
             value = load(p.value, p.value_strides, k.batch, kv, k.col, bn, s.keys, s.head_dim, w);
  Floats dk(bn * w, 0.0f), dv(bn * w, 0.0f);
  const Int query_tiles = (s.queries + bm - 1) / bm, first = flash::first_query_tile(s, k.col, bm);
  for (Int tile = query_tiles - 1; tile >= first; --tile) {
    const Int row0 = (rival(11) ? query_tiles - 1 - tile + first : tile) * bm;
    const Half q = load(p.query, p.query_strides, k.batch, k.head, row0, bm, s.queries, s.head_dim, w),
               g = load(p.grad_out, p.grad_out_strides, k.batch, k.head, row0, bm, s.queries, s.head_dim, w);
    Half weights(bm * bn), ds(bm * bn);
    for (Int r = 0; r < bm; ++r) {
      const bool inside = row0 + r < s.queries;
      const Int at = (k.batch * s.heads + k.head) * s.queries + row0 + r;
      const float l = inside ? p.logsumexp[at] : flash::plus_infinity(), sum = inside ? sums[row0 + r] : 0.0f;
      const float scaled = l == flash::minus_infinity() ? 0.0f : l * flash::kLog2eFloat;
      for (Int j = 0; j < bn; ++j) {
        float x = type.chain(&q[r * w], 1, &key[j * w], 1, w, 0.0f);
        if (masked(s, row0 + r, k.col + j)) x = flash::minus_infinity();
        const float weight =
            canonical(mufu::ex2(rival(10) ? fma(x, c.scale_log2, -scaled) : x * c.scale_log2 - scaled));
        const float dp = type.chain(&g[r * w], 1, &value[j * w], 1, w, 0.0f);
        const bool dropped = drops && !kept(p.dropout, c.threshold, k.batch * s.heads + k.head, row0 + r, k.col + j);
        const float marked = dropped ? -weight : weight;  // a negative weight stands for a dropped one
        ds[r * bn + j] = type.narrow(!drops || marked >= 0.0f ? marked * (dp - sum) : marked * sum);
        weights[r * bn + j] = type.narrow(marked < 0.0f ? 0.0f : dropped && marked == marked ? 0.0f : weight);
      }
    }
    for (Int j = 0; j < bn; ++j)
      for (Int d = 0; d < w; ++d) {
        dv[j * w + d] = type.chain(&weights[j], bn, &g[d], w, bm, dv[j * w + d]);
        dk[j * w + d] = type.chain(&ds[j], bn, &q[d], w, bm, dk[j * w + d]);
      }
    for (Int r = 0; r < bm && row0 + r < s.queries; ++r)
      for (Int d = 0; d < w; ++d)
        dq[(row0 + r) * w + d] =
            flash::atomic_add(dq[(row0 + r) * w + d], type.chain(&ds[r * bn], 1, &key[d], w, bn, 0.0f));
  }
  const auto put = [&](std::uint16_t* to, const Strides& st, const Floats& from, float factor) {
    for (Int j = 0; j < bn && k.col + j < s.keys; ++j)
      for (Int d = 0; d < s.head_dim; ++d)
        to[k.batch * st.batch + (k.col + j) * st.position + k.head * st.head + d] =
            type.narrow(from[j * w + d] * factor);
  };
  put(p.grad_key, p.grad_key_strides, dk, rival(12) ? c.scale : c.gradient);
  put(p.grad_value, p.grad_value_strides, dv, drops ? c.inverse_keep : 1.0f);
}

}  // namespace

void flash_forward(const FlashForward& p) {
  if (p.key_splits > 1)
    split_keys(p);
  else
    whole_keys(p);
}

void flash_backward(const FlashBackward& p) {
  const FlashShape& s = p.shape;
  const Type type(s);
  const Scales c = flash::scales(p.scale, p.dropout.p);
  const FlashTiles t = flash_backward_tiles(s, p.dropout.p > 0.0f);
  const Int w = flash::head_class(s.head_dim);
  for (Int b = 0; b < s.batch; ++b)
    for (Int h = 0; h < s.heads; ++h) {
      Floats sums(s.queries), dq(s.queries * w, 0.0f);
      for (Int row = 0; row < s.queries; ++row) {
        sums[row] = row_sum(p, b, h, row);
        if (p.sums) p.sums[(b * s.heads + h) * s.queries + row] = sums[row];
      }
      std::vector<Floats> buffers(p.dq_buffers, Floats(s.queries * w, 0.0f));
      for (Int col = 0; col < s.keys; col += t.keys)
        key_block(p, {b, h, col, w, t}, sums, buffers[col / t.keys % p.dq_buffers]);
      for (const Floats& buffer : buffers)
        for (std::size_t i = 0; i < dq.size(); ++i) dq[i] = dq[i] + buffer[i];
      for (Int row = 0; row < s.queries; ++row)
        for (Int d = 0; d < s.head_dim; ++d)
          p.grad_query[b * p.grad_query_strides.batch + row * p.grad_query_strides.position +
                       h * p.grad_query_strides.head + d] = type.narrow(dq[row * w + d] * c.gradient);
    }
}

}  // namespace step_oracle::attention::ref
