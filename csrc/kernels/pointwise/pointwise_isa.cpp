#include "csrc/kernels/pointwise/element.h"
#include "csrc/kernels/pointwise/formulas.h"
#include "csrc/kernels/pointwise/pointwise_body.h"

SO_ISA_BEGIN
namespace {
using pointwise::Domain;
using pointwise::kDTypes;
using pointwise::Kind;
using pointwise::MapFn;
using pointwise::RowIndex;
using pointwise::Scalars;

// ---- maps
struct RoundBrain {
  static float r(float x) { return widen(narrow(x, 0x7fff)); }
};
struct RoundHalf {
  static float r(float x) { return widen(narrow_half(x)); }
};

template <Domain>
struct Space;
template <>
struct Space<Domain::F> {
  using T = float;
  static T scalar(const Scalars& s, int k) { return s.f[k]; }
};
template <>
struct Space<Domain::H> : Space<Domain::F> {};
template <>
struct Space<Domain::D> {
  using T = double;
  static T scalar(const Scalars& s, int k) { return s.d[k]; }
};
template <>
struct Space<Domain::I> {
  using T = std::int64_t;
  static T scalar(const Scalars& s, int k) { return s.i[k]; }
};

template <Kind kind, class T>
struct Result {
  using Out = T;
  static T of(T v) { return kind == Kind::arith ? canonical(v) : v; }
};
template <class T>
struct Result<Kind::test, T> {
  using Out = Bool;
  static Bool of(bool v) { return Bool{v}; }
};

// In place is allowed (out is one of the inputs), partial overlap is not: ivdep holds. A call left in the loop would
// keep it from vectorising: flatten inlines all of them.
#define SO_MAP(name, domain, inputs, kind, ...)                                                          \
  template <class Round>                                                                                 \
  [[gnu::flatten]]                                                                                       \
  void map_##name##_##domain(void* out, const void* const* in, std::int64_t n, const Scalars& scalars) { \
    using S = Space<Domain::domain>;                                                                     \
    using T = S::T;                                                                                      \
    using R = Result<Kind::kind, T>;                                                                     \
    [[maybe_unused]] const auto r = [](float v) { return Round::r(v); };                                 \
    [[maybe_unused]] const T s = S::scalar(scalars, 0), t = S::scalar(scalars, 1);                       \
    const T* xs = static_cast<const T*>(in[0]);                                                          \
    const T* ys = static_cast<const T*>(in[inputs > 1 ? 1 : 0]);                                         \
    const T* zs = static_cast<const T*>(in[inputs > 2 ? 2 : 0]);                                         \
    auto* o = static_cast<R::Out*>(out);                                                                 \
    _Pragma("GCC ivdep") for (std::int64_t i = 0; i < n; ++i) {                                          \
      [[maybe_unused]] const T x = xs[i], y = ys[i], z = zs[i];                                          \
      o[i] = R::of(__VA_ARGS__);                                                                         \
    }                                                                                                    \
  }
#include "csrc/kernels/pointwise/maps.inc"
#undef SO_MAP

}  // namespace
SO_ISA_END
#include "csrc/kernels/pointwise/lanes_maps.h"  // of the maps above
SO_ISA_BEGIN
namespace {

template <RowIndex kRow, MapFn kMap>
constexpr MapFn fastest() {
  return InLanes<kRow>::fn != nullptr ? InLanes<kRow>::fn : kMap;
}
constexpr MapFn kMaps[] = {
#define SO_MAP(name, domain, inputs, kind, ...) \
  fastest<RowIndex::name##_##domain, &map_##name##_##domain<RoundBrain>>(),
#include "csrc/kernels/pointwise/maps.inc"
#undef SO_MAP
};
constexpr MapFn kMapsHalf[] = {
#define SO_MAP(name, domain, inputs, kind, ...) \
  Domain::domain == Domain::H ? &map_##name##_##domain<RoundHalf> : nullptr,
#include "csrc/kernels/pointwise/maps.inc"
#undef SO_MAP
};

// ---- conversions
template <class From, class To>
void convert(const void* in, void* out, std::int64_t n, std::uint16_t bf16_nan) {
  const From* x = static_cast<const From*>(in);
  To* y = static_cast<To*>(out);
  const Nan16 nan{bf16_nan};
  for (std::int64_t i = 0; i < n; ++i) {
    To v;
    store(value_of(x[i]), v, nan);
    y[i] = v;
  }
}
using ConvertFn = void (*)(const void*, void*, std::int64_t, std::uint16_t);
#define SO_TO(name, To) &convert<From, To>,
template <class From>
struct ConvertFrom {
  static constexpr ConvertFn row[kDTypes] = {SO_FOR_EACH_DTYPE(SO_TO)};
};
#undef SO_TO
// bfloat16 -> float32 keeps payloads: a move of bits (value_of), so is float32 -> float32.
#define SO_FROM(name, From)                                                                                    \
  {ConvertFrom<From>::row[0], ConvertFrom<From>::row[1], ConvertFrom<From>::row[2], ConvertFrom<From>::row[3], \
   ConvertFrom<From>::row[4], ConvertFrom<From>::row[5], ConvertFrom<From>::row[6], ConvertFrom<From>::row[7], \
   ConvertFrom<From>::row[8], ConvertFrom<From>::row[9]},
constexpr ConvertFn kConvert[kDTypes][kDTypes] = {SO_FOR_EACH_DTYPE(SO_FROM)};
#undef SO_FROM

void narrow_all_exact(const void* in, void* out, std::int64_t n) {
  const float* x = static_cast<const float*>(in);
  Brain* y = static_cast<Brain*>(out);
  for (std::int64_t i = 0; i < n; ++i) y[i] = narrow_exact(x[i]);
}
void narrow_all_exact_half(const void* in, void* out, std::int64_t n) {
  const float* x = static_cast<const float*>(in);
  Half* y = static_cast<Half*>(out);
  for (std::int64_t i = 0; i < n; ++i) y[i] = narrow_half_exact(x[i]);
}
void canonical_all(float* x, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) x[i] = canonical(x[i]);
}

