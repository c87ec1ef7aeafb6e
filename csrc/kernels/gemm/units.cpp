#include "csrc/kernels/gemm/units.h"

#include <fmt/format.h>

#include <string>

#include "csrc/kernels/arith/dot_add.h"
#include "csrc/kernels/core/bits.h"
#include "csrc/kernels/core/error.h"
#include "csrc/kernels/core/parallel.h"

namespace step_oracle::gemm {
namespace {

using UnitFactors::kBf16, UnitFactors::kE4m3, UnitFactors::kE4m3Fnuz, UnitFactors::kE5m2, UnitFactors::kE5m2Fnuz,
    UnitFactors::kF32, UnitFactors::kFp16, UnitFactors::kTf32;

struct TypeOf {
  int fraction, lowest;  // fraction bits; exponent of subnormals
  float most;            // largest finite value
  bool infinities;
};
TypeOf type_of(UnitFactors t) {
  switch (t) {
    case kBf16:
      return {7, -126, 0x1.fep127f, true};
    case kFp16:
      return {10, -14, 65504.0f, true};
    case kTf32:
      return {10, -126, 0x1.ffcp127f, true};
    case kF32:
      return {23, -126, 0x1.fffffep127f, true};
    case kE4m3:
      return {3, -6, 448.0f, false};
    case kE5m2:
      return {2, -14, 57344.0f, true};
    case kE4m3Fnuz:
      return {3, -7, 240.0f, false};
    case kE5m2Fnuz:
      return {2, -15, 57344.0f, false};
  }
  return {};
}

// value = (negative ? -1 : 1) * digits * 2^(exponent - 23), unnormalised where the type's subnormals are.
struct Parts {
  std::int64_t digits;
  int exponent;
  bool negative, nan, infinite;
};
Parts parts_of(float x, int lowest) {
  const std::uint32_t u = bits_of(x);
  const int field = static_cast<int>(u >> 23 & 0xff);
  Parts p{static_cast<std::int64_t>(u & 0x7fffffu) | (field ? 0x800000 : 0), (field ? field : 1) - 127, (u >> 31) != 0,
          field == 255 && (u & 0x7fffffu) != 0, field == 255 && (u & 0x7fffffu) == 0};
  if (p.exponent < lowest) p.digits >>= lowest - p.exponent > 62 ? 62 : lowest - p.exponent, p.exponent = lowest;
  return p;
}

template <class Format>
typename Format::Storage pattern(float x) {
  const Parts p = parts_of(x, 1 - Format::kBias);
  constexpr int kBits = 8 * Format::kBytes - Format::kIgnored;
  const std::uint32_t sign = p.negative ? 1u << (kBits - 1) : 0;
  const std::uint32_t top = static_cast<std::uint32_t>(Format::kExponentMask) << Format::kFraction;
  const std::uint32_t digits = static_cast<std::uint32_t>(p.digits >> (23 - Format::kFraction));
  const std::uint32_t field = digits >> Format::kFraction ? static_cast<std::uint32_t>(p.exponent + Format::kBias) : 0;
  const std::uint32_t finite = field << Format::kFraction | (digits & ((1u << Format::kFraction) - 1));
  const std::uint32_t all = (1u << Format::kFraction) - 1;
  const std::uint32_t r = sign | (p.nan ? top | all : p.infinite ? top : finite);
  return static_cast<typename Format::Storage>(r << Format::kIgnored);
}

// --- NVIDIA: arith/dot_add.h ---

template <class A, class B>
float nvidia(const MatrixUnit& unit, const float* a, const float* b, float acc, Adder adder) {
  typename A::Storage x[32];
  typename B::Storage y[32];
  for (int i = 0; i < unit.terms; ++i) x[i] = pattern<A>(a[i]), y[i] = pattern<B>(b[i]);
  adder.terms = unit.terms;
  return dot_add<A, B>(x, 1, y, 1, unit.terms, acc, adder);
}
template <class Format>
float nvidia(const MatrixUnit& unit, const float* a, const float* b, float acc, Adder adder) {
  return nvidia<Format, Format>(unit, a, b, acc, adder);
}
float nvidia_any(const MatrixUnit& u, const float* a, const float* b, float acc, Adder adder) {
  switch (u.a) {
    case kBf16:
      return nvidia<Bf16Format>(u, a, b, acc, adder);
    case kFp16:
      return nvidia<Fp16Format>(u, a, b, acc, adder);
    case kTf32:
      return nvidia<Tf32Format>(u, a, b, acc, adder);
    case kE4m3:
      return u.b == kE4m3 ? nvidia<E4m3Format>(u, a, b, acc, adder)
                          : nvidia<E4m3Format, E5m2Format>(u, a, b, acc, adder);
    default:
      return u.b == kE4m3 ? nvidia<E5m2Format, E4m3Format>(u, a, b, acc, adder)
                          : nvidia<E5m2Format>(u, a, b, acc, adder);
  }
}

// --- roundings of exact values ---

constexpr std::uint32_t kQuietNan = 0x7fc00000u;
float quiet(float x) { return x != x ? float_of(kQuietNan) : x; }
float without_subnormals(float x) { return (bits_of(x) & 0x7f800000u) == 0 ? float_of(bits_of(x) & 0x80000000u) : x; }
float positive_zero_for_subnormals(float x) { return (bits_of(x) & 0x7f800000u) == 0 ? 0.0f : x; }

// An exact sum of products: a fixed-point number of 32-bit digits, kept in signed 64-bit ones until it is read.
class Exact {
 public:
  // value * 2^exponent, |value| < 2^62, exponent >= kLowest.
  void add(std::int64_t value, int exponent) {
    const int at = exponent - kLowest;
    const bool negative = value < 0;
    std::uint64_t low = static_cast<std::uint64_t>(negative ? -value : value), high = 0;
    const int shift = at % 32, digit = at / 32;
    if (shift) high = low >> (64 - shift), low <<= shift;
    const std::int64_t sign = negative ? -1 : 1;
    digits_[digit] += sign * static_cast<std::int64_t>(low & 0xffffffffu);
    digits_[digit + 1] += sign * static_cast<std::int64_t>(low >> 32);
    digits_[digit + 2] += sign * static_cast<std::int64_t>(high);
  }
  enum class Round { kNearestEven, kOdd };
  float rounded(Round how) const {
    std::int64_t d[kDigits];
    std::int64_t carry = 0;
    for (int i = 0; i < kDigits; ++i) {
      const std::int64_t v = digits_[i] + carry;
      d[i] = v & 0xffffffff, carry = v >> 32;  // floor: the sign ends up in `carry`
    }
    const bool negative = carry < 0;
    if (negative) {  // two's complement
      std::int64_t one = 1;
      for (int i = 0; i < kDigits; ++i) {
        const std::int64_t v = (~d[i] & 0xffffffff) + one;
        d[i] = v & 0xffffffff, one = v >> 32;
      }
    }
    int top = kDigits * 32 - 1;
    while (top >= 0 && !(d[top / 32] >> (top % 32) & 1)) --top;
    if (top < 0) return 0.0f;
    const auto bit = [&](int i) { return i < 0 ? 0u : static_cast<std::uint32_t>(d[i / 32] >> (i % 32) & 1); };
    const int leading = top + kLowest, last = (leading < -126 ? -149 : leading - 23) - kLowest;
    std::uint32_t value = 0;
    for (int i = top; i >= last && i >= 0; --i) value = value << 1 | bit(i);
    bool rest = false;
    for (int i = last - 2; i >= 0 && !rest; --i) rest = bit(i);
    const bool half = last >= 1 && bit(last - 1);
    if (how == Round::kOdd)
      value |= half || rest ? 1u : 0u;
    else
      value += half && (rest || (value & 1u)) ? 1u : 0u;
    const std::uint32_t sign = negative ? 0x80000000u : 0u;
    // A carry out of the significand walks into the exponent field.
    const std::uint32_t field = leading < -126 ? 0u : static_cast<std::uint32_t>(leading + 126) << 23;
    const std::uint32_t magnitude = leading > 127 ? 0x7f800000u : field + value;
    return float_of(sign | (magnitude > 0x7f800000u ? 0x7f800000u : magnitude));
  }

