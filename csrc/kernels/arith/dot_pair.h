// The unchecked form of the tensor-core adder's tiles (dot_tile.h) on AVX-512: two rows of outputs, one half a group
// behind the other. Beside one row's products (a multiplication, an addition to the exponent field, a conversion and
// an integer addition each) stand the end of the other row's last group (the sum rounded to float32) and the beginning
// of its next (the largest exponent, the scale, the aligned accumulator).
//
// One operation of the one for every few of the other, in the order written, is what a core with four vector units
// takes best: a row after the other takes 1.2 times as long, both in step 1.15 times [probe Zen 5]. SO_PIN holds
// operations in that order: gcc 12 would gather the multiplications and make trees of the additions.
#pragma once
#include <cstdint>
#include <utility>

#include "csrc/kernels/arith/dot_tile.h"
#include "csrc/kernels/core/vec.h"

#if defined(__AVX512F__)
SO_ISA_BEGIN
namespace dot_tile {

#define SO_PIN(x) asm volatile("" : "+v"(x))

// Of a tile's vectors of columns the first kVecs.
template <int kTerms, int kFractionBits, int kVecs = kTensorVecs>
struct Pair {
  struct Row {
    Vec acc[kVecs] = {};
    IntVec sum[kVecs] = {}, scale[kVecs] = {};
    Vec largest_sum = {};
  };
  struct Factors {  // of one group: of a row of A and of a tile of columns of B
    const float* a;
    const float* b;
  };
  struct Exponents {
    const std::uint32_t* a;
    const std::uint8_t* b;
  };
  static constexpr bool kGuarded = kTerms > 8;  // an int32 sum may wrap

  const IntVec scale_base = broadcast_int((127 + kFractionBits) << 23);
  const IntVec floor = broadcast_int(0x01010101u * kFloorField<kFractionBits>);
  const IntVec exponent_mask = broadcast_int(0x7f800000u);

  // --- a group's products: operation i of kProducts ---

  static constexpr int kProducts = 4 * kVecs * kTerms;
  template <int i>
  SO_ALWAYS_INLINE static void product(Row& row, const Factors& at, Vec& x, Vec (&y)[kVecs]) {
    constexpr int s = i / (4 * kVecs), stage = i / kVecs % 4, v = i % kVecs;
    if constexpr (stage == 0 && v == 0) {
      x = broadcast(at.a[s]);
      SO_PIN(x);
    }
    if constexpr (stage == 0)
      y[v] = mul(x, load(at.b + s * kCols + v * kLanes));
    else if constexpr (stage == 1)
      y[v] = float_of(add_int(bits_of(y[v]), row.scale[v]));
    else if constexpr (stage == 2)
      y[v] = float_of(truncated(y[v]));
    else
      row.sum[v] = add_int(row.sum[v], bits_of(y[v]));
    if constexpr (stage < 3)
      SO_PIN(y[v]);
    else
      SO_PIN(row.sum[v]);
  }

  // --- between two groups: operation i of kBetween ---

  struct Bytes {
    IntVec most, next;
  };
  static constexpr int kExponentsEnd = 2 * kTerms, kGroupEnd = kExponentsEnd + (kGuarded ? 3 : 2) * kVecs,
                       kBetween = kGroupEnd + 6 * kVecs;

  template <int i>
  SO_ALWAYS_INLINE void exponents(const Exponents& at, Bytes& bytes) const {
    constexpr int s = (i + 1) / 2;
    if constexpr (i == 0)
      bytes.most = sub_bytes_saturated(broadcast_int(at.a[0]), load_int(at.b));
    else if constexpr (i == kExponentsEnd - 1)
      bytes.most = max_bytes(bytes.most, floor);
    else if constexpr (i % 2 == 1)
      bytes.next = sub_bytes_saturated(broadcast_int(at.a[s]), load_int(at.b + s * kCols));
    else
      bytes.most = max_bytes(bytes.most, bytes.next);
    if constexpr (i % 2 == 1 && i != kExponentsEnd - 1)
      SO_PIN(bytes.next);
    else
      SO_PIN(bytes.most);
  }

  template <int stage, int v>
  SO_ALWAYS_INLINE void end(Row& row) const {
    if constexpr (stage == 0)
      row.acc[v] = float_toward_zero(row.sum[v]);
    else if constexpr (kGuarded && stage == 1)
      row.largest_sum = larger_magnitude(row.largest_sum, row.acc[v]);
    else  // a sum of zero stays zero
      row.acc[v] = float_of(sub_halves_saturated(bits_of(row.acc[v]), row.scale[v]));
    SO_PIN(row.acc[v]);
  }

