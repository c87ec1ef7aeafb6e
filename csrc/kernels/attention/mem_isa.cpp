// Memory-efficient attention, fast: a head's matrices are widened and packed once; tiles go through mem_product.h, rows
// between two products through mem_rows.h.
#include "csrc/kernels/attention/mem_body.h"
#include "csrc/kernels/attention/mem_product.h"
#include "csrc/kernels/attention/mem_rows.h"

SO_ISA_BEGIN
namespace {

using namespace mem_product;
using namespace mem_rows;
using attention::Mask;
using attention::MemBackward;
using attention::MemForward;
using attention::MemShape;
using attention::MemTiles;
using attention::Strides;

Kind kind_of(const MemShape& s) {
  const bool hopper = s.compute_capability >= 90;
  if (s.type == DType::kF32)
    return s.compute_capability < 80 ? Kind::kSimt : hopper ? Kind::kTf32Hopper : Kind::kTf32Ampere;
  if (s.type == DType::kBF16) return hopper ? Kind::kBf16Hopper : Kind::kBf16Turing;
  return hopper ? Kind::kFp16Hopper : Kind::kFp16Turing;
}

Int tile_count(Int n, Int size) { return (n + size - 1) / size; }
Int diagonal(const MemShape& s, Mask mask) { return mask == Mask::kCausalBottomRight ? s.keys - s.queries : 0; }
Int clamped(Int x, Int low, Int high) { return x < low ? low : x > high ? high : x; }

void zero(float* x, Int n) { std::memset(x, 0, static_cast<std::size_t>(n) * sizeof(float)); }

// A head's matrix as floats, and the exponents in it. float32 stays where it is.
struct Matrix {
  float* widened;  // room for one of a 16-bit type
  const float* at;
  Int row_step, cols;
  Ranges range;
  const float* row(Int r) const { return at + r * row_step; }
};
Matrix take_matrix(Arena& arena, DType type, Int rows, Int cols) {
  return {type == DType::kF32 ? nullptr : arena.take<float>(rows * cols), nullptr, cols, cols, {}};
}
void read_matrix(DType type, Kind kind, const void* from, const Strides& s, Int b, Int h, Int begin, Int end,
                 Matrix& to) {
  const Int first = b * s.batch + h * s.head + begin * s.position;
  if (type == DType::kF32) {
    to.at = static_cast<const float*>(from) + first, to.row_step = s.position;
  } else {
    for (Int r = 0; r < end - begin; ++r)
      widen(type, from, first + r * s.position, to.cols, to.widened + r * to.cols);
    to.at = to.widened;
  }
  to.range = range_of(kind, to.at, to.row_step, end - begin, to.cols);
}

// --- forward ---

struct ForwardSpace {
  Matrix query, key, value;
  Cols *keys, *values;  // of the key tiles
  Rows queries, weights;
  Row* rows;
  float *scores, *out, *part, *line, *factor;
  Int score_pitch, out_pitch;
};

ForwardSpace forward_space(const MemForward& p, const MemTiles& t, Arena& arena) {
  const MemShape& s = p.shape;
  const Kind kind = kind_of(s);
  const Int key_tiles = tile_count(s.keys, t.keys), rows = up(t.queries, kRowPad);
  ForwardSpace w{};
  w.query = take_matrix(arena, s.type, t.queries, s.head_dim);
  w.key = take_matrix(arena, s.type, s.keys, s.head_dim), w.value = take_matrix(arena, s.type, s.keys, s.value_dim);
  w.keys = arena.take<Cols>(key_tiles), w.values = arena.take<Cols>(key_tiles);
  for (Int j = 0; j < key_tiles; ++j) {
    const Cols k = take_cols(arena, kind, Remainder::kFirst, s.head_dim, t.keys);
    const Cols v = take_cols(arena, kind, Remainder::kLast, t.keys, s.value_dim);
    if (arena.base) w.keys[j] = k, w.values[j] = v;
  }
  w.queries = take_rows(arena, kind, Remainder::kFirst, t.queries, s.head_dim);
  w.weights = take_rows(arena, kind, Remainder::kLast, t.queries, t.keys);
  w.score_pitch = up(t.keys, kColBlock), w.out_pitch = up(s.value_dim, kColBlock);
  w.rows = arena.take<Row>(rows);
  w.scores = arena.take<float>(rows * w.score_pitch);
  w.out = arena.take<float>(rows * w.out_pitch), w.part = arena.take<float>(rows * w.out_pitch);
  w.line = arena.take<float>(up(larger(s.head_dim, t.keys), kTile)), w.factor = arena.take<float>(kMostKeys);
  return w;
}
std::size_t forward_workspace(const MemForward& p, const MemTiles& t) {
  Arena arena{nullptr};
  forward_space(p, t, arena);
  return arena.used;
}

struct Forward {
  const MemForward& p;
  const MemTiles& t;
  ForwardSpace w;
  Kind kind;
  Int b = 0, h = 0, q0 = 0, rows = 0;

