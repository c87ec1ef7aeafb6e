// Tiles of the tensor-core adder, fast: kRows x kCols outputs over a panel of k. Three forms give the same bytes:
//
//   fast    float32 and int32 lanes, four operations a vector of products. Within a group of products the scale is
//           2^(F - E), E the group's largest exponent; a product times the scale, converted to int32 with truncation,
//           is the aligned product (a * b is exact in float32). Unchecked, where all exponents are known to lie well
//           inside the range and E not above F, the scaling is an addition to the exponent field: the units that
//           multiply are the scarce ones (on AVX-512 in dot_pair.h). Checked, it multiplies; not safe near the ends of
//           the exponent range, nor where an int32 sum may wrap: guards find that, and the tile's panel of k is done
//           again in the next form.
//   wide    double lanes, any finite factors whose sums cannot overflow float32.
//   scalar  arith/dot_add.h, the caller's: rows and columns that hold an infinity or NaN, and sums that may overflow.
//
// A group whose factors of A are all zeros in every row of a tile leaves the accumulators as they are, and is skipped
// (causal masks make many).
#pragma once
#include <cstdint>
#include <cstring>

#include "csrc/kernels/arith/convert.h"
#include "csrc/kernels/arith/dot_add.h"
#include "csrc/kernels/arith/tf32.h"
#include "csrc/kernels/core/vec.h"

