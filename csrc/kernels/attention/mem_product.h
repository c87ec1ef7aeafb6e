// The matrix products inside the memory-efficient kernels, fast: C += A B over tiles of float32 values (16-bit elements
// come widened). Operands are packed once and used for many tiles.
//
//   SIMT    one FMA chain an output, vectors across outputs;
//   tensor  arith/dot_tile.h, dot_pair.h. 3xTF32: each step of 8 is small(A) big(B), big(A) small(B), big(A) big(B), in
//           a temporary that is added to C after the first step of every tile of 32.
//
// Infinities and NaN among the operands, and sums that may overflow, go output by output through arith/dot_add.h.
#pragma once
#include <cstdint>
#include <cstring>

#include "csrc/kernels/arith/convert.h"
#include "csrc/kernels/arith/dot_add.h"
#include "csrc/kernels/arith/dot_pair.h"
#include "csrc/kernels/arith/dot_tile.h"
#include "csrc/kernels/arith/tf32.h"
#include "csrc/kernels/attention/mem_pack.h"
#include "csrc/kernels/core/vec.h"

SO_ISA_BEGIN
namespace mem_product {

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

inline constexpr Int kEveryColumn = Int{1} << 40;

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
// Unchecked. The depth goes in pieces, whole chains, of which B stays in the first cache.
template <int kTerms>
struct SplitPiece {
  static constexpr Int kMostDepth = 2 * kTile + kStep, kGroupsOfPart = kStep / kTerms;
  static constexpr Int kGroupsOfStep = 3 * kGroupsOfPart;
  Int begin, end;  // of the padded depth
  dot_tile::Group group[kGroupsOfStep * kMostDepth / kStep];

  SplitPiece(const SplitParts& parts, Int from, Int padded) : begin(from) {
    end = smaller(padded, begin + 2 * kTile + (begin == 0 ? kStep : 0));
    dot_tile::Group* next = group;
    for (Int q = begin; q < begin + kMostDepth && q < end; q += kStep)
      for (int part = 0; part < 3; ++part)
        for (Int s = q; s < q + kStep; s += kTerms)
          *next++ = {parts.a[part] + s, parts.b[part] + s * kCols,
                     part == 2 && s + kTerms == q + kStep && (q % kTile == 0 || q + kStep == padded)};
  }
  // What lies in [live_begin, live_end); one group where nothing does.
  dot_tile::GroupRange range(Int live_begin, Int live_end) const {
    const Int from = larger(live_begin, begin) - begin, to = smaller(live_end, end) - begin;
    if (from >= to) return {0, 1};
    const Int first = from / kStep * kGroupsOfStep + from % kStep / kTerms, last = to - kTerms;
    return {static_cast<std::int32_t>(first),
            static_cast<std::int32_t>(last / kStep * kGroupsOfStep + 2 * kGroupsOfPart + last % kStep / kTerms + 1)};
  }
};

// Vectors of a tile of columns that a pair of rows needs, at least 2: fewer leave the units waiting for one another.
inline int vecs_of(Int row, Int column, Int diagonal) {
  if (diagonal == kEveryColumn) return dot_tile::kTensorVecs;
  const Int columns = diagonal + row + kRows - column;
  if (columns <= 0) return 0;
  return static_cast<int>(smaller(larger(2, (columns + kLanes - 1) / kLanes), dot_tile::kTensorVecs));
}

template <int kTerms, int kFractionBits>
void staged_multiply(const Rows& a, const Cols& b, float* c, Int pitch, Int diagonal) {
  const Layout& l = a.layout;
  const SplitParts parts(a, b);
  constexpr Int kMostPairs = 64;
  for (Int begin = 0; begin < l.padded;) {
    const SplitPiece<kTerms> piece(parts, begin, l.padded);
    for (Int col = 0; col < b.cols; col += kCols)
      for (Int row = 0, next; row < a.rows; row = next) {
        const int vecs = vecs_of(row, col, diagonal);
        dot_tile::GroupRange ranges[kMostPairs];
        Int pairs = 0;
        for (next = row; next < a.rows && pairs < kMostPairs && vecs_of(next, col, diagonal) == vecs; next += kRows)
          ranges[pairs++] = piece.range(a.live_begin[next / kRows], a.live_end[next / kRows]);
        const Int first = row * l.pitch(), column = col * b.layout.pitch();
        const dot_tile::Staged staged{a.a + first, a.exponent + first,    l.pitch(),   ranges,              pairs,
                                      b.b + column, b.exponent + column, piece.group, c + row * pitch + col, pitch};
        switch (vecs) {
          case 2: dot_tile::staged_pairs<kTerms, kFractionBits, 2>(staged); break;
          case 3: dot_tile::staged_pairs<kTerms, kFractionBits, 3>(staged); break;
          case 4: dot_tile::staged_pairs<kTerms, kFractionBits, 4>(staged); break;
        }
      }
    begin = piece.end;
  }
}
#endif

// 3xTF32. Pairs of rows pass by a piece of B that stays in the first cache.
template <int kTerms, int kFractionBits>
void split_multiply(const Rows& a, const Cols& b, const Forms& forms, float* c, Int pitch, Int diagonal) {
  const Layout& l = a.layout;
  const dot_tile::Form form = forms.template form<kFractionBits>();
#if defined(__AVX512F__)
  if (form == dot_tile::Form::kUnchecked) return staged_multiply<kTerms, kFractionBits>(a, b, c, pitch, diagonal);
#else
  (void)diagonal;
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
void tensor_multiply(const Rows& a, const Cols& b, float* c, Int pitch, [[maybe_unused]] Int diagonal) {
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
    split_multiply<kTerms, kFractionBits>(a, b, forms, c, pitch, diagonal);
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
// diagonal: of row r only the columns up to diagonal + r are needed; others may be left as they are.
inline void multiply(const Rows& a, const Cols& b, float* c, Int pitch, Int diagonal = kEveryColumn) {
  switch (a.layout.kind) {
    case Kind::kSimt:
      return simt_multiply(a, b, c, pitch);
    case Kind::kTf32Ampere:
      return tensor_multiply<Tf32Format, 4, 24>(a, b, c, pitch, diagonal);
    case Kind::kTf32Hopper:
      return tensor_multiply<Tf32Format, 8, 25>(a, b, c, pitch, diagonal);
    case Kind::kBf16Turing:
      return tensor_multiply<Bf16Format, 8, 24>(a, b, c, pitch, diagonal);
    case Kind::kBf16Hopper:
      return tensor_multiply<Bf16Format, 8, 25>(a, b, c, pitch, diagonal);
    case Kind::kFp16Turing:
      return tensor_multiply<Fp16Format, 8, 24>(a, b, c, pitch, diagonal);
    case Kind::kFp16Hopper:
      return tensor_multiply<Fp16Format, 8, 25>(a, b, c, pitch, diagonal);
  }
}

}  // namespace mem_product
SO_ISA_END