// ---- moves of bits
template <class U>
void gather(const void* in, std::int64_t stride, void* out, std::int64_t n) {
  const char* x = static_cast<const char*>(in);
  U* y = static_cast<U*>(out);
  for (std::int64_t i = 0; i < n; ++i) y[i] = *reinterpret_cast<const U*>(x + i * stride);
}
template <class U>
void scatter(const void* in, void* out, std::int64_t stride, std::int64_t n) {
  const U* x = static_cast<const U*>(in);
  char* y = static_cast<char*>(out);
  for (std::int64_t i = 0; i < n; ++i) *reinterpret_cast<U*>(y + i * stride) = x[i];
}
template <class U>
void move(const void* in, std::int64_t in_stride, void* out, std::int64_t out_stride, std::int64_t n) {
  const char* x = static_cast<const char*>(in);
  char* y = static_cast<char*>(out);
  for (std::int64_t i = 0; i < n; ++i)
    *reinterpret_cast<U*>(y + i * out_stride) = *reinterpret_cast<const U*>(x + i * in_stride);
}

// In tiles, so that the lines of both sides stay in the first cache while they are used.
template <class U>
void transpose(const void* in, std::int64_t in_stride, void* out, std::int64_t out_stride, std::int64_t rows,
               std::int64_t cols) {
  constexpr std::int64_t kTile = 32;
  for (std::int64_t r0 = 0; r0 < rows; r0 += kTile)
    for (std::int64_t c0 = 0; c0 < cols; c0 += kTile) {
      const std::int64_t r1 = r0 + kTile < rows ? r0 + kTile : rows, c1 = c0 + kTile < cols ? c0 + kTile : cols;
      for (std::int64_t r = r0; r < r1; ++r) {
        U* to = reinterpret_cast<U*>(static_cast<char*>(out) + r * out_stride);
        const char* from = static_cast<const char*>(in) + r * static_cast<std::int64_t>(sizeof(U));
        for (std::int64_t c = c0; c < c1; ++c) to[c] = *reinterpret_cast<const U*>(from + c * in_stride);
      }
    }
}

template <class U>
void select_contiguous(U* out, const std::uint8_t* mask, const U* a, const U* b, std::int64_t n) {
  _Pragma("GCC ivdep") for (std::int64_t i = 0; i < n; ++i) out[i] = mask[i] != 0 ? a[i] : b[i];
}
template <class U>
void select(char* const* data, const std::int64_t* stride, std::int64_t n) {
  constexpr std::int64_t size = sizeof(U);
  if (stride[0] == size && stride[1] == 1 && stride[2] == size && stride[3] == size) {
    select_contiguous(reinterpret_cast<U*>(data[0]), reinterpret_cast<const std::uint8_t*>(data[1]),
                      reinterpret_cast<const U*>(data[2]), reinterpret_cast<const U*>(data[3]), n);
    return;
  }
  for (std::int64_t i = 0; i < n; ++i) {
    const char* from = data[1][i * stride[1]] != 0 ? data[2] + i * stride[2] : data[3] + i * stride[3];
    *reinterpret_cast<U*>(data[0] + i * stride[0]) = *reinterpret_cast<const U*>(from);
  }
}

void arange_f32(float* out, std::int64_t begin, std::int64_t n, float start, float step) {
  for (std::int64_t i = 0; i < n; ++i) out[i] = canonical(fma(step, static_cast<float>(begin + i), start));
}

}  // namespace

extern const PointwiseBody pointwise_body;
const PointwiseBody pointwise_body = {
    kMaps,
    kMapsHalf,
    kConvert,
    &narrow_all_exact,
    &narrow_all_exact_half,
    &canonical_all,
    {&gather<std::uint8_t>, &gather<std::uint16_t>, &gather<std::uint32_t>, &gather<std::uint64_t>},
    {&scatter<std::uint8_t>, &scatter<std::uint16_t>, &scatter<std::uint32_t>, &scatter<std::uint64_t>},
    {&move<std::uint8_t>, &move<std::uint16_t>, &move<std::uint32_t>, &move<std::uint64_t>},
    {&transpose<std::uint8_t>, &transpose<std::uint16_t>, &transpose<std::uint32_t>, &transpose<std::uint64_t>},
    {&select<std::uint8_t>, &select<std::uint16_t>, &select<std::uint32_t>, &select<std::uint64_t>},
    &arange_f32,
};
SO_ISA_END