SO_ISA_BEGIN
namespace dot_tile {

using Int = std::int64_t;

inline constexpr int kTensorVecs = 4;
inline constexpr int kCols = kTensorVecs * kLanes;  // of a tile
inline constexpr int kRows = 2;
inline constexpr Int kPanel = 256;  // of k: a multiple of the adders' terms

// Exponents as float32 has them, biased by 127; of nonzero finite factors. A subnormal has the smallest of its format.
struct ExponentRange {
  int low = 1 << 16, high = 0;
  void include(int field) {
    low = field < low ? field : low;
    high = field > high ? field : high;
  }
  void include(const ExponentRange& r) { low = r.low < low ? r.low : low, high = r.high > high ? r.high : high; }
};

// A factor as a float32: as the tensor core reads it.
template <class Format>
SO_ALWAYS_INLINE float value_of(typename Format::Storage pattern) {
  if constexpr (Format::kBytes == 4)
    return tf32::read(float_of(pattern));
  else if constexpr (Format::kFraction == Bf16Format::kFraction)
    return convert::from_bf16(pattern);
  else
    return convert::from_fp16(pattern);
}

// Of a factor's pattern, its sign and the bits that are not read cleared.
template <class Format>
SO_ALWAYS_INLINE typename Format::Storage magnitude_of(typename Format::Storage pattern) {
  constexpr std::uint32_t kMask = (0xffffffffu >> (33 - 8 * Format::kBytes)) & (0xffffffffu << Format::kIgnored);
  return static_cast<typename Format::Storage>(pattern & kMask);
}
template <class Format>
inline constexpr typename Format::Storage kInfinity = static_cast<typename Format::Storage>(
    static_cast<std::uint32_t>(Format::kExponentMask) << (Format::kFraction + Format::kIgnored));

// Infinities and NaN become zeros, and are noted in `special`. Returns whether there were such.
template <class Format>
inline bool clean(typename Format::Storage* line, Int n, std::uint8_t* special) {
  using Storage = typename Format::Storage;
  Storage largest = 0;
  for (Int q = 0; q < n; ++q) {
    const Storage magnitude = magnitude_of<Format>(line[q]);
    largest = magnitude > largest ? magnitude : largest;
  }
  if (largest < kInfinity<Format>) return false;
  for (Int q = 0; q < n; ++q)
    if (magnitude_of<Format>(line[q]) >= kInfinity<Format>) line[q] = 0, special[q] = 1;
  return true;
}

// Exponent fields, biased by 127, of finite factors: 0 for a zero.
template <class Format>
inline void take_fields(const typename Format::Storage* line, Int n, std::uint16_t* fields, ExponentRange& range) {
  for (Int q = 0; q < n; ++q) {
    const typename Format::Storage magnitude = magnitude_of<Format>(line[q]);
    const std::uint16_t own = static_cast<std::uint16_t>(magnitude >> (Format::kFraction + Format::kIgnored));
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

// A chain walks `steps` steps of `parts` panels each, every panel of `depth`.
struct Tile {
  const float* a;  // kRows rows
  const std::uint32_t* a_exponent;
  Int a_pitch;  // elements from one row of a and of a_exponent to the next
  const std::uint8_t* live;
  const float* b;  // pitch kCols
  const std::uint8_t* b_exponent;
  Int depth;
  Int steps = 1;                       // each `depth` behind the one before, in a, live and b
  int parts = 1;                       // panels of a step
  Int a_part[3] = {}, b_part[3] = {};  // where each begins, in elements; a_part holds for a_exponent and live as well
  float* acc;
  Int acc_pitch;    // floats from one row of acc to the next
  bool first;       // the accumulators start at +0
  bool only_zeros;  // an exponent field of 0 means zero: no product or accumulator is so small
};

// --- wide ---

template <class Format, int kTerms, int kFractionBits>
inline void wide_tile(const Tile& t) {
  constexpr Adder adder = kFractionBits == 24 ? kAdderTuring : kAdderHopper;
  constexpr int kLowest = 128 - Format::kBias;  // exponent field of subnormals
  for (int r = 0; r < kRows; ++r) {
    float* const out = t.acc + r * t.acc_pitch;
    if (t.first)
      for (int j = 0; j < kCols; ++j) out[j] = 0.0f;
    for (Int group = 0; group < t.steps * t.parts * t.depth; group += kTerms) {
      const Int panel = group / t.depth, part = panel % t.parts, q = panel / t.parts * t.depth + group % t.depth;
      const float* const a = t.a + r * t.a_pitch + t.a_part[part] + q;
      const float* const columns = t.b + t.b_part[part] + q * kCols;
      std::int32_t largest[kCols];
      double sum[kCols], scale[kCols], inverse[kCols];
      for (int j = 0; j < kCols; ++j) {
        const int field = static_cast<int>(bits_of(out[j]) >> 23 & 0xff);
        const int e = out[j] == 0.0f ? adder.zero_exponent : (field ? field : 1) - 127;
        largest[j] = e > adder.zero_exponent ? e : adder.zero_exponent;
      }
      for (int s = 0; s < kTerms; ++s) {
        const float x = a[s];
        if (x == 0.0f) continue;
        const int x_field = static_cast<int>(bits_of(x) >> 23 & 0xff),
                  x_exponent = (x_field > kLowest ? x_field : kLowest) - 254;
        const float* b = columns + s * kCols;
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
        const double x = a[s];
        const float* b = columns + s * kCols;
        for (int j = 0; j < kCols; ++j)
          sum[j] += static_cast<double>(static_cast<std::int32_t>(x * static_cast<double>(b[j]) * scale[j]));
      }
      for (int j = 0; j < kCols; ++j) {
        const double v = sum[j] * inverse[j];
        const double normal = double_of(bits_of(v) & ~((std::uint64_t{1} << 29) - 1));
        const double subnormal =
            static_cast<double>(static_cast<std::int32_t>((v < 0x1p-126 && v > -0x1p-126 ? v : 0.0) * 0x1p149));
        // + 0: gcc 12 makes one truncation of a conversion to int32 and back, and that one keeps the sign of a zero.
        out[j] = static_cast<float>(v < 0x1p-126 && v > -0x1p-126 ? subnormal * 0x1p-149 : normal) + 0.0f;
      }
    }
  }
}

// --- fast ---

#if defined(__AVX512F__) || defined(__AVX2__)

// The exponent field that a group without any number other than zero gets where unchecked: zeros, with the scale added
// to their field, must stay below 1, and no accumulator be smaller (see form_for).
template <int kFractionBits>
inline constexpr std::uint32_t kFloorField = kFractionBits + 4;

// What scales by 2^(F - E): a float, or, unchecked, an addend for exponent fields.
template <bool kChecked>
SO_ALWAYS_INLINE IntVec aligned(Vec x, IntVec scale) {
  if constexpr (kChecked)
    return truncated(mul(x, float_of(scale)));
  else
    return truncated(float_of(add_int(bits_of(x), scale)));
}

// Largest exponent field, of product or accumulator, below which the fast form is not used: the scale 2^(F - E) and its
// inverse stay normal, and products that are subnormal in float32 are truncated to nothing as they must be.
template <int kFractionBits>
inline constexpr std::uint32_t kLowestField = kFractionBits + 4;

// 17 aligned terms are below 16 * 2^27 + 2^26: an int32 sum that wraps comes out beyond -2^31 + 2^26 in magnitude.
inline constexpr float kWrapped = 0x1.fp30f;

// Byte v of each lane where float32 has its exponent; what the other bits are is open.
template <int v>
SO_ALWAYS_INLINE IntVec exponent_of_byte(IntVec bytes) {
  if constexpr (v == 3)
    return shift_right<1>(bytes);
  else
    return shift_left<23 - 8 * v>(bytes);
}

// Returns false, leaving the accumulators alone, where a guard says that the panel needs the wide form. Not inlined:
// beside other code gcc runs out of registers.
template <int kTerms, int kFractionBits, bool kChecked>
[[gnu::noinline]] bool fast_tile(const Tile& t) {
  Vec acc[kRows][kTensorVecs];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < kTensorVecs; ++v) acc[r][v] = t.first ? zeros() : load(t.acc + r * t.acc_pitch + v * kLanes);
  const IntVec exponent_mask = broadcast_int(0x7f800000u);
  constexpr std::uint32_t kScaleOfOne = kChecked ? 127 : 0;
  const IntVec scale_base = broadcast_int((127 + kFractionBits + kScaleOfOne) << 23);
  const IntVec inverse_base = broadcast_int((127 + kScaleOfOne) << 23);
  const IntVec floor = broadcast_int(0x01010101u * kFloorField<kFractionBits>);
  const IntVec zero_shift = broadcast_int(t.only_zeros ? 1u << 23 : 0u);
  IntVec lowest = broadcast_int(0xffffffffu);
  Vec largest_sum = zeros();
  int part = -1;
  Int step = 0;
  for (Int panel = 0; panel < t.steps * t.parts; ++panel) {
    part = part + 1 == t.parts ? 0 : part + 1;
    if (panel != 0 && part == 0) step += t.depth;
    const Int a_at = t.a_part[part] + step, b_at = t.b_part[part] + step * kCols;
    const float* a = t.a + a_at;
    const std::uint32_t* a_exponent = t.a_exponent + a_at;
    const std::uint8_t* live = t.live + a_at;
    const float* b = t.b + b_at;
    const std::uint8_t* b_exponent = t.b_exponent + b_at;
    for (Int q = 0; q < t.depth;
         q += kTerms, a += kTerms, a_exponent += kTerms, b += kTerms * kCols, b_exponent += kTerms * kCols) {
      if (!live[q]) continue;
      IntVec bytes[kRows];
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r)
        bytes[r] = sub_bytes_saturated(broadcast_int(a_exponent[r * t.a_pitch]), load_int(b_exponent));
#pragma GCC unroll 16
      for (int s = 1; s < kTerms; ++s) {
        const IntVec e = load_int(b_exponent + s * kCols);
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r)
          bytes[r] = max_bytes(bytes[r], sub_bytes_saturated(broadcast_int(a_exponent[r * t.a_pitch + s]), e));
      }
      if (!kChecked)
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) bytes[r] = max_bytes(bytes[r], floor);
      IntVec sum[kRows][kTensorVecs];
      IntVec scale[kRows][kTensorVecs];
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        const IntVec fields[kTensorVecs] = {exponent_of_byte<0>(bytes[r]), exponent_of_byte<1>(bytes[r]),
                                            exponent_of_byte<2>(bytes[r]), exponent_of_byte<3>(bytes[r])};
#pragma GCC unroll 4
        for (int v = 0; v < kTensorVecs; ++v) {
          const IntVec e = max_int(and_int(fields[v], exponent_mask), and_int(bits_of(acc[r][v]), exponent_mask));
          if (kChecked) lowest = min_unsigned(lowest, sub_int(e, zero_shift));
          scale[r][v] = sub_int(scale_base, e);
          sum[r][v] = aligned<kChecked>(acc[r][v], scale[r][v]);
        }
      }
      // Not unrolled: gcc would put the additions off to the end and spill every converted product.
#pragma GCC unroll 1
      for (int s = 0; s < kTerms; ++s) {
        Vec x[kRows];
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) x[r] = broadcast(a[r * t.a_pitch + s]);
#pragma GCC unroll 4
        for (int v = 0; v < kTensorVecs; ++v) {
          const Vec y = load(b + s * kCols + v * kLanes);
#pragma GCC unroll 4
          for (int r = 0; r < kRows; ++r) sum[r][v] = add_int(sum[r][v], aligned<kChecked>(mul(x[r], y), scale[r][v]));
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
  }
  if (kChecked && any_unsigned_at_most(lowest, (kLowestField<kFractionBits> - (t.only_zeros ? 1 : 0)) << 23))
    return false;
  if (kTerms > 8 && any_not_below(largest_sum, kWrapped)) return false;
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < kTensorVecs; ++v)
      store(t.acc + r * t.acc_pitch + v * kLanes, add(acc[r][v], zeros()));  // -0 to +0
  return true;
}
#else
template <int kFractionBits>
inline constexpr std::uint32_t kLowestField = 0;
template <int kTerms, int kFractionBits, bool kChecked>
inline bool fast_tile(const Tile&) {
  return false;
}
#endif

