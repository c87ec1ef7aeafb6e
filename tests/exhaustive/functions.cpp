// float32 functions over all inputs, in the order of use; powf over one pair for each pair of upper halves.
#include <cmath>
#include <vector>

#include "csrc/kernels/core/bits.h"
#include "tests/exhaustive/product.h"
#include "tests/exhaustive/rounding.h"
#include "tests/exhaustive/sweep.h"

namespace step_oracle::exhaustive {
namespace {

using Expected = void (*)(const float* x, float* y, int n);
struct Function {
  const char* name;
  const char* against;
  Map map;
  Expected expected;
  bool vendor;
};

constexpr float kHalfRoot = 0x1.6a09e6p-1f;  // sqrt(1/2), bits 3f3504f3

// Quotients and roots of floats, rounded to double and then to float, are rounded once: double has more than twice a
// float's digits and two, and a subnormal quotient lies no nearer to a tie than 2^-49 of itself.
void root(const float* x, float* y, int n) {
  for (int i = 0; i < n; ++i) y[i] = static_cast<float>(std::sqrt(static_cast<double>(x[i])));
}
void inverse(const float* x, float* y, int n) {
  for (int i = 0; i < n; ++i) y[i] = static_cast<float>(1.0 / static_cast<double>(x[i]));
}
void sigmoid(const float* x, float* y, int n) {
  for (int i = 0; i < n; ++i) y[i] = -x[i];
  vendor().expf(y, y, n);
  for (int i = 0; i < n; ++i) y[i] = 1.0f / (1.0f + y[i]);
}
void silu(const float* x, float* y, int n) {
  for (int i = 0; i < n; ++i) y[i] = -x[i];
  vendor().expf(y, y, n);
  for (int i = 0; i < n; ++i) y[i] = x[i] / (1.0f + y[i]);
}
void gelu_erf(const float* x, float* y, int n) {
  for (int i = 0; i < n; ++i) y[i] = x[i] * kHalfRoot;
  vendor().erff(y, y, n);
  for (int i = 0; i < n; ++i) y[i] = (x[i] * 0.5f) * (1.0f + y[i]);
}
void gelu_tanh(const float* x, float* y, int n) {  // 0.044715 and sqrt(2 / pi) as floats
  for (int i = 0; i < n; ++i) y[i] = 0x1.988454p-1f * std::fma(x[i] * (x[i] * x[i]), 0x1.6e4e26p-5f, x[i]);
  vendor().tanhf(y, y, n);
  for (int i = 0; i < n; ++i) y[i] = (0.5f * x[i]) * (1.0f + y[i]);
}

constexpr const char* kLibrary = "libdevice.10.bc of CUDA 13.0 executed on the CPU";
constexpr const char* kComposed = "the same, and operations that round once";
#define SO_FUNCTION(row, name) \
  {#name, kLibrary, {#row}, [](const float* x, float* y, int n) { vendor().name(x, y, n); }, true},
const Function kFunctions[] = {
    SO_FUNCTION(exp, expf) SO_FUNCTION(tanh, tanhf) SO_FUNCTION(erf, erff) SO_FUNCTION(log, logf)
    SO_FUNCTION(exp2, exp2f) SO_FUNCTION(log1p, log1pf) SO_FUNCTION(expm1, expm1f) SO_FUNCTION(sin, sinf)
    SO_FUNCTION(cos, cosf) SO_FUNCTION(rsqrt, rsqrtf) SO_FUNCTION(log2, log2f) SO_FUNCTION(log10, log10f)
    SO_FUNCTION(erfc, erfcf)
    {"sqrtf", "the root in double, rounded", {"sqrt"}, &root, false},
    {"reciprocal", "the quotient in double, rounded", {"reciprocal"}, &inverse, false},
    {"gelu_erf", kComposed, {"gelu_erf"}, &gelu_erf, true},
    {"gelu_tanh", kComposed, {"gelu_tanh"}, &gelu_tanh, true},
    {"sigmoid", kComposed, {"sigmoid"}, &sigmoid, true},
    {"silu", kComposed, {"silu"}, &silu, true},
};

void fill(std::uint64_t first, int n, float* x) {
  for (int i = 0; i < n; ++i) x[i] = float_of(static_cast<std::uint32_t>(first + static_cast<std::uint64_t>(i)));
}

void run_function(const Sweep& sweep, std::uint64_t first, int n, void* got, void* want) {
  const auto& f = *static_cast<const Function*>(sweep.row);
  std::vector<float> x(n);
  fill(first, n, x.data());
  run_map(f.map, DType::kF32, DType::kF32, n, got, x.data());
  if (want == nullptr) return;
  auto* y = static_cast<float*>(want);
  f.expected(x.data(), y, n);
  for (int i = 0; i < n; ++i) y[i] = canonical(y[i]);
}

// The upper half of each number from the index, the lower half from a mix of it.
std::uint32_t mixed(std::uint64_t index, std::uint64_t salt) {
  std::uint64_t z = (index + salt) * 0x9e3779b97f4a7c15ull;
  z = (z ^ z >> 29) * 0xbf58476d1ce4e5b9ull;
  return static_cast<std::uint32_t>(z >> 48);
}
void run_powf(const Sweep&, std::uint64_t first, int n, void* got, void* want) {
  std::vector<float> x(n), y(n);
  for (int i = 0; i < n; ++i) {
    const std::uint64_t index = first + static_cast<std::uint64_t>(i);
    x[i] = float_of(static_cast<std::uint32_t>(index >> 16) << 16 | mixed(index, 1));
    y[i] = float_of(static_cast<std::uint32_t>(index) << 16 | mixed(index, 2));
  }
  run_map({"pow"}, DType::kF32, DType::kF32, n, got, x.data(), y.data());
  if (want == nullptr) return;
  auto* z = static_cast<float*>(want);
  vendor().powf(x.data(), y.data(), z, n);
  for (int i = 0; i < n; ++i) z[i] = canonical(z[i]);
}

struct Cast {
  const char* name;
  DType type;
  Format format;
};
const Cast kCasts[] = {{"to_bfloat16", DType::kBF16, kBrain}, {"to_float16", DType::kF16, kHalf}};
void run_cast(const Sweep& sweep, std::uint64_t first, int n, void* got, void* want) {
  const auto& cast = *static_cast<const Cast*>(sweep.row);
  std::vector<float> x(n);
  fill(first, n, x.data());
  Operand operands[2];
  operands[0].data = got, operands[0].dtype = cast.type;
  operands[1].data = x.data(), operands[1].dtype = DType::kF32;
  pointwise::copy(contiguous_loop(n, operands, 2));
  if (want == nullptr) return;
  auto* y = static_cast<std::uint16_t*>(want);
  for (int i = 0; i < n; ++i) y[i] = rounded(x[i], cast.format);
}

}  // namespace

void add_functions(std::vector<Sweep>& all) {
  constexpr std::uint64_t kAll = std::uint64_t{1} << 32;
  for (const Function& f : kFunctions) all.push_back({f.name, f.against, kAll, 4, &run_function, &f, f.vendor});
  for (const Cast& c : kCasts) all.push_back({c.name, "whole numbers", kAll, 2, &run_cast, &c, false});
  all.push_back({"powf", kLibrary, kAll, 4, &run_powf, nullptr, true});
}

}  // namespace step_oracle::exhaustive
