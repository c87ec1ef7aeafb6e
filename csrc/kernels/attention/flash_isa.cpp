// FlashAttention-2, fast: a head's matrices are packed once, tiles go through arith/dot_tile.h.
#include "csrc/kernels/attention/flash_body.h"
#include "csrc/kernels/attention/flash_rules.h"
#include "csrc/kernels/attention/half_product.h"

SO_ISA_BEGIN
namespace {

using namespace half_product;
using attention::FlashBackward;
using attention::FlashForward;
using attention::FlashShape;
using attention::FlashTiles;
using attention::Strides;
using flash::Scales;

SO_ALWAYS_INLINE Int smaller(Int a, Int b) { return a < b ? a : b; }
SO_ALWAYS_INLINE Int larger(Int a, Int b) { return a > b ? a : b; }
SO_ALWAYS_INLINE Int clamped(Int x, Int low, Int high) { return x < low ? low : x > high ? high : x; }

inline constexpr Int kStep = 16;  // depth of a tensor-core step

template <class K>
SO_ALWAYS_INLINE std::uint16_t narrow(float x) {
  if constexpr (K::Format::kFraction == Bf16Format::kFraction)
    return convert::to_bf16(x);
  else
    return convert::to_fp16(x);
}

Matrix matrix(const std::uint16_t* base, const Strides& st, Int batch, Int head, Int rows, Int cols) {
  return {base + batch * st.batch + head * st.head, st.position, rows, cols};
}

// Which elements of a tile are kept: keep[row * row_step + col * col_step].
void draw(const attention::FlashDropout& d, int threshold, Int head, Int row0, Int rows, Int col0, Int cols,
          std::uint8_t* keep, Int row_step, Int col_step) {
  for (Int rb = 0; rb < rows; rb += flash::kRandomRows)
    for (Int cb = 0; cb < cols; cb += flash::kRandomCols) {
      std::uint32_t words[4][32];
      for (int lane = 0; lane < 32; ++lane) {
        const philox::Block b = flash::random_block(d, head, lane, row0 + rb, col0 + cb);
        for (int w = 0; w < 4; ++w) words[w][lane] = b.word[w];
      }
      for (int r = 0; r < flash::kRandomRows; ++r)
        for (int c = 0; c < flash::kRandomCols; ++c) {
          const int byte = flash::random_byte(r, c);
          const int value = static_cast<int>(words[byte / 4][flash::random_lane(r, c)] >> (8 * (byte % 4)) & 0xff);
          keep[(rb + r) * row_step + (cb + c) * col_step] = value <= threshold;
        }
    }
}

// --- forward ---

struct ForwardSpace {
  Columns keys, values;  // keys turned
  Rows queries, weights;
  float *scores, *out, *saved, *max, *sum, *factor;
  std::uint8_t* keep;
  Int panel, score_pitch, out_pitch;
};

ForwardSpace forward_space(const FlashForward& p, const FlashTiles& t, Arena& arena) {
  const FlashShape& s = p.shape;
  const Int rows = up(t.queries, kRows);
  ForwardSpace w{};
  w.panel = larger(t.keys, kCols);  // keys whose scores are made at once
  w.score_pitch = w.panel, w.out_pitch = up(s.head_dim, kCols);
  w.keys = take_columns(arena, s.keys, up(s.head_dim, kStep));
  w.values = take_columns(arena, s.head_dim, up(s.keys, t.keys));
  w.queries = take_rows(arena, t.queries, up(s.head_dim, kStep));
  w.weights = take_rows(arena, t.queries, t.keys);
  w.scores = arena.take<float>(rows * w.score_pitch);
  w.out = arena.take<float>(rows * w.out_pitch);
  w.saved = arena.take<float>(rows * larger(w.score_pitch, w.out_pitch));
  w.max = arena.take<float>(rows), w.factor = arena.take<float>(rows), w.sum = arena.take<float>(4 * rows);
  w.keep = arena.take<std::uint8_t>(rows * t.keys);
  return w;
}
std::size_t forward_workspace(const FlashForward& p, const FlashTiles& t) {
  Arena arena{nullptr};
  forward_space(p, t, arena);
  return arena.used;
}

float largest(const float* x, Int n, float start) {  // n a multiple of 16; NaN is no candidate
  float lane[16];
  for (int i = 0; i < 16; ++i) lane[i] = start;
  for (Int j = 0; j < n; j += 16)
    for (int i = 0; i < 16; ++i) lane[i] = x[j + i] > lane[i] ? x[j + i] : lane[i];
  for (int i = 0; i < 16; ++i) start = lane[i] > start ? lane[i] : start;
  return start;
}

// Exponents that a factor in [0, 1] may take from a number other than zero.
int bits_lost(float factor) {
  const int field = static_cast<int>(bits_of(factor) >> 23 & 0xff);
  return factor == 0.0f || field >= 127 ? 0 : 128 - field;
}

template <class K>
struct Forward {
  const FlashForward& p;
  const FlashTiles& t;
  const FlashParts& parts;
  ForwardSpace w;
  Scales c;
  Int packed = -1, head = 0, row0 = 0, rows = 0, panel_at = -1;

