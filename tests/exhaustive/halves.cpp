// 16-bit operators: the unary ones over all 65,536 inputs, the binary ones over all pairs. The expected results are
// float32 results (of the vendor's functions, or of double arithmetic rounded), rounded to the 16-bit type.
#include <cmath>
#include <vector>

#if defined(__F16C__)
#include <immintrin.h>
#endif

#include "csrc/kernels/core/bits.h"
#include "tests/exhaustive/product.h"
#include "tests/exhaustive/rounding.h"
#include "tests/exhaustive/sweep.h"

namespace step_oracle::exhaustive {
namespace {

constexpr int kAll = 1 << 16;
struct Type {
  const char* name;
  DType type;
  Format format;
};
const Type kBf16{"bfloat16", DType::kBF16, kBrain}, kF16{"float16", DType::kF16, kHalf};

inline bool is_nan(const Type& type, std::uint16_t h) {
  return (h & 0x7fff) > ((1 << type.format.exponent) - 1) << type.format.fraction;
}

const std::vector<std::uint16_t>& patterns() {
  static const std::vector<std::uint16_t> all = [] {
    std::vector<std::uint16_t> v(kAll);
    for (int i = 0; i < kAll; ++i) v[i] = static_cast<std::uint16_t>(i);
    return v;
  }();
  return all;
}
std::vector<float> values(const Type& type) {
  std::vector<float> v(kAll);
  for (int i = 0; i < kAll; ++i) v[i] = widened(static_cast<std::uint16_t>(i), type.format);
  return v;
}
const std::vector<float>& values_of(const Type& type) {
  static const std::vector<float> brain = values(kBf16), half = values(kF16);
  return &type == &kBf16 ? brain : half;
}

// To nearest even by comparing what is cut off, or by the CPU's own conversion: neither is the product's way, nor that
// of `rounded`, which the sweeps to_bfloat16 and to_float16 use.
inline std::uint16_t brain_of(float x) {
  const std::uint32_t u = bits_of(x), kept = u >> 16, rest = u & 0xffffu;
  const std::uint32_t up = (rest > 0x8000u) | ((rest == 0x8000u) & (kept & 1u));
  return static_cast<std::uint16_t>(x != x ? 0x7fffu : kept + up);
}
inline std::uint16_t half_of(float x) {
#if defined(__F16C__)
  return static_cast<std::uint16_t>(x != x ? 0x7fff : _cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT));
#else
  return rounded(x, kHalf);
#endif
}
void round_all(const Type& type, const float* x, std::uint16_t* y, int n) {
  if (&type == &kBf16)
    for (int i = 0; i < n; ++i) y[i] = brain_of(x[i]);
  else
    for (int i = 0; i < n; ++i) y[i] = half_of(x[i]);
}
void round_in_place(const Type& type, float* x, int n) {
  if (&type == &kBf16)
    for (int i = 0; i < n; ++i) x[i] = float_of(static_cast<std::uint32_t>(brain_of(x[i])) << 16);
  else
    for (int i = 0; i < n; ++i) x[i] = widened(half_of(x[i]), kHalf);
}

// One operation in float32: sums, products and quotients of 16-bit numbers in double, rounded to float, are rounded
// once (the products are exact in double, the others no nearer to a tie than double tells).
inline float plus(float a, float b) { return static_cast<float>(static_cast<double>(a) + static_cast<double>(b)); }
inline float minus(float a, float b) { return static_cast<float>(static_cast<double>(a) - static_cast<double>(b)); }
inline float times(float a, float b) { return static_cast<float>(static_cast<double>(a) * static_cast<double>(b)); }
inline float over(float a, float b) { return static_cast<float>(static_cast<double>(a) / static_cast<double>(b)); }

// ---- unary
using Floats = void (*)(const Type& type, const float* x, float* y, int n);
struct Unary {
  const char* name;
  Map map;
  Floats expected;
  bool vendor, selects;  // selects: a NaN keeps its payload
};
#define SO_VENDOR(name, function) \
  {#name, {#name}, [](const Type&, const float* x, float* y, int n) { vendor().function(x, y, n); }, true, false},
#define SO_EACH(name, map, selects, ...)                              \
  {#name, map, [](const Type&, const float* xs, float* ys, int n) {   \
     for (int i = 0; i < n; ++i) {                                    \
       const float x = xs[i];                                         \
       ys[i] = __VA_ARGS__;                                           \
     }                                                                \
   }, false, selects},

void sigmoid(const Type&, const float* x, float* y, int n) {
  for (int i = 0; i < n; ++i) y[i] = -x[i];
  vendor().expf(y, y, n);
  for (int i = 0; i < n; ++i) y[i] = 1.0f / (1.0f + y[i]);
}
void silu(const Type&, const float* x, float* y, int n) {
  for (int i = 0; i < n; ++i) y[i] = -x[i];
  vendor().expf(y, y, n);
  for (int i = 0; i < n; ++i) y[i] = x[i] / (1.0f + y[i]);
}
void gelu_erf(const Type&, const float* x, float* y, int n) {
  for (int i = 0; i < n; ++i) y[i] = x[i] * 0x1.6a09e6p-1f;
  vendor().erff(y, y, n);
  for (int i = 0; i < n; ++i) y[i] = (x[i] * 0.5f) * (1.0f + y[i]);
}
void gelu_tanh(const Type&, const float* x, float* y, int n) {
  for (int i = 0; i < n; ++i) y[i] = 0x1.988454p-1f * std::fma(x[i] * (x[i] * x[i]), 0x1.6e4e26p-5f, x[i]);
  vendor().tanhf(y, y, n);
  for (int i = 0; i < n; ++i) y[i] = (0.5f * x[i]) * (1.0f + y[i]);
}
void softplus(const Type&, const float* x, float* y, int n) {
  vendor().expf(x, y, n);
  vendor().log1pf(y, y, n);
  for (int i = 0; i < n; ++i) y[i] = x[i] > 20.0f ? x[i] : y[i];
}
void mish(const Type&, const float* x, float* y, int n) {
  vendor().expf(x, y, n);
  vendor().log1pf(y, y, n);
  vendor().tanhf(y, y, n);
  for (int i = 0; i < n; ++i) y[i] = x[i] * y[i];
}
void square(const Type& type, const float* x, float* y, int n) {
  for (int i = 0; i < n; ++i) y[i] = times(x[i], x[i]);
  round_in_place(type, y, n);
}
void cube(const Type& type, const float* x, float* y, int n) {
  square(type, x, y, n);
  for (int i = 0; i < n; ++i) y[i] = times(x[i], y[i]);
}

const Unary kUnary[] = {
    SO_VENDOR(exp, expf) SO_VENDOR(tanh, tanhf) SO_VENDOR(erf, erff) SO_VENDOR(log, logf) SO_VENDOR(exp2, exp2f)
    SO_VENDOR(log1p, log1pf) SO_VENDOR(expm1, expm1f) SO_VENDOR(sin, sinf) SO_VENDOR(cos, cosf)
    SO_VENDOR(rsqrt, rsqrtf) SO_VENDOR(log2, log2f) SO_VENDOR(log10, log10f) SO_VENDOR(erfc, erfcf)
    {"sigmoid", {"sigmoid"}, &sigmoid, true, false}, {"silu", {"silu"}, &silu, true, false},
    {"gelu_erf", {"gelu_erf"}, &gelu_erf, true, false}, {"gelu_tanh", {"gelu_tanh"}, &gelu_tanh, true, false},
    {"softplus", {"softplus", 1, 20}, &softplus, true, false}, {"mish", {"mish"}, &mish, true, false},
    {"pow2", {"pow2"}, &square, false, false}, {"pow3", {"pow3"}, &cube, false, false},
    SO_EACH(sqrt, {"sqrt"}, false, static_cast<float>(std::sqrt(static_cast<double>(x))))
    SO_EACH(reciprocal, {"reciprocal"}, false, over(1.0f, x))
    SO_EACH(neg, {"neg"}, false, float_of(bits_of(x) ^ 0x80000000u))
    SO_EACH(abs, {"abs"}, false, float_of(bits_of(x) & 0x7fffffffu))
    SO_EACH(floor, {"floor"}, false, std::floor(x))
    SO_EACH(ceil, {"ceil"}, false, std::ceil(x))
    SO_EACH(trunc, {"trunc"}, false, std::trunc(x))
    SO_EACH(round, {"round"}, false, std::nearbyint(x))
    SO_EACH(frac, {"frac"}, false, minus(x, std::trunc(x)))
    SO_EACH(relu, {"clamp_min"}, true, x != x || x > 0.0f ? x : 0.0f)
};

struct OfType {
  const Type* type;
  const void* row;
};

void run_unary(const Sweep& sweep, std::uint64_t first, int n, void* got, void* want) {
  const auto& of = *static_cast<const OfType*>(sweep.row);
  const auto& op = *static_cast<const Unary*>(of.row);
  const std::uint16_t* in = patterns().data() + first;
  run_map(op.map, of.type->type, of.type->type, n, got, in);
  if (want == nullptr) return;
  std::vector<float> y(n);
  op.expected(*of.type, values_of(*of.type).data() + first, y.data(), n);
  auto* out = static_cast<std::uint16_t*>(want);
  round_all(*of.type, y.data(), out, n);
  for (int i = 0; op.selects && i < n; ++i)
    if (is_nan(*of.type, in[i])) out[i] = in[i];
}

// ---- binary
struct Binary {
  const char* name;
  Map map;
  // The first operand is x for all n; y and the patterns of both for selections.
  void (*expected)(const Type& type, float x, const float* y, float* z, int n);
  // Selections and tests: on patterns.
  void (*moved)(const Type& type, std::uint16_t x, const std::uint16_t* y, void* z, int n);
  bool test, vendor;
};

// A number's place in the order of all of them: zeros are one apart, -0 below +0. NaN: above all, or below.
inline int order(std::uint16_t h) { return h & 0x8000 ? -1 - (h & 0x7fff) : h; }
template <bool kLargest>
void extremum(const Type& type, std::uint16_t x, const std::uint16_t* y, void* z, int n) {
  auto* out = static_cast<std::uint16_t*>(z);
  for (int i = 0; i < n; ++i) {
    const bool left = kLargest ? order(x) > order(y[i]) : order(x) < order(y[i]);
    const std::uint16_t number = left ? x : y[i];
    const std::uint16_t nan = is_nan(type, x) ? x : y[i];
    out[i] = is_nan(type, x) || is_nan(type, y[i]) ? nan : number;
  }
}
// Both zeros are equal.
inline int place(std::uint16_t h) { return h & 0x8000 ? -(h & 0x7fff) : h; }
#define SO_TEST(op, relation, with_nan)                                                                  \
  {#op, {#op}, nullptr, [](const Type& type, std::uint16_t x, const std::uint16_t* y, void* z, int n) {  \
     auto* out = static_cast<unsigned char*>(z);                                                         \
     for (int i = 0; i < n; ++i)                                                                         \
       out[i] = is_nan(type, x) || is_nan(type, y[i]) ? with_nan : place(x) relation place(y[i]);         \
   }, true, false},