 private:
  static constexpr int kLowest = -320, kDigits = 22;  // to 2^384
  std::int64_t digits_[kDigits] = {};
};

// The IEEE result where an operand is infinite or NaN; `found` says whether one is.
float special_sum(int n, const float* a, const float* b, float acc, bool& found) {
  float sum = acc;
  found = (bits_of(acc) & 0x7f800000u) == 0x7f800000u;
  for (int i = 0; i < n; ++i) {
    found |= (bits_of(a[i]) & 0x7f800000u) == 0x7f800000u || (bits_of(b[i]) & 0x7f800000u) == 0x7f800000u;
    const bool keeps = (bits_of(a[i]) & 0x7f800000u) == 0x7f800000u || (bits_of(b[i]) & 0x7f800000u) == 0x7f800000u;
    if (keeps) sum = sum + a[i] * b[i];
  }
  return quiet(sum);
}

// --- AMD ---

// CDNA 1: the exact sum, rounded once.
float exact_sum(const MatrixUnit& u, const float* a, const float* b, float acc) {
  bool found;
  const float special = special_sum(u.terms, a, b, acc, found);
  if (found) return special;
  Exact sum;
  const Parts c = parts_of(acc, -126);
  sum.add(c.negative ? -c.digits : c.digits, c.exponent - 23);
  for (int i = 0; i < u.terms; ++i) {
    const Parts x = parts_of(a[i], -126), y = parts_of(b[i], -126);
    const std::int64_t product = x.digits * y.digits;
    sum.add(x.negative != y.negative ? -product : product, x.exponent + y.exponent - 46);
  }
  return sum.rounded(Exact::Round::kNearestEven);
}

// CDNA 2: products and sums rounded to nearest, subnormals read and written as zeros, pairs added first.
float flushed_pairs(const MatrixUnit& u, const float* a, const float* b, float acc) {
  const float least = u.a == kFp16 ? 0x1p-14f : 0x1p-126f;
  float p[4] = {};
  const auto flush = [&](float x) { return x < least && x > -least ? 0.0f : x; };
  for (int i = 0; i < u.terms; ++i) p[i] = without_subnormals(flush(a[i]) * flush(b[i]));
  float s = without_subnormals(p[0] + p[1]);
  if (u.terms == 4) s = without_subnormals(s + without_subnormals(p[2] + p[3]));
  return quiet(without_subnormals(positive_zero_for_subnormals(acc) + s));
}

std::int64_t shifted_down(std::int64_t value, int by) { return value >> (by > 62 ? 62 : by < 0 ? 0 : by); }  // floor

// sum * 2^exponent, cut to 31 fraction bits (floor), then rounded to nearest even.
float cut_and_rounded(std::int64_t sum, int exponent) {
  if (sum == 0) return 0.0f;
  const int top = 63 - __builtin_clzll(static_cast<std::uint64_t>(sum < 0 ? -sum : sum)) + exponent;
  const int last = (top < -126 ? -126 : top) - 31;
  if (last > exponent) sum = shifted_down(sum, last - exponent), exponent = last;
  Exact e;
  e.add(sum, exponent);
  return e.rounded(Exact::Round::kNearestEven);
}

// CDNA 3: products aligned to their largest exponent and truncated toward zero to 24 bits; the sum and the accumulator
// aligned to the larger exponent of the two, 32 and 24 bits kept (floor). 8-bit factors: even and odd positions apart.
constexpr int kNone = -999;  // exponent of a sum of zeros
struct Aligned {
  std::int64_t sum;  // in units of 2^(exponent - 24)
  int exponent;
};
Aligned aligned_products(const MatrixUnit& u, const float* a, const float* b, int first, int step) {
  const TypeOf ta = type_of(u.a), tb = type_of(u.b);
  std::int64_t digits[16];
  int exponents[16], largest = kNone, n = 0;
  for (int i = first; i < u.terms; i += step, ++n) {
    const Parts x = parts_of(a[i], ta.lowest), y = parts_of(b[i], tb.lowest);
    const std::int64_t product = (x.digits >> 13) * (y.digits >> 13);  // in units of 2^-20
    digits[n] = x.negative != y.negative ? -product : product;
    exponents[n] = product ? x.exponent + y.exponent : kNone;
    largest = exponents[n] > largest ? exponents[n] : largest;
  }
  std::int64_t sum = 0;
  for (int i = 0; i < n; ++i) {
    const std::int64_t magnitude = shifted_down((digits[i] < 0 ? -digits[i] : digits[i]) << 4, largest - exponents[i]);
    sum += digits[i] < 0 ? -magnitude : magnitude;
  }
  return {sum, largest};
}
float cdna3(const MatrixUnit& u, const float* a, const float* b, float acc) {
  bool found;
  float specials[16];  // a product beyond float32 counts as an infinity
  const bool bytes = u.a == kE4m3Fnuz || u.a == kE5m2Fnuz;
  float ones[16];
  for (int i = 0; i < u.terms; ++i) {
    const float p = a[i] * b[i];
    const bool over = !bytes && (bits_of(p) & 0x7fffffffu) == 0x7f800000u;
    specials[i] = p != p || over ? p : 1.0f, ones[i] = 1.0f;
  }
  const float special = special_sum(u.terms, specials, ones, acc, found);
  if (found) return special;
  Aligned dot;
  if (bytes) {
    const Aligned even = aligned_products(u, a, b, 0, 2), odd = aligned_products(u, a, b, 1, 2);
    dot.exponent = even.exponent > odd.exponent ? even.exponent : odd.exponent;
    dot.sum = shifted_down(even.sum, dot.exponent - even.exponent) + shifted_down(odd.sum, dot.exponent - odd.exponent);
  } else {
    dot = aligned_products(u, a, b, 0, 1);
  }
  const Parts c = parts_of(acc, -126);
  const int largest = dot.exponent > c.exponent ? dot.exponent : c.exponent;
  const std::int64_t sum = shifted_down(dot.sum << 8, largest - dot.exponent);
  std::int64_t own = shifted_down((c.negative ? -c.digits : c.digits) * 2, largest - c.exponent);
  if (bytes && c.exponent < largest - 25) own = 0;
  return cut_and_rounded(sum + own * 256, largest - 32);
}

// --- CPUs ---

// x86 VDPBF16PS: the odd position, then the even one; subnormals are read and written as zeros.
float fma_flushed(float a, float b, float acc) {
  const auto in = [](float x) { return without_subnormals(x); };
  return quiet(without_subnormals(fma(in(a), in(b), in(acc))));
}
float vdpbf16ps(const MatrixUnit&, const float* a, const float* b, float acc) {
  return fma_flushed(a[0], b[0], fma_flushed(a[1], b[1], acc));
}

// x86 TDPBF16PS: even and odd positions of a tile's 16 pairs are chains of their own from +0.
float tdpbf16ps(const MatrixUnit& u, const float* a, const float* b, float acc) {
  float even = 0.0f, odd = 0.0f;
  for (int i = 0; i < u.terms; i += 2) {
    even = fma_flushed(a[i], b[i], even);
    odd = fma_flushed(a[i + 1], b[i + 1], odd);
  }
  const float pair = without_subnormals(even + odd);
  return quiet(without_subnormals(without_subnormals(acc) + pair));
}

// Arm BFDOT and BFMMLA without FEAT_EBF16: two products are added, then the accumulator, each rounded to odd;
// subnormals are read and written as zeros.
float odd_sum(float x, float y) {
  bool found;
  const float one = 1.0f, special = special_sum(1, &y, &one, x, found);
  if (found) return special;
  Exact sum;
  for (const float v : {x, y}) {
    const Parts p = parts_of(v, -126);
    sum.add(p.negative ? -p.digits : p.digits, p.exponent - 23);
  }
  return without_subnormals(sum.rounded(Exact::Round::kOdd));
}
float bfdot(const MatrixUnit&, const float* a, const float* b, float acc) {
  const auto in = [](float x) { return without_subnormals(x); };
  const float p = without_subnormals(in(a[0]) * in(b[0])), q = without_subnormals(in(a[1]) * in(b[1]));
  return odd_sum(in(acc), odd_sum(p, q));
}

float chain_step(const MatrixUnit&, const float* a, const float* b, float acc) { return quiet(fma(a[0], b[0], acc)); }

// --- the table ---

using Step = float (*)(const MatrixUnit&, const float*, const float*, float);
template <Adder adder>
float nv(const MatrixUnit& u, const float* a, const float* b, float acc) {
  return nvidia_any(u, a, b, acc, adder);
}
struct Row {
  MatrixUnit unit;
  Step step;
};

constexpr const char* kMmasim = "mmasim 2.1.1";
constexpr const char* kIntel = "Intel 64 and IA-32 Software Developer's Manual, volume 2";
constexpr const char* kArm = "Arm Architecture Reference Manual, BFDotAdd without FEAT_EBF16";
constexpr const char* kOracle = "The step oracle, section 6";
constexpr const char* kTruncated =
    "aligned to the largest exponent, truncated, one rounding toward zero (arith/dot_add.h)";
constexpr const char* kBits13 = "as dot_add, 13 bits after the point, results of 13 fraction bits";
constexpr const char* kHalf = "as dot_add, float16 accumulator rounded to nearest even";
constexpr const char* kExact = "the exact sum, rounded once to nearest even";
constexpr const char* kPairs = "pairs, each operation rounded, subnormals flushed";
constexpr const char* kPairsOfPairs = "pairs of pairs, each operation rounded, subnormals flushed";
constexpr const char* kAligned = "aligned to 24 bits, then with the accumulator to 31, nearest even";
constexpr const char* kAlignedApart = "as cdna3-bf16, even and odd positions apart";

const std::vector<Row>& rows() {
  static const std::vector<Row> table = {
      {{"nv-volta-f16", kFp16, kFp16, 4, kTruncated, "peer", kMmasim}, nv<kAdderVolta>},
      {{"nv-turing-f16", kFp16, kFp16, 8, kTruncated, "peer", kMmasim}, nv<kAdderTuring>},
      {{"nv-ampere-bf16", kBf16, kBf16, 8, kTruncated, "peer", kMmasim}, nv<kAdderTuring>},
      {{"nv-ampere-f16", kFp16, kFp16, 8, kTruncated, "peer", kMmasim}, nv<kAdderTuring>},
      {{"nv-ampere-tf32", kTf32, kTf32, 4, kTruncated, "peer", kMmasim}, nv<kAdderTuring>},
      {{"nv-hopper-bf16", kBf16, kBf16, 16, kTruncated, "peer", kMmasim}, nv<kAdderHopper>},
      {{"nv-hopper-f16", kFp16, kFp16, 16, kTruncated, "peer", kMmasim}, nv<kAdderHopper>},
      {{"nv-hopper-tf32", kTf32, kTf32, 8, kTruncated, "peer", kMmasim}, nv<kAdderHopper>},
      {{"nv-volta-f16-f16", kFp16, kFp16, 4, kHalf, "peer", kMmasim}, nv<with_float16_results(kAdderVolta)>},
      {{"nv-turing-f16-f16", kFp16, kFp16, 8, kHalf, "peer", kMmasim}, nv<with_float16_results(kAdderTuring)>},
      {{"nv-hopper-f16-f16", kFp16, kFp16, 16, kHalf, "peer", kMmasim}, nv<with_float16_results(kAdderHopper)>},
      {{"nv-ada-e4m3", kE4m3, kE4m3, 16, kBits13, "peer", kMmasim}, nv<with_13_bits(kAdderTuring)>},
      {{"nv-ada-e4m3-e5m2", kE4m3, kE5m2, 16, kBits13, "peer", kMmasim}, nv<with_13_bits(kAdderTuring)>},
      {{"nv-ada-e5m2-e4m3", kE5m2, kE4m3, 16, kBits13, "peer", kMmasim}, nv<with_13_bits(kAdderTuring)>},
      {{"nv-ada-e5m2", kE5m2, kE5m2, 16, kBits13, "peer", kMmasim}, nv<with_13_bits(kAdderTuring)>},
      {{"nv-hopper-wgmma-e4m3", kE4m3, kE4m3, 32, kBits13, "peer", kMmasim}, nv<with_13_bits(kAdderHopper)>},
      {{"nv-hopper-wgmma-e4m3-e5m2", kE4m3, kE5m2, 32, kBits13, "peer", kMmasim}, nv<with_13_bits(kAdderHopper)>},
      {{"nv-hopper-wgmma-e5m2-e4m3", kE5m2, kE4m3, 32, kBits13, "peer", kMmasim}, nv<with_13_bits(kAdderHopper)>},
      {{"nv-hopper-wgmma-e5m2", kE5m2, kE5m2, 32, kBits13, "peer", kMmasim}, nv<with_13_bits(kAdderHopper)>},
      {{"nv-blackwell-e4m3", kE4m3, kE4m3, 32, kTruncated, "peer", kMmasim}, nv<kAdderHopper>},
      {{"nv-blackwell-e5m2", kE5m2, kE5m2, 32, kTruncated, "peer", kMmasim}, nv<kAdderHopper>},
      {{"amd-cdna1-bf16", kBf16, kBf16, 2, kExact, "peer", kMmasim}, exact_sum},
      {{"amd-cdna1-f16", kFp16, kFp16, 4, kExact, "peer", kMmasim}, exact_sum},
      {{"amd-cdna2-bf16", kBf16, kBf16, 2, kPairs, "peer", kMmasim}, flushed_pairs},
      {{"amd-cdna2-bf16-1k", kBf16, kBf16, 4, kPairsOfPairs, "peer", kMmasim}, flushed_pairs},
      {{"amd-cdna2-f16", kFp16, kFp16, 4, kPairsOfPairs, "peer", kMmasim}, flushed_pairs},
      {{"amd-cdna3-bf16", kBf16, kBf16, 8, kAligned, "peer", kMmasim}, cdna3},
      {{"amd-cdna3-f16", kFp16, kFp16, 8, kAligned, "peer", kMmasim}, cdna3},
      {{"amd-cdna3-xf32", kTf32, kTf32, 4, kAligned, "peer", kMmasim}, cdna3},
      {{"amd-cdna3-fp8", kE4m3Fnuz, kE4m3Fnuz, 16, kAlignedApart, "peer", kMmasim}, cdna3},
      {{"amd-cdna3-fp8-bf8", kE4m3Fnuz, kE5m2Fnuz, 16, kAlignedApart, "peer", kMmasim}, cdna3},
      {{"amd-cdna3-bf8-fp8", kE5m2Fnuz, kE4m3Fnuz, 16, kAlignedApart, "peer", kMmasim}, cdna3},
      {{"amd-cdna3-bf8", kE5m2Fnuz, kE5m2Fnuz, 16, kAlignedApart, "peer", kMmasim}, cdna3},
      {{"amd-f32", kF32, kF32, 1, "one FMA chain", "peer", kMmasim}, chain_step},
      {{"x86-vdpbf16ps", kBf16, kBf16, 2, "two FMAs, the odd position first, subnormals flushed", "vendor code",
        kIntel},
       vdpbf16ps},
      {{"x86-amx-bf16", kBf16, kBf16, 32, "even and odd chains of a tile, added, then the accumulator; flushed",
        "source", kIntel},
       tdpbf16ps},
      {{"arm-bfdot", kBf16, kBf16, 2, "two products added, then the accumulator, rounded to odd; flushed", "source",
        kArm},
       bfdot},
      {{"arm-bfmmla", kBf16, kBf16, 2, "as bfdot, twice an instruction", "source", kArm}, bfdot},
      {{"apple-f32", kF32, kF32, 1, "one FMA chain", "source", kOracle}, chain_step},
      {{"apple-bf16", kBf16, kBf16, 1, "one FMA chain in float32", "source", kOracle}, chain_step},
  };
  return table;
}

const Row& row_of(const MatrixUnit& unit) {
  for (const Row& r : rows())
    if (&r.unit == &unit || std::string_view(r.unit.name) == unit.name) return r;
  throw Error(ErrorKind::kBadInput, fmt::format("units: no unit is called '{}'", unit.name));
}

void check(const MatrixUnit& unit, const float* x, std::int64_t n, UnitFactors type, const char* which) {
  const TypeOf t = type_of(type);
  for (std::int64_t i = 0; i < n; ++i) {
    const Parts p = parts_of(x[i], -126);
    const int unused = 23 - t.fraction + (p.exponent < t.lowest ? t.lowest - p.exponent : 0);
    const bool exact = (p.digits & ((std::int64_t{1} << (unused > 62 ? 62 : unused)) - 1)) == 0;
    const float magnitude = float_of(bits_of(x[i]) & 0x7fffffffu);
    const bool fits = p.nan || (p.infinite ? t.infinities : exact && magnitude <= t.most);
    if (!fits)
      throw Error(ErrorKind::kBadInput,
                  fmt::format("units: {} does not hold {}[{}] = {}; round it to the unit's type first", unit.name,
                              which, i, x[i]));
  }
}

}  // namespace

const std::vector<MatrixUnit>& all_units() {
  static const std::vector<MatrixUnit> units = [] {
    std::vector<MatrixUnit> out;
    for (const Row& r : rows()) out.push_back(r.unit);
    return out;
  }();
  return units;
}

const MatrixUnit& unit_by_name(std::string_view name) {
  std::string known;
  for (const MatrixUnit& u : all_units()) {
    if (u.name == name) return u;
    known += (known.empty() ? "" : ", ") + std::string(u.name);
  }
  throw Error(ErrorKind::kBadInput, fmt::format("units: no unit is called '{}'; known are {}", name, known));
}

float step(const MatrixUnit& unit, const float* a, const float* b, float acc) {
  return row_of(unit).step(unit, a, b, acc);
}

void run(const MatrixUnit& unit, const UnitParams& p) {
  if (p.m < 0 || p.n < 0 || p.k < 0)
    throw Error(ErrorKind::kBadInput, fmt::format("units: m {} n {} k {}; give sizes of 0 or more", p.m, p.n, p.k));
  const Row& row = row_of(unit);
  check(unit, p.a, p.m * p.k, unit.a, "a");
  check(unit, p.b, p.k * p.n, unit.b, "b");
  parallel_for(p.m, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i)
      for (std::int64_t j = 0; j < p.n; ++j) {
        float acc = p.c ? p.c[i * p.n + j] : 0.0f;
        for (std::int64_t q = 0; q < p.k; q += unit.terms) {
          float x[32] = {}, y[32] = {};
          for (std::int64_t s = 0; s < unit.terms && q + s < p.k; ++s)
            x[s] = p.a[i * p.k + q + s], y[s] = p.b[(q + s) * p.n + j];
          acc = row.step(unit, x, y, acc);
        }
        p.d[i * p.n + j] = acc;
      }
  });
}

}  // namespace step_oracle::gemm