  void pack_keys(Int batch, Int key_head) {
    const FlashShape& s = p.shape;
    const Int id = batch * s.key_heads + key_head;
    if (id == packed) return;
    packed = id;
    const Matrix k = matrix(p.key, p.key_strides, batch, key_head, s.keys, s.head_dim),
                 v = matrix(p.value, p.value_strides, batch, key_head, s.keys, s.head_dim);
    pack_columns_turned<K>(k, range_of<K>(k), w.keys);
    pack_columns<K>(v, range_of<K>(v), w.values);
  }
  void pack_queries(Int batch, Int h) {
    const FlashShape& s = p.shape;
    const Matrix q = matrix(p.query, p.query_strides, batch, h, s.queries, s.head_dim);
    clear_special(w.queries, t.queries);
    w.queries.range = {};
    for (Int r = 0; r < rows; ++r) {
      std::uint16_t* const to = w.queries.raw + r * w.queries.pitch;
      std::memset(to, 0, static_cast<std::size_t>(w.queries.pitch) * 2);
      std::memcpy(to, q.at + (row0 + r) * q.row_step, static_cast<std::size_t>(s.head_dim) * 2);
    }
    pack_rows<K>(w.queries, rows, w.queries.pitch, w.keys.range.high);
  }
  // Keys that row r sees, counted from `col0`, at most n.
  Int seen(Int r, Int col0, Int n) const {
    const FlashShape& s = p.shape;
    const Int all = s.keys - col0, some = row0 + r + s.keys - s.queries + 1 - col0;
    return clamped(s.causal ? smaller(all, some) : all, 0, n);
  }

  void make_scores(Int panel) {
    if (panel == panel_at) return;
    panel_at = panel;
    const Int col0 = panel * w.panel;
    Task task{&w.queries,
              0,
              rows,
              &w.keys,
              col0 / kCols,
              0,
              smaller(w.panel, p.shape.keys - col0),
              w.queries.pitch,
              w.scores,
              w.score_pitch,
              true,
              w.queries.range,
              w.queries.pitch,
              false,
              w.saved};
    multiply<K>(task, [&](Int i, Int j) { return seen(i + 1, col0 + j, 1) > 0; });
  }