  void take_head() {
    const MemShape& s = p.shape;
    read_matrix(s.type, kind, p.key, p.key_strides, b, h, 0, s.keys, w.key);
    read_matrix(s.type, kind, p.value, p.value_strides, b, h, 0, s.keys, w.value);
    for (Int j = 0; j < tile_count(s.keys, t.keys); ++j) {
      const Int n = smaller(t.keys, s.keys - j * t.keys);
      pack_cols(w.keys[j], w.key.row(j * t.keys), 1, w.key.row_step, s.head_dim, n, Factor::kSecond, w.key.range);
      pack_cols(w.values[j], w.value.row(j * t.keys), w.value.row_step, 1, n, s.value_dim, Factor::kSecond,
                w.value.range);
    }
  }

  // Of row r of a tile the keys from diagonal + r + 1 on are masked.
  Int tile_diagonal(Int k0, Int end) const {
    const Int shift = diagonal(p.shape, p.mask);
    // Unsigned, as the kernel compares: a tile right of the diagonal's start is not masked at all.
    const bool masked = p.mask != Mask::kNone && static_cast<std::uint32_t>(smaller(k0 + t.keys, end)) >=
                                                     static_cast<std::uint32_t>(q0 + shift);
    return masked ? q0 + shift - k0 : kEveryColumn;
  }

  // The scores of row r as exponents by two, then its weights, in place.
  void weigh(Int r, Int k0, Int n, Int diagonal) {
    const MemShape& s = p.shape;
    float* const x = w.scores + r * w.score_pitch;
    const float scale = p.scale;
    if (p.bias) {
      float bias[kMostKeys];
      widen(s.type, p.bias, b * p.bias_strides.batch + h * p.bias_strides.head + (q0 + r) * p.bias_strides.query + k0,
            n, bias);
      for (Int k = 0; k < n; ++k) x[k] = (x[k] * scale + bias[k]) * kLog2e;
    } else {
      for (Int k = 0; k < n; ++k) x[k] = x[k] * scale * kLog2e;
    }
    for (Int k = clamped(diagonal + r + 1, 0, n); k < n; ++k) x[k] = -kInfinity;
    softmax_row(kind == Kind::kSimt, w.rows[r], x, n, t.keys);
    round_row(s.type, x, t.keys);
    if (p.dropout.p > 0.0f) {
      const float factor = static_cast<float>(1.0 / (1.0 - static_cast<double>(p.dropout.p)));
      draw(p.dropout,
           p.dropout.offset + static_cast<std::uint64_t>(((b * s.heads + h) * s.queries + q0 + r) * s.keys + k0), n,
           rounded(s.type, factor * 1.0f), rounded(s.type, factor * 0.0f), w.factor);
      for (Int k = 0; k < n; ++k) x[k] = x[k] * w.factor[k];
      round_row(s.type, x, n);
    }
  }

