// The tensor-core adder over a region of a matrix product: panels of k, packed, through the tiles of arith/dot_tile.h.
// Blocks that may overflow go through arith/dot_add.h, output by output; rows of A and columns of B that hold an
// infinity or NaN are computed with zeros in their places, and then told from those alone.
#include "csrc/kernels/arith/convert.h"
#include "csrc/kernels/arith/dot_pair.h"
#include "csrc/kernels/arith/dot_tile.h"
#include "csrc/kernels/core/vec.h"
#include "csrc/kernels/gemm/tensor_core_body.h"

SO_ISA_BEGIN
namespace {

using namespace dot_tile;
using gemm::TensorCoreParams;

inline constexpr Int kMaxRows = 1024, kMaxCols = kRegionCols, kRowBlock = 32;
static_assert(kMaxCols % kCols == 0);

SO_ALWAYS_INLINE Int smaller(Int a, Int b) { return a < b ? a : b; }

struct Workspace {
  float b[kMaxCols / kCols][kPanel][kCols];
  std::uint8_t b_exponent[kMaxCols / kCols][kPanel][kCols];  // highest of the block minus own; 255 for a zero
  float a[kRowBlock][kPanel];
  std::uint32_t a_exponent[kRowBlock][kPanel];   // own plus highest of B minus 127, in each of the four bytes; 0: zero
  std::uint8_t live[kRowBlock / kRows][kPanel];  // of each group (stored at its first k): some factor of A is not 0
  std::uint16_t b_fields[kMaxCols / kCols][kPanel][kCols];
  std::uint16_t a_fields[kRowBlock][kPanel + 16];
  std::uint32_t raw[kPanel * kCols], line[kPanel];  // of the factors' own storage: 16 or 32 bits each
  std::uint8_t row_special[kMaxRows], col_special[kMaxCols], line_special[kPanel];
};

// B's columns of one panel.
struct ColumnBlock {
  Int cols;   // of the region
  Int depth;  // of the panel, filled up to whole groups
  ExponentRange range;
};

// Where the kernel rounds its factors first.
template <class Format>
void round_factors(typename Format::Storage* line, Int n) {
  if constexpr (kRoundsFactors<Format>)
    for (Int q = 0; q < n; ++q) line[q] = bits_of(tf32::round_half_up(float_of(line[q])));
}

// One tile's factors as rows of kCols, those beyond k zeros. Columns beyond `cols` repeat the first: zeros there would
// look like tiny products.
template <class Storage>
void read_columns(const Storage* from, Int row_step, Int col_step, Int k_depth, Int depth, Int cols,
                  Storage (*to)[kCols]) {
  if (col_step == 1) {
    for (Int q = 0; q < k_depth; ++q)
      std::memcpy(to[q], from + q * row_step, static_cast<std::size_t>(cols) * sizeof(Storage));
  } else {
    constexpr Int kStrip = 16;  // rows of the strip stay in the first cache while all columns pass
    for (Int q0 = 0; q0 < k_depth; q0 += kStrip)
      for (Int j = 0; j < cols; ++j)
        for (Int q = q0; q < smaller(q0 + kStrip, k_depth); ++q) to[q][j] = from[q * row_step + j * col_step];
  }
  for (Int q = k_depth; q < depth; ++q) std::memset(to[q], 0, sizeof to[q]);
  for (Int q = 0; q < k_depth; ++q)
    for (Int j = cols; j < kCols; ++j) to[q][j] = to[q][0];
}

// The byte of column v * kLanes + d is at 4 * d + v: each 32-bit lane d holds the bytes of its kTensorVecs columns.
template <class Format>
void pack_b(const TensorCoreParams& p, const typename Format::Storage* from, Int k_depth, ColumnBlock& block,
            Workspace& w) {
  using Storage = typename Format::Storage;
  Storage(*const raw)[kCols] = reinterpret_cast<Storage(*)[kCols]>(w.raw);
  const Int tiles = (block.cols + kCols - 1) / kCols;
  for (Int t = 0; t < tiles; ++t) {
    read_columns(from + t * kCols * p.b_strides.col, p.b_strides.row, p.b_strides.col, k_depth, block.depth,
                 smaller(kCols, block.cols - t * kCols), raw);
    for (Int q = 0; q < block.depth; ++q) {
      round_factors<Format>(raw[q], kCols);
      clean<Format>(raw[q], kCols, w.col_special + t * kCols);
      take_fields<Format>(raw[q], kCols, w.b_fields[t][q], block.range);
      for (int j = 0; j < kCols; ++j) w.b[t][q][j] = value_of<Format>(raw[q][j]);
    }
  }
  const std::uint32_t high = static_cast<std::uint32_t>(block.range.high);
  for (Int t = 0; t < tiles; ++t)
    for (Int q = 0; q < block.depth; ++q) {
      const std::uint16_t* f = w.b_fields[t][q];
      std::uint32_t words[kLanes];
      for (int d = 0; d < kLanes; ++d) {
        std::uint32_t word = 0;
#pragma GCC unroll 4
        for (int v = 0; v < kTensorVecs; ++v) {
          const std::uint32_t field = f[v * kLanes + d];
          word |= (field ? high - field : 255u) << (8 * v);
        }
        words[d] = word;
      }
      std::memcpy(w.b_exponent[t][q], words, sizeof words);
    }
}

// Rows of A, kRowBlock at most; a last odd row is repeated.
template <class Format>
void pack_a(const TensorCoreParams& p, const typename Format::Storage* from, Int rows, Int k_depth,
            const ColumnBlock& block, int terms, Int first_row, Workspace& w, ExponentRange& range) {
  const int shift = block.range.high - 127;
  using Storage = typename Format::Storage;
  Storage* const line = reinterpret_cast<Storage*>(w.line);
  for (Int i = 0; i < rows; ++i) {
    const Storage* source = from + i * p.a_strides.row;
    const Int step = p.a_strides.col;
    if (step == 1 && k_depth == kPanel)
      std::memcpy(line, source, kPanel * sizeof(Storage));
    else if (step == 1)
      std::memcpy(line, source, static_cast<std::size_t>(k_depth) * sizeof(Storage));
    else
      for (Int q = 0; q < k_depth; ++q) line[q] = source[q * step];
    for (Int q = k_depth; q < block.depth; ++q) line[q] = 0;
    round_factors<Format>(line, block.depth);
    if (clean<Format>(line, block.depth, w.line_special)) w.row_special[first_row + i] = 1;
    take_fields<Format>(line, block.depth, w.a_fields[i], range);
    for (Int q = 0; q < block.depth; ++q) {
      w.a[i][q] = value_of<Format>(line[q]);
      const int field = w.a_fields[i][q], shifted = field + shift;
      const int low = shifted < 0 ? 0 : shifted, byte = field == 0 ? 0 : low > 255 ? 255 : low;
      w.a_exponent[i][q] = 0x01010101u * static_cast<std::uint32_t>(byte);
    }
  }
  if (rows % kRows) {
    std::memcpy(w.a[rows], w.a[rows - 1], sizeof w.a[0]);
    std::memcpy(w.a_exponent[rows], w.a_exponent[rows - 1], sizeof w.a_exponent[0]);
    std::memcpy(w.a_fields[rows], w.a_fields[rows - 1], sizeof w.a_fields[0]);
  }
  for (Int i = 0; i < rows; i += kRows)
    for (Int q = 0; q < block.depth; q += terms) {
      std::uint64_t words[4], any = 0;
      for (int r = 0; r < kRows; ++r) {
        std::memcpy(words, w.a_fields[i + r] + q, sizeof words);
        any |= words[0];
        if (terms > 4) any |= words[1];
        if (terms > 8) any |= words[2] | words[3];
      }
      w.live[i / kRows][q] = any != 0;
    }
}

// --- the walk over a region ---

template <class Format>
const typename Format::Storage* start_of(const void* matrix, Int offset) {
  return static_cast<const typename Format::Storage*>(matrix) + offset;
}

template <class Format, int kTerms, int kFractionBits>
void scalar_output(const TensorCoreParams& p, Int batch, Int i, Int j, Int k_begin, Int k_end, float& acc) {
  constexpr Adder adder = adder_for(kFractionBits == 24 ? kAdderTuring : kAdderHopper, Format::kBytes);
  const auto* a = start_of<Format>(p.a, batch * p.a_strides.batch + i * p.a_strides.row);
  const auto* b = start_of<Format>(p.b, batch * p.b_strides.batch + j * p.b_strides.col);
  acc = 0.0f;
  for (Int q = k_begin; q < k_end && acc == acc; q += kTerms)  // a NaN stays
    acc = dot_add<Format>(a + q * p.a_strides.col, p.a_strides.col, b + q * p.b_strides.row, p.b_strides.row,
                          static_cast<int>(smaller(kTerms, k_end - q)), acc, adder);
}

// Where the infinities and NaN of one row of A or column of B are.
struct Specials {
  static constexpr int kMost = 64;
  Int at[kMost];
  int count = 0;
  bool many = false;  // more than kMost