  // One row of one tile: its weights (rounded, dropped) into w.weights.raw.
  void weigh(Int r, Int col0, float* x, bool first) {
    const Int n = t.keys;
    for (Int j = seen(r, col0, n); j < n; ++j) x[j] = flash::minus_infinity();
    const float before = w.max[r], max = largest(x, n, before);
    const bool none = max == flash::minus_infinity();
    const float factor = mufu::ex2((before - (none ? 0.0f : max)) * c.scale_log2);
    const float scaled = none ? 0.0f : max * c.scale_log2, log2 = c.scale_log2;
    for (Int j = 0; j < n; ++j) x[j] = mufu::ex2(x[j] * log2 - scaled);
    float lane[4];
    float* const sum = w.sum + 4 * r;
    for (int i = 0; i < 4; ++i) lane[i] = first ? x[2 * i] : fma(sum[i], factor, x[2 * i]);
    for (int i = 0; i < 4; ++i) lane[i] = lane[i] + x[2 * i + 1];
    for (Int j = 8; j < n; j += 8) {
      for (int i = 0; i < 4; ++i) lane[i] = lane[i] + x[j + 2 * i];
      for (int i = 0; i < 4; ++i) lane[i] = lane[i] + x[j + 2 * i + 1];
    }
    for (int i = 0; i < 4; ++i) sum[i] = lane[i];
    w.max[r] = max, w.factor[r] = factor;
    std::uint16_t* const raw = w.weights.raw + r * w.weights.pitch;
    for (Int j = 0; j < n; ++j) raw[j] = narrow<K>(x[j]);
    if (p.dropout.p > 0.0f) {
      const std::uint8_t* keep = w.keep + r * n;
      for (Int j = 0; j < n; ++j) raw[j] = keep[j] ? raw[j] : std::uint16_t{0};
    }
  }

  void run(Int batch, Int h, Int begin, Int end) {
    const FlashShape& s = p.shape;
    for (Int r = 0; r < up(t.queries, kRows); ++r) w.max[r] = flash::minus_infinity();
    std::memset(w.sum, 0, static_cast<std::size_t>(4 * t.queries) * sizeof(float));
    std::memset(w.out, 0, static_cast<std::size_t>(up(t.queries, kRows) * w.out_pitch) * sizeof(float));
    clear_special(w.weights, t.queries);
    w.weights.range = {};
    panel_at = -1;
    int lost = 0;
    for (Int tile = end - 1; tile >= begin; --tile) {
      const bool first = tile == end - 1;
      const Int col0 = tile * t.keys;
      make_scores(col0 / w.panel);
      if (p.dropout.p > 0.0f)
        draw(p.dropout, c.threshold, batch * s.heads + h, row0, rows, col0, t.keys, w.keep, t.keys, 1);
      int worst = 0;
      for (Int r = 0; r < rows; ++r) {
        weigh(r, col0, w.scores + r * w.score_pitch + col0 % w.panel, first);
        if (!first && w.factor[r] != 1.0f) {
          float* const o = w.out + r * w.out_pitch;
          const float f = w.factor[r];
          for (Int d = 0; d < w.out_pitch; ++d) o[d] = o[d] * f;
          const int bits = bits_lost(f);
          worst = bits > worst ? bits : worst;
        }
      }
      lost += worst;
      pack_rows<K>(w.weights, rows, t.keys, w.values.range.high);
      ExponentRange range = w.weights.range;
      range.low -= lost;  // the accumulators shrank with the factors
      const bool falling = c.scale_log2 > 0.0f && c.scale_log2 < flash::plus_infinity();  // else factors exceed 1
      Task task{&w.weights,  0,     rows,  &w.values,          0,        col0,   s.head_dim, t.keys, w.out,
                w.out_pitch, first, range, up(s.keys, t.keys), !falling, w.saved};
      multiply<K>(task, Always{});
    }
  }