  template <int stage, int v>
  SO_ALWAYS_INLINE void begin(Row& row, const Bytes& bytes) const {
    if constexpr (stage == 0)
      row.scale[v] = exponent_of_byte<v>(bytes.most);
    else if constexpr (stage == 1)
      row.scale[v] = larger_magnitude_bits(row.scale[v], row.acc[v]);
    else if constexpr (stage == 2)
      row.scale[v] = and_int(row.scale[v], exponent_mask);
    else if constexpr (stage == 3)
      row.scale[v] = sub_int(scale_base, row.scale[v]);
    else if constexpr (stage == 4)
      row.sum[v] = add_int(bits_of(row.acc[v]), row.scale[v]);
    else
      row.sum[v] = truncated(float_of(row.sum[v]));
    if constexpr (stage < 4)
      SO_PIN(row.scale[v]);
    else
      SO_PIN(row.sum[v]);
  }

  // kEnds: a group ends. Where c is given, a chain ends with it: the accumulators are added to c and begin again at +0.
  template <int i, bool kEnds>
  SO_ALWAYS_INLINE void between(Row& row, const Exponents& at, Bytes& bytes, float* c) const {
    if constexpr (i < kExponentsEnd) {
      exponents<i>(at, bytes);
    } else if constexpr (i >= kGroupEnd) {
      begin<(i - kGroupEnd) / kVecs, (i - kGroupEnd) % kVecs>(row, bytes);
    } else if constexpr (kEnds) {
      end<(i - kExponentsEnd) / kVecs, (i - kExponentsEnd) % kVecs>(row);
      if constexpr (i == kGroupEnd - 1)
        if (c) [[unlikely]]
          add_to_c(row, c);
    }
  }
  SO_ALWAYS_INLINE static void add_to_c(Row& row, float* c) {
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) {
      store(c + v * kLanes, add(load(c + v * kLanes), row.acc[v]));  // a sum of integers is never -0
      row.acc[v] = zeros();
    }
  }

  // --- the two beside each other ---

  template <int i, bool kEnds>
  SO_ALWAYS_INLINE void slot(Row& row, const Factors& at, Vec& x, Vec (&y)[kVecs], Row& other,
                             const Exponents& next, Bytes& bytes, float* c) const {
    constexpr int from = (i * kBetween + kProducts - 1) / kProducts;
    constexpr int to = ((i + 1) * kBetween + kProducts - 1) / kProducts;
    static_assert(to - from <= 1);
    if constexpr (from < to) between<from, kEnds>(other, next, bytes, c);
    product<i>(row, at, x, y);
  }
  template <bool kEnds, int... i>
  SO_ALWAYS_INLINE void slots(Row& row, const Factors& at, Row& other, const Exponents& next, float* c,
                              std::integer_sequence<int, i...>) const {
    Vec x, y[kVecs];
    Bytes bytes;
    (slot<i, kEnds>(row, at, x, y, other, next, bytes, c), ...);
  }
  template <bool kEnds>
  SO_ALWAYS_INLINE void half(Row& row, const Factors& at, Row& other, const Exponents& next, float* c = nullptr) const {
    slots<kEnds>(row, at, other, next, c, std::make_integer_sequence<int, kProducts>());
  }

  template <int... i>
  SO_ALWAYS_INLINE void start(Row& row, const Exponents& at, std::integer_sequence<int, i...>) const {
    Bytes bytes;
    (between<i, false>(row, at, bytes, nullptr), ...);
  }
  SO_ALWAYS_INLINE void start(Row& row, const Exponents& at) const {
    start(row, at, std::make_integer_sequence<int, kBetween>());
  }
  SO_ALWAYS_INLINE void finish(Row& row) const {
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) {
      const Vec f = float_toward_zero(row.sum[v]);
      if (kGuarded) row.largest_sum = larger_magnitude(row.largest_sum, f);
      row.acc[v] = float_of(sub_halves_saturated(bits_of(f), row.scale[v]));
    }
  }
};

// --- chains that begin at +0 and are added to C, one after the other ---

struct Group {
  Int a, b;   // where it begins in a row of A and in a tile of columns of B, in elements
  bool last;  // of its chain
};
// Of the list of groups, those of a pair of rows: [begin, end), never empty. The last of them ends its chain.
struct GroupRange {
  std::int32_t begin, end;
};
struct Staged {
  const float* a;
  const std::uint32_t* a_exponent;
  Int a_pitch;
  const GroupRange* ranges;  // of pairs of rows
  Int pairs;
  const float* b;
  const std::uint8_t* b_exponent;
  const Group* groups;
  float* c;
  Int c_pitch;
};

