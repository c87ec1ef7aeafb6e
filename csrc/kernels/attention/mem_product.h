// The matrix products inside the memory-efficient kernels, fast: C += A B over tiles of float32 values (16-bit elements
// come widened). Operands are packed once and used for many tiles.
//
//   SIMT    one FMA chain an output, vectors across outputs;
//   tensor  arith/dot_tile.h. 3xTF32 is a product of three times the depth: each step of 8 becomes small(A) big(B),
//           big(A) small(B), big(A) big(B), in a temporary that is added to C after the first step of every tile of 32.
//
// Infinities and NaN among the operands, and sums that may overflow, go output by output through arith/dot_add.h.
#pragma once
#include <cstdint>
#include <cstring>

#include "csrc/kernels/arith/convert.h"
#include "csrc/kernels/arith/dot_add.h"
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
  Int depth;     // of the values
  Int padded;    // whole tiles
  Int expanded;  // what the adder walks: three products a value for 3xTF32
};
SO_ALWAYS_INLINE Int expansion(Kind k) { return is_tf32(k) ? 3 : 1; }
SO_ALWAYS_INLINE Layout layout_of(Kind kind, Remainder remainder, Int depth) {
  Layout l{kind, remainder, depth, 0, 0};
  l.padded = kind == Kind::kSimt ? depth : up(depth, kTile);
  l.expanded = expansion(kind) * l.padded;
  return l;
}

// Rows of the first operand, `rows` values of `depth` each.
struct Rows {
  const float* source;
  Int row_step, k_step, rows;
  Layout layout;
  Factor factor;
  float* a;                 // SIMT: [rows][depth]; tensor: [rows][expanded depth]
  std::uint32_t* exponent;  // as a
  std::uint8_t* live;       // of pairs of rows [pairs][expanded depth]
  ExponentRange range;
  bool special;
};
// Columns of the second operand.
struct Cols {
  const float* source;
  Int k_step, col_step, cols;
  Layout layout;
  Factor factor;
  float* b;                // SIMT: [depth][pitch]; tensor: [column tiles][expanded depth][kCols]
  std::uint8_t* exponent;  // as b
  ExponentRange range;     // given: of all columns that share rows
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
  const Int n = up(rows, kRowPad) * r.layout.expanded;
  r.a = arena.take<float>(n);
  r.exponent = arena.take<std::uint32_t>(n);
  r.live = arena.take<std::uint8_t>(n / kRows);
  return r;
}
inline Cols take_cols(Arena& arena, Kind kind, Remainder remainder, Int depth, Int cols) {
  Cols c{};
  c.layout = layout_of(kind, remainder, depth);
  const Int n = up(cols, kColBlock) * c.layout.expanded;
  c.b = arena.take<float>(n);
  if (kind != Kind::kSimt) c.exponent = arena.take<std::uint8_t>(n);
  return c;
}

// --- packing ---

SO_ALWAYS_INLINE int lowest_field(Kind k) {  // of a subnormal, biased by 127
  return k == Kind::kFp16Turing || k == Kind::kFp16Hopper ? 128 - Fp16Format::kBias : 1;
}