  void store(Int batch, Int h) {
    const FlashShape& s = p.shape;
    for (Int r = 0; r < rows; ++r) {
      const float* l = w.sum + 4 * r;
      const flash::RowEnd e = flash::end_of_row(w.max[r], (l[0] + l[2]) + (l[1] + l[3]), c.scale, false,
                                                 p.logsumexp_form);
      p.logsumexp[(batch * s.heads + h) * s.queries + row0 + r] = e.logsumexp;
      const float factor = p.dropout.p > 0.0f ? e.inverse * c.inverse_keep : e.inverse;
      std::uint16_t* const to =
          p.out + batch * p.out_strides.batch + (row0 + r) * p.out_strides.position + h * p.out_strides.head;
      for (Int d = 0; d < s.head_dim; ++d) to[d] = narrow<K>(w.out[r * w.out_pitch + d] * factor);
    }
  }
  void store_part(Int split, Int batch, Int h) {
    const FlashShape& s = p.shape;
    for (Int r = 0; r < rows; ++r) {
      const float* l = w.sum + 4 * r;
      const flash::RowEnd e = flash::end_of_row(w.max[r], (l[0] + l[2]) + (l[1] + l[3]), c.scale, true,
                                                 p.logsumexp_form);
      const Int at = ((split * s.batch + batch) * s.heads + h) * s.queries + row0 + r;
      parts.logsumexp[at] = e.logsumexp;
      for (Int d = 0; d < s.head_dim; ++d) parts.out[at * s.head_dim + d] = w.out[r * w.out_pitch + d] * e.inverse;
    }
  }

