// Products of two 16-bit matrices, both packed beforehand, for attention's tiles: rows of A against columns of B.
//
// One matrix is packed once and used against many tiles, so its exponents are held against the highest of the whole
// matrix. Rows and columns with an infinity or NaN, and sums that may overflow, are done one output at a time.
#pragma once
#include "csrc/kernels/arith/dot_pair.h"
#include "csrc/kernels/arith/dot_tile.h"
#include "csrc/kernels/attention/arena.h"

SO_ISA_BEGIN
namespace half_product {

using dot_tile::ExponentRange;
using dot_tile::kCols;
using dot_tile::kRows;
using Int = std::int64_t;

template <class Format_, int kTerms_, int kFractionBits_>
struct Kind {
  using Format = Format_;
  static constexpr int kTerms = kTerms_, kFractionBits = kFractionBits_;
  static constexpr Adder adder() { return kTerms == 8 ? kAdderTuring : kAdderHopper; }
};

SO_ALWAYS_INLINE Int up(Int n, Int to) { return (n + to - 1) / to * to; }


// Elements of a matrix in memory.
struct Matrix {
  const std::uint16_t* at;
  Int row_step, rows, cols;  // columns are adjacent
};

template <class K>
ExponentRange range_of(const Matrix& m) {
  std::uint16_t fields[256], line[256];
  std::uint8_t special[256];
  ExponentRange range;
  for (Int i = 0; i < m.rows; ++i) {
    std::memcpy(line, m.at + i * m.row_step, static_cast<std::size_t>(m.cols) * 2);
    dot_tile::clean<typename K::Format>(line, m.cols, special);
    dot_tile::take_fields<typename K::Format>(line, m.cols, fields, range);
  }
  return range;
}

// --- columns: the B of a product ---

struct Columns {
  float* values;            // [tile of kCols columns][depth][kCols]
  std::uint8_t* exponents;  // the same; bytes as dot_tile wants them
  std::uint8_t* special;    // a column
  bool any_special;
  Int cols, depth;  // depth: rows held, those beyond the matrix are zeros
  ExponentRange range;
  // The matrix itself, for the scalar rule: element (k, column) and where it ends in k.
  const std::uint16_t* raw;
  Int k_step, col_step, k_end;
};

inline Columns take_columns(Arena& arena, Int cols, Int depth) {
  const Int tiles = (cols + kCols - 1) / kCols;
  Columns c{};
  c.cols = cols, c.depth = depth;
  c.values = arena.take<float>(tiles * depth * kCols);
  c.exponents = arena.take<std::uint8_t>(tiles * depth * kCols);
  c.special = arena.take<std::uint8_t>(tiles * kCols);
  return c;
}

// One row of kCols values of a tile.
template <class K>
SO_ALWAYS_INLINE void put_row(std::uint16_t* line, std::uint8_t* special, int high, bool& any, float* values,
                              std::uint8_t* exponents) {
  std::uint16_t fields[kCols];
  ExponentRange ignored;
  any |= dot_tile::clean<typename K::Format>(line, kCols, special);
  dot_tile::take_fields<typename K::Format>(line, kCols, fields, ignored);
  for (int j = 0; j < kCols; ++j) values[j] = dot_tile::value_of<typename K::Format>(line[j]);
  std::uint32_t words[kLanes] = {};
  for (int v = 0; v < dot_tile::kTensorVecs; ++v)
    for (int d = 0; d < kLanes; ++d) {
      const std::uint32_t field = fields[v * kLanes + d];
      words[d] |= (field ? static_cast<std::uint32_t>(high) - field : 255u) << (8 * v);
    }
  std::memcpy(exponents, words, sizeof words);
}

// The matrix as it lies: its rows are k.
template <class K>
void pack_columns(const Matrix& m, const ExponentRange& range, Columns& c) {
  c.range = range, c.raw = m.at, c.k_step = m.row_step, c.col_step = 1, c.k_end = m.rows;
  c.any_special = false;
  const Int tiles = (c.cols + kCols - 1) / kCols;
  std::memset(c.special, 0, static_cast<std::size_t>(tiles * kCols));
  for (Int t = 0; t < tiles; ++t) {
    const Int col0 = t * kCols, n = m.cols - col0 < kCols ? m.cols - col0 : kCols;
    for (Int k = 0; k < c.depth; ++k) {
      std::uint16_t line[kCols] = {};
      if (k < m.rows) {
        std::memcpy(line, m.at + k * m.row_step + col0, static_cast<std::size_t>(n) * 2);
        for (Int j = n; j < kCols; ++j) line[j] = line[0];  // zeros would look like tiny products
      }
      const Int at = (t * c.depth + k) * kCols;
      put_row<K>(line, c.special + col0, range.high, c.any_special, c.values + at, c.exponents + at);
    }
  }
}

// The matrix turned: its columns are k.
template <class K>
void pack_columns_turned(const Matrix& m, const ExponentRange& range, Columns& c) {
  c.range = range, c.raw = m.at, c.k_step = 1, c.col_step = m.row_step, c.k_end = m.cols;
  c.any_special = false;
  const Int tiles = (c.cols + kCols - 1) / kCols;
  std::memset(c.special, 0, static_cast<std::size_t>(tiles * kCols));
  std::uint16_t turned[256 * kCols];
  for (Int t = 0; t < tiles; ++t) {
    const Int col0 = t * kCols, n = m.rows - col0 < kCols ? m.rows - col0 : kCols;
    for (Int j = 0; j < kCols; ++j) {
      const std::uint16_t* from = m.at + (col0 + (j < n ? j : 0)) * m.row_step;
      for (Int k = 0; k < m.cols; ++k) turned[k * kCols + j] = from[k];
    }
    for (Int k = m.cols; k < c.depth; ++k) std::memset(turned + k * kCols, 0, kCols * 2);
    for (Int k = 0; k < c.depth; ++k) {
      const Int at = (t * c.depth + k) * kCols;
      put_row<K>(turned + k * kCols, c.special + col0, range.high, c.any_special, c.values + at, c.exponents + at);
    }
  }
}

// --- rows: the A of a product ---

struct Rows {
  float* values;             // [row][pitch]
  std::uint32_t* exponents;  // [row][pitch]
  std::uint8_t* live;        // [pair of rows][pitch]
  std::uint16_t* raw;        // [row][pitch]
  std::uint8_t* special;     // a row
  Int pitch;
  bool any_special;
  ExponentRange range;
};

inline Rows take_rows(Arena& arena, Int rows, Int pitch) {
  const Int even = up(rows, kRows);
  Rows r{};
  r.pitch = pitch;
  r.values = arena.take<float>(even * pitch);
  r.exponents = arena.take<std::uint32_t>(even * pitch);
  r.live = arena.take<std::uint8_t>(even * pitch);
  r.raw = arena.take<std::uint16_t>(even * pitch);
  r.special = arena.take<std::uint8_t>(even);
  return r;
}

// Row i from r.raw; depth a multiple of the adder's terms. `high`: of the columns it will meet. A special row stays
// special until the caller clears the mark: its accumulators are not numbers any more.
template <class K>
void pack_row(Rows& r, Int i, Int depth, int high) {
  std::uint16_t line[256], fields[256];
  std::uint8_t special[256];
  std::memcpy(line, r.raw + i * r.pitch, static_cast<std::size_t>(depth) * 2);
  if (dot_tile::clean<typename K::Format>(line, depth, special)) r.special[i] = 1, r.any_special = true;
  dot_tile::take_fields<typename K::Format>(line, depth, fields, r.range);
  float* const values = r.values + i * r.pitch;
  std::uint32_t* const exponents = r.exponents + i * r.pitch;
  const int shift = high - 127;
  for (Int q = 0; q < depth; ++q) values[q] = dot_tile::value_of<typename K::Format>(line[q]);
  for (Int q = 0; q < depth; ++q) {
    const int field = fields[q], shifted = field + shift;
    const int low = shifted < 0 ? 0 : shifted, byte = field == 0 ? 0 : low > 255 ? 255 : low;
    exponents[q] = 0x01010101u * static_cast<std::uint32_t>(byte);
  }
  std::uint8_t* const live = r.live + i / kRows * r.pitch;
  for (Int q = 0; q < depth; q += K::kTerms) {
    std::uint16_t any = 0;
    for (int s = 0; s < K::kTerms; ++s) any = static_cast<std::uint16_t>(any | fields[q + s]);
    live[q] = static_cast<std::uint8_t>((i % kRows ? live[q] : 0) | (any != 0));
  }
}
// A last odd row gets a twin, so that rows come in pairs.
template <class K>
void pack_rows(Rows& r, Int rows, Int depth, int high) {
  for (Int i = 0; i < rows; ++i) pack_row<K>(r, i, depth, high);
  if (rows % kRows) {
    std::memcpy(r.raw + rows * r.pitch, r.raw + (rows - 1) * r.pitch, static_cast<std::size_t>(depth) * 2);
    pack_row<K>(r, rows, depth, high);
  }
}
inline void clear_special(Rows& r, Int rows) {
  std::memset(r.special, 0, static_cast<std::size_t>(up(rows, kRows)));
  r.any_special = false;
}

// --- the product ---

struct Task {
  const Rows* a;
  Int a_row;  // the first row of a
  Int rows;
  const Columns* b;
  Int b_tile, b_k;  // the first tile of columns, the first k
  Int cols;         // columns wanted, from the first tile's first
  Int depth;        // a multiple of the adder's terms
  float* acc;       // rows (rounded up to pairs) x acc_pitch, columns rounded up to whole tiles
  Int acc_pitch;
  bool first;          // the accumulators start at +0
  ExponentRange seen;  // of A, over the whole chain
  Int chain;           // products of the whole chain
  bool scalar;         // whatever the operands
  float* saved;        // as large as acc, for the scalar rule
};

template <class K>
SO_ALWAYS_INLINE float scalar_output(const Task& t, Int i, Int j, float acc) {
  const Columns& b = *t.b;
  const std::uint16_t* a = t.a->raw + (t.a_row + i) * t.a->pitch;
  const Int col = t.b_tile * kCols + j;
  for (Int q = 0; q < t.depth && acc == acc; q += K::kTerms) {  // a NaN stays
    std::uint16_t line[K::kTerms];
    for (int s = 0; s < K::kTerms; ++s) {
      const Int k = t.b_k + q + s;
      line[s] = k < b.k_end ? b.raw[k * b.k_step + col * b.col_step] : std::uint16_t{0};
    }
    acc = dot_add<typename K::Format>(a + q, 1, line, 1, K::kTerms, acc, K::adder());
  }
  return acc;
}

// Whether every accumulator that a product goes on from is a finite number: a factor between two products may have made
// a NaN of one.
inline bool all_finite(const Task& t) {
  std::uint32_t largest = 0;
  for (Int i = 0; i < t.rows; ++i)
    for (Int j = 0; j < t.cols; ++j) {
      const std::uint32_t magnitude = bits_of(t.acc[i * t.acc_pitch + j]) & 0x7fffffffu;
      largest = magnitude > largest ? magnitude : largest;
    }
  return largest < 0x7f800000u;
}

// `wanted(i, col)`: whether the tile of columns from `col` on matters to rows i and i + 1. Where it does not, acc is
// left alone.
template <class K, class Wanted>
void multiply(const Task& t, Wanted wanted) {
  const dot_tile::Form form = dot_tile::form_for<K::kFractionBits>(t.seen, t.b->range, t.chain);
  const bool all_scalar = t.scalar || form == dot_tile::Form::kScalar;
  const bool lost = !t.first && !all_scalar && !all_finite(t);
  const bool some = t.a->any_special || t.b->any_special || lost;
  if (all_scalar || some)
    for (Int i = 0; i < t.rows; ++i)
      for (Int j = 0; j < t.cols; ++j) t.saved[i * t.acc_pitch + j] = t.first ? 0.0f : t.acc[i * t.acc_pitch + j];
  if (!all_scalar) {
    dot_tile::Tile tile{};
    tile.depth = t.depth, tile.first = t.first, tile.a_pitch = t.a->pitch, tile.acc_pitch = t.acc_pitch;
    tile.only_zeros = t.seen.low + t.b->range.low - 127 >= K::kFractionBits + 2;
    for (Int j = 0; j < t.cols; j += kCols) {
      const Int at = ((t.b_tile + j / kCols) * t.b->depth + t.b_k) * kCols;
      tile.b = t.b->values + at, tile.b_exponent = t.b->exponents + at;
      for (Int i = 0; i < t.rows; i += kRows) {
        if (!wanted(i, j)) continue;
        const Int row = t.a_row + i;
        tile.a = t.a->values + row * t.a->pitch, tile.a_exponent = t.a->exponents + row * t.a->pitch;
        tile.live = t.a->live + row / kRows * t.a->pitch;
        tile.acc = t.acc + i * t.acc_pitch + j;
        dot_tile::run_tile<typename K::Format, K::kTerms, K::kFractionBits>(tile, form);
      }
    }
    if (!some) return;
  }
  for (Int i = 0; i < t.rows; ++i)
    for (Int j = 0; j < t.cols; ++j) {
      const float before = t.saved[i * t.acc_pitch + j];
      const bool finite = before - before == 0.0f;
      if (all_scalar || !finite || t.a->special[t.a_row + i] || t.b->special[t.b_tile * kCols + j])
        t.acc[i * t.acc_pitch + j] = scalar_output<K>(t, i, j, before);
    }
}
// Whether tiles may be skipped at all: with only finite numbers a zero weight makes a zero product.
template <class K>
bool finite(const Rows& a, const Columns& b, Int chain) {
  return !a.any_special && !b.any_special &&
         dot_tile::form_for<K::kFractionBits>(a.range, b.range, chain) != dot_tile::Form::kScalar;
}
struct Always {
  SO_ALWAYS_INLINE bool operator()(Int, Int) const { return true; }
};

}  // namespace half_product
SO_ISA_END
