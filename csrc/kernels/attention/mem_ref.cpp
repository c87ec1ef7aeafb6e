// The memory-efficient kernels, thread block by thread block. Slow: the definition.
#include <algorithm>
#include <vector>

#include "csrc/kernels/arith/convert.h"
#include "csrc/kernels/arith/dot_add.h"
#include "csrc/kernels/arith/libdevice.h"
#include "csrc/kernels/arith/philox.h"
#include "csrc/kernels/attention/mem_efficient.h"
#include "csrc/kernels/attention/mem_rivals.h"
#include "csrc/kernels/core/bits.h"

namespace step_oracle::attention::ref {
Rival rival = Rival::kNone;
namespace {

using Int = std::int64_t;
constexpr float kInfinity = __builtin_inff();
constexpr float kLog2e = 0x1.715476p+0f;  // [src kernel_forward.h kLog2e]

// Rows of values as floats; 16-bit elements are widened, exactly.
struct Matrix {
  Int rows = 0, cols = 0;
  std::vector<float> v;
  Matrix(Int r, Int c) : rows(r), cols(c), v(static_cast<std::size_t>(r * c)) {}
  float& at(Int r, Int c) { return v[static_cast<std::size_t>(r * cols + c)]; }
  float at(Int r, Int c) const { return v[static_cast<std::size_t>(r * cols + c)]; }
  Matrix transposed() const {
    Matrix t(cols, rows);
    for (Int r = 0; r < rows; ++r)
      for (Int c = 0; c < cols; ++c) t.at(c, r) = at(r, c);
    return t;
  }
};

float load(DType type, const void* from, Int index) {
  if (type == DType::kF32) return static_cast<const float*>(from)[index];
  const std::uint16_t h = static_cast<const std::uint16_t*>(from)[index];
  return type == DType::kBF16 ? convert::from_bf16(h) : convert::from_fp16(h);
}
void store(DType type, void* to, Int index, float x) {
  if (type == DType::kF32)
    static_cast<float*>(to)[index] = canonical(x);
  else
    static_cast<std::uint16_t*>(to)[index] = type == DType::kBF16 ? convert::to_bf16(x) : convert::to_fp16(x);
}
float rounded(DType type, float x) {
  if (type == DType::kBF16) return convert::from_bf16(convert::to_bf16(x));
  return type == DType::kF16 ? convert::from_fp16(convert::to_fp16(x)) : x;
}

Matrix tile(DType type, const void* from, const Strides& s, Int b, Int h, Int begin, Int end, Int dim) {
  Matrix m(end - begin, dim);
  for (Int r = begin; r < end; ++r)
    for (Int d = 0; d < dim; ++d) m.at(r - begin, d) = load(type, from, b * s.batch + r * s.position + h * s.head + d);
  return m;
}

// --- the products ---

struct Arithmetic {
  DType type;
  bool simt;
  Adder adder;
};
Arithmetic arithmetic_of(const MemShape& s) {
  const Adder base = s.compute_capability >= 90 ? kAdderHopper : kAdderTuring;
  const bool simt = s.type == DType::kF32 && s.compute_capability < 80;
  return {s.type, simt, adder_for(base, s.type == DType::kF32 ? 4 : 2)};
}

// One mma instruction's eight products, in groups of the adder's terms.
template <class Format>
float mma(const typename Format::Storage* a, const typename Format::Storage* b, float c, const Adder& adder) {
  const int terms = adder.terms < 8 ? adder.terms : 8;
  for (int k = 0; k < 8; k += terms) c = dot_add<Format>(a + k, 1, b + k, 1, terms, c, adder);
  return c;
}

std::uint16_t pattern(DType type, float x) { return type == DType::kBF16 ? convert::to_bf16(x) : convert::to_fp16(x); }

// 3xTF32: big + small, as FastF32 splits [src mma_tensor_op_fast_f32.h, FastF32 with big rounded toward zero and small
// half away from zero].
std::uint32_t big(float x) { return bits_of(x) & 0xffffe000u; }
std::uint32_t small(float x) {
  const std::uint32_t rest = bits_of(x - float_of(big(x)));
  return (rest & 0x7f800000u) == 0x7f800000u ? rest : rest + 0x1000u;
}

// C += A B^T, A and B as rows of depth. Where the first factor comes from device memory the depth's remainder by 32 is
// the first tile, where it lies in shared memory the last one.
enum class Remainder { kFirst, kLast };

float element(const Arithmetic& m, const Matrix& a, Int i, const Matrix& b, Int j, float c, Remainder remainder) {
  const Int depth = a.cols;
  if (m.simt) {
    for (Int k = 0; k < depth; ++k) c = fma(a.at(i, k), b.at(j, k), c);
    return c;
  }
  constexpr Int kTile = 32;
  const bool leads = remainder == Remainder::kFirst && rival != Rival::kRemainderLast;
  const Int first = leads && depth % kTile ? depth % kTile : kTile;
  if (m.type != DType::kF32) {
    for (Int begin = 0, end = std::min(first, depth); begin < depth; begin = end, end = std::min(depth, end + kTile))
      for (Int k0 = begin; k0 < end; k0 += 8) {
        std::uint16_t x[8] = {}, y[8] = {};
        for (Int k = k0; k < std::min(end, k0 + 8); ++k)
          x[k - k0] = pattern(m.type, a.at(i, k)), y[k - k0] = pattern(m.type, b.at(j, k));
        c = m.type == DType::kBF16 ? mma<Bf16Format>(x, y, c, m.adder) : mma<Fp16Format>(x, y, c, m.adder);
      }
    return c;
  }
  float staged = 0.0f;
  for (Int begin = 0, end = std::min(first, depth); begin < depth; begin = end, end = std::min(depth, end + kTile))
    for (Int step = 0; step < kTile / 8; ++step) {
      std::uint32_t x_big[8] = {}, x_small[8] = {}, y_big[8] = {}, y_small[8] = {};
      for (Int k = begin + 8 * step; k < std::min(end, begin + 8 * step + 8); ++k) {
        const Int s = k - begin - 8 * step;
        x_big[s] = big(a.at(i, k)), x_small[s] = small(a.at(i, k));
        y_big[s] = big(b.at(j, k)), y_small[s] = small(b.at(j, k));
      }
      const bool swaps = rival == Rival::kBigFirst;
      staged = mma<Tf32Format>(swaps ? x_big : x_small, swaps ? y_small : y_big, staged, m.adder);
      staged = mma<Tf32Format>(swaps ? x_small : x_big, swaps ? y_big : y_small, staged, m.adder);
      staged = mma<Tf32Format>(x_big, y_big, staged, m.adder);
      if (step == 0 && rival != Rival::kNoStaging) c = c + staged, staged = 0.0f;
    }
  return c + staged;
}

void multiply_add(const Arithmetic& m, const Matrix& a, const Matrix& b, Matrix& c, Remainder remainder) {
  for (Int i = 0; i < c.rows; ++i)
    for (Int j = 0; j < c.cols; ++j) c.at(i, j) = element(m, a, i, b, j, c.at(i, j), remainder);
}

// --- the mask, the dropout ---

Int diagonal(const MemShape& s, Mask mask) { return mask == Mask::kCausalBottomRight ? s.keys - s.queries : 0; }

bool masked(const MemShape& s, Mask mask, Int query, Int key) {
  return mask != Mask::kNone && key > query + diagonal(s, mask);
}
// The forward asks with unsigned numbers whether a tile meets the diagonal: where the diagonal lies left of the tile's
// first query, it does not mask at all [src kernel_forward.h "Mask out last if causal"].
bool tile_is_masked(const MemShape& s, Mask mask, Int q0, Int keys_end) {
  return mask != Mask::kNone &&
         static_cast<std::uint32_t>(keys_end) >= static_cast<std::uint32_t>(q0 + diagonal(s, mask));
}

// One stream a launch; every element has a draw of its own.
bool kept(const MemShape& s, const MemDropout& d, Int b, Int h, Int query, Int key) {
  const std::uint64_t n = d.offset + static_cast<std::uint64_t>(((b * s.heads + h) * s.queries + query) * s.keys + key);
  return philox::uniform(philox::block(d.seed, 0, n / 4).word[n % 4]) > d.p;
}
float dropout_scale(const MemDropout& d) { return static_cast<float>(1.0 / (1.0 - static_cast<double>(d.p))); }

// --- forward ---

struct ForwardRow {
  float max = -kInfinity, sum = 0.0f, rescale = 1.0f;
};

// One warp's 32 columns of a row, as its lanes hold and add them.
float warp_sum(const Arithmetic& m, const float* p) {
  constexpr int kMost = 8;
  float lane[kMost];
  const int lanes = m.simt ? 8 : 4;
  for (int t = 0; t < lanes; ++t) {
    if (m.simt) {
      lane[t] = ((p[4 * t] + p[4 * t + 1]) + p[4 * t + 2]) + p[4 * t + 3];
      continue;
    }
    lane[t] = 0.0f;
    for (int j = 0; j < 4; ++j)
      for (int c = 0; c < 2; ++c) lane[t] = lane[t] + p[8 * j + 2 * t + c];
  }
  for (int step = 1; step < lanes; step *= 2) {
    const int other = rival == Rival::kFallingButterfly ? lanes / 2 / step : step;
    float next[kMost];
    for (int t = 0; t < lanes; ++t) next[t] = lane[t] + lane[t ^ other];
    std::copy(next, next + lanes, lane);
  }
  return lane[0];
}

// x, the row's exponents by two of this key tile, becomes its weights.
void softmax_row(const Arithmetic& m, ForwardRow& row, float* x, Int keys, Int tile_keys) {
  float largest = row.max;
  for (Int k = 0; k < keys; ++k) {
    const float candidate = rival == Rival::kFusedExponent ? x[k] * kLog2e : x[k];
    largest = candidate > largest ? candidate : largest;
  }
  row.rescale = 1.0f;
  if (row.max < largest) {
    row.rescale = libdevice::exp2f(row.max - largest);
    if (rival != Rival::kFusedRowSum) row.sum = row.sum * row.rescale;
  }
  row.max = largest;
  const float base = largest == -kInfinity ? 0.0f : largest;
  const bool fused_exponent = rival == Rival::kFusedExponent;  // x is then without its log2 e
  for (Int k = 0; k < tile_keys; ++k) {
    const float exponent = fused_exponent ? fma(x[k], kLog2e, -base) : x[k] - base;
    x[k] = k < keys ? libdevice::exp2f(exponent) : 0.0f;
  }
  for (Int group = 0; group < tile_keys; group += 32) {
    const bool fused = rival == Rival::kFusedRowSum && group == 0;
    row.sum = fused ? fma(row.sum, row.rescale, warp_sum(m, x + group)) : row.sum + warp_sum(m, x + group);
  }
}

void forward_tile(const MemForward& p, Int b, Int h, Int q0) {
  const MemShape& s = p.shape;
  const Arithmetic m = arithmetic_of(s);
  const MemTiles tiles = mem_forward_tiles(s);
  const Int rows = std::min<Int>(tiles.queries, s.queries - q0);
  const bool causal = p.mask != Mask::kNone;
  const Int keys = causal ? std::min<Int>(s.keys, q0 + diagonal(s, p.mask) + tiles.queries) : s.keys;
  const Matrix query = tile(s.type, p.query, p.query_strides, b, h, q0, q0 + rows, s.head_dim);
  std::vector<ForwardRow> state(static_cast<std::size_t>(rows));
  Matrix out(rows, s.value_dim);
  for (Int k0 = 0; k0 < keys; k0 += tiles.keys) {
    const Int n = std::min<Int>(tiles.keys, keys - k0);
    Matrix scores(rows, n);
    multiply_add(m, query, tile(s.type, p.key, p.key_strides, b, h, k0, k0 + n, s.head_dim), scores, Remainder::kFirst);
    Matrix weights(rows, n);
    const bool masks = tile_is_masked(s, p.mask, q0, std::min<Int>(k0 + tiles.keys, keys));
    const bool last = k0 + tiles.keys >= keys;
    for (Int r = 0; r < rows; ++r) {
      std::vector<float> x(static_cast<std::size_t>(tiles.keys));
      for (Int k = 0; k < n; ++k) {
        const bool merges = rival == Rival::kMergedScale;
        float score = scores.at(r, k) * (merges ? p.scale * kLog2e : p.scale);
        if (p.bias) {
          const float bias =
              load(s.type, p.bias,
                   b * p.bias_strides.batch + h * p.bias_strides.head + (q0 + r) * p.bias_strides.query + k0 + k);
          score = rival == Rival::kFusedBias ? fma(scores.at(r, k), p.scale, bias) : score + bias;
        }
        if (masks && masked(s, p.mask, q0 + r, k0 + k)) score = -kInfinity;
        x[static_cast<std::size_t>(k)] = merges || rival == Rival::kFusedExponent ? score : score * kLog2e;
      }
      ForwardRow& row = state[static_cast<std::size_t>(r)];
      softmax_row(m, row, x.data(), n, tiles.keys);
      if (k0 > 0 && tiles.in_registers)
        for (Int d = 0; d < s.value_dim; ++d) out.at(r, d) = out.at(r, d) * row.rescale;
      for (Int k = 0; k < n; ++k) {
        float weight = rounded(s.type, x[static_cast<std::size_t>(k)]);
        if (p.dropout.p > 0.0f) {
          const float keep = kept(s, p.dropout, b, h, q0 + r, k0 + k) ? 1.0f : 0.0f;
          weight = rounded(s.type, weight * rounded(s.type, dropout_scale(p.dropout) * keep));
        }
        weights.at(r, k) = weight;
      }
    }
    const Matrix value = tile(s.type, p.value, p.value_strides, b, h, k0, k0 + n, s.value_dim).transposed();
    if (tiles.in_registers) {
      multiply_add(m, weights, value, out, Remainder::kLast);
      continue;
    }
    // [src epilogue/epilogue_rescale_output.h MemoryEfficientAttentionNormalize]
    Matrix part(rows, s.value_dim);
    multiply_add(m, weights, value, part, Remainder::kLast);
    for (Int r = 0; r < rows; ++r) {
      const ForwardRow& row = state[static_cast<std::size_t>(r)];
      const float alpha = last ? 1.0f / (row.sum == 0.0f ? 1.0f : row.sum) : 1.0f, beta = alpha * row.rescale;
      for (Int d = 0; d < s.value_dim; ++d)
        out.at(r, d) = k0 == 0 ? alpha * part.at(r, d) : fma(alpha, part.at(r, d), beta * out.at(r, d));
    }
  }
  for (Int r = 0; r < rows; ++r) {
    const ForwardRow& row = state[static_cast<std::size_t>(r)];
    const float sum = row.sum == 0.0f ? 1.0f : row.sum, max = row.max == -kInfinity ? 0.0f : row.max;
    const float inverse = 1.0f / sum;
    const Strides& o = p.out_strides;
    for (Int d = 0; d < s.value_dim; ++d)
      store(s.type, p.out, b * o.batch + (q0 + r) * o.position + h * o.head + d,
            tiles.in_registers ? out.at(r, d) * inverse : out.at(r, d));
    if (p.logsumexp)
      p.logsumexp[(b * s.heads + h) * padded_queries(s.queries) + q0 + r] =
          canonical(max / kLog2e + libdevice::logf(sum));
  }
}

// --- backward ---

Int tile_count(Int n, Int size) { return (n + size - 1) / size; }

// delta of 16-bit types: `lanes` lanes a row, eight adjacent elements of every 8 * lanes each (one, of rows that are no
// multiple of eight) [src kernel_backward.h computeDelta].
float delta_of_row(const MemBackward& p, Int b, Int h, Int query, int lanes) {
  const MemShape& s = p.shape;
  const Int wide = s.value_dim % 8 == 0 ? 8 : 1;
  std::vector<float> lane(static_cast<std::size_t>(lanes));
  for (Int d = 0; d < s.value_dim; ++d) {
    float& t = lane[static_cast<std::size_t>(d / wide % lanes)];
    t = fma(load(s.type, p.out, b * p.out_strides.batch + query * p.out_strides.position + h * p.out_strides.head + d),
            load(s.type, p.grad_out,
                 b * p.grad_out_strides.batch + query * p.grad_out_strides.position + h * p.grad_out_strides.head + d),
            t);
  }
  for (int step = 1; step < lanes; step *= 2) {
    std::vector<float> next(lane.size());
    for (int t = 0; t < lanes; ++t)
      next[static_cast<std::size_t>(t)] = lane[static_cast<std::size_t>(t)] + lane[static_cast<std::size_t>(t ^ step)];
    lane = next;
  }
  return lane[0];
}

// What one (query tile, key tile) pair contributes: the dropped-out weights and the scaled dS, queries x keys.
struct Pair {
  Matrix weights, grad_scores;
};

Pair pair_of(const MemBackward& p, Int b, Int h, Int q0, Int rows, Int k0, Int n, const Matrix& query,
             const Matrix& key, const Matrix& value, const Matrix& grad_out) {
  const MemShape& s = p.shape;
  const Arithmetic m = arithmetic_of(s);
  Matrix scores(n, rows), grad_weights(rows, n);  // transposed: keys are the first factor
  multiply_add(m, key, query, scores, Remainder::kFirst);
  multiply_add(m, grad_out, value, grad_weights, Remainder::kFirst);
  const bool drops = p.dropout.p > 0.0f;
  const float factor = drops ? dropout_scale(p.dropout) : 1.0f;
  Pair pair{Matrix(rows, n), Matrix(rows, n)};
  for (Int r = 0; r < rows; ++r) {
    const Int row = b * s.heads + h;
    const float lse = p.logsumexp[row * p.logsumexp_pitch + q0 + r], delta = p.delta[row * s.queries + q0 + r];
    for (Int k = 0; k < n; ++k) {
      float x = scores.at(k, r) * p.scale;
      if (p.bias)
        x = x + load(s.type, p.bias,
                     b * p.bias_strides.batch + h * p.bias_strides.head + (q0 + r) * p.bias_strides.query + k0 + k);
      if (masked(s, p.mask, q0 + r, k0 + k)) x = -kInfinity;
      float exponent = x - lse;
      if (rival == Rival::kFusedLogsumexp && x != -kInfinity) exponent = fma(scores.at(k, r), p.scale, -lse);
      const float weight = rounded(
          s.type, rival == Rival::kExp2InBackward ? libdevice::exp2f(exponent * kLog2e) : libdevice::expf(exponent));
      const bool keep = !drops || kept(s, p.dropout, b, h, q0 + r, k0 + k);
      pair.weights.at(r, k) = drops ? rounded(s.type, weight * rounded(s.type, keep ? factor : 0.0f)) : weight;
      float grad = grad_weights.at(r, k);
      const float from = grad;
      if (drops) grad = keep ? grad * factor : 0.0f;
      grad = (rival == Rival::kFusedDelta && keep ? fma(from, factor, -delta) : grad - delta) * weight;
      if (p.grad_bias)
        store(s.type, p.grad_bias,
              b * p.grad_bias_strides.batch + h * p.grad_bias_strides.head + (q0 + r) * p.grad_bias_strides.query + k0 +
                  k,
              grad);
      pair.grad_scores.at(r, k) = rounded(s.type, grad * p.scale);
    }
  }
  return pair;
}

void add(Matrix& to, const Matrix& part) {
  for (std::size_t i = 0; i < to.v.size(); ++i) to.v[i] = to.v[i] + part.v[i];
}

void store_tile(DType type, const Matrix& m, void* to, const Strides& s, Int b, Int h, Int begin) {
  for (Int r = 0; r < m.rows; ++r)
    for (Int d = 0; d < m.cols; ++d)
      store(type, to, b * s.batch + (begin + r) * s.position + h * s.head + d, m.at(r, d));
}

void backward_head(const MemBackward& p, Int b, Int h, const std::vector<std::int32_t>& order) {
  const MemShape& s = p.shape;
  const Arithmetic m = arithmetic_of(s);
  const MemTiles tiles = mem_backward_tiles(s, p.dropout.p > 0.0f);
  const Int query_tiles = tile_count(s.queries, tiles.queries), key_tiles = tile_count(s.keys, tiles.keys);
  const bool half = s.type != DType::kF32, chains = half || rival == Rival::kChainedGradients;
  if (half)
    for (Int q = 0; q < s.queries; ++q)
      p.delta[(b * s.heads + h) * s.queries + q] = canonical(delta_of_row(p, b, h, q, tiles.keys / 32));
  const auto pair = [&](Int i, Int j, auto&& use) {
    const Int q0 = i * tiles.queries, rows = std::min<Int>(tiles.queries, s.queries - q0);
    const Int k0 = j * tiles.keys, n = std::min<Int>(tiles.keys, s.keys - k0);
    const Matrix query = tile(s.type, p.query, p.query_strides, b, h, q0, q0 + rows, s.head_dim);
    const Matrix key = tile(s.type, p.key, p.key_strides, b, h, k0, k0 + n, s.head_dim);
    const Matrix value = tile(s.type, p.value, p.value_strides, b, h, k0, k0 + n, s.value_dim);
    const Matrix grad_out = tile(s.type, p.grad_out, p.grad_out_strides, b, h, q0, q0 + rows, s.value_dim);
    use(pair_of(p, b, h, q0, rows, k0, n, query, key, value, grad_out), query, key, grad_out);
  };
  // dV and dK: query tiles from the first that the mask leaves; of several blocks without a mask, block y begins with
  // query tile y and wraps around.
  for (Int j = 0; j < key_tiles; ++j) {
    const Int n = std::min<Int>(tiles.keys, s.keys - j * tiles.keys);
    const Int first = mem_first_query_tile(p, j);
    Matrix grad_key(n, s.head_dim), grad_value(n, s.value_dim);
    for (Int step = 0; step < mem_query_tiles(p, j); ++step) {
      const Int i = (first + step) % query_tiles;
      pair(i, j, [&](const Pair& t, const Matrix& query, const Matrix&, const Matrix& grad_out) {
        Matrix new_value(n, s.value_dim), new_key(n, s.head_dim);
        Matrix &to_value = chains ? grad_value : new_value, &to_key = chains ? grad_key : new_key;
        multiply_add(m, t.weights.transposed(), grad_out.transposed(), to_value, Remainder::kLast);
        multiply_add(m, t.grad_scores.transposed(), query.transposed(), to_key, Remainder::kLast);
        if (chains) return;
        if (step == 0) {
          grad_value = new_value, grad_key = new_key;
        } else {
          add(grad_value, new_value), add(grad_key, new_key);
        }
      });
    }
    store_tile(s.type, grad_value, p.grad_value, p.grad_value_strides, b, h, j * tiles.keys);
    store_tile(s.type, grad_key, p.grad_key, p.grad_key_strides, b, h, j * tiles.keys);
  }
  for (Int i = 0; i < query_tiles; ++i) {
    const Int rows = std::min<Int>(tiles.queries, s.queries - i * tiles.queries);
    Matrix grad_query(rows, s.head_dim);
    for (Int turn = 0; turn < key_tiles; ++turn) {
      const Int j = order[static_cast<std::size_t>(((b * s.heads + h) * query_tiles + i) * key_tiles + turn)];
      if (j < 0) break;
      pair(i, j, [&](const Pair& t, const Matrix&, const Matrix& key, const Matrix&) {
        multiply_add(m, t.grad_scores, key.transposed(), grad_query, Remainder::kLast);
      });
    }
    store_tile(s.type, grad_query, p.grad_query, p.grad_query_strides, b, h, i * tiles.queries);
  }
}

}  // namespace

void mem_forward(const MemForward& p) {
  const MemShape& s = p.shape;
  if (p.logsumexp) std::fill_n(p.logsumexp, s.batch * s.heads * padded_queries(s.queries), kInfinity);
  for (Int b = 0; b < s.batch; ++b)
    for (Int h = 0; h < s.heads; ++h)
      for (Int q0 = 0; q0 < s.queries; q0 += mem_forward_tiles(s).queries) forward_tile(p, b, h, q0);
}

void mem_backward(const MemBackward& p) {
  const auto order = p.dq_order.empty() ? mem_default_order(p) : p.dq_order;
  for (Int b = 0; b < p.shape.batch; ++b)
    for (Int h = 0; h < p.shape.heads; ++h) backward_head(p, b, h, order);
}

}  // namespace step_oracle::attention::ref