  void query_tile(Int task) {
    const FlashShape& s = p.shape;
    const Int tiles = (s.queries + t.queries - 1) / t.queries, batch = task / tiles / s.heads,
              h = task / tiles % s.heads;
    row0 = task % tiles * t.queries, rows = smaller(t.queries, s.queries - row0);
    const Int last = flash::key_tiles_end(s, row0 + t.queries, t.keys);
    pack_keys(batch, h / (s.heads / s.key_heads));
    pack_queries(batch, h);
    if (p.key_splits == 1) {
      run(batch, h, 0, last);
      store(batch, h);
      return;
    }
    const Int all = (s.keys + t.keys - 1) / t.keys, each = (all + p.key_splits - 1) / p.key_splits;
    for (Int split = 0; split < p.key_splits; ++split) {
      run(batch, h, split * each, smaller(last, (split + 1) * each));
      store_part(split, batch, h);
    }
  }
};

template <class K>
void forward(const FlashForward& p, const FlashTiles& t, const FlashParts& parts, Int begin, Int end, void* space) {
  Arena arena{static_cast<std::byte*>(space)};
  Forward<K> f{p, t, parts, forward_space(p, t, arena), flash::scales(p.scale, p.dropout.p)};
  for (Int task = begin; task < end; ++task) f.query_tile(task);
}

template <class K>
void combine(const FlashForward& p, const FlashParts& parts, Int begin, Int end) {
  const FlashShape& s = p.shape;
  const Int all = s.batch * s.heads * s.queries;
  for (Int at = begin; at < end; ++at) {
    const float l = flash::combined_logsumexp(flash::combine_lanes(s.head_dim, p.key_splits), p.key_splits,
                                              [&](Int split) { return parts.logsumexp[split * all + at]; });
    p.logsumexp[at] = canonical(l);
    float sum[256] = {};
    for (Int split = 0; split < p.key_splits; ++split) {
      const float weight = libdevice::expf(parts.logsumexp[split * all + at] - l);
      const float* from = parts.out + (split * all + at) * s.head_dim;
      for (Int d = 0; d < s.head_dim; ++d) sum[d] = fma(weight, from[d], sum[d]);
    }
    const Int batch = at / s.queries / s.heads, h = at / s.queries % s.heads, row = at % s.queries;
    std::uint16_t* const to =
        p.out + batch * p.out_strides.batch + row * p.out_strides.position + h * p.out_strides.head;
    for (Int d = 0; d < s.head_dim; ++d) to[d] = narrow<K>(sum[d]);
  }
}

// --- backward ---

struct BackwardSpace {
  Rows keys, values;                     // whole, by keys
  Columns queries_turned, grads_turned;  // depth: head dimension
  Columns queries, grads;                // depth: queries
  Columns key_columns;                   // depth: keys
  Rows weights, slopes;                  // of a tile, by keys: P and dS, turned
  Rows slopes_by_query;
  float *scores, *products, *saved, *dk, *dv, *dq_tile, *dq_buffer, *dq, *scaled, *sums;
  std::uint8_t* keep;
  Int tile_pitch, dim_pitch;
};

BackwardSpace backward_space(const FlashBackward& p, const FlashTiles& t, Arena& arena) {
  const FlashShape& s = p.shape;
  const Int depth = up(s.head_dim, kStep), keys = up(s.keys, t.keys), queries = up(s.queries, t.queries);
  BackwardSpace w{};
  w.tile_pitch = up(t.queries, kCols), w.dim_pitch = up(s.head_dim, kCols);
  w.keys = take_rows(arena, s.keys, depth), w.values = take_rows(arena, s.keys, depth);
  w.queries_turned = take_columns(arena, s.queries, depth), w.grads_turned = take_columns(arena, s.queries, depth);
  w.queries = take_columns(arena, s.head_dim, queries), w.grads = take_columns(arena, s.head_dim, queries);
  w.key_columns = take_columns(arena, s.head_dim, keys);
  w.weights = take_rows(arena, t.keys, t.queries), w.slopes = take_rows(arena, t.keys, t.queries);
  w.slopes_by_query = take_rows(arena, t.queries, t.keys);
  w.scores = arena.take<float>(t.keys * w.tile_pitch), w.products = arena.take<float>(t.keys * w.tile_pitch);
  w.saved = arena.take<float>(larger(t.keys, t.queries) * larger(w.tile_pitch, w.dim_pitch));
  w.dk = arena.take<float>(t.keys * w.dim_pitch), w.dv = arena.take<float>(t.keys * w.dim_pitch);
  w.dq_tile = arena.take<float>(t.queries * w.dim_pitch);
  w.dq_buffer = arena.take<float>(s.queries * s.head_dim), w.dq = arena.take<float>(s.queries * s.head_dim);
  w.scaled = arena.take<float>(queries), w.sums = arena.take<float>(queries);
  w.keep = arena.take<std::uint8_t>(t.keys * t.queries);
  return w;
}
std::size_t backward_workspace(const FlashBackward& p, const FlashTiles& t) {
  Arena arena{nullptr};
  backward_space(p, t, arena);
  return arena.used;
}

template <class K>
float row_sum(const std::uint16_t* g, const std::uint16_t* o, Int head_dim, float keep) {
  const int lanes = flash::sum_lanes(head_dim);
  float lane[8] = {};
  for (Int i = 0; i < head_dim; ++i) {
    const float x = dot_tile::value_of<typename K::Format>(g[i]), y = dot_tile::value_of<typename K::Format>(o[i]);
    float& sum = lane[i / 8 % lanes];
    sum = i < 8 * lanes && i % 8 == 0 ? x * y : fma(x, y, sum);
  }
  for (int distance = lanes / 2; distance > 0; distance /= 2)
    for (int i = 0; i < distance; ++i) lane[i] = lane[i] + lane[i + distance];
  return canonical(lane[0] * keep);
}

void turn(const Rows& from, Int rows, Int cols, Rows& to) {
  constexpr Int kBlock = 16;
  for (Int i0 = 0; i0 < rows; i0 += kBlock)
    for (Int j0 = 0; j0 < cols; j0 += kBlock)
      for (Int j = j0; j < j0 + kBlock; ++j)
        for (Int i = i0; i < i0 + kBlock; ++i) to.raw[j * to.pitch + i] = from.raw[i * from.pitch + j];
}

template <class K>
struct Backward {
  const FlashBackward& p;
  const FlashTiles& t;
  BackwardSpace w;
  Scales c;
  Int batch = 0, head = 0, col0 = 0, cols = 0, row0 = 0, rows = 0;
  bool may_skip = false;

