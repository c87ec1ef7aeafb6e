// The golden vectors of activations and losses, and their mutants: definition and bodies give the compiled kernels'
// bytes on every architecture, and the vectors notice a dropped rounding or a swapped product.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "csrc/kernels/arith/convert.h"
#include "csrc/kernels/arith/libdevice.h"
#include "csrc/kernels/core/bits.h"
#include "csrc/kernels/pointwise/pointwise.h"
#include "tests/pointwise/mutants.h"
#include "tests/support/same_bytes.h"
#include "tests/support/vectors.h"

namespace step_oracle::pointwise {
namespace {

// Parameters as the witness tool passed them. `third` is one more operand; `rounded` numbers have the tensor's type.
struct Case {
  const char* vectors;
  const char* map;
  const char* inputs;  // of the file, in the map's order
  double s = 0, t = 0;
  bool has_third = false;
  double third = 0;
  bool rounded = false;
};
const float kAlpha = static_cast<float>(1.6732632 * 1.0507010), kScale = 1.0507010f;
const Case kCases[] = {
    {"elu", "elu", "x", kAlpha, kScale, true, 1.0},
    {"elu_input_scale", "elu", "x", 0.7f, 1.0, true, static_cast<float>(1 / 0.7)},
    {"elu_bwd", "elu_backward", "xy", 1.7580993f, kScale, true, 0.9f},
    {"elu_bwd_result", "elu_backward_result", "xy", 1.7580993f, kScale, true, 0.9f},
    {"softplus", "softplus", "x", 1.3f, 20},
    {"softplus_bwd", "softplus_backward", "xy", 1.3f, 20},
    {"mish", "mish", "x"},
    {"mish_bwd", "mish_backward", "xy"},
    {"hardswish", "hardswish", "x"},
    {"hardswish_bwd", "hardswish_backward", "xy"},
    {"hardsigmoid", "hardsigmoid", "x"},
    {"hardsigmoid_bwd", "hardsigmoid_backward", "xy"},
    {"log_sigmoid", "log_sigmoid", "x"},
    {"log_sigmoid_bwd", "log_sigmoid_backward", "xy"},
    {"leaky_relu", "leaky_relu", "x", 0.013f},
    {"leaky_relu_bwd", "leaky_relu_backward", "xy", 0.013f},
    {"prelu", "prelu", "xy"},
    {"glu", "glu", "xy"},
    {"hardtanh_bwd", "hardtanh_backward", "xy", -0.8f, 1.2f},
    {"softshrink", "softshrink", "x", 0.4f, 0, false, 0, true},
    {"hardshrink", "hardshrink", "x", 0.4f, 0, false, 0, true},
    {"shrink_bwd", "shrink_backward", "xy", 0.4f, 0, false, 0, true},
    {"smooth_l1", "smooth_l1", "xy", 0.7f, 0, false, 0, true},
    {"smooth_l1_bwd", "smooth_l1_backward", "xyz", 0.3f, 0.7f, false, 0, true},
    {"huber", "huber", "xy", 0.7f, 0, false, 0, true},
    {"huber_bwd", "huber_backward", "xyz", 0.3f, 0.7f, false, 0, true},
    {"mse_bwd_half", "mse_backward", "xyz", 0.3f, 0, false, 0, true},
    {"bce", "bce", "xy"},
    {"bce_bwd", "bce_backward", "xyz"},
    {"xlogy", "xlogy", "xy"},
    {"logaddexp", "logaddexp", "xy"},
    {"fmax", "fmax", "xy"},
    {"fmin", "fmin", "xy"},
    {"copysign", "copysign", "xy"},
    {"heaviside", "heaviside", "xy"},
    {"nan_to_num", "nan_to_num", "x", 0.25, 100.0, true, -7.0},
};

double in_type(double v, DType type) {
  if (type == DType::kF16) return convert::from_fp16(convert::to_fp16(static_cast<float>(v)));
  return type == DType::kF32 ? v : float_of((bits_of(static_cast<float>(v)) + 0x8000u) & 0xffff0000u);
}

void check(const Case& c, const test::VectorFile& file, const std::string& arch) {
  const test::Array& want = file.out("out", arch);
  std::vector<std::uint8_t> got(want.bytes.size());
  std::vector<Operand> operands(1);
  operands[0].data = got.data();
  operands[0].dtype = test::float_type(want);
  for (const char* name = c.inputs; *name; ++name) {
    Operand o;
    o.data = const_cast<std::uint8_t*>(file.in(std::string(1, *name)).bytes.data());
    o.dtype = operands[0].dtype;
    operands.push_back(o);
  }
  double third = c.third;
  Params p;
  p.common = operands[0].dtype;
  if (c.has_third) {
    p.opmath_operands = 1u << operands.size();
    Operand o;
    o.data = &third;
    o.dtype = DType::kF64;
    operands.push_back(o);
  }
  p.row = &row(c.map, p.common);
  p.scalars = c.rounded ? Scalars::of(in_type(c.s, p.common), in_type(c.t, p.common)) : Scalars::of(c.s, c.t);
  p.bf16_nan = arch == "sm_75" ? 0x7fc0 : 0x7fff;
  p.loop = contiguous_loop(want.numel(), operands.data(), static_cast<int>(operands.size()), p.opmath_operands);
  const auto compare = [&](const std::string& which) {
    if (p.common == DType::kF32)
      EXPECT_SAME_BYTES(want.as<std::uint32_t>(), reinterpret_cast<const std::uint32_t*>(got.data()), want.numel())
          << file.name << " " << arch << which;
    else
      EXPECT_SAME_BYTES(want.as<std::uint16_t>(), reinterpret_cast<const std::uint16_t*>(got.data()), want.numel())
          << file.name << " " << arch << which;
  };
  ref::map(p);
  compare(" ref");
  test::for_each_isa_and_threads([&] {
    std::fill(got.begin(), got.end(), 0xab);
    map(p);
    compare("");
  });
}

TEST(ActivationVectors, Maps) {
  int files = 0;
  for (const Case& c : kCases)
    for (const char* type : {"_f32.", "_bf16.", "_f16."})
      for (const std::string& name : test::vector_names(std::string(c.vectors) + type)) {
        const auto file = test::load_vectors(name);
        for (const std::string& arch : test::kArchs) check(c, file, arch);
        ++files;
      }
  std::printf("%d files of vectors\n", files);
  EXPECT_EQ(files, 207);
}

// ---- would the vectors notice?
const test::Mutant kMutants[] = {
    {"mish_bwd_f32.",
     [](float x, float y, float) {
       const float s = 1.0f / (1.0f + libdevice::expf(-y)), t = libdevice::tanhf(libdevice::log1pf(libdevice::expf(y)));
       return x * (t + (y * s) * fma(-t, t, 1.0f));
     }},
    {"mish_bwd_f32.",
     [](float x, float y, float) {
       const float s = 1.0f / (1.0f + libdevice::expf(-y)), t = libdevice::tanhf(libdevice::log1pf(libdevice::expf(y)));
       return x * fma(y * s, 1.0f - t * t, t);
     }},
    {"elu_bwd_result_f32.",
     [](float x, float y, float) { return y <= 0 ? fma(x * 0.9f, y, (x * 0.9f) * 1.7580993f) : x * kScale; }},
    {"elu_bwd_f32.", [](float x, float y,
                        float) { return y <= 0 ? (x * (0.9f * 1.7580993f)) * libdevice::expf(y * 0.9f) : x * kScale; }},
    {"glu_f32.", [](float x, float y, float) { return x / (1.0f + libdevice::expf(-y)); }},
    {"hardswish_f32.",
     [](float x, float, float) { return x * (std::min(std::max(x + 3.0f, 0.0f), 6.0f) * (1.0f / 6.0f)); }},
    {"hardswish_bwd_f32.",
     [](float x, float y, float) { return y <= -3 ? 0.0f
                                          : y < 3 ? x * fma(y, 1.0f / 3.0f, 0.5f)
                                                  : x; }},
    {"softplus_f32.",
     [](float x, float, float) {
       return x * 1.3f > 20 ? x : libdevice::log1pf(libdevice::expf(x * 1.3f)) * (1.0f / 1.3f);
     }},
    {"softplus_bwd_f32.",
     [](float x, float y, float) {
       const float z = libdevice::expf(y * 1.3f);
       return y * 1.3f > 20 ? x : x * (z / (z + 1.0f));
     }},
    {"log_sigmoid_f32.",
     [](float x, float, float) {
       return std::min(x, 0.0f) - libdevice::logf(1.0f + libdevice::expf(-__builtin_fabsf(x)));
     }},
    {"log_sigmoid_bwd_f32.", [](float x, float y, float) { return y / (1.0f + libdevice::expf(x)); }},
    {"bce_f32.",
     [](float x, float y, float) { return fma(-y, libdevice::logf(x), (y - 1.0f) * libdevice::log1pf(-x)); }},
    {"bce_bwd_f32.", [](float x, float y, float z) { return (x * (y - z)) / fma(-y, y, y); }},
    {"smooth_l1_f32.",
     [](float x, float y, float) {
       const float z = __builtin_fabsf(x - y);
       return z < 0.7f ? ((0.5f * z) * z) * (1.0f / 0.7f) : z - 0.5f * 0.7f;
     }},
    {"huber_bwd_f32.",
     [](float x, float y, float z) {
       const float d = x - y;
       return d < -0.7f ? -0.3f * (z * 0.7f) : d > 0.7f ? 0.3f * (z * 0.7f) : 0.3f * (d * z);
     }},
    {"logaddexp_f32.",
     [](float x, float y, float) {
       return std::max(x, y) + libdevice::logf(1.0f + libdevice::expf(-__builtin_fabsf(x - y)));
     }},
};

TEST(ActivationVectors, NoticeMutants) {
  test::expect_noticed(kMutants);
}

}  // namespace
}  // namespace step_oracle::pointwise