  void key_tile(Int k0, Int end) {
    const MemShape& s = p.shape;
    const Int n = smaller(t.keys, end - k0);
    for (Int r = 0; r < up(rows, kRowPad); ++r) zero(w.scores + r * w.score_pitch, w.score_pitch);
    const Int diagonal = tile_diagonal(k0, end);
    multiply(w.queries, w.keys[k0 / t.keys], w.scores, w.score_pitch, diagonal);
    for (Int r = 0; r < rows; ++r) weigh(r, k0, n, diagonal);
    const Cols& value = w.values[k0 / t.keys];
    pack_rows(w.weights, w.scores, w.score_pitch, 1, rows, n, Factor::kFirst, value.range.high(), w.line);
    if (t.in_registers) {
      if (k0 > 0)
        for (Int r = 0; r < rows; ++r) {
          const float f = w.rows[r].rescale;
          float* const o = w.out + r * w.out_pitch;
          for (Int d = 0; d < s.value_dim; ++d) o[d] = o[d] * f;
        }
      multiply(w.weights, value, w.out, w.out_pitch);
      return;
    }
    zero(w.part, up(rows, kRowPad) * w.out_pitch);
    multiply(w.weights, value, w.part, w.out_pitch);
    const bool last = k0 + t.keys >= end;
    for (Int r = 0; r < rows; ++r) {
      const Row& row = w.rows[r];
      const float alpha = last ? 1.0f / (row.sum == 0.0f ? 1.0f : row.sum) : 1.0f, beta = alpha * row.rescale;
      float *const o = w.out + r * w.out_pitch, *const part = w.part + r * w.out_pitch;
      if (k0 == 0)
        for (Int d = 0; d < s.value_dim; ++d) o[d] = alpha * part[d];
      else
        for (Int d = 0; d < s.value_dim; ++d) o[d] = fma(alpha, part[d], beta * o[d]);
    }
  }

  void finish() {
    const MemShape& s = p.shape;
    const Strides& o = p.out_strides;
    for (Int r = 0; r < rows; ++r) {
      const Row& row = w.rows[r];
      const float sum = row.sum == 0.0f ? 1.0f : row.sum, max = row.max == -kInfinity ? 0.0f : row.max;
      float* const out = w.out + r * w.out_pitch;
      const float inverse = 1.0f / sum;
      if (t.in_registers)
        for (Int d = 0; d < s.value_dim; ++d) out[d] = out[d] * inverse;
      narrow(s.type, out, s.value_dim, p.out, b * o.batch + (q0 + r) * o.position + h * o.head);
      if (p.logsumexp)
        p.logsumexp[(b * s.heads + h) * attention::padded_queries(s.queries) + q0 + r] =
            canonical(max / kLog2e + libdevice::logf(sum));
    }
  }