#define SO_PAIR(name, map, op)                                                                            \
  {#name, map, [](const Type&, float x, const float* y, float* z, int n) {                                \
     for (int i = 0; i < n; ++i) z[i] = op(x, y[i]);                                                      \
   }, nullptr, false, false},

// f(x) of the vendor over all values of a type.
template <class Make>
const std::vector<float>& table(const Type& type, Make make) {
  static const std::vector<float> brain = make(values_of(kBf16)), half = make(values_of(kF16));
  return &type == &kBf16 ? brain : half;
}

// dy is x for all, the activation's input (or result) is y: all of the type's numbers, in the patterns' order.
void tanh_backward(const Type& type, float x, const float* y, float* z, int n) {
  for (int i = 0; i < n; ++i) z[i] = times(y[i], y[i]);
  round_in_place(type, z, n);
  for (int i = 0; i < n; ++i) z[i] = minus(1.0f, z[i]);
  round_in_place(type, z, n);
  for (int i = 0; i < n; ++i) z[i] = times(x, z[i]);
}
void sigmoid_backward(const Type& type, float x, const float* y, float* z, int n) {
  for (int i = 0; i < n; ++i) z[i] = minus(1.0f, y[i]);
  round_in_place(type, z, n);
  for (int i = 0; i < n; ++i) z[i] = times(x, z[i]);
  round_in_place(type, z, n);
  for (int i = 0; i < n; ++i) z[i] = times(z[i], y[i]);
}
void silu_backward(const Type& type, float x, const float* y, float* z, int n) {
  const auto& s = table(type, [](std::vector<float> v) {
    sigmoid(kBf16, std::vector<float>(v).data(), v.data(), kAll);
    return v;
  });
  for (int i = 0; i < n; ++i) z[i] = (x * s[i]) * std::fma(y[i], 1.0f - s[i], 1.0f);
}
void gelu_erf_backward(const Type& type, float x, const float*, float* z, int n) {
  const auto& slope = table(type, [](const std::vector<float>& v) {
    std::vector<float> pdf(kAll), cdf(kAll);
    for (int i = 0; i < kAll; ++i) pdf[i] = (v[i] * -0.5f) * v[i], cdf[i] = v[i] * 0x1.6a09e6p-1f;
    vendor().expf(pdf.data(), pdf.data(), kAll);
    vendor().erff(cdf.data(), cdf.data(), kAll);
    for (int i = 0; i < kAll; ++i) cdf[i] = 0.5f * (1.0f + cdf[i]) + v[i] * (pdf[i] * 0x1.988454p-2f);
    return cdf;
  });
  for (int i = 0; i < n; ++i) z[i] = x * slope[i];
}

