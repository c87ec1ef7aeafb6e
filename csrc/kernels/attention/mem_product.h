// The matrix products inside the memory-efficient kernels, fast: C += A B over tiles of float32 values (16-bit elements
// come widened). Operands are packed once and used for many tiles.
//
//   SIMT    one FMA chain an output, vectors across outputs;
//   tensor  arith/dot_tile.h. 3xTF32: each step of 8 is small(A) big(B), big(A) small(B), big(A) big(B), in a temporary
//           that is added to C after the first step of every tile of 32.
//
// Infinities and NaN among the operands, and sums that may overflow, go output by output through arith/dot_add.h.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "csrc/kernels/arith/convert.h"
#include "csrc/kernels/arith/dot_add.h"
#include "csrc/kernels/arith/dot_pair.h"
#include "csrc/kernels/arith/dot_tile.h"
#include "csrc/kernels/arith/tf32.h"
#include "csrc/kernels/core/vec.h"

SO_ISA_BEGIN
namespace mem_product {

using Int = std::int64_t;
using dot_tile::ExponentRange;
using dot_tile::kCols;
using dot_tile::kRows;

enum class Kind : std::uint8_t { kSimt, kTf32Ampere, kTf32Hopper, kBf16Turing, kBf16Hopper, kFp16Turing, kFp16Hopper };
SO_ALWAYS_INLINE bool is_tf32(Kind k) { return k == Kind::kTf32Ampere || k == Kind::kTf32Hopper; }

SO_ALWAYS_INLINE Int smaller(Int a, Int b) { return a < b ? a : b; }
SO_ALWAYS_INLINE Int larger(Int a, Int b) { return a > b ? a : b; }
SO_ALWAYS_INLINE Int up(Int n, Int to) { return (n + to - 1) / to * to; }

inline constexpr Int kStep = 8, kTile = 32;             // of depth
inline constexpr Int kRowBlock = kLanes == 16 ? 8 : 4;  // SIMT: rows and vectors of outputs in registers
inline constexpr Int kSimtCols = 2 * kLanes;
inline constexpr Int kColBlock = kCols > kSimtCols ? kCols : kSimtCols;
inline constexpr Int kRowPad = 8;

// Where the depth's remainder by 32 stands: tiles that come from device memory have it first.
enum class Remainder : std::uint8_t { kFirst, kLast };
// Which factor of the kernel's product this is: it decides the order of the 3xTF32 halves.
enum class Factor : std::uint8_t { kFirst, kSecond };

struct Layout {
  Kind kind;
  Remainder remainder;
  Int depth;   // of the values
  Int padded;  // whole tiles
  Int planes;  // of padded values each: one, or for 3xTF32 the big parts and then the small ones
  Int pitch() const { return planes * padded; }
};
inline constexpr int kBig = 0, kSmall = 1;
SO_ALWAYS_INLINE Layout layout_of(Kind kind, Remainder remainder, Int depth) {
  return {kind, remainder, depth, kind == Kind::kSimt ? depth : up(depth, kTile), is_tf32(kind) ? 2 : 1};
}

// Exponents of each plane.
struct Ranges {
  ExponentRange plane[2];
  int high() const { return plane[kBig].high > plane[kSmall].high ? plane[kBig].high : plane[kSmall].high; }
};

// Rows of the first operand, `rows` values of `depth` each.
struct Rows {
  const float* source;
  Int row_step, k_step, rows;
  Layout layout;
  Factor factor;
  float* a;                 // SIMT: [rows][depth]; tensor: [rows][plane][padded depth]
  std::uint32_t* exponent;  // as a
  std::uint8_t* live;       // of pairs of rows [pairs][plane][padded depth], at the first product of each of its groups
  std::uint8_t* whole;      // of pairs of rows: every group of it is live
  Ranges range;
  bool special;
};
// Columns of the second operand.
struct Cols {
  const float* source;
  Int k_step, col_step, cols;
  Layout layout;
  Factor factor;
  float* b;                // SIMT: [depth][pitch]; tensor: [column tiles][plane][padded depth][kCols]
  std::uint8_t* exponent;  // as b
  Ranges range;            // given: of all columns that share rows
  bool special;
};

// --- memory ---

struct Arena {
  std::byte* base;
  std::size_t used = 0;
  template <class T>
  T* take(Int n) {
    const std::size_t at = used;
    used += (static_cast<std::size_t>(n) * sizeof(T) + 63) / 64 * 64;
    return base ? reinterpret_cast<T*>(base + at) : nullptr;
  }
};
inline Rows take_rows(Arena& arena, Kind kind, Remainder remainder, Int rows, Int depth) {
  Rows r{};
  r.layout = layout_of(kind, remainder, depth);
  if (kind == Kind::kSimt) {
    r.a = arena.take<float>(up(rows, kRowPad) * depth);
    return r;
  }
  const Int n = up(rows, kRowPad) * r.layout.pitch();
  r.a = arena.take<float>(n);
  r.exponent = arena.take<std::uint32_t>(n);
  r.live = arena.take<std::uint8_t>(n / kRows);
  r.whole = arena.take<std::uint8_t>(up(rows, kRowPad) / kRows);
  return r;
}
inline Cols take_cols(Arena& arena, Kind kind, Remainder remainder, Int depth, Int cols) {
  Cols c{};
  c.layout = layout_of(kind, remainder, depth);
  const Int n = up(cols, kColBlock) * c.layout.pitch();
  c.b = arena.take<float>(n);
  if (kind != Kind::kSimt) c.exponent = arena.take<std::uint8_t>(n);
  return c;
}

// --- packing ---

SO_ALWAYS_INLINE int lowest_field(Kind k) {  // of a subnormal, biased by 127
  return k == Kind::kFp16Turing || k == Kind::kFp16Hopper ? 128 - Fp16Format::kBias : 1;
}

inline constexpr Int kLine = 256;  // values split at once

// Infinities and NaN become zeros; whether there were such.
inline bool clean(float* line, Int n) {
  std::uint32_t largest = 0;
  for (Int q = 0; q < n; ++q) {
    const std::uint32_t magnitude = bits_of(line[q]) & 0x7fffffffu;
    largest = magnitude > largest ? magnitude : largest;
  }
  if (largest < 0x7f800000u) return false;
  for (Int q = 0; q < n; ++q)
    if ((bits_of(line[q]) & 0x7fffffffu) >= 0x7f800000u) line[q] = 0.0f;
  return true;
}

// The planes of n finite values; plane p goes to to + p * pitch.
inline void take_planes(Kind kind, const float* line, Int n, float* to, Int pitch) {
  if (!is_tf32(kind)) {
    std::memcpy(to, line, static_cast<std::size_t>(n) * sizeof(float));
    return;
  }
  for (Int q = 0; q < n; ++q) {
    const tf32::Split s = tf32::split(line[q]);
    to[q] = s.big;
    to[pitch + q] = s.small;
  }
}

// Exponent fields as the adder aligns by them: 0 for a zero.
inline void take_fields(Kind kind, const float* x, Int n, std::uint32_t* fields) {
  const std::uint32_t low = static_cast<std::uint32_t>(lowest_field(kind));
  for (Int q = 0; q < n; ++q) {
    const std::uint32_t magnitude = bits_of(x[q]) & 0x7fffffffu, own = magnitude >> 23;
    fields[q] = magnitude == 0 ? 0 : own > low ? own : low;
  }
}
// Loops of one reduction each, of which gcc 12 makes vectors.
inline void include_fields(const std::uint32_t* fields, Int n, ExponentRange& range) {
  std::uint32_t high = 0, below_low = 0xffffffffu;
  for (Int q = 0; q < n; ++q) high = fields[q] > high ? fields[q] : high;
  for (Int q = 0; q < n; ++q) below_low = fields[q] - 1 < below_low ? fields[q] - 1 : below_low;
  if (high != 0) range.include(ExponentRange{static_cast<int>(below_low) + 1, static_cast<int>(high)});
}

// Of the finite ones among n values.
inline Ranges range_of(Kind kind, const float* from, Int n) {
  Ranges range;
  if (kind == Kind::kSimt) return range;
  for (Int i = 0; i < n; i += kLine) {
    float line[kLine], planes[2 * kLine];
    std::uint32_t fields[kLine];
    const Int some = smaller(kLine, n - i);
    std::memcpy(line, from + i, static_cast<std::size_t>(some) * sizeof(float));
    clean(line, some);
    take_planes(kind, line, some, planes, kLine);
    for (int p = 0; p < (is_tf32(kind) ? 2 : 1); ++p) {
      take_fields(kind, planes + p * kLine, some, fields);
      include_fields(fields, some, range.plane[p]);
    }
  }
  return range;
}

// Of the finite accumulators; whether there are others as well.
inline Ranges range_of_rows(const float* c, Int pitch, Int rows, Int cols, bool& special) {
  std::uint32_t high[kLanes] = {}, below_low[kLanes];
  for (int i = 0; i < kLanes; ++i) below_low[i] = 0xffffffffu;
  for (Int r = 0; r < rows; ++r)
    for (Int j = 0; j < cols; j += kLanes) {
      std::uint32_t fields[kLanes] = {};
      if (j + kLanes <= cols)
        take_fields(Kind::kBf16Turing, c + r * pitch + j, kLanes, fields);
      else
        take_fields(Kind::kBf16Turing, c + r * pitch + j, cols - j, fields);
      for (int i = 0; i < kLanes; ++i) high[i] = fields[i] > high[i] ? fields[i] : high[i];
      for (int i = 0; i < kLanes; ++i) below_low[i] = fields[i] - 1 < below_low[i] ? fields[i] - 1 : below_low[i];
    }
  ExponentRange range;
  for (int i = 0; i < kLanes; ++i)
    if (high[i] != 0) range.include(ExponentRange{static_cast<int>(below_low[i]) + 1, static_cast<int>(high[i])});
  special |= range.high == 255;
  return {{range, {}}};
}

// Position of a packed depth -> index of the value, or -1 for a zero.
SO_ALWAYS_INLINE Int source_index(const Layout& l, Int position) {
  const Int rest = l.depth % kTile;
  if (l.remainder == Remainder::kLast || rest == 0 || l.depth < kTile) return position < l.depth ? position : -1;
  if (position < kTile) return position < rest ? position : -1;
  return position - kTile + rest;
}

// The three parts of a value in a step's order.
SO_ALWAYS_INLINE void parts_of(float x, Factor factor, float* part) {
  const tf32::Split s = tf32::split(x);
  part[0] = factor == Factor::kFirst ? s.small : s.big;
  part[1] = factor == Factor::kFirst ? s.big : s.small;
  part[2] = s.big;
}

// One row's adjacent values, with the zeros that fill its tiles up.
inline void pad_line(const Layout& l, const float* from, float* line) {
  const Int rest = l.depth % kTile;
  const bool apart = l.remainder == Remainder::kFirst && rest != 0 && l.depth > kTile;
  const Int head = apart ? rest : l.depth, filled = up(head, kTile);
  std::memcpy(line, from, static_cast<std::size_t>(head) * sizeof(float));
  std::memset(line + head, 0, static_cast<std::size_t>(filled - head) * sizeof(float));
  std::memcpy(line + filled, from + head, static_cast<std::size_t>(l.depth - head) * sizeof(float));
}

// One row's line of padded values into its place; b_high: the highest exponent of the columns it will meet. A pair's
// second row adds to what its first marked as live.
inline void pack_line(Rows& to, Int row, const float* line, int b_high) {
  const Layout& l = to.layout;
  const int shift = b_high - 127;
  float* const a = to.a + row * l.pitch();
  std::uint32_t* const exponent = to.exponent + row * l.pitch();
  take_planes(l.kind, line, l.padded, a, l.padded);
  take_fields(l.kind, a, l.pitch(), exponent);
  for (Int p = 0; p < l.planes; ++p) include_fields(exponent + p * l.padded, l.padded, to.range.plane[p]);
  std::uint8_t* const live = to.live + row / kRows * l.pitch();
  const Int terms = l.kind == Kind::kTf32Ampere ? 4 : 8;
  std::uint32_t zeros = 0;
  for (Int q = 0; q < l.pitch(); ++q) zeros += exponent[q] == 0 ? 1 : 0;
  if (zeros == 0) std::memset(live, 1, static_cast<std::size_t>(l.pitch()));
  std::uint8_t whole = 1;
  for (Int q = 0; zeros != 0 && q < l.pitch(); q += terms) {
    std::uint64_t any = 0, two;
    for (Int s = 0; s < terms; s += 2) {
      std::memcpy(&two, exponent + q + s, sizeof two);
      any |= two;
    }
    live[q] = static_cast<std::uint8_t>((row % kRows ? live[q] : 0) | (any != 0 ? 1 : 0));
    whole &= live[q];
  }
  to.whole[row / kRows] = whole;
  for (Int q = 0; q < l.pitch(); ++q) {
    const int field = static_cast<int>(exponent[q]), shifted = field + shift;
    const int low = shifted < 0 ? 0 : shifted, byte = field == 0 ? 0 : low > 255 ? 255 : low;
    exponent[q] = 0x01010101u * static_cast<std::uint32_t>(byte);
  }
}

// source[row * row_step + k * k_step], one of the steps 1; `depth` may be less than the layout's, kLine at most where
// k_step is not 1.
inline void pack_rows(Rows& to, const float* source, Int row_step, Int k_step, Int rows, Int depth, Factor factor,
                      int b_high, float* line) {
  to.source = source, to.row_step = row_step, to.k_step = k_step, to.rows = rows, to.factor = factor;
  to.special = false;
  to.range = {};
  const Kind kind = to.layout.kind;
  to.layout = layout_of(kind, to.layout.remainder, depth);
  const Layout& l = to.layout;
  float turned[kStep * kLine];
  for (Int r = 0; r < up(rows, kind == Kind::kSimt ? kRowPad : kRows); ++r) {
    const Int first = r / kStep * kStep;
    if (k_step != 1 && r == first)
      for (Int k = 0; k < depth; k += kStep) {
        if (k + kStep <= depth && first + kStep <= rows) {
          transpose8x8(source + k * k_step + first, k_step, turned + k, kLine);
        } else {
          for (Int i = first; i < smaller(first + kStep, rows); ++i)
            for (Int s = k; s < smaller(k + kStep, depth); ++s)
              turned[(i - first) * kLine + s] = source[s * k_step + i];
        }
      }
    const float* const from = k_step == 1 ? source + r * row_step : turned + (r - first) * kLine;
    if (kind == Kind::kSimt) {
      const std::size_t bytes = static_cast<std::size_t>(depth) * sizeof(float);
      if (r < rows)
        std::memcpy(to.a + r * depth, from, bytes);
      else
        std::memset(to.a + r * depth, 0, bytes);
      continue;
    }
    if (r < rows)
      pad_line(l, from, line);
    else
      std::memset(line, 0, static_cast<std::size_t>(l.padded) * sizeof(float));
    to.special |= clean(line, l.padded);
    pack_line(to, r, line, b_high);
  }
}

inline void pack_simt_cols(Cols& to, Int depth) {
  const float* const source = to.source;
  const Int cols = to.cols, k_step = to.k_step, col_step = to.col_step, pitch = up(cols, kColBlock);
  if (col_step == 1) {
    for (Int k = 0; k < depth; ++k)
      std::memcpy(to.b + k * pitch, source + k * k_step, static_cast<std::size_t>(cols) * sizeof(float));
  } else {
    for (Int k0 = 0; k0 < depth; k0 += kStep)
      for (Int j0 = 0; j0 < cols; j0 += kStep) {
        if (k_step == 1 && k0 + kStep <= depth && j0 + kStep <= cols) {
          transpose8x8(source + j0 * col_step + k0, col_step, to.b + k0 * pitch + j0, pitch);
        } else {
          for (Int k = k0; k < smaller(k0 + kStep, depth); ++k)
            for (Int j = j0; j < smaller(j0 + kStep, cols); ++j)
              to.b[k * pitch + j] = source[k * k_step + j * col_step];
        }
      }
  }
  for (Int k = 0; k < depth; ++k)
    for (Int j = cols; j < pitch; ++j) to.b[k * pitch + j] = 0.0f;
}

// Positions q to q + 8 of one tile of columns, n of them there: those beyond repeat the first, for zeros would look
// like tiny products.
inline void read_step(const Cols& from, Int tile, Int q, Int n, float (*to)[kCols]) {
  const Int begin = source_index(from.layout, q), end = source_index(from.layout, q + kStep - 1);
  const float* const source = from.source + tile * kCols * from.col_step;
  if (from.k_step == 1 && begin >= 0 && end == begin + kStep - 1 && n % kStep == 0) {
    for (Int j = 0; j < n; j += kStep)
      transpose8x8(source + begin + j * from.col_step, from.col_step, to[0] + j, kCols);
  } else {
    for (Int s = 0; s < kStep; ++s) {
      const Int k = source_index(from.layout, q + s);
      if (k < 0)
        std::memset(to[s], 0, sizeof to[s]);
      else if (from.col_step == 1)
        std::memcpy(to[s], source + k * from.k_step, static_cast<std::size_t>(n) * sizeof(float));
      else
        for (Int j = 0; j < n; ++j) to[s][j] = source[k * from.k_step + j * from.col_step];
    }
  }
  for (Int s = 0; s < kStep; ++s)
    for (Int j = n; j < kCols; ++j) to[s][j] = to[s][0];
}

// The byte of column v * kLanes + d is at 4 * d + v.
inline void put_exponents(Kind kind, const float* b, int high, std::uint8_t* to) {
  std::uint32_t fields[kCols], words[kLanes] = {};
  take_fields(kind, b, kCols, fields);
  for (int v = 0; v < dot_tile::kTensorVecs; ++v)
    for (int d = 0; d < kLanes; ++d) {
      const std::uint32_t field = fields[v * kLanes + d];
      words[d] |= (field ? static_cast<std::uint32_t>(high) - field : 255u) << (8 * v);
    }
  std::memcpy(to, words, sizeof words);
}

// source[k * k_step + col * col_step], one of the steps 1; range: of everything that meets the same rows.
inline void pack_cols(Cols& to, const float* source, Int k_step, Int col_step, Int depth, Int cols, Factor factor,
                      const Ranges& range) {
  to.source = source, to.k_step = k_step, to.col_step = col_step, to.cols = cols, to.factor = factor;
  to.range = range, to.special = false;
  const Kind kind = to.layout.kind;
  to.layout = layout_of(kind, to.layout.remainder, depth);
  if (kind == Kind::kSimt) return pack_simt_cols(to, depth);
  const Layout& l = to.layout;
  const int high = range.high();
  for (Int t = 0; t < up(cols, kCols) / kCols; ++t)
    for (Int q = 0; q < l.padded; q += kStep) {
      float lines[kStep][kCols];
      read_step(to, t, q, smaller(kCols, cols - t * kCols), lines);
      for (Int s = 0; s < kStep; ++s) {
        to.special |= clean(lines[s], kCols);
        const Int at = (t * l.pitch() + q + s) * kCols, plane = l.padded * kCols;
        take_planes(kind, lines[s], kCols, to.b + at, plane);
        for (Int p = 0; p < l.planes; ++p)
          put_exponents(kind, to.b + at + p * plane, high, to.exponent + at + p * plane);
      }
    }
}

// --- output by output ---

template <class Format>
typename Format::Storage pattern_of(float x) {
  if constexpr (Format::kBytes == 4)
    return bits_of(x);
  else if constexpr (Format::kFraction == Bf16Format::kFraction)
    return convert::to_bf16(x);
  else
    return convert::to_fp16(x);
}

template <class Format>
float scalar_output(const Rows& a, Int i, const Cols& b, Int j, Adder adder, float c) {
  constexpr bool kTf32 = Format::kBytes == 4;
  const Layout& l = a.layout;
  const int terms = kTf32 ? adder.terms : 8;
  float staged = 0.0f;
  float& acc = kTf32 ? staged : c;
  for (Int q = 0; q < l.padded; q += kStep) {
    float x[3][kStep], y[3][kStep];
    for (Int s = 0; s < kStep; ++s) {
      const Int k = source_index(l, q + s);
      const float u = k < 0 ? 0.0f : a.source[i * a.row_step + k * a.k_step];
      const float v = k < 0 ? 0.0f : b.source[k * b.k_step + j * b.col_step];
      float p[3] = {u, 0.0f, 0.0f}, r[3] = {v, 0.0f, 0.0f};
      if (kTf32) parts_of(u, a.factor, p), parts_of(v, b.factor, r);
      for (int part = 0; part < 3; ++part) x[part][s] = p[part], y[part][s] = r[part];
    }
    for (int part = 0; part < (kTf32 ? 3 : 1); ++part)
      for (Int g = 0; g < kStep; g += terms) {
        typename Format::Storage u[kStep], v[kStep];
        for (int s = 0; s < terms; ++s)
          u[s] = pattern_of<Format>(x[part][g + s]), v[s] = pattern_of<Format>(y[part][g + s]);
        acc = dot_add<Format>(u, 1, v, 1, terms, acc, adder);
      }
    if (kTf32 && q % kTile == 0) c = c + staged, staged = 0.0f;
  }
  return kTf32 ? c + staged : c;
}

// --- the tensor product ---

// The least and the largest exponent of a sum, biased by 127.
struct Forms {
  int low = 1 << 16, high = 0;
  void include(const ExponentRange& a, const ExponentRange& b) {
    if (a.high == 0 || b.high == 0) return;  // nothing but zeros
    const int least = a.low + b.low - 127, most = a.high + b.high - 127 + 3;
    low = least < low ? least : low, high = most > high ? most : high;
  }
  template <int kFractionBits>
  dot_tile::Form form() const {
    using dot_tile::Form;
    return dot_tile::may_go_unchecked<kFractionBits>(low, high) ? Form::kUnchecked : Form::kChecked;
  }
};

// C += A B for one of the 16-bit types: one chain.
template <class Format, int kTerms, int kFractionBits>
void chain_multiply(const Rows& a, const Cols& b, const Forms& forms, float* c, Int pitch) {
  const Layout& l = a.layout;
  dot_tile::Tile t{};
  t.only_zeros = forms.low >= kFractionBits + 2;
  const dot_tile::Form form = forms.template form<kFractionBits>();
  t.a_pitch = l.pitch(), t.depth = l.padded, t.acc_pitch = pitch;
  for (Int col = 0; col < up(b.cols, kCols) / kCols; ++col)
    for (Int pair = 0; pair < up(a.rows, kRows) / kRows; ++pair) {
      const Int row = pair * kRows * l.pitch(), column = col * b.layout.pitch() * kCols;
      t.a = a.a + row, t.a_exponent = a.exponent + row, t.live = a.live + pair * l.pitch();
      t.b = b.b + column, t.b_exponent = b.exponent + column;
      t.acc = c + pair * kRows * pitch + col * kCols;
      dot_tile::run_tile<Format, kTerms, kFractionBits>(t, form);
    }
}

// Where the three parts of a step of 3xTF32 begin, in order, in a row of A and in a tile of columns of B.
struct SplitParts {
  Int a[3], b[3];
  SplitParts(const Rows& rows, const Cols& cols) {
    const Int first = rows.factor == Factor::kFirst ? kSmall : kBig;  // the part of A that goes first
    const Int part_of_a[3] = {first, 1 - first, kBig}, part_of_b[3] = {1 - first, first, kBig};
    for (int part = 0; part < 3; ++part)
      a[part] = part_of_a[part] * rows.layout.padded, b[part] = part_of_b[part] * cols.layout.padded * kCols;
  }
};

#if defined(__AVX512F__)
// The groups of some steps, in order.
struct SplitGroups {
  static constexpr Int kMostDepth = 2 * kTile + kStep;
  dot_tile::Group group[3 * kMostDepth / 4];
  Int count = 0;