  Matrix by_query(const std::uint16_t* base, const Strides& st) const {
    return matrix(base, st, batch, head, p.shape.queries, p.shape.head_dim);
  }
  Matrix by_key(const std::uint16_t* base, const Strides& st) const {
    return matrix(base, st, batch, head / (p.shape.heads / p.shape.key_heads), p.shape.keys, p.shape.head_dim);
  }
  void pack_matrix(const Matrix& m, Rows& to, int high) {
    clear_special(to, m.rows);
    to.range = {};
    for (Int r = 0; r < m.rows; ++r) {
      std::memset(to.raw + r * to.pitch, 0, static_cast<std::size_t>(to.pitch) * 2);
      std::memcpy(to.raw + r * to.pitch, m.at + r * m.row_step, static_cast<std::size_t>(m.cols) * 2);
    }
    pack_rows<K>(to, m.rows, to.pitch, high);
  }
  void pack_head() {
    const FlashShape& s = p.shape;
    const Matrix q = by_query(p.query, p.query_strides), g = by_query(p.grad_out, p.grad_out_strides),
                 o = by_query(p.out, p.out_strides), k = by_key(p.key, p.key_strides),
                 v = by_key(p.value, p.value_strides);
    const ExponentRange rq = range_of<K>(q), rg = range_of<K>(g), rk = range_of<K>(k);
    pack_columns_turned<K>(q, rq, w.queries_turned), pack_columns<K>(q, rq, w.queries);
    pack_columns_turned<K>(g, rg, w.grads_turned), pack_columns<K>(g, rg, w.grads);
    pack_columns<K>(k, rk, w.key_columns);
    pack_matrix(k, w.keys, rq.high), pack_matrix(v, w.values, rg.high);
    const Int at = (batch * s.heads + head) * s.queries;
    for (Int r = 0; r < s.queries; ++r) {
      const float l = p.logsumexp[at + r];
      w.scaled[r] = l == flash::minus_infinity() ? 0.0f : l * flash::kLog2eFloat;
      w.sums[r] = row_sum<K>(g.at + r * g.row_step, o.at + r * o.row_step, s.head_dim, c.keep);
      if (p.sums) p.sums[at + r] = w.sums[r];
    }
    for (Int r = s.queries; r < up(s.queries, t.queries); ++r) w.scaled[r] = flash::plus_infinity(), w.sums[r] = 0.0f;
    may_skip = finite<K>(w.keys, w.queries_turned, s.head_dim) && finite<K>(w.values, w.grads_turned, s.head_dim);
  }

  // The first query of the tile that sees key j of the tile.
  Int first_seeing(Int j) const {
    const FlashShape& s = p.shape;
    return s.causal ? clamped(col0 + j - (s.keys - s.queries) - row0, 0, t.queries) : 0;
  }

  // Key j of the tile: its weights and slopes for all queries of the tile.
  void weigh(Int j) {
    const Int n = t.queries, first = first_seeing(j);
    float *const x = w.scores + j * w.tile_pitch, *const dp = w.products + j * w.tile_pitch;
    const float *scaled = w.scaled + row0, *sums = w.sums + row0, log2 = c.scale_log2;
    for (Int r = 0; r < first; ++r) x[r] = flash::minus_infinity();
    if (may_skip)
      for (Int r = 0; r < first; ++r) dp[r] = 0.0f;
    // The tile's queries beyond the last are zeros: zero times an infinity is a NaN.
    const Int key = col0 + j;
    const float beyond = w.keys.special[key] ? card_nan() : 0.0f;
    for (Int r = larger(rows, first); r < n; ++r) x[r] = beyond;
    for (Int r = rows; r < n; ++r) dp[r] = w.values.special[key] ? card_nan() : 0.0f;
    for (Int r = 0; r < n; ++r) x[r] = mufu::ex2(x[r] * log2 - scaled[r]);
    std::uint16_t *const weights = w.weights.raw + j * w.weights.pitch, *const slopes =
                                                                            w.slopes.raw + j * w.slopes.pitch;
    if (p.dropout.p > 0.0f) {
      const std::uint8_t* keep = w.keep + j * n;
      for (Int r = 0; r < n; ++r) {
        const float marked = keep[r] ? x[r] : -x[r];  // a negative weight stands for a dropped one
        const float whole = marked * (dp[r] - sums[r]), part = marked * sums[r];
        dp[r] = pick(marked >= 0.0f, whole, part);
        x[r] = pick((keep[r] != 0) | (marked != marked), x[r], 0.0f);
      }
    } else {
      for (Int r = 0; r < n; ++r) dp[r] = x[r] * (dp[r] - sums[r]);
    }
    for (Int r = 0; r < n; ++r) weights[r] = narrow<K>(x[r]);
    for (Int r = 0; r < n; ++r) slopes[r] = narrow<K>(dp[r]);
  }