const Binary kBinary[] = {
    SO_PAIR(add, {"add"}, plus) SO_PAIR(mul, {"mul"}, times) SO_PAIR(div, {"div"}, over)
    SO_PAIR(sub, (Map{"add_alpha", -1}), minus)
    {"maximum", {"maximum"}, nullptr, &extremum<true>, false, false},
    {"minimum", {"minimum"}, nullptr, &extremum<false>, false, false},
    {"tanh_backward", {"tanh_backward"}, &tanh_backward, nullptr, false, false},
    {"sigmoid_backward", {"sigmoid_backward"}, &sigmoid_backward, nullptr, false, false},
    {"silu_backward", {"silu_backward"}, &silu_backward, nullptr, false, true},
    {"gelu_erf_backward", {"gelu_erf_backward"}, &gelu_erf_backward, nullptr, false, true},
    SO_TEST(lt, <, false) SO_TEST(le, <=, false) SO_TEST(eq, ==, false) SO_TEST(ne, !=, true) SO_TEST(gt, >, false)
    SO_TEST(ge, >=, false)
    {"pow", {"pow"}, [](const Type&, float x, const float* y, float* z, int n) {
       vendor().powf(std::vector<float>(n, x).data(), y, z, n);
     }, nullptr, false, true},
};

void run_binary(const Sweep& sweep, std::uint64_t first, int n, void* got, void* want) {
  const auto& of = *static_cast<const OfType*>(sweep.row);
  const auto& op = *static_cast<const Binary*>(of.row);
  const auto x = static_cast<std::uint16_t>(first >> 16);
  run_map(op.map, of.type->type, op.test ? DType::kBool : of.type->type, n, got, &x, patterns().data(), true);
  if (want == nullptr) return;
  if (op.moved != nullptr) return op.moved(*of.type, x, patterns().data(), want, n);
  std::vector<float> z(n);
  const std::vector<float>& y = values_of(*of.type);
  op.expected(*of.type, y[x], y.data(), z.data(), n);
  round_all(*of.type, z.data(), static_cast<std::uint16_t*>(want), n);
}

}  // namespace

void add_halves(std::vector<Sweep>& all) {
  static std::vector<OfType> rows;
  rows.reserve(2 * (std::size(kUnary) + std::size(kBinary)));
  const auto of = [&](const Type& type, const void* row) { return &rows.emplace_back(OfType{&type, row}); };
  for (const Type* type : {&kBf16, &kF16})
    for (const Unary& op : kUnary)
      all.push_back({std::string(type->name) + "." + op.name,
                     op.vendor ? "the vendor's functions, rounded" : "double, rounded", kAll, 2, &run_unary,
                     of(*type, &op), op.vendor});
  for (const Binary& op : kBinary)
    for (const Type* type : {&kBf16, &kF16})
      all.push_back({std::string(type->name) + "." + op.name,
                     op.vendor  ? "the vendor's functions, rounded"
                     : op.moved ? "whole numbers"
                                : "double, rounded",
                     std::uint64_t{1} << 32, op.test ? 1 : 2, &run_binary, of(*type, &op), op.vendor});
}

}  // namespace step_oracle::exhaustive