  void query_tile() {
    const MemShape& s = p.shape;
    rows = smaller(t.queries, s.queries - q0);
    const Int end = p.mask != Mask::kNone ? smaller(s.keys, q0 + diagonal(s, p.mask) + t.queries) : s.keys;
    read_matrix(s.type, kind, p.query, p.query_strides, b, h, q0, q0 + rows, w.query);
    pack_rows(w.queries, w.query.at, w.query.row_step, 1, rows, s.head_dim, Factor::kFirst, w.key.range.high(),
              w.line);
    for (Int r = 0; r < rows; ++r) w.rows[r] = {-kInfinity, 0.0f, 1.0f};
    zero(w.out, up(t.queries, kRowPad) * w.out_pitch);
    for (Int k0 = 0; k0 < end; k0 += t.keys) key_tile(k0, end);
    finish();
  }
};

void forward(const MemForward& p, const MemTiles& t, Int begin, Int end, void* workspace) {
  Arena arena{static_cast<std::byte*>(workspace)};
  Forward f{p, t, forward_space(p, t, arena), kind_of(p.shape)};
  const Int tiles = tile_count(p.shape.queries, t.queries);
  for (Int task = begin; task < end; ++task) {
    f.b = task / tiles / p.shape.heads, f.h = task / tiles % p.shape.heads, f.q0 = task % tiles * t.queries;
    if (task == begin || f.q0 == 0) f.take_head();
    f.query_tile();
  }
}

// --- backward ---

struct BackwardSpace {
  Matrix query, key, value, grad_out;
  Cols *keys_turned, *values_turned, *keys;  // of the key tiles
  Rows *queries, *grad_outs;                 // of the query tiles
  Cols *query_cols, *grad_out_cols;          // the same as second factors
  Rows turned, grad_rows;                    // weights or dS with keys as rows; dS with queries as rows
  float *scores, *grads, *grad_query, *grad_key, *grad_value, *new_key, *new_value, *delta, *line;
  Int pitch, key_pitch, value_pitch;
};

BackwardSpace backward_space(const MemBackward& p, const MemTiles& t, Arena& arena) {
  const MemShape& s = p.shape;
  const Kind kind = kind_of(s);
  const Int key_tiles = tile_count(s.keys, t.keys), query_tiles = tile_count(s.queries, t.queries);
  BackwardSpace w{};
  w.query = take_matrix(arena, s.type, s.queries, s.head_dim), w.key = take_matrix(arena, s.type, s.keys, s.head_dim);
  w.value = take_matrix(arena, s.type, s.keys, s.value_dim);
  w.grad_out = take_matrix(arena, s.type, s.queries, s.value_dim);
  const auto cols = [&](Int count, Remainder remainder, Int depth, Int n) {
    Cols* const all = arena.take<Cols>(count);
    for (Int i = 0; i < count; ++i) {
      const Cols one = take_cols(arena, kind, remainder, depth, n);
      if (arena.base) all[i] = one;
    }
    return all;
  };
  const auto rows = [&](Int count, Int n, Int depth) {
    Rows* const all = arena.take<Rows>(count);
    for (Int i = 0; i < count; ++i) {
      const Rows one = take_rows(arena, kind, Remainder::kFirst, n, depth);
      if (arena.base) all[i] = one;
    }
    return all;
  };
  w.keys_turned = cols(key_tiles, Remainder::kFirst, s.head_dim, t.keys);
  w.values_turned = cols(key_tiles, Remainder::kFirst, s.value_dim, t.keys);
  w.keys = cols(key_tiles, Remainder::kLast, t.keys, s.head_dim);
  w.queries = rows(query_tiles, t.queries, s.head_dim), w.grad_outs = rows(query_tiles, t.queries, s.value_dim);
  w.query_cols = cols(query_tiles, Remainder::kLast, t.queries, s.head_dim);
  w.grad_out_cols = cols(query_tiles, Remainder::kLast, t.queries, s.value_dim);
  w.turned = take_rows(arena, kind, Remainder::kLast, t.keys, t.queries);
  w.grad_rows = take_rows(arena, kind, Remainder::kLast, t.queries, t.keys);
  w.pitch = up(t.keys, kColBlock), w.key_pitch = up(s.head_dim, kColBlock), w.value_pitch = up(s.value_dim, kColBlock);
  const Int tall = up(t.queries, kRowPad), wide = up(t.keys, kRowPad);
  w.scores = arena.take<float>(tall * w.pitch), w.grads = arena.take<float>(tall * w.pitch);
  w.grad_query = arena.take<float>(query_tiles * tall * w.key_pitch);
  w.grad_key = arena.take<float>(wide * w.key_pitch), w.new_key = arena.take<float>(wide * w.key_pitch);
  w.grad_value = arena.take<float>(wide * w.value_pitch), w.new_value = arena.take<float>(wide * w.value_pitch);
  w.delta = arena.take<float>(s.queries);
  w.line = arena.take<float>(up(larger(larger(s.head_dim, s.value_dim), larger(t.queries, t.keys)), kTile));
  return w;
}
std::size_t backward_workspace(const MemBackward& p, const MemBackwardPlan& plan) {
  Arena arena{nullptr};
  backward_space(p, plan.tiles, arena);
  return arena.used;
}

struct Backward {
  const MemBackward& p;
  const MemBackwardPlan& plan;
  const MemTiles& t;
  BackwardSpace w;
  Kind kind;
  Int b = 0, h = 0;

  Int rows_of(Int i) const { return smaller(t.queries, p.shape.queries - i * t.queries); }
  Int keys_of(Int j) const { return smaller(t.keys, p.shape.keys - j * t.keys); }