  // The slopes of keys beyond the last, zeros that are masked. Their weights are 0 only where the scale is above 0.
  void fill_slopes_beyond() {
    const Int n = t.queries;
    for (Int j = cols; j < t.keys; ++j)
      for (Int r = 0; r < n; ++r) {
        float slope = 0.0f;
        if (r < rows) {
          const float weight = mufu::ex2(flash::minus_infinity() * c.scale_log2 - w.scaled[row0 + r]);
          const float product = w.grads_turned.special[row0 + r] ? card_nan() : 0.0f, sum = w.sums[row0 + r];
          const float marked = p.dropout.p > 0.0f && !w.keep[j * n + r] ? -weight : weight;
          const bool dropped = p.dropout.p > 0.0f && !(marked >= 0.0f);
          slope = dropped ? marked * sum : marked * (product - sum);
        }
        w.slopes.raw[j * w.slopes.pitch + r] = narrow<K>(slope);
      }
  }

  void query_tile() {
    const FlashShape& s = p.shape;
    const Int n = t.queries;
    const auto wanted = [&](Int i, Int j) { return !may_skip || first_seeing(i) < j + kCols; };
    multiply<K>(Task{&w.keys, col0, cols, &w.queries_turned, row0 / kCols, 0, rows, w.keys.pitch, w.scores,
                     w.tile_pitch, true, w.keys.range, w.keys.pitch, false, w.saved},
                wanted);
    multiply<K>(Task{&w.values, col0, cols, &w.grads_turned, row0 / kCols, 0, rows, w.values.pitch, w.products,
                     w.tile_pitch, true, w.values.range, w.values.pitch, false, w.saved},
                wanted);
    if (p.dropout.p > 0.0f) draw(p.dropout, c.threshold, batch * s.heads + head, row0, n, col0, t.keys, w.keep, 1, n);
    for (Int j = 0; j < cols; ++j) weigh(j);
    pack_rows<K>(w.weights, cols, n, w.grads.range.high);
    pack_rows<K>(w.slopes, cols, n, w.queries.range.high);
    multiply<K>(Task{&w.weights, 0, cols, &w.grads, 0, row0, s.head_dim, n, w.dv, w.dim_pitch, false, w.weights.range,
                     up(s.queries, n), false, w.saved},
                Always{});
    multiply<K>(Task{&w.slopes, 0, cols, &w.queries, 0, row0, s.head_dim, n, w.dk, w.dim_pitch, false, w.slopes.range,
                     up(s.queries, n), false, w.saved},
                Always{});
    fill_slopes_beyond();
    turn(w.slopes, t.keys, n, w.slopes_by_query);
    clear_special(w.slopes_by_query, n);
    w.slopes_by_query.range = {};
    pack_rows<K>(w.slopes_by_query, rows, t.keys, w.key_columns.range.high);
    multiply<K>(Task{&w.slopes_by_query, 0, rows, &w.key_columns, 0, col0, s.head_dim, t.keys, w.dq_tile, w.dim_pitch,
                     true, w.slopes_by_query.range, t.keys, false, w.saved},
                Always{});
    for (Int r = 0; r < rows; ++r) {
      float* const to = w.dq_buffer + (row0 + r) * s.head_dim;
      const float* from = w.dq_tile + r * w.dim_pitch;
      for (Int d = 0; d < s.head_dim; ++d) to[d] = flash::atomic_add(to[d], from[d]);
    }
  }

