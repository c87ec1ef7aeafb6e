// The tensor-core adder, fast. Three forms give the same bytes:
//
//   fast    float32 and int32 lanes, four operations a vector of products. Within a group of products the scale is
//           2^(F - E), E the group's largest exponent; a product times the scale, converted to int32 with truncation,
//           is the aligned product (a * b is exact in float32). Not safe near the ends of the exponent range, nor where
//           an int32 sum may wrap: guards find that, and the tile's panel of k is done again in the next form.
//   wide    double lanes, any finite factors whose sums cannot overflow float32.
//   scalar  arith/dot_add.h: rows of A and columns of B that hold an infinity or NaN, and blocks that may overflow.
//
// A group whose factors of A are all zeros in every row of a tile leaves the accumulators as they are, and is skipped
// (causal masks make many).
#include "csrc/kernels/arith/convert.h"
#include "csrc/kernels/gemm/tensor_core_body.h"
#include "csrc/kernels/gemm/vec.h"

SO_ISA_BEGIN
namespace {

using Int = std::int64_t;
using gemm::TensorCoreParams;

inline constexpr int kTensorVecs = 4;
inline constexpr int kCols = kTensorVecs * kLanes;  // of a tile
inline constexpr int kRows = 2;
inline constexpr Int kPanel = 256;  // of k: a multiple of the adders' terms
inline constexpr Int kMaxRows = 1024, kMaxCols = 384 / kCols * kCols, kRowBlock = 32;

SO_ALWAYS_INLINE Int smaller(Int a, Int b) { return a < b ? a : b; }
SO_ALWAYS_INLINE Int larger(Int a, Int b) { return a > b ? a : b; }

// Exponents as float32 has them, biased by 127; of nonzero finite factors. A subnormal has the smallest of its format.
struct ExponentRange {
  int low = 1 << 16, high = 0;
  void include(int field) {
    low = field < low ? field : low;
    high = field > high ? field : high;
  }
  void include(const ExponentRange& r) { low = r.low < low ? r.low : low, high = r.high > high ? r.high : high; }
};

struct Workspace {
  float b[kMaxCols / kCols][kPanel][kCols];
  std::uint8_t b_exponent[kMaxCols / kCols][kPanel][kCols];  // highest of the block minus own; 255 for a zero
  float a[kRowBlock][kPanel];
  std::uint32_t a_exponent[kRowBlock][kPanel];   // own plus highest of B minus 127, in each of the four bytes; 0: zero
  std::uint8_t live[kRowBlock / kRows][kPanel];  // of each group (stored at its first k): some factor of A is not 0
  std::uint16_t b_fields[kMaxCols / kCols][kPanel][kCols];
  std::uint16_t a_fields[kRowBlock][kPanel + 16];
  std::uint16_t raw[kPanel][kCols], line[kPanel];
  std::uint8_t row_special[kMaxRows], col_special[kMaxCols], line_special[kPanel];
};

template <class Format>
SO_ALWAYS_INLINE float value_of(std::uint16_t h) {
  if constexpr (Format::kFraction == Bf16Format::kFraction)
    return convert::from_bf16(h);
  else
    return convert::from_fp16(h);
}

template <class Format>
inline constexpr std::uint16_t kInfinity = static_cast<std::uint16_t>(Format::kExponentMask << Format::kFraction);

// Infinities and NaN become zeros, and are noted in `special`. Returns whether there were such.
template <class Format>
bool clean(std::uint16_t* line, Int n, std::uint8_t* special) {
  std::uint16_t largest = 0;
  for (Int q = 0; q < n; ++q) {
    const std::uint16_t magnitude = line[q] & 0x7fff;
    largest = magnitude > largest ? magnitude : largest;
  }
  if (largest < kInfinity<Format>) return false;
  for (Int q = 0; q < n; ++q)
    if ((line[q] & 0x7fff) >= kInfinity<Format>) line[q] = 0, special[q] = 1;
  return true;
}

// Exponent fields, biased by 127, of finite factors: 0 for a zero.
template <class Format>
void take_fields(const std::uint16_t* line, Int n, std::uint16_t* fields, ExponentRange& range) {
  for (Int q = 0; q < n; ++q) {
    const std::uint16_t magnitude = line[q] & 0x7fff;
    const std::uint16_t own = static_cast<std::uint16_t>(magnitude >> Format::kFraction);
    const std::uint16_t shifted = static_cast<std::uint16_t>((own > 1 ? own : 1) + 127 - Format::kBias);
    fields[q] = magnitude ? shifted : 0;
  }
  // Loops of one reduction each: gcc 12 makes vectors of them, and not of one with two.
  std::uint16_t high = 0, below_low = 0xffff;
  for (Int q = 0; q < n; ++q) high = fields[q] > high ? fields[q] : high;
  for (Int q = 0; q < n; ++q) {
    const std::uint16_t below = static_cast<std::uint16_t>(fields[q] - 1);  // of a zero: the largest
    below_low = below < below_low ? below : below_low;
  }
  range.include(ExponentRange{below_low + 1, high});
}

// B's columns of one panel.
struct ColumnBlock {
  Int cols;   // of the region
  Int depth;  // of the panel, filled up to whole groups
  ExponentRange range;
};

// One tile's factors as rows of kCols, those beyond k zeros. Columns beyond `cols` repeat the first: zeros there would
// look like tiny products.
void read_columns(const std::uint16_t* from, Int row_step, Int col_step, Int k_depth, Int depth, Int cols,
                  std::uint16_t (*to)[kCols]) {
  if (col_step == 1) {
    for (Int q = 0; q < k_depth; ++q)
      std::memcpy(to[q], from + q * row_step, static_cast<std::size_t>(cols) * sizeof(std::uint16_t));
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
void pack_b(const TensorCoreParams& p, const std::uint16_t* from, Int k_depth, ColumnBlock& block, Workspace& w) {
  const Int tiles = (block.cols + kCols - 1) / kCols;
  for (Int t = 0; t < tiles; ++t) {
    read_columns(from + t * kCols * p.b_strides.col, p.b_strides.row, p.b_strides.col, k_depth, block.depth,
                 smaller(kCols, block.cols - t * kCols), w.raw);
    for (Int q = 0; q < block.depth; ++q) {
      clean<Format>(w.raw[q], kCols, w.col_special + t * kCols);
      take_fields<Format>(w.raw[q], kCols, w.b_fields[t][q], block.range);
      for (int j = 0; j < kCols; ++j) w.b[t][q][j] = value_of<Format>(w.raw[q][j]);
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
void pack_a(const TensorCoreParams& p, const std::uint16_t* from, Int rows, Int k_depth, const ColumnBlock& block,
            int terms, Int first_row, Workspace& w, ExponentRange& range) {
  const int shift = block.range.high - 127;
  std::uint16_t* const line = w.line;
  for (Int i = 0; i < rows; ++i) {
    const std::uint16_t* source = from + i * p.a_strides.row;
    const Int step = p.a_strides.col;
    if (step == 1 && k_depth == kPanel)
      std::memcpy(line, source, sizeof w.line);
    else if (step == 1)
      std::memcpy(line, source, static_cast<std::size_t>(k_depth) * sizeof(std::uint16_t));
    else
      for (Int q = 0; q < k_depth; ++q) line[q] = source[q * step];
    for (Int q = k_depth; q < block.depth; ++q) line[q] = 0;
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
        any |= words[0] | words[1];
        if (terms > 8) any |= words[2] | words[3];
      }
      w.live[i / kRows][q] = any != 0;
    }
}

struct Tile {
  const float* a;  // kRows rows, pitch kPanel
  const std::uint32_t* a_exponent;
  const std::uint8_t* live;
  const float* b;  // pitch kCols
  const std::uint8_t* b_exponent;
  Int depth;
  float* acc;       // pitch kMaxCols
  bool first;       // the accumulators start at +0
  bool only_zeros;  // an exponent field of 0 means zero: no product or accumulator is so small
};

// --- wide ---

template <class Format, int kTerms, int kFractionBits>
void wide_tile(const Tile& t) {
  constexpr Adder adder = kTerms == 8 ? kAdderTuring : kAdderHopper;
  constexpr int kLowest = 128 - Format::kBias;  // exponent field of subnormals
  for (int r = 0; r < kRows; ++r) {
    float* const out = t.acc + r * kMaxCols;
    if (t.first)
      for (int j = 0; j < kCols; ++j) out[j] = 0.0f;
    for (Int q = 0; q < t.depth; q += kTerms) {
      std::int32_t largest[kCols];
      double sum[kCols], scale[kCols], inverse[kCols];
      for (int j = 0; j < kCols; ++j) {
        const int field = static_cast<int>(bits_of(out[j]) >> 23 & 0xff);
        const int e = out[j] == 0.0f ? adder.zero_exponent : (field ? field : 1) - 127;
        largest[j] = e > adder.zero_exponent ? e : adder.zero_exponent;
      }
      for (int s = 0; s < kTerms; ++s) {
        const float x = t.a[r * kPanel + q + s];
        if (x == 0.0f) continue;
        const int x_field = static_cast<int>(bits_of(x) >> 23 & 0xff),
                  x_exponent = (x_field > kLowest ? x_field : kLowest) - 254;
        const float* b = t.b + (q + s) * kCols;
        for (int j = 0; j < kCols; ++j) {
          const int field = static_cast<int>(bits_of(b[j]) >> 23 & 0xff);
          const int e = b[j] == 0.0f ? adder.zero_exponent : x_exponent + (field > kLowest ? field : kLowest);
          largest[j] = e > largest[j] ? e : largest[j];
        }
      }
      for (int j = 0; j < kCols; ++j) {
        scale[j] = double_of(static_cast<std::uint64_t>(1023 + kFractionBits - largest[j]) << 52);
        inverse[j] = double_of(static_cast<std::uint64_t>(1023 - kFractionBits + largest[j]) << 52);
        sum[j] = static_cast<double>(static_cast<std::int32_t>(static_cast<double>(out[j]) * scale[j]));
      }
      for (int s = 0; s < kTerms; ++s) {
        const double x = t.a[r * kPanel + q + s];
        const float* b = t.b + (q + s) * kCols;
        for (int j = 0; j < kCols; ++j)
          sum[j] += static_cast<double>(static_cast<std::int32_t>(x * static_cast<double>(b[j]) * scale[j]));
      }
      for (int j = 0; j < kCols; ++j) {
        const double v = sum[j] * inverse[j];
        const double normal = double_of(bits_of(v) & ~((std::uint64_t{1} << 29) - 1));
        const double subnormal =
            static_cast<double>(static_cast<std::int32_t>((v < 0x1p-126 && v > -0x1p-126 ? v : 0.0) * 0x1p149));
        out[j] = static_cast<float>(v < 0x1p-126 && v > -0x1p-126 ? subnormal * 0x1p-149 : normal);
      }
    }
  }
}

// --- fast ---

#if defined(__AVX512F__) || defined(__AVX2__)

// Largest exponent field, of product or accumulator, below which the fast form is not used: the scale 2^(F - E) and its
// inverse stay normal, and products that are subnormal in float32 are truncated to nothing as they must be.
template <int kFractionBits>
inline constexpr std::uint32_t kLowestField = kFractionBits + 4;

template <int v>
SO_ALWAYS_INLINE IntVec exponent_of_byte(IntVec bytes) {
  return and_int(shift_right<1>(shift_left<24 - 8 * v>(bytes)), broadcast_int(0x7f800000u));
}

// Returns false, leaving the accumulators alone, where a guard says that the panel needs the wide form.
template <int kTerms, int kFractionBits, bool kChecked>
bool fast_tile(const Tile& t) {
  Vec acc[kRows][kTensorVecs];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < kTensorVecs; ++v) acc[r][v] = t.first ? zeros() : load(t.acc + r * kMaxCols + v * kLanes);
  const IntVec exponent_mask = broadcast_int(0x7f800000u);
  const IntVec scale_base = broadcast_int(static_cast<std::uint32_t>(254 + kFractionBits) << 23);
  const IntVec inverse_base = broadcast_int(254u << 23);
  const IntVec zero_shift = broadcast_int(t.only_zeros ? 1u << 23 : 0u);
  IntVec lowest = broadcast_int(0xffffffffu);
  Vec largest_sum = zeros();
  const float* a = t.a;
  const std::uint32_t* a_exponent = t.a_exponent;
  const float* b = t.b;
  const std::uint8_t* b_exponent = t.b_exponent;
  for (Int q = 0; q < t.depth;
       q += kTerms, a += kTerms, a_exponent += kTerms, b += kTerms * kCols, b_exponent += kTerms * kCols) {
    if (!t.live[q]) continue;
    IntVec bytes[kRows];
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r)
      bytes[r] = sub_bytes_saturated(broadcast_int(a_exponent[r * kPanel]), load_int(b_exponent));
#pragma GCC unroll 16
    for (int s = 1; s < kTerms; ++s) {
      const IntVec e = load_int(b_exponent + s * kCols);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r)
        bytes[r] = max_bytes(bytes[r], sub_bytes_saturated(broadcast_int(a_exponent[r * kPanel + s]), e));
    }
    IntVec sum[kRows][kTensorVecs];
    IntVec scale[kRows][kTensorVecs];
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const IntVec fields[kTensorVecs] = {exponent_of_byte<0>(bytes[r]), exponent_of_byte<1>(bytes[r]),
                                          exponent_of_byte<2>(bytes[r]), exponent_of_byte<3>(bytes[r])};
#pragma GCC unroll 4
      for (int v = 0; v < kTensorVecs; ++v) {
        const IntVec e = max_int(fields[v], and_int(bits_of(acc[r][v]), exponent_mask));
        if (kChecked) lowest = min_unsigned(lowest, sub_int(e, zero_shift));
        scale[r][v] = sub_int(scale_base, e);
        sum[r][v] = truncated(mul(acc[r][v], float_of(scale[r][v])));
      }
    }
    // Not unrolled: gcc would put the additions off to the end and spill every converted product.
#pragma GCC unroll 1
    for (int s = 0; s < kTerms; ++s) {
      Vec x[kRows];
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) x[r] = broadcast(a[r * kPanel + s]);
#pragma GCC unroll 4
      for (int v = 0; v < kTensorVecs; ++v) {
        const Vec y = load(b + s * kCols + v * kLanes);
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r)
          sum[r][v] = add_int(sum[r][v], truncated(mul(mul(x[r], y), float_of(scale[r][v]))));
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < kTensorVecs; ++v) {
        const Vec f = float_toward_zero(sum[r][v]);
        if (kTerms > 8) largest_sum = larger_magnitude(largest_sum, f);
        acc[r][v] = mul(f, float_of(sub_int(inverse_base, scale[r][v])));
      }
  }
  if (kChecked && any_unsigned_at_most(lowest, (kLowestField<kFractionBits> - (t.only_zeros ? 1 : 0)) << 23))
    return false;
  // 17 aligned terms are below 16 * 2^27 + 2^26: an int32 sum that wraps comes out beyond -2^31 + 2^26 in magnitude.
  if (kTerms > 8 && any_not_below(largest_sum, 0x1.fp30f)) return false;
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < kTensorVecs; ++v)
      store(t.acc + r * kMaxCols + v * kLanes, add(acc[r][v], zeros()));  // -0 to +0
  return true;
}
#else
template <int kFractionBits>
inline constexpr std::uint32_t kLowestField = 0;
template <int kTerms, int kFractionBits, bool kChecked>
bool fast_tile(const Tile&) {
  return false;
}
#endif

