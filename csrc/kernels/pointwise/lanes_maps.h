// Rows of maps.inc over vectors (AVX-512, AVX2) whose tables stay in registers through the loop; the other rows call a
// vector function for each 16 elements. The formulas are maps.inc's.
#pragma once
#include "csrc/kernels/arith/libdevice_lanes.h"
#include "csrc/kernels/pointwise/pointwise_body.h"

SO_ISA_BEGIN
namespace {

// The row's map over vectors, or null.
template <pointwise::RowIndex>
struct InLanes {
  static constexpr pointwise::MapFn fn = nullptr;
};

#ifdef SO_EX2_LANES
namespace lanes {
using libdevice::all;
using libdevice::all_within;
using libdevice::Floats;
using libdevice::kFloats;
using libdevice::load;
using libdevice::negated;
using libdevice::store;

// Calls run(begin, end, whole) over pieces of [0, n): whole ones, multiples of kFloats whose elements of `x` are within
// `limit`, and others.
template <class Run>
[[gnu::always_inline]] inline void in_pieces(const float* x, std::int64_t n, float limit, Run run) {
  constexpr std::int64_t kPiece = 256;
  for (std::int64_t at = 0; at < n;) {
    const std::int64_t left = n - at, m = left < kFloats ? left : (left < kPiece ? left : kPiece) / kFloats * kFloats;
    run(at, at + m, left >= kFloats && all_within(x + at, m, limit));
    at += m;
  }
}

struct Exp {
  static constexpr float kLimit = libdevice::kExpInside;
  [[gnu::always_inline]] static Floats of(Floats x) { return libdevice::exp_inside(x); }
};
struct Sigmoid {
  static constexpr float kLimit = libdevice::kExpInside;
  [[gnu::always_inline]] static Floats of(Floats x) {
    return all(1.0f) / (all(1.0f) + libdevice::exp_inside(negated(x)));
  }
};
struct Silu {
  static constexpr float kLimit = libdevice::kExpInside;
  [[gnu::always_inline]] static Floats of(Floats x) { return x / (all(1.0f) + libdevice::exp_inside(negated(x))); }
};
struct Erf {
  [[gnu::always_inline]] static Floats of(Floats x) { return libdevice::canonical(libdevice::erf_lanes(x)); }
};
struct GeluErf {
  [[gnu::always_inline]] static Floats of(Floats x) {
    const Floats cdf = all(1.0f) + libdevice::erf_lanes(x * all(0x1.6a09e6p-1f));
    return libdevice::canonical((x * all(0.5f)) * cdf);
  }
};
struct SiluBackward {  // dy, x
  static constexpr float kLimit = libdevice::kExpInside;
  [[gnu::always_inline]] static Floats of(Floats dy, Floats x) {
    const Floats s = Sigmoid::of(x);
    return libdevice::canonical((dy * s) * libdevice::fma(x, all(1.0f) - s, 1.0f));
  }
};
struct GeluErfBackward {                  // dy, x
  static constexpr float kLimit = 13.0f;  // x^2 / 2 is within kExpInside
  [[gnu::always_inline]] static Floats of(Floats dy, Floats x) {
    const Floats pdf = libdevice::exp_inside((x * all(-0.5f)) * x) * all(0x1.988454p-2f);
    const Floats cdf = all(0.5f) * (all(1.0f) + libdevice::erf_lanes(x * all(0x1.6a09e6p-1f)));
    return libdevice::canonical(dy * (cdf + x * pdf));
  }
};

// Not inlined: it would take the loops' registers.
template <pointwise::MapFn kMap>
[[gnu::noinline]] void other(void* out, const float* x, const float* y, std::int64_t n,
                             const pointwise::Scalars& scalars) {
  const void* in[3] = {x, y, nullptr};
  kMap(out, in, n, scalars);
}

// For any number.
template <class Formula, pointwise::MapFn kMap>
void map_any(void* out, const void* const* in, std::int64_t n, const pointwise::Scalars& scalars) {
  const float* x = static_cast<const float*>(in[0]);
  float* o = static_cast<float*>(out);
  std::int64_t i = 0;
  for (; i + kFloats <= n; i += kFloats) store(o + i, Formula::of(load(x + i)));
  if (i < n) other<kMap>(o + i, x + i, nullptr, n - i, scalars);
}
// For numbers within the formula's limit.
template <class Formula, pointwise::MapFn kMap>
void map_within(void* out, const void* const* in, std::int64_t n, const pointwise::Scalars& scalars) {
  const float* x = static_cast<const float*>(in[0]);
  float* o = static_cast<float*>(out);
  in_pieces(x, n, Formula::kLimit, [&](std::int64_t begin, std::int64_t end, bool within) {
    if (within) {
      for (std::int64_t i = begin; i < end; i += kFloats) store(o + i, Formula::of(load(x + i)));
    } else {
      other<kMap>(o + begin, x + begin, nullptr, end - begin, scalars);
    }
  });
}
// The same of two operands; the second is within the limit.
template <class Formula, pointwise::MapFn kMap>
void map_second_within(void* out, const void* const* in, std::int64_t n, const pointwise::Scalars& scalars) {
  const float *x = static_cast<const float*>(in[0]), *y = static_cast<const float*>(in[1]);
  float* o = static_cast<float*>(out);
  in_pieces(y, n, Formula::kLimit, [&](std::int64_t begin, std::int64_t end, bool within) {
    if (within) {
      for (std::int64_t i = begin; i < end; i += kFloats) store(o + i, Formula::of(load(x + i), load(y + i)));
    } else {
      other<kMap>(o + begin, x + begin, y + begin, end - begin, scalars);
    }
  });
}
}  // namespace lanes

#define SO_IN_LANES(row, walk, Formula)                                                          \
  template <>                                                                                    \
  struct InLanes<pointwise::RowIndex::row> {                                                     \
    static constexpr pointwise::MapFn fn = &lanes::walk<lanes::Formula, &map_##row<RoundBrain>>; \
  };
SO_IN_LANES(exp_F, map_within, Exp)
SO_IN_LANES(sigmoid_F, map_within, Sigmoid)
SO_IN_LANES(silu_F, map_within, Silu)
SO_IN_LANES(erf_F, map_any, Erf)
SO_IN_LANES(gelu_erf_F, map_any, GeluErf)
SO_IN_LANES(silu_backward_F, map_second_within, SiluBackward)
SO_IN_LANES(gelu_erf_backward_F, map_second_within, GeluErfBackward)
#undef SO_IN_LANES
#endif

}  // namespace
SO_ISA_END
