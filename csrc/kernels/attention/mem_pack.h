// Operands of the matrix products inside the memory-efficient kernels (mem_product.h), as the products read them: rows
// of the first factor, columns of the second. For tensor cores float32 values are split into the two parts of 3xTF32,
// each a plane of its own, and every value has its exponent beside it; infinities and NaN stand as zeros and are noted.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "csrc/kernels/arith/dot_tile.h"
#include "csrc/kernels/arith/tf32.h"
#include "csrc/kernels/attention/arena.h"
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
  Int *live_begin, *live_end;  // of pairs of rows: of the padded depth, where live groups begin and end
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
  r.live_begin = arena.take<Int>(up(rows, kRowPad) / kRows), r.live_end = arena.take<Int>(up(rows, kRowPad) / kRows);
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

#if defined(__AVX2__)
// The two parts of float32 values and their exponent fields, a vector at a time, and the ranges of these. Infinities
// and NaN only show in the ranges: what is returned for a vector with one is of no use.
class Splitter {
  IntVec high_[2] = {broadcast_int(0), broadcast_int(0)};
  IntVec below_low_[2] = {broadcast_int(~0u), broadcast_int(~0u)};

 public:
  struct Parts {
    IntVec value[2], field[2];  // by plane
  };
  SO_ALWAYS_INLINE Parts take(Vec x) {
    const IntVec kept = broadcast_int(tf32::kKept), magnitude_mask = broadcast_int(0x7fffffffu), one = broadcast_int(1);
    Parts parts;
    parts.value[kBig] = and_int(bits_of(x), kept);
    parts.value[kSmall] =
        and_int(add_int(bits_of(sub(x, float_of(parts.value[kBig]))), broadcast_int(0x1000u)), kept);
#pragma GCC unroll 2
    for (int p = 0; p < 2; ++p) {
      const IntVec magnitude = and_int(parts.value[p], magnitude_mask);
      parts.field[p] = max_int(shift_right<23>(magnitude), min_unsigned(magnitude, one));
      high_[p] = max_int(high_[p], parts.field[p]);
      below_low_[p] = min_unsigned(below_low_[p], sub_int(parts.field[p], one));
    }
    return parts;
  }
  Ranges ranges() const {
    Ranges range;
    for (int p = 0; p < 2; ++p) {
      std::uint32_t high[kLanes], below_low[kLanes];
      store_int(high, high_[p]), store_int(below_low, below_low_[p]);
      for (int i = 0; i < kLanes; ++i)
        if (high[i] != 0) range.plane[p].include({static_cast<int>(below_low[i]) + 1, static_cast<int>(high[i])});
    }
    return range;
  }
  static bool special(const Ranges& r) { return r.plane[kBig].high == 255; }
};
#endif