  // [begin, end) of a padded depth: whole chains.
  template <int kTerms>
  void take(const SplitParts& parts, Int begin, Int end, Int padded) {
    count = 0;
    for (Int q = begin; q < end; q += kStep)
      for (int part = 0; part < 3; ++part)
        for (Int s = q; s < q + kStep; s += kTerms) {
          const bool last = part == 2 && s + kTerms == q + kStep && (q % kTile == 0 || q + kStep == padded);
          group[count++] = {parts.a[part] + s, parts.b[part] + s * kCols, last};
        }
  }
  // Those of `all` that a pair of rows needs; of a chain of which it needs none, the last.
  void take_live(const SplitGroups& all, const std::uint8_t* live) {
    count = 0;
    bool some = false;  // of the chain so far
    for (Int i = 0; i < all.count; ++i) {
      const dot_tile::Group& g = all.group[i];
      if (live[g.a] || (g.last && !some))
        group[count++] = g, some = !g.last;
      else if (g.last)
        group[count - 1].last = true, some = false;
    }
  }
};

// Unchecked. The depth goes in pieces of which B stays in the first cache.
template <int kTerms, int kFractionBits>
void staged_multiply(const Rows& a, const Cols& b, float* c, Int pitch) {
  const Layout& l = a.layout;
  const SplitParts parts(a, b);
  SplitGroups all, live;
  for (Int begin = 0, end; begin < l.padded; begin = end) {
    end = smaller(l.padded, begin + 2 * kTile + (begin == 0 ? kStep : 0));
    all.template take<kTerms>(parts, begin, end, l.padded);
    for (Int col = 0; col < up(b.cols, kCols) / kCols; ++col) {
      const Int column = col * b.layout.pitch() * kCols;
      for (Int r = 0, next; r < a.rows; r = next) {
        next = r + kRows;
        const bool whole = a.whole[r / kRows];
        while (whole && next < a.rows && a.whole[next / kRows]) next += kRows;
        if (!whole) live.take_live(all, a.live + r / kRows * l.pitch());
        const SplitGroups& groups = whole ? all : live;
        dot_tile::staged_pairs<kTerms, kFractionBits>(
            {a.a + r * l.pitch(), a.exponent + r * l.pitch(), l.pitch(), (next - r) / kRows, b.b + column,
             b.exponent + column, groups.group, groups.count, c + r * pitch + col * kCols, pitch});
      }
    }
  }
}
#endif

// 3xTF32. Pairs of rows pass by a piece of B that stays in the first cache.
template <int kTerms, int kFractionBits>
void split_multiply(const Rows& a, const Cols& b, const Forms& forms, float* c, Int pitch) {
  const Layout& l = a.layout;
  const dot_tile::Form form = forms.template form<kFractionBits>();
#if defined(__AVX512F__)
  if (form == dot_tile::Form::kUnchecked) return staged_multiply<kTerms, kFractionBits>(a, b, c, pitch);
#endif
  dot_tile::Tile t{};
  t.only_zeros = forms.low >= kFractionBits + 2;
  alignas(64) float staged[kRows * kCols];
  t.a_pitch = l.pitch(), t.depth = kStep, t.acc = staged, t.acc_pitch = kCols, t.first = true;
  const SplitParts parts(a, b);
  t.parts = 3;
  std::memcpy(t.a_part, parts.a, sizeof t.a_part), std::memcpy(t.b_part, parts.b, sizeof t.b_part);
  for (Int col = 0; col < up(b.cols, kCols) / kCols; ++col)
    for (Int begin = 0; begin < l.padded; begin += t.steps * kStep) {
      t.steps = begin == 0 ? 1 : smaller(kTile, l.padded - begin) / kStep;
      const Int column = (col * b.layout.pitch() + begin) * kCols;
      t.b = b.b + column, t.b_exponent = b.exponent + column;
      for (Int r = 0; r < a.rows; r += kRows) {
        const Int row = r * l.pitch() + begin;
        t.a = a.a + row, t.a_exponent = a.exponent + row, t.live = a.live + r / kRows * l.pitch() + begin;
        dot_tile::run_tile<Tf32Format, kTerms, kFractionBits>(t, form);
        float* const out = c + r * pitch + col * kCols;
        for (int i = 0; i < kRows; ++i)
          for (int j = 0; j < kCols; ++j) out[i * pitch + j] = out[i * pitch + j] + staged[i * kCols + j];
      }
    }
}

template <class Format, int kTerms, int kFractionBits>
void tensor_multiply(const Rows& a, const Cols& b, float* c, Int pitch) {
  constexpr bool kTf32 = Format::kBytes == 4;
  constexpr Adder adder = adder_for(kFractionBits == 24 ? kAdderTuring : kAdderHopper, Format::kBytes);
  const Layout& l = a.layout;
  Forms forms;
  forms.include(a.range.plane[kBig], b.range.plane[kBig]);
  if (kTf32) {
    forms.include(a.range.plane[kSmall], b.range.plane[kBig]);
    forms.include(a.range.plane[kBig], b.range.plane[kSmall]);
  }
  const bool some = forms.high != 0;
  for (Int n = 1; n < (kTf32 ? 3 : 1) * l.padded; n *= 2) ++forms.high;
  bool special = a.special || b.special;
  if (!kTf32) {
    const Ranges range = range_of_rows(c, pitch, a.rows, b.cols, special);
    if (range.plane[0].high != 0) {
      forms.low = forms.low < range.plane[0].low ? forms.low : range.plane[0].low;
      forms.high = forms.high > range.plane[0].high + 3 ? forms.high : range.plane[0].high + 3;
    }
  }
  constexpr int kLargestField = 250;
  if (special || (some && forms.high >= kLargestField)) {
    for (Int i = 0; i < a.rows; ++i)
      for (Int j = 0; j < b.cols; ++j) c[i * pitch + j] = scalar_output<Format>(a, i, b, j, adder, c[i * pitch + j]);
    return;
  }
  if constexpr (kTf32) {
    split_multiply<kTerms, kFractionBits>(a, b, forms, c, pitch);
  } else {
    chain_multiply<Format, kTerms, kFractionBits>(a, b, forms, c, pitch);
  }
}

// --- the SIMT product ---

inline void simt_multiply(const Rows& a, const Cols& b, float* c, Int pitch) {
  const Int depth = a.layout.depth, b_pitch = up(b.cols, kColBlock);
  for (Int j = 0; j < b.cols; j += kSimtCols)
    for (Int i = 0; i < a.rows; i += kRowBlock) {
      Vec acc[kRowBlock][2];
#pragma GCC unroll 8
      for (int r = 0; r < kRowBlock; ++r) {
        acc[r][0] = load(c + (i + r) * pitch + j);
        acc[r][1] = load(c + (i + r) * pitch + j + kLanes);
      }
      const float* x = a.a + i * depth;
      const float* y = b.b + j;
#pragma GCC unroll 1
      for (Int k = 0; k < depth; ++k, y += b_pitch) {
        const Vec y0 = load(y), y1 = load(y + kLanes);
#pragma GCC unroll 8
        for (int r = 0; r < kRowBlock; ++r) {
          const Vec v = broadcast(x[r * depth + k]);
          acc[r][0] = fma(v, y0, acc[r][0]);
          acc[r][1] = fma(v, y1, acc[r][1]);
        }
      }
#pragma GCC unroll 8
      for (int r = 0; r < kRowBlock; ++r) {
        store(c + (i + r) * pitch + j, acc[r][0]);
        store(c + (i + r) * pitch + j + kLanes, acc[r][1]);
      }
    }
}

// C += A B. C has up(rows, kRowPad) rows and up(cols, kColBlock) columns; those beyond hold anything finite.
inline void multiply(const Rows& a, const Cols& b, float* c, Int pitch) {
  switch (a.layout.kind) {
    case Kind::kSimt:
      return simt_multiply(a, b, c, pitch);
    case Kind::kTf32Ampere:
      return tensor_multiply<Tf32Format, 4, 24>(a, b, c, pitch);
    case Kind::kTf32Hopper:
      return tensor_multiply<Tf32Format, 8, 25>(a, b, c, pitch);
    case Kind::kBf16Turing:
      return tensor_multiply<Bf16Format, 8, 24>(a, b, c, pitch);
    case Kind::kBf16Hopper:
      return tensor_multiply<Bf16Format, 8, 25>(a, b, c, pitch);
    case Kind::kFp16Turing:
      return tensor_multiply<Fp16Format, 8, 24>(a, b, c, pitch);
    case Kind::kFp16Hopper:
      return tensor_multiply<Fp16Format, 8, 25>(a, b, c, pitch);
  }
}

}  // namespace mem_product
SO_ISA_END
