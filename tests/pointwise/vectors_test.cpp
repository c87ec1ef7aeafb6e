// The golden vectors of the elementwise kernels: definition and bodies give their bytes on every architecture.
#include "tests/support/vectors.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <string>
#include <vector>

#include "csrc/kernels/pointwise/pointwise.h"
#include "tests/support/same_bytes.h"

namespace step_oracle::pointwise {
namespace {

struct Case {
  const char* vectors;  // "gelu_tanh" for gelu_tanh_f32.* and gelu_tanh_bf16.*
  const char* map;
  int inputs;  // x, y, z of the file
  double s = 0, t = 0;
  bool scalar_operand = false;  // s is one more input: a CPU number
};

// Parameters as the witness tool passed them.
const Case kCases[] = {
    {"add", "add", 2},
    {"add_alpha", "add_alpha", 2, 0.3f},
    {"add_scalar", "add", 1, 1e-8f, 0, true},
    {"mul", "mul", 2},
    {"mul_scalar", "mul_scalar", 1, 0.1f},
    {"div_scalar", "mul_scalar", 1, 1.0 / 0.3},
    {"div", "div", 2},
    {"addcmul", "addcmul", 3, 0.05f},
    {"addcmul_one", "addcmul_one", 3},
    {"addcdiv", "addcdiv", 3, -0.001f},
    {"addcdiv_one", "addcdiv_one", 3},
    {"lerp", "lerp", 2, 0.1f},
    {"lerp_high", "lerp", 2, 0.9f},
    {"sqrt", "sqrt", 1},
    {"reciprocal", "reciprocal", 1},
    {"rsqrt", "rsqrt", 1},
    {"exp", "exp", 1},
    {"log", "log", 1},
    {"sin", "sin", 1},
    {"cos", "cos", 1},
    {"tan", "tan", 1},
    {"asin", "asin", 1},
    {"acos", "acos", 1},
    {"atan", "atan", 1},
    {"sinh", "sinh", 1},
    {"cosh", "cosh", 1},
    {"asinh", "asinh", 1},
    {"acosh", "acosh", 1},
    {"atanh", "atanh", 1},
    {"atan2", "atan2", 2},
    {"hypot", "hypot", 2},
    {"tanh", "tanh", 1},
    {"sigmoid", "sigmoid", 1},
    {"silu", "silu", 1},
    {"silu_bwd", "silu_backward", 2},
    {"gelu_tanh", "gelu_tanh", 1},
    {"gelu_tanh_bwd", "gelu_tanh_backward", 2},
    {"gelu_erf", "gelu_erf", 1},
    {"gelu_erf_bwd", "gelu_erf_backward", 2},
    {"pow2", "pow2", 1},
    {"pow3", "pow3", 1},
    {"pow_minus2", "pow_minus2", 1},
    {"pow_1p7", "pow", 1, 1.7f, 0, true},
    {"relu", "clamp_min", 1, 0.0},
    {"threshold_bwd", "threshold", 2, 0.0, 0.0},
    {"tanh_bwd", "tanh_backward", 2},
    {"sigmoid_bwd", "sigmoid_backward", 2},
    {"mse", "mse", 2},
    {"mse_bwd", "mse_backward", 3, static_cast<float>(2.0 / 3000)},
};

Operand operand(const test::Array& a) {
  Operand out;
  out.data = const_cast<std::uint8_t*>(a.bytes.data());
  out.dtype = test::float_type(a);
  return out;
}

std::uint16_t nan_of(const std::string& arch) { return arch == "sm_75" ? 0x7fc0 : 0x7fff; }

void expect_bytes(const test::Array& want, const std::vector<std::uint8_t>& got, const std::string& where) {
  ASSERT_EQ(want.bytes.size(), got.size()) << where;
  if (want.dtype == "U32")
    EXPECT_SAME_BYTES(want.as<std::uint32_t>(), reinterpret_cast<const std::uint32_t*>(got.data()), want.numel())
        << where;
  else
    EXPECT_SAME_BYTES(want.as<std::uint16_t>(), reinterpret_cast<const std::uint16_t*>(got.data()), want.numel())
        << where;
}

void check_map(const Case& c, const test::VectorFile& file, const std::string& arch) {
  const test::Array& want = file.out("out", arch);
  const float number = static_cast<float>(c.s);
  std::vector<std::uint8_t> got(want.bytes.size());
  std::vector<Operand> operands{operand(want)};
  operands[0].data = got.data();
  const char* names[] = {"x", "y", "z"};
  for (int k = 0; k < c.inputs; ++k) operands.push_back(operand(file.in(names[k])));
  unsigned once = 0;
  if (c.scalar_operand) {
    once = 1u << operands.size();
    Operand o;
    o.data = const_cast<float*>(&number);
    operands.push_back(o);
  }
  Params p;
  p.common = operands[0].dtype;
  p.opmath_operands = once;
  p.row = &row(c.map, p.common);
  p.scalars = Scalars::of(c.s, c.t);
  p.bf16_nan = nan_of(arch);
  p.loop = contiguous_loop(want.numel(), operands.data(), static_cast<int>(operands.size()), once);
  ref::map(p);
  expect_bytes(want, got, file.name + " ref " + arch);
  test::for_each_isa_and_threads([&] {
    std::fill(got.begin(), got.end(), 0xab);
    map(p);
    expect_bytes(want, got, file.name + " " + arch);
  });
}

TEST(PointwiseVectors, Maps) {
  int files = 0, absent = 0;
  for (const Case& c : kCases)
    for (const char* type : {"_f32.", "_bf16.", "_f16."})
      for (const std::string& name : test::vector_names(std::string(c.vectors) + type)) {
        if (!find_row(c.map, DType::kF32)) {
          ++absent;
          continue;
        }
        const auto file = test::load_vectors(name);
        for (const std::string& arch : test::kArchs) check_map(c, file, arch);
        ++files;
      }
  std::printf("%d files of vectors, %d without a row\n", files, absent);
  EXPECT_GT(files, 0);
  EXPECT_EQ(absent, 0);
}

TEST(PointwiseVectors, Casts) {
  int files = 0;
  for (const char* prefix : {"cast_f32_bf16.", "cast_bf16_f32.", "cast_f32_f16.", "cast_f16_f32."})
    for (const std::string& name : test::vector_names(prefix)) {
      const auto file = test::load_vectors(name);
      for (const std::string& arch : test::kArchs) {
        const test::Array& want = file.out("out", arch);
        std::vector<std::uint8_t> got(want.bytes.size());
        Operand operands[2] = {operand(want), operand(file.in("x"))};
        operands[0].data = got.data();
        const Loop loop = contiguous_loop(want.numel(), operands, 2);
        ref::copy(loop, nan_of(arch));
        expect_bytes(want, got, name + " ref " + arch);
        test::for_each_isa_and_threads([&] {
          copy(loop, nan_of(arch));
          expect_bytes(want, got, name + " " + arch);
        });
      }
      ++files;
    }
  std::printf("%d files of vectors\n", files);
  EXPECT_GT(files, 0);
}

std::vector<std::string> foreach_files(const std::string& vectors) {
  std::vector<std::string> out = test::vector_names(vectors + "_f32.");
  for (const char* type : {"_bf16.", "_f16."})
    for (const std::string& name : test::vector_names(vectors + type)) out.push_back(name);
  return out;
}

// The foreach kernels compute the same maps; in place on x0, x1.
TEST(PointwiseVectors, Foreach) {
  struct ForeachCase {
    const char* vectors;
    const char* map;
    int inputs;
    double s[2];
    bool scalar_operand;
  };
  const float w = static_cast<float>(1 - 0.9), v = static_cast<float>(1 - 0.95);
  const ForeachCase cases[] = {
      {"foreach_lerp", "lerp", 2, {w, w}, false},
      {"foreach_mul", "mul_scalar", 1, {0.95f, 0.95f}, false},
      {"foreach_add", "add", 1, {1e-8f, 1e-8f}, true},
      {"foreach_addcmul", "addcmul", 3, {v, v}, false},
      {"foreach_addcdiv", "addcdiv", 3, {-0.0012f, -0.0034f}, false},
      {"foreach_add_list", "add_alpha", 2, {-0.03f, -0.03f}, false},
      {"foreach_sqrt", "sqrt", 1, {0, 0}, false},
      {"foreach_div", "div", 1, {0.31f, 0.77f}, true},
  };
  int files = 0;
  for (const ForeachCase& c : cases)
    for (const std::string& name : foreach_files(c.vectors)) {
      const auto file = test::load_vectors(name);
      for (int j = 0; j < 2; ++j) {
        const std::string tensor = std::to_string(j);
        const bool in_place = std::string(c.map) != "sqrt";
        const test::Array& want = file.out(in_place ? "x" + tensor + "_out" : "out" + tensor, "sm_90");
        std::vector<std::uint8_t> got(want.bytes.size());
        std::vector<Operand> operands{operand(want)};
        operands[0].data = got.data();
        const char* names[] = {"x", "y", "z"};
        for (int k = 0; k < c.inputs; ++k) operands.push_back(operand(file.in(names[k] + tensor)));
        const float number = static_cast<float>(c.s[j]);
        if (c.scalar_operand) {
          Operand o;
          o.data = const_cast<float*>(&number);
          operands.push_back(o);
        }
        Params p;
        p.common = operands[0].dtype;
        p.opmath_operands = c.scalar_operand ? 1u << (operands.size() - 1) : 0;
        p.row = &row(c.map, p.common);
        p.scalars = Scalars::of(c.s[j]);
        p.loop = contiguous_loop(want.numel(), operands.data(), static_cast<int>(operands.size()),
                                 p.opmath_operands);
        ref::map(p);
        expect_bytes(want, got, name + " ref");
        test::for_each_isa_and_threads([&] {
          if (in_place) std::memcpy(got.data(), operands[1].data, got.size());
          Params q = p;
          if (in_place) q.loop.operand[1].data = got.data();
          map(q);
          expect_bytes(want, got, name);
        });
      }
      ++files;
    }
  std::printf("%d files of vectors\n", files);
  EXPECT_EQ(files, 48);
}

}  // namespace
}  // namespace step_oracle::pointwise