// Of the finite ones among rows of `cols` values.
inline Ranges range_of(Kind kind, const float* from, Int row_step, Int rows, Int cols) {
  Ranges range;
  if (kind == Kind::kSimt) return range;
#if defined(__AVX2__)
  if (is_tf32(kind)) {
    Splitter split;
    for (Int r = 0; r < rows; ++r) {
      const float* const row = from + r * row_step;
      Int i = 0;
      for (; i + kLanes <= cols; i += kLanes) split.take(load(row + i));
      if (i < cols) split.take(load_first(row + i, static_cast<int>(cols - i)));
    }
    range = split.ranges();
    if (!Splitter::special(range)) return range;
    range = {};
  }
#endif
  for (Int r = 0; r < rows; ++r)
    for (Int i = 0; i < cols; i += kLine) {
      float line[kLine], planes[2 * kLine];
      std::uint32_t fields[kLine];
      const Int some = smaller(kLine, cols - i);
      std::memcpy(line, from + r * row_step + i, static_cast<std::size_t>(some) * sizeof(float));
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

// Which groups of a pair of rows have a number other than zero; some_zero: the row has zeros. The second row adds to
// what the first marked.
inline void mark_live(Rows& to, Int row, bool some_zero) {
  const Layout& l = to.layout;
  const float* const a = to.a + row * l.pitch();
  std::uint8_t* const live = to.live + row / kRows * l.pitch();
  const Int terms = l.kind == Kind::kTf32Ampere ? 4 : 8;
  Int begin = 0, end = l.padded;
  if (!some_zero) std::memset(live, 1, static_cast<std::size_t>(l.pitch()));
  for (Int q = 0; some_zero && q < l.pitch(); q += terms) {
    std::uint64_t any = 0, two;
    for (Int s = 0; s < terms; s += 2) {
      std::memcpy(&two, a + q + s, sizeof two);
      any |= two;
    }
    live[q] = static_cast<std::uint8_t>((row % kRows ? live[q] : 0) | (any != 0 ? 1 : 0));
  }
  if (some_zero) {
    const auto is_live = [&](Int q) {
      for (Int p = 0; p < l.planes; ++p)
        if (live[p * l.padded + q]) return true;
      return false;
    };
    while (begin < end && !is_live(begin)) begin += terms;
    while (begin < end && !is_live(end - terms)) end -= terms;
  }
  to.live_begin[row / kRows] = begin, to.live_end[row / kRows] = end;
}

// One row's line of padded values into its place; b_high: the highest exponent of the columns it will meet.
inline void pack_line(Rows& to, Int row, const float* line, int b_high) {
  const Layout& l = to.layout;
  const int shift = b_high - 127;
  float* const a = to.a + row * l.pitch();
  std::uint32_t* const exponent = to.exponent + row * l.pitch();
  take_planes(l.kind, line, l.padded, a, l.padded);
  take_fields(l.kind, a, l.pitch(), exponent);
  for (Int p = 0; p < l.planes; ++p) include_fields(exponent + p * l.padded, l.padded, to.range.plane[p]);
  std::uint32_t zeros = 0;
  for (Int q = 0; q < l.pitch(); ++q) zeros += exponent[q] == 0 ? 1 : 0;
  mark_live(to, row, zeros != 0);
  for (Int q = 0; q < l.pitch(); ++q) {
    const int field = static_cast<int>(exponent[q]), shifted = field + shift;
    const int low = shifted < 0 ? 0 : shifted, byte = field == 0 ? 0 : low > 255 ? 255 : low;
    exponent[q] = 0x01010101u * static_cast<std::uint32_t>(byte);
  }
}

#if defined(__AVX2__)
// The same for 3xTF32; infinities and NaN are noted in `split`.
inline void split_line(Rows& to, Int row, const float* line, int b_high, Splitter& split) {
  const Layout& l = to.layout;
  float* const a = to.a + row * l.pitch();
  std::uint32_t* const exponent = to.exponent + row * l.pitch();
  const IntVec shift = broadcast_int(static_cast<std::uint32_t>(b_high - 127)), zero = broadcast_int(0);
  IntVec least = broadcast_int(~0u);
  for (Int q = 0; q < l.padded; q += kLanes) {
    const Splitter::Parts parts = split.take(load(line + q));
#pragma GCC unroll 2
    for (int p = 0; p < 2; ++p) {
      const IntVec field = parts.field[p], shifted = max_int(add_int(field, shift), zero);
      const IntVec nonzero = sub_int(zero, min_unsigned(field, broadcast_int(1)));
      const IntVec byte = and_int(min_unsigned(shifted, broadcast_int(255)), nonzero);
      const IntVec two = add_int(byte, shift_left<8>(byte));
      store_int(a + p * l.padded + q, parts.value[p]);
      store_int(exponent + p * l.padded + q, add_int(two, shift_left<16>(two)));
    }
    least = min_unsigned(least, min_unsigned(parts.field[kBig], parts.field[kSmall]));
  }
  mark_live(to, row, any_unsigned_at_most(least, 0));
}
#endif

// visit(row, its values, padded) for `count` rows of to.source, zeros for those beyond to.rows; `line`: room for a row.
template <class Visit>
void for_each_line(const Rows& to, Int count, float* line, Visit visit) {
  const Layout& l = to.layout;
  const Int depth = l.depth, rows = to.rows, k_step = to.k_step;
  float turned[kStep * kLine];
  for (Int r = 0; r < count; ++r) {
    const Int first = r / kStep * kStep;
    if (r >= rows) {
      std::memset(line, 0, static_cast<std::size_t>(l.padded) * sizeof(float));
      visit(r, line);
      continue;
    }
    if (k_step != 1 && r == first)
      for (Int k = 0; k < depth; k += kStep) {
        if (k + kStep <= depth && first + kStep <= rows) {
          transpose8x8(to.source + k * k_step + first, k_step, turned + k, kLine);
        } else {
          for (Int i = first; i < smaller(first + kStep, rows); ++i)
            for (Int s = k; s < smaller(k + kStep, depth); ++s)
              turned[(i - first) * kLine + s] = to.source[s * k_step + i];
        }
      }
    const float* const from = k_step == 1 ? to.source + r * to.row_step : turned + (r - first) * kLine;
    if (l.padded != depth) pad_line(l, from, line);
    visit(r, l.padded != depth ? line : from);
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
  if (kind == Kind::kSimt)
    return for_each_line(to, up(rows, kRowPad), line, [&](Int r, const float* values) {
      std::memcpy(to.a + r * depth, values, static_cast<std::size_t>(depth) * sizeof(float));
    });
#if defined(__AVX2__)
  if (is_tf32(kind)) {
    Splitter split;
    for_each_line(to, up(rows, kRows), line,
                  [&](Int r, const float* values) { split_line(to, r, values, b_high, split); });
    to.range = split.ranges();
    if (!Splitter::special(to.range)) return;
    to.range = {};
  }
#endif
  for_each_line(to, up(rows, kRows), line, [&](Int r, const float* values) {
    if (values != line) std::memcpy(line, values, static_cast<std::size_t>(l.padded) * sizeof(float));
    to.special |= clean(line, l.padded);
    pack_line(to, r, line, b_high);
  });
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

}  // namespace mem_product
SO_ISA_END