// The range of the values' exponents as the adder sees them; for 3xTF32 of both halves.
inline ExponentRange range_of(Kind kind, const float* from, Int n) {
  ExponentRange range;
  if (kind == Kind::kSimt) return range;
  const std::uint32_t lowest = static_cast<std::uint32_t>(lowest_field(kind));
  std::uint32_t high = 0, below_low = 0xffffffffu;
  const auto see = [&](float x) {
    const std::uint32_t magnitude = bits_of(x) & 0x7fffffffu, own = magnitude >> 23;
    const std::uint32_t field = magnitude == 0 || own == 255 ? 0 : own > lowest ? own : lowest;
    high = field > high ? field : high;
    below_low = field - 1 < below_low ? field - 1 : below_low;
  };
  if (is_tf32(kind)) {
    for (Int i = 0; i < n; ++i) {
      const tf32::Split s = tf32::split(from[i]);
      see(s.big);
      see(s.small);
    }
  } else {
    for (Int i = 0; i < n; ++i) see(from[i]);
  }
  if (high != 0) range.include(ExponentRange{static_cast<int>(below_low) + 1, static_cast<int>(high)});
  return range;
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

SO_ALWAYS_INLINE int field_of(Kind kind, float x) {
  const std::uint32_t magnitude = bits_of(x) & 0x7fffffffu;
  const int own = static_cast<int>(magnitude >> 23), low = lowest_field(kind);
  return magnitude == 0 ? 0 : own > low ? own : low;
}

// One row's line of padded values into its place of `a`; b_high: the highest exponent of the columns it will meet.
inline void pack_line(Rows& to, Int row, float* line, int b_high) {
  const Layout& l = to.layout;
  const Kind kind = l.kind;
  const int shift = b_high - 127;
  float* const a = to.a + row * l.expanded;
  std::uint32_t* const e = to.exponent + row * l.expanded;
  if (!is_tf32(kind)) {
    std::memcpy(a, line, static_cast<std::size_t>(l.padded) * sizeof(float));
  } else {
    for (Int q = 0; q < l.padded; q += kStep)
      for (Int s = 0; s < kStep; ++s) {
        float part[3];
        parts_of(line[q + s], to.factor, part);
        a[3 * q + s] = part[0], a[3 * q + kStep + s] = part[1], a[3 * q + 2 * kStep + s] = part[2];
      }
  }
  for (Int q = 0; q < l.expanded; ++q) {
    const int field = field_of(kind, a[q]), shifted = field + shift;
    const int low = shifted < 0 ? 0 : shifted, byte = field == 0 ? 0 : low > 255 ? 255 : low;
    e[q] = 0x01010101u * static_cast<std::uint32_t>(byte);
  }
}

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

// source[row * row_step + k * k_step]; `depth` may be less than the layout's.
inline void pack_rows(Rows& to, const float* source, Int row_step, Int k_step, Int rows, Int depth, Factor factor,
                      int b_high, float* line) {
  to.source = source, to.row_step = row_step, to.k_step = k_step, to.rows = rows, to.factor = factor;
  to.special = false;
  to.range = {};
  const Kind kind = to.layout.kind;
  to.layout = layout_of(kind, to.layout.remainder, depth);
  const Layout& l = to.layout;
  if (kind == Kind::kSimt) {
    for (Int r = 0; r < rows; ++r)
      for (Int k = 0; k < depth; ++k) to.a[r * depth + k] = source[r * row_step + k * k_step];
    for (Int i = rows * depth; i < up(rows, kRowPad) * depth; ++i) to.a[i] = 0.0f;
    return;
  }
  for (Int r = 0; r < up(rows, kRows); ++r) {
    if (r >= rows) {
      std::memset(line, 0, static_cast<std::size_t>(l.padded) * sizeof(float));
    } else if (k_step == 1 && l.remainder == Remainder::kLast) {
      std::memcpy(line, source + r * row_step, static_cast<std::size_t>(depth) * sizeof(float));
      std::memset(line + depth, 0, static_cast<std::size_t>(l.padded - depth) * sizeof(float));
    } else {
      for (Int q = 0; q < l.padded; ++q) {
        const Int k = source_index(l, q);
        line[q] = k < 0 ? 0.0f : source[r * row_step + k * k_step];
      }
    }
    to.special |= clean(line, l.padded);
    to.range.include(range_of(kind, line, l.padded));
    pack_line(to, r, line, b_high);
  }
  const Int terms = kind == Kind::kTf32Ampere ? 4 : 8;
  for (Int pair = 0; pair < up(rows, kRows) / kRows; ++pair) {
    const float* a = to.a + pair * kRows * l.expanded;
    std::uint8_t* live = to.live + pair * l.expanded;
    for (Int q = 0; q < l.expanded; q += terms) {
      std::uint32_t any = 0;
      for (Int r = 0; r < kRows; ++r)
        for (Int s = 0; s < terms; ++s) any |= bits_of(a[r * l.expanded + q + s]) << 1;
      live[q] = any != 0;
    }
  }
}

// source[k * k_step + col * col_step]; range: of everything that meets the same rows.
inline void pack_cols(Cols& to, const float* source, Int k_step, Int col_step, Int depth, Int cols, Factor factor,
                      const ExponentRange& range) {
  to.source = source, to.k_step = k_step, to.col_step = col_step, to.cols = cols, to.factor = factor;
  to.range = range, to.special = false;
  const Kind kind = to.layout.kind;
  to.layout = layout_of(kind, to.layout.remainder, depth);
  const Layout& l = to.layout;
  if (kind == Kind::kSimt) {
    const Int pitch = up(cols, kColBlock);
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
    return;
  }
  const Int parts = expansion(kind), expanded = l.expanded;
  const int high = range.high;
  for (Int t = 0; t < up(cols, kCols) / kCols; ++t)
    for (Int q = 0; q < l.padded; ++q) {
      const Int k = source_index(l, q), n = smaller(kCols, cols - t * kCols);
      float line[kCols];
      for (Int j = 0; j < kCols; ++j)  // columns beyond repeat the first: zeros there would look like tiny products
        line[j] = k < 0 ? 0.0f : source[k * k_step + (t * kCols + (j < n ? j : 0)) * col_step];
      to.special |= clean(line, kCols);
      for (Int part = 0; part < parts; ++part) {
        const Int at = (t * expanded + (parts == 1 ? q : q / kStep * 3 * kStep + part * kStep + q % kStep)) * kCols;
        float* const b = to.b + at;
        for (int j = 0; j < kCols; ++j) {
          float some[3] = {line[j], 0.0f, 0.0f};
          if (parts != 1) parts_of(line[j], factor, some);
          b[j] = part == 0 ? some[0] : part == 1 ? some[1] : some[2];
        }
        // The byte of column v * kLanes + d is at 4 * d + v.
        for (int v = 0; v < dot_tile::kTensorVecs; ++v)
          for (int d = 0; d < kLanes; ++d) {
            const int field = field_of(kind, b[v * kLanes + d]);
            to.exponent[at + 4 * d + v] = static_cast<std::uint8_t>(field ? high - field : 255);
          }
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

// The tile's temporary is fresh at `begin`, and added to C at the end of the chunk where `flush` says so.
template <class Format, int kTerms, int kFractionBits>
void tensor_multiply(const Rows& a, const Cols& b, float* c, Int pitch) {
  constexpr bool kTf32 = Format::kBytes == 4;
  constexpr Adder adder = adder_for(kFractionBits == 24 ? kAdderTuring : kAdderHopper, Format::kBytes);
  const Layout& l = a.layout;
  const Int pairs = up(a.rows, kRows) / kRows, col_tiles = up(b.cols, kCols) / kCols;
  int low = a.range.low + b.range.low - 127, high = a.range.high + b.range.high - 127 + 3;
  for (Int n = 1; n < l.expanded; n *= 2) ++high;
  if (!kTf32) {
    for (Int i = 0; i < a.rows; ++i) {
      const ExponentRange range =
          range_of(l.kind == Kind::kFp16Turing || l.kind == Kind::kFp16Hopper ? Kind::kBf16Turing : l.kind,
                   c + i * pitch, b.cols);
      if (range.high == 0) continue;
      low = low < range.low ? low : range.low;
      high = high > range.high + 3 ? high : range.high + 3;
    }
  }
  bool special = a.special || b.special;
  if (!kTf32)
    for (Int i = 0; i < a.rows; ++i)
      for (Int j = 0; j < b.cols; ++j) special |= !(c[i * pitch + j] - c[i * pitch + j] == 0.0f);
  constexpr int kLargestField = 250;
  if (special || (a.range.high != 0 && b.range.high != 0 && high >= kLargestField)) {
    for (Int i = 0; i < a.rows; ++i)
      for (Int j = 0; j < b.cols; ++j) c[i * pitch + j] = scalar_output<Format>(a, i, b, j, adder, c[i * pitch + j]);
    return;
  }
  dot_tile::Tile t{};
  t.only_zeros = low >= kFractionBits + 2;
  const bool unchecked = kIntVecs && low >= 2 * kFractionBits + 6;  // as dot_tile::form_for
  t.a_pitch = l.expanded;
  const auto run = [&](Int pair, Int col, Int begin, Int end, bool fresh, float* acc, Int acc_pitch) {
    const Int row = pair * kRows * l.expanded + begin, column = (col * b.layout.expanded + begin) * kCols;
    t.a = a.a + row, t.a_exponent = a.exponent + row, t.live = a.live + pair * l.expanded + begin;
    t.b = b.b + column, t.b_exponent = b.exponent + column;
    t.depth = end - begin, t.acc = acc, t.acc_pitch = acc_pitch, t.first = fresh;
    const bool done = unchecked ? dot_tile::fast_tile<kTerms, kFractionBits, false>(t)
                                : dot_tile::fast_tile<kTerms, kFractionBits, true>(t);
    if (!done) dot_tile::wide_tile<Format, kTerms, kFractionBits>(t);
  };
  for (Int col = 0; col < col_tiles; ++col)
    for (Int pair = 0; pair < pairs; ++pair) {
      float* const out = c + pair * kRows * pitch + col * kCols;
      if (!kTf32) {
        run(pair, col, 0, l.padded, false, out, pitch);
        continue;
      }
      alignas(64) float staged[kRows * kCols];
      for (Int begin = 0; begin < l.expanded;) {
        const Int end = begin == 0 ? 3 * kStep : smaller(l.expanded, begin + 3 * kTile);
        run(pair, col, begin, end, true, staged, kCols);
        for (int r = 0; r < kRows; ++r)
          for (int j = 0; j < kCols; ++j) out[r * pitch + j] = out[r * pitch + j] + staged[r * kCols + j];
        begin = end;
      }
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