  template <class Format>
  void find(const typename Format::Storage* line, Int step, Int begin, Int end) {
    count = 0, many = false;
    for (Int q = begin; q < end; ++q) {
      typename Format::Storage pattern = line[q * step];
      round_factors<Format>(&pattern, 1);
      if (magnitude_of<Format>(pattern) < kInfinity<Format>) continue;
      if (count == kMost) {
        many = true;
        return;
      }
      at[count++] = q;
    }
  }
};

// Of a factor, as the tensor core reads it.
template <class Format>
float read_factor(typename Format::Storage pattern) {
  round_factors<Format>(&pattern, 1);
  return value_of<Format>(pattern);
}

// Outputs beside infinities and NaN: no finite sum overflows here, so that nothing else enters: each product with such
// a factor is infinite or NaN, and so is the output, in whatever order they are added.
template <class Format, int kTerms, int kFractionBits>
void special_outputs(const TensorCoreParams& p, Int batch, const Region& g, Int k_begin, Int k_end, float* acc,
                     const Workspace& w) {
  const Int rows = g.row_end - g.row_begin, cols = g.col_end - g.col_begin;
  const Int a_step = p.a_strides.col, b_step = p.b_strides.row;
  Specials found;
  const auto output = [&](Int i, Int j, bool second) {
    float& out = acc[i * kMaxCols + j];
    if (found.many)
      return scalar_output<Format, kTerms, kFractionBits>(p, batch, g.row_begin + i, g.col_begin + j, k_begin, k_end,
                                                          out);
    const auto* a = start_of<Format>(p.a, batch * p.a_strides.batch + (g.row_begin + i) * p.a_strides.row);
    const auto* b = start_of<Format>(p.b, batch * p.b_strides.batch + (g.col_begin + j) * p.b_strides.col);
    float sum = second ? out : 0.0f;
    for (int s = 0; s < found.count; ++s)
      sum = sum + read_factor<Format>(a[found.at[s] * a_step]) * read_factor<Format>(b[found.at[s] * b_step]);
    out = canonical(sum);
  };
  for (Int i = 0; i < rows; ++i) {
    if (!w.row_special[i]) continue;
    found.template find<Format>(start_of<Format>(p.a, batch * p.a_strides.batch + (g.row_begin + i) * p.a_strides.row),
                                a_step, k_begin, k_end);
    for (Int j = 0; j < cols; ++j) output(i, j, false);
  }
  for (Int j = 0; j < cols; ++j) {
    if (!w.col_special[j]) continue;
    found.template find<Format>(start_of<Format>(p.b, batch * p.b_strides.batch + (g.col_begin + j) * p.b_strides.col),
                                b_step, k_begin, k_end);
    for (Int i = 0; i < rows; ++i) output(i, j, w.row_special[i]);
  }
}

template <class Format, int kTerms, int kFractionBits>
void accumulate(const TensorCoreParams& p, Int batch, const Region& g, Int k_begin, Int k_end, float* acc,
                Workspace& w) {
  const Int rows = g.row_end - g.row_begin, cols = g.col_end - g.col_begin;
  std::memset(w.row_special, 0, static_cast<std::size_t>(rows));
  std::memset(w.col_special, 0, sizeof w.col_special);
  if (k_begin >= k_end)
    for (Int i = 0; i < rows; ++i) std::memset(acc + i * kMaxCols, 0, static_cast<std::size_t>(cols) * sizeof(float));
  const auto* a = start_of<Format>(p.a, batch * p.a_strides.batch + g.row_begin * p.a_strides.row);
  const auto* b = start_of<Format>(p.b, batch * p.b_strides.batch + g.col_begin * p.b_strides.col);
  ExponentRange a_seen, b_seen;
  bool scalar = false;
  for (Int k0 = k_begin; k0 < k_end && !scalar; k0 += kPanel) {
    const Int k_depth = smaller(kPanel, k_end - k0);
    ColumnBlock block{cols, (k_depth + kTerms - 1) / kTerms * kTerms, {}};
    pack_b<Format>(p, b + k0 * p.b_strides.row, k_depth, block, w);
    b_seen.include(block.range);
    for (Int i0 = 0; i0 < rows && !scalar; i0 += kRowBlock) {
      const Int n = smaller(kRowBlock, rows - i0);
      pack_a<Format>(p, a + i0 * p.a_strides.row + k0 * p.a_strides.col, n, k_depth, block, kTerms, i0, w, a_seen);
      const Form form = form_for<kFractionBits>(a_seen, b_seen, k_end - k_begin);
      if (form == Form::kScalar) {
        scalar = true;
        break;
      }
      Tile t{};
      t.a_pitch = kPanel, t.acc_pitch = kMaxCols;
      t.depth = block.depth, t.first = k0 == k_begin, t.only_zeros = a_seen.low + b_seen.low - 127 >= kFractionBits + 2;
      for (Int j = 0; j < cols; j += kCols)
        for (Int i = 0; i < n; i += kRows) {
          t.a = w.a[i], t.a_exponent = w.a_exponent[i], t.live = w.live[i / kRows];
          t.b = w.b[j / kCols][0], t.b_exponent = w.b_exponent[j / kCols][0], t.acc = acc + (i0 + i) * kMaxCols + j;
          run_tile<Format, kTerms, kFractionBits>(t, form);
        }
    }
  }
  if (!scalar) return special_outputs<Format, kTerms, kFractionBits>(p, batch, g, k_begin, k_end, acc, w);
  for (Int i = 0; i < rows; ++i)
    for (Int j = 0; j < cols; ++j)
      scalar_output<Format, kTerms, kFractionBits>(p, batch, g.row_begin + i, g.col_begin + j, k_begin, k_end,
                                                   acc[i * kMaxCols + j]);
}

void accumulate_any(const TensorCoreParams& p, Int batch, const Region& g, Int k_begin, Int k_end, float* acc,
                    void* workspace) {
  Workspace& w = *static_cast<Workspace*>(workspace);
  const bool turing = p.adder == gemm::AdderClass::kTuring;
  const auto run = [&](auto turing_form, auto hopper_form) {
    (turing ? turing_form : hopper_form)(p, batch, g, k_begin, k_end, acc, w);
  };
  switch (p.factors) {
    case DType::kBF16:
      return run(&accumulate<Bf16Format, 8, 24>, &accumulate<Bf16Format, 16, 25>);
    case DType::kF16:
      return run(&accumulate<Fp16Format, 8, 24>, &accumulate<Fp16Format, 16, 25>);
    default:
      if (p.rounds_tf32) return run(&accumulate<Tf32RoundedFormat, 4, 24>, &accumulate<Tf32RoundedFormat, 8, 25>);
      return run(&accumulate<Tf32Format, 4, 24>, &accumulate<Tf32Format, 8, 25>);
  }
}

// --- epilogue ---

struct AsFloat {
  using Storage = float;
  static float read(float x) { return x; }
  static float write(float x) { return canonical(x); }
};
struct AsBf16 {
  using Storage = std::uint16_t;
  static float read(Storage x) { return convert::from_bf16(x); }
  static Storage write(float x) { return convert::to_bf16(x); }
};
struct AsFp16 {
  using Storage = std::uint16_t;
  static float read(Storage x) { return convert::from_fp16(x); }
  static Storage write(float x) { return convert::to_fp16(x); }
};

template <class Type>
void store_as(const TensorCoreParams& p, Int batch, const Region& g, const float* acc) {
  using Storage = typename Type::Storage;
  const float alpha = p.alpha, beta = p.beta;
  const Int d_col = p.d_strides.col, c_col = p.c_strides.col, cols = g.col_end - g.col_begin;
  for (Int i = g.row_begin; i < g.row_end; ++i) {
    const float* from = acc + (i - g.row_begin) * kMaxCols;
    Storage* d = static_cast<Storage*>(p.d) + batch * p.d_strides.batch + i * p.d_strides.row + g.col_begin * d_col;
    if (beta == 0.0f) {
      if (d_col == 1)
        for (Int j = 0; j < cols; ++j) d[j] = Type::write(alpha * from[j]);
      else
        for (Int j = 0; j < cols; ++j) d[j * d_col] = Type::write(alpha * from[j]);
      continue;
    }
    const Storage* c =
        static_cast<const Storage*>(p.c) + batch * p.c_strides.batch + i * p.c_strides.row + g.col_begin * c_col;
    for (Int j = 0; j < cols; ++j) d[j * d_col] = Type::write(fma(alpha, from[j], beta * Type::read(c[j * c_col])));
  }
}

void store(const TensorCoreParams& p, Int batch, const Region& g, const float* acc) {
  switch (p.results) {
    case DType::kBF16:
      return store_as<AsBf16>(p, batch, g, acc);
    case DType::kF16:
      return store_as<AsFp16>(p, batch, g, acc);
    default:
      return store_as<AsFloat>(p, batch, g, acc);
  }
}

}  // namespace

extern const TensorCoreBody tensor_core_body;
const TensorCoreBody tensor_core_body = {kMaxRows, kMaxCols, sizeof(Workspace), kMaxCols, &accumulate_any, &store};
SO_ISA_END