// --- the walk over a region ---

enum class Form { kUnchecked, kChecked, kWide, kScalar };

// lowest, highest: over every factor seen in this chain so far, so that the accumulators are bounded too.
template <int kFractionBits>
Form form_for(const ExponentRange& a, const ExponentRange& b, Int k) {
  if (a.high == 0 || b.high == 0) return Form::kUnchecked;  // nothing but zeros
  int log2_k = 0;
  while ((Int{1} << log2_k) < k) ++log2_k;
  constexpr int kLargestField = 250;  // of a sum: float32 overflows beyond 254
  if (a.high + b.high - 127 + log2_k + 3 >= kLargestField) return Form::kScalar;
  if (!kIntVecs) return Form::kWide;
  return a.low + b.low - 127 >= 2 * kFractionBits + 6 ? Form::kUnchecked : Form::kChecked;
}

template <class Format, int kTerms>
void scalar_output(const TensorCoreParams& p, Int batch, Int i, Int j, Int k_begin, Int k_end, float& acc) {
  constexpr Adder adder = kTerms == 8 ? kAdderTuring : kAdderHopper;
  const std::uint16_t* a = p.a + batch * p.a_strides.batch + i * p.a_strides.row;
  const std::uint16_t* b = p.b + batch * p.b_strides.batch + j * p.b_strides.col;
  acc = 0.0f;
  for (Int q = k_begin; q < k_end && acc == acc; q += kTerms)  // a NaN stays
    acc = dot_add<Format>(a + q * p.a_strides.col, p.a_strides.col, b + q * p.b_strides.row, p.b_strides.row,
                          static_cast<int>(smaller(kTerms, k_end - q)), acc, adder);
}