  void take_head(bool first) {
    const MemShape& s = p.shape;
    const Int d = s.head_dim, e = s.value_dim;
    read_matrix(s.type, kind, p.query, p.query_strides, b, h, 0, s.queries, w.query);
    read_matrix(s.type, kind, p.key, p.key_strides, b, h, 0, s.keys, w.key);
    read_matrix(s.type, kind, p.value, p.value_strides, b, h, 0, s.keys, w.value);
    read_matrix(s.type, kind, p.grad_out, p.grad_out_strides, b, h, 0, s.queries, w.grad_out);
    for (Int j = 0; j < tile_count(s.keys, t.keys); ++j) {
      const Int n = keys_of(j);
      const float *const key = w.key.row(j * t.keys), *const value = w.value.row(j * t.keys);
      const Int key_step = w.key.row_step, value_step = w.value.row_step;
      pack_cols(w.keys_turned[j], key, 1, key_step, d, n, Factor::kFirst, w.key.range);  // the kernel's first factor: K
      pack_cols(w.values_turned[j], value, 1, value_step, e, n, Factor::kSecond, w.value.range);
      pack_cols(w.keys[j], key, key_step, 1, n, d, Factor::kSecond, w.key.range);
    }
    for (Int i = 0; i < tile_count(s.queries, t.queries); ++i) {
      const Int n = rows_of(i);
      const float *const query = w.query.row(i * t.queries), *const grad = w.grad_out.row(i * t.queries);
      const Int query_step = w.query.row_step, grad_step = w.grad_out.row_step;
      pack_rows(w.queries[i], query, query_step, 1, n, d, Factor::kSecond, w.key.range.high(), w.line);
      pack_rows(w.grad_outs[i], grad, grad_step, 1, n, e, Factor::kFirst, w.value.range.high(), w.line);
      pack_cols(w.query_cols[i], query, query_step, 1, n, d, Factor::kSecond, w.query.range);
      pack_cols(w.grad_out_cols[i], grad, grad_step, 1, n, e, Factor::kSecond, w.grad_out.range);
    }
    take_delta(first);
  }

  // 16-bit types: t.keys / 32 lanes a row, each eight adjacent elements of every 8 lanes (one, where 8 does not
  // divide). Of the ranges that share a head, the first stores it.
  void take_delta(bool first) {
    const MemShape& s = p.shape;
    float* const given = p.delta + (b * s.heads + h) * s.queries;
    float* const to = w.delta;
    if (s.type == DType::kF32) {
      std::memcpy(to, given, static_cast<std::size_t>(s.queries) * sizeof(float));
    } else {
      const Int lanes = t.keys / 32, wide = s.value_dim % 8 == 0 ? 8 : 1;
      float row[kRowFloats];
      for (Int q = 0; q < s.queries; ++q) {
        float lane[4] = {};
        for (Int d0 = 0; d0 < s.value_dim; d0 += kRowFloats) {
          const Int n = smaller(kRowFloats, s.value_dim - d0);
          widen(s.type, p.out, b * p.out_strides.batch + q * p.out_strides.position + h * p.out_strides.head + d0, n,
                row);
          for (Int d = 0; d < n; ++d) {
            float& sum = lane[(d0 + d) / wide % lanes];
            sum = fma(row[d], w.grad_out.row(q)[d0 + d], sum);
          }
        }
        to[q] = canonical(lanes == 4 ? (lane[0] + lane[1]) + (lane[2] + lane[3]) : lane[0] + lane[1]);
      }
      if (first) std::memcpy(given, to, static_cast<std::size_t>(s.queries) * sizeof(float));
    }
  }
  static constexpr Int kRowFloats = 64;  // a multiple of 8 * lanes

  // The weights (dropped) into w.scores, dS into w.grads.
  void pair(Int i, Int j, bool store_bias) {
    const Int tall = up(rows_of(i), kRowPad);
    const Int shift = i * t.queries - j * t.keys + diagonal(p.shape, p.mask);
    const Int tile_diagonal = p.mask == Mask::kNone ? kEveryColumn : shift;  // as Forward's
    zero(w.scores, tall * w.pitch), zero(w.grads, tall * w.pitch);
    multiply(w.queries[i], w.keys_turned[j], w.scores, w.pitch, tile_diagonal);
    // What is masked enters dS as a zero, of which only the gradient of the bias shows the sign.
    multiply(w.grad_outs[i], w.values_turned[j], w.grads, w.pitch, p.grad_bias ? kEveryColumn : tile_diagonal);
    for (Int r = 0; r < rows_of(i); ++r) pair_row(i, j, r, tile_diagonal, store_bias);
  }