  void key_tile(Int tile) {
    const FlashShape& s = p.shape;
    col0 = tile * t.keys, cols = smaller(t.keys, s.keys - col0);
    clear_special(w.weights, t.keys), clear_special(w.slopes, t.keys);
    w.weights.range = w.slopes.range = {};
    std::memset(w.dk, 0, static_cast<std::size_t>(t.keys * w.dim_pitch) * sizeof(float));
    std::memset(w.dv, 0, static_cast<std::size_t>(t.keys * w.dim_pitch) * sizeof(float));
    const Int first = flash::first_query_tile(s, col0, t.queries);
    for (Int m = (s.queries + t.queries - 1) / t.queries - 1; m >= first; --m) {
      row0 = m * t.queries, rows = smaller(t.queries, s.queries - row0);
      query_tile();
    }
    store(w.dk, w.dim_pitch, col0, cols, p.grad_key, p.grad_key_strides, c.gradient);
    store(w.dv, w.dim_pitch, col0, cols, p.grad_value, p.grad_value_strides,
          p.dropout.p > 0.0f ? c.inverse_keep : 1.0f);
  }
  void store(const float* from, Int pitch, Int position, Int n, std::uint16_t* to, const Strides& st,
             float factor) const {
    for (Int i = 0; i < n; ++i) {
      std::uint16_t* const row = to + batch * st.batch + (position + i) * st.position + head * st.head;
      for (Int d = 0; d < p.shape.head_dim; ++d) row[d] = narrow<K>(from[i * pitch + d] * factor);
    }
  }

  void whole_head(Int task) {
    const FlashShape& s = p.shape;
    batch = task / s.heads, head = task % s.heads;
    pack_head();
    const Int tiles = (s.keys + t.keys - 1) / t.keys, n = s.queries * s.head_dim;
    std::memset(w.dq, 0, static_cast<std::size_t>(n) * sizeof(float));
    for (Int buffer = 0; buffer < smaller(p.dq_buffers, tiles); ++buffer) {
      std::memset(w.dq_buffer, 0, static_cast<std::size_t>(n) * sizeof(float));
      for (Int tile = buffer; tile < tiles; tile += p.dq_buffers) key_tile(tile);
      for (Int i = 0; i < n; ++i) w.dq[i] = w.dq[i] + w.dq_buffer[i];
    }
    store(w.dq, s.head_dim, 0, s.queries, p.grad_query, p.grad_query_strides, c.gradient);
  }
};

template <class K>
void backward(const FlashBackward& p, const FlashTiles& t, Int begin, Int end, void* space) {
  Arena arena{static_cast<std::byte*>(space)};
  Backward<K> b{p, t, backward_space(p, t, arena), flash::scales(p.scale, p.dropout.p)};
  for (Int task = begin; task < end; ++task) b.whole_head(task);
}

// --- which adder and type ---

template <class Fn>
void with_kind(const FlashShape& s, Fn fn) {
  const bool hopper = s.compute_capability >= 90;
  if (s.type == DType::kBF16)
    hopper ? fn(Kind<Bf16Format, 16, 25>{}) : fn(Kind<Bf16Format, 8, 24>{});
  else
    hopper ? fn(Kind<Fp16Format, 16, 25>{}) : fn(Kind<Fp16Format, 8, 24>{});
}

void forward_any(const FlashForward& p, const FlashTiles& t, const FlashParts& parts, Int begin, Int end, void* space) {
  with_kind(p.shape, [&](auto kind) { forward<decltype(kind)>(p, t, parts, begin, end, space); });
}
void combine_any(const FlashForward& p, const FlashParts& parts, Int begin, Int end) {
  with_kind(p.shape, [&](auto kind) { combine<decltype(kind)>(p, parts, begin, end); });
}
void backward_any(const FlashBackward& p, const FlashTiles& t, Int begin, Int end, void* space) {
  with_kind(p.shape, [&](auto kind) { backward<decltype(kind)>(p, t, begin, end, space); });
}

}  // namespace

extern const FlashBody flash_body;
const FlashBody flash_body = {&forward_workspace, &forward_any, &combine_any, &backward_workspace, &backward_any};
SO_ISA_END