template <class Format, int kTerms, int kFractionBits>
void accumulate(const TensorCoreParams& p, Int batch, const Region& g, Int k_begin, Int k_end, float* acc,
                Workspace& w) {
  const Int rows = g.row_end - g.row_begin, cols = g.col_end - g.col_begin;
  std::memset(w.row_special, 0, static_cast<std::size_t>(rows));
  std::memset(w.col_special, 0, sizeof w.col_special);
  if (k_begin >= k_end)
    for (Int i = 0; i < rows; ++i) std::memset(acc + i * kMaxCols, 0, static_cast<std::size_t>(cols) * sizeof(float));
  const std::uint16_t* a = p.a + batch * p.a_strides.batch + g.row_begin * p.a_strides.row;
  const std::uint16_t* b = p.b + batch * p.b_strides.batch + g.col_begin * p.b_strides.col;
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
      t.depth = block.depth, t.first = k0 == k_begin, t.only_zeros = a_seen.low + b_seen.low - 127 >= kFractionBits + 2;
      for (Int j = 0; j < cols; j += kCols)
        for (Int i = 0; i < n; i += kRows) {
          t.a = w.a[i], t.a_exponent = w.a_exponent[i], t.live = w.live[i / kRows];
          t.b = w.b[j / kCols][0], t.b_exponent = w.b_exponent[j / kCols][0], t.acc = acc + (i0 + i) * kMaxCols + j;
          const bool done = form == Form::kUnchecked ? fast_tile<kTerms, kFractionBits, false>(t)
                            : form == Form::kChecked ? fast_tile<kTerms, kFractionBits, true>(t)
                                                     : false;
          if (!done) wide_tile<Format, kTerms, kFractionBits>(t);
        }
    }
  }
  for (Int i = 0; i < rows; ++i)
    for (Int j = 0; j < cols; ++j)
      if (scalar || w.row_special[i] || w.col_special[j])
        scalar_output<Format, kTerms>(p, batch, g.row_begin + i, g.col_begin + j, k_begin, k_end,
                                      acc[i * kMaxCols + j]);
}

void accumulate_any(const TensorCoreParams& p, Int batch, const Region& g, Int k_begin, Int k_end, float* acc,
                    void* workspace) {
  Workspace& w = *static_cast<Workspace*>(workspace);
  const bool bf16 = p.factors == DType::kBF16;
  if (p.adder == gemm::AdderClass::kTuring) {
    if (bf16)
      accumulate<Bf16Format, 8, 24>(p, batch, g, k_begin, k_end, acc, w);
    else
      accumulate<Fp16Format, 8, 24>(p, batch, g, k_begin, k_end, acc, w);
  } else {
    if (bf16)
      accumulate<Bf16Format, 16, 25>(p, batch, g, k_begin, k_end, acc, w);
    else
      accumulate<Fp16Format, 16, 25>(p, batch, g, k_begin, k_end, acc, w);
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