  void pair_row(Int i, Int j, Int r, Int tile_diagonal, bool store_bias) {
    const MemShape& s = p.shape;
    const Int q = i * t.queries + r, k0 = j * t.keys, n = keys_of(j);
    float *const x = w.scores + r * w.pitch, *const g = w.grads + r * w.pitch;
    const float scale = p.scale, lse = p.logsumexp[(b * s.heads + h) * p.logsumexp_pitch + q], delta = w.delta[q];
    for (Int k = 0; k < n; ++k) x[k] = x[k] * scale;
    if (p.bias) {
      float bias[kMostKeys];
      widen(s.type, p.bias, b * p.bias_strides.batch + h * p.bias_strides.head + q * p.bias_strides.query + k0, n,
            bias);
      for (Int k = 0; k < n; ++k) x[k] = x[k] + bias[k];
    }
    for (Int k = clamped(tile_diagonal + r + 1, 0, n); k < n; ++k) x[k] = -kInfinity;
    for (Int k = 0; k < n; ++k) x[k] = libdevice::expf(x[k] - lse);
    round_row(s.type, x, n);
    if (p.dropout.p > 0.0f) {
      const float factor = static_cast<float>(1.0 / (1.0 - static_cast<double>(p.dropout.p)));
      float keep[kMostKeys];
      draw(p.dropout, p.dropout.offset + static_cast<std::uint64_t>(((b * s.heads + h) * s.queries + q) * s.keys + k0),
           n, 1.0f, 0.0f, keep);
      for (Int k = 0; k < n; ++k) g[k] = ((keep[k] != 0.0f ? g[k] * factor : 0.0f) - delta) * x[k];
      const float stored = rounded(s.type, factor);
      for (Int k = 0; k < n; ++k) x[k] = x[k] * (keep[k] != 0.0f ? stored : 0.0f);
      round_row(s.type, x, n);
    } else {
      for (Int k = 0; k < n; ++k) g[k] = (g[k] - delta) * x[k];
    }
    if (p.grad_bias && store_bias)
      narrow(s.type, g, n, p.grad_bias,
             b * p.grad_bias_strides.batch + h * p.grad_bias_strides.head + q * p.grad_bias_strides.query + k0);
    for (Int k = 0; k < n; ++k) g[k] = g[k] * scale;
    round_row(s.type, g, n);
  }

  void add_to_query(Int i, Int j) {
    const Int n = keys_of(j);
    pack_rows(w.grad_rows, w.grads, w.pitch, 1, rows_of(i), n, Factor::kFirst, w.key.range.high(), w.line);
    multiply(w.grad_rows, w.keys[j], w.grad_query + i * up(t.queries, kRowPad) * w.key_pitch, w.key_pitch);
  }

  // float32: a fresh product, stored or added in memory; 16-bit types: one chain.
  void add_to(float* sum, float* fresh, const float* values, const Cols& cols, Int pitch, Int i, Int j, bool first) {
    pack_rows(w.turned, values, 1, w.pitch, keys_of(j), rows_of(i), Factor::kFirst, cols.range.high(), w.line);
    const Int n = up(keys_of(j), kRowPad) * pitch;
    if (p.shape.type != DType::kF32 || first) return multiply(w.turned, cols, sum, pitch);
    zero(fresh, n);
    multiply(w.turned, cols, fresh, pitch);
    for (Int x = 0; x < n; ++x) sum[x] = sum[x] + fresh[x];
  }