template <int kTerms, int kFractionBits, int kVecs>
[[gnu::noinline]] void staged_pairs(const Staged& t) {
  using P = Pair<kTerms, kFractionBits, kVecs>;
  static_assert(!P::kGuarded);
  const P pair;
  typename P::Row upper, lower;
  const float *const a = t.a, *const b = t.b;
  const std::uint32_t* const a_exponent = t.a_exponent;
  const std::uint8_t* const b_exponent = t.b_exponent;
  const Int second = t.a_pitch, second_c = t.c_pitch;
  const auto factors = [=](Int row, const Group* g) { return typename P::Factors{a + row + g->a, b + g->b}; };
  const auto exponents = [=](Int row, const Group* g) {
    return typename P::Exponents{a_exponent + row + g->a, b_exponent + g->b};
  };
  const GroupRange *range = t.ranges, *const ranges_end = range + t.pairs;
  const Group *g = t.groups + range->begin, *end = t.groups + range->end;
  Int row = 0;
  float* c = t.c;
  pair.start(upper, exponents(row, g));
  pair.template half<false>(upper, factors(row, g), lower, exponents(row + second, g));
  for (;;) {
    const Group* next = g + 1;
    Int next_row = row;
    float* next_c = c;
    bool last = g->last;
    if (next == end) {
      if (++range == ranges_end) break;
      next = t.groups + range->begin, end = t.groups + range->end, last = true;
      next_row += kRows * second, next_c += kRows * second_c;
    }
    pair.template half<true>(lower, factors(row + second, g), upper, exponents(next_row, next), last ? c : nullptr);
    pair.template half<true>(upper, factors(next_row, next), lower, exponents(next_row + second, next),
                             last ? c + second_c : nullptr);
    g = next, row = next_row, c = next_c;
  }
  pair.template half<true>(lower, factors(row + second, g), upper, exponents(row, g), c);
  pair.finish(lower);
  P::add_to_c(lower, c + second_c);
}

// --- one chain ---

// As fast_tile (dot_tile.h).
template <int kTerms, int kFractionBits>
[[gnu::noinline]] bool pair_tile(const Tile& t) {
  using P = Pair<kTerms, kFractionBits>;
  const P pair;
  typename P::Row upper, lower;
  float *const c0 = t.acc, *const c1 = t.acc + t.acc_pitch;
  if (!t.first)
#pragma GCC unroll 4
    for (int v = 0; v < kTensorVecs; ++v)
      upper.acc[v] = load(c0 + v * kLanes), lower.acc[v] = load(c1 + v * kLanes);
  const auto factors = [&](Int row, Int q) { return typename P::Factors{t.a + row + q, t.b + q * kCols}; };
  const auto exponents = [&](Int row, Int q) {
    return typename P::Exponents{t.a_exponent + row + q, t.b_exponent + q * kCols};
  };
  const auto live_from = [&](Int q) {
    while (q < t.depth && !t.live[q]) q += kTerms;
    return q;
  };
  const Int second = t.a_pitch;
  Int q = live_from(0);
  if (q < t.depth) {
    pair.start(upper, exponents(0, q));
    pair.template half<false>(upper, factors(0, q), lower, exponents(second, q));
    for (Int next = live_from(q + kTerms); next < t.depth; q = next, next = live_from(q + kTerms)) {
      pair.template half<true>(lower, factors(second, q), upper, exponents(0, next));
      pair.template half<true>(upper, factors(0, next), lower, exponents(second, next));
    }
    pair.template half<true>(lower, factors(second, q), upper, exponents(0, q));
    pair.finish(lower);
  }
  if (P::kGuarded && (any_not_below(upper.largest_sum, kWrapped) || any_not_below(lower.largest_sum, kWrapped)))
    return false;
#pragma GCC unroll 4
  for (int v = 0; v < kTensorVecs; ++v) {  // -0 to +0
    store(c0 + v * kLanes, add(upper.acc[v], zeros()));
    store(c1 + v * kLanes, add(lower.acc[v], zeros()));
  }
  return true;
}

#undef SO_PIN

}  // namespace dot_tile
SO_ISA_END
#endif

SO_ISA_BEGIN
namespace dot_tile {

// kForm is not kScalar: those outputs are the caller's.
template <class Format, int kTerms, int kFractionBits>
void run_tile(const Tile& t, Form form) {
  if (form == Form::kUnchecked) {
#if defined(__AVX512F__)
    if (pair_tile<kTerms, kFractionBits>(t)) return;
#else
    if (fast_tile<kTerms, kFractionBits, false>(t)) return;
#endif
  }
  if (form == Form::kChecked && fast_tile<kTerms, kFractionBits, true>(t)) return;
  wide_tile<Format, kTerms, kFractionBits>(t);
}

}  // namespace dot_tile
SO_ISA_END