enum class Form { kUnchecked, kChecked, kWide, kScalar };

// Whether products and sums whose exponent fields lie in [low, high] may go unchecked. Nonzero accumulators then have
// fields of low - F at least, above kFloorField; aligned by addition, no field wraps.
template <int kFractionBits>
constexpr bool may_go_unchecked(int low, int high) {
  return kIntVecs && low >= 2 * kFractionBits + 6 && high <= 127 + kFractionBits;
}

// lowest, highest: over every factor seen in this chain so far, so that the accumulators are bounded too.
template <int kFractionBits>
inline Form form_for(const ExponentRange& a, const ExponentRange& b, std::int64_t k) {
  if (a.high == 0 || b.high == 0) return kIntVecs ? Form::kUnchecked : Form::kWide;  // nothing but zeros
  int log2_k = 0;
  while ((std::int64_t{1} << log2_k) < k) ++log2_k;
  constexpr int kLargestField = 250;  // of a sum: float32 overflows beyond 254
  const int low = a.low + b.low - 127, high = a.high + b.high - 127 + log2_k + 3;
  if (high >= kLargestField) return Form::kScalar;
  if (!kIntVecs) return Form::kWide;
  return may_go_unchecked<kFractionBits>(low, high) ? Form::kUnchecked : Form::kChecked;
}

}  // namespace dot_tile
SO_ISA_END