  void key_tile(Int j, bool with_query) {
    const MemShape& s = p.shape;
    const Int tall = up(t.keys, kRowPad);
    zero(w.grad_key, tall * w.key_pitch), zero(w.grad_value, tall * w.value_pitch);
    for (Int step = 0; step < plan.query_tiles[j]; ++step) {
      const Int i = (plan.first_query[j] + step) % query_tiles();
      pair(i, j, true);
      add_to(w.grad_value, w.new_value, w.scores, w.grad_out_cols[i], w.value_pitch, i, j, step == 0);
      add_to(w.grad_key, w.new_key, w.grads, w.query_cols[i], w.key_pitch, i, j, step == 0);
      if (with_query) add_to_query(i, j);
    }
    store_rows(w.grad_value, w.value_pitch, keys_of(j), s.value_dim, p.grad_value, p.grad_value_strides, j * t.keys);
    store_rows(w.grad_key, w.key_pitch, keys_of(j), s.head_dim, p.grad_key, p.grad_key_strides, j * t.keys);
  }

  void store_rows(const float* from, Int pitch, Int rows, Int cols, void* to, const Strides& st, Int position) {
    for (Int r = 0; r < rows; ++r)
      narrow(p.shape.type, from + r * pitch, cols, to, b * st.batch + (position + r) * st.position + h * st.head);
  }

  Int key_tiles() const { return tile_count(p.shape.keys, t.keys); }
  Int query_tiles() const { return tile_count(p.shape.queries, t.queries); }
  float* grad_query_of(Int i) { return w.grad_query + i * up(t.queries, kRowPad) * w.key_pitch; }
  void store_query(Int i) {
    store_rows(grad_query_of(i), w.key_pitch, rows_of(i), p.shape.head_dim, p.grad_query, p.grad_query_strides,
               i * t.queries);
  }

  // dQ of a query tile by itself: its weights and dS are made once more.
  void query_tile(Int i) {
    zero(grad_query_of(i), up(t.queries, kRowPad) * w.key_pitch);
    const std::int32_t* order = plan.order + ((b * p.shape.heads + h) * query_tiles() + i) * key_tiles();
    for (Int turn = 0; turn < key_tiles() && order[turn] >= 0; ++turn) {
      pair(i, order[turn], false);
      add_to_query(i, order[turn]);
    }
    store_query(i);
  }

  void head() {
    const bool two_passes = plan.walk == MemWalk::kTwoPasses;
    if (!two_passes) zero(w.grad_query, query_tiles() * up(t.queries, kRowPad) * w.key_pitch);
    for (Int turn = 0; turn < key_tiles(); ++turn)
      key_tile(plan.walk == MemWalk::kDescending ? key_tiles() - 1 - turn : turn, !two_passes);
    for (Int i = 0; i < query_tiles(); ++i) two_passes ? query_tile(i) : store_query(i);
  }
};

// task(back, index within its head) for each of [begin, end), `each` of them a head.
template <class Task>
void for_heads(const MemBackward& p, const MemBackwardPlan& plan, Int each, Int begin, Int end, void* workspace,
               Task task) {
  Arena arena{static_cast<std::byte*>(workspace)};
  Backward back{p, plan, plan.tiles, backward_space(p, plan.tiles, arena), kind_of(p.shape)};
  for (Int at = begin; at < end; ++at) {
    const Int head = at / each;
    if (at == begin || at % each == 0) {
      back.b = head / p.shape.heads, back.h = head % p.shape.heads;
      back.take_head(at % each == 0);
    }
    task(back, at % each);
  }
}
void backward(const MemBackward& p, const MemBackwardPlan& plan, Int begin, Int end, void* workspace) {
  for_heads(p, plan, 1, begin, end, workspace, [](Backward& back, Int) { back.head(); });
}
void backward_keys(const MemBackward& p, const MemBackwardPlan& plan, Int begin, Int end, void* workspace) {
  for_heads(p, plan, tile_count(p.shape.keys, plan.tiles.keys), begin, end, workspace,
            [](Backward& back, Int j) { back.key_tile(j, false); });
}
void backward_queries(const MemBackward& p, const MemBackwardPlan& plan, Int begin, Int end, void* workspace) {
  for_heads(p, plan, tile_count(p.shape.queries, plan.tiles.queries), begin, end, workspace,
            [](Backward& back, Int i) { back.query_tile(i); });
}

}  // namespace

extern const MemBody mem_body;
const MemBody mem_body = {&forward_workspace, &forward,       &backward_workspace,
                          &backward,          &backward_keys, &backward_queries};
SO_ISA_END
