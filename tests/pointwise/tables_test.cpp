// The function unit's tables under every instruction set: each has look-ups of its own for vectors.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <vector>

#include "csrc/kernels/core/bits.h"
#include "csrc/kernels/pointwise/pointwise_body.h"
#include "tests/support/same_bytes.h"

namespace step_oracle::pointwise {
namespace {

void sweep(const char* name, std::vector<float> in) {
  Params p;
  p.common = DType::kF32;
  p.row = find_row(name, p.common);
  ASSERT_NE(p.row, nullptr) << name;
  std::vector<float> want(in.size()), got(in.size());
  const auto n = static_cast<std::int64_t>(in.size());
  p.loop.ndim = 1;
  p.loop.shape[0] = n;
  p.loop.operands = 2;
  for (Operand* o : {&p.loop.operand[0], &p.loop.operand[1]}) {
    o->dtype = DType::kF32;
    o->stride[0] = 4;
  }
  p.loop.operand[1].data = reinterpret_cast<char*>(in.data());
  p.loop.operand[0].data = reinterpret_cast<char*>(want.data());
  ref::map(p);
  p.loop.operand[0].data = reinterpret_cast<char*>(got.data());
  test::for_each_isa_and_threads([&] {
    std::fill(got.begin(), got.end(), 0.0f);
    map(p);
    EXPECT_SAME_BYTES(want.data(), got.data(), n) << name;
  });
  std::printf("%s: %lld arguments\n", name, static_cast<long long>(n));
}

// Every argument of the tables of ex2 (both signs) and rsqrt.
TEST(PointwiseTables, EveryEntry) {
  std::vector<float> x(1u << 24);
  for (std::size_t j = 0; j < x.size(); ++j)
    x[j] = static_cast<float>(static_cast<std::int32_t>(j) - (1 << 23)) * 0x1p-23f;
  sweep("exp2", x);
  for (std::uint32_t j = 0; j < x.size(); ++j) x[j] = float_of(0x3f800000u + j);
  sweep("rsqrt", x);
}

// Words 1021 apart, through everything that asks the unit.
TEST(PointwiseTables, WordsAcrossTheRange) {
  std::vector<float> x;
  for (std::uint64_t word = 0; word < 1ull << 32; word += 1021 * 3) x.push_back(float_of(static_cast<std::uint32_t>(word)));
  for (const char* name : {"exp", "exp2", "tanh", "sigmoid", "silu", "gelu_erf", "gelu_tanh", "erf", "erfc", "rsqrt", "log1p", "sin"})
    sweep(name, x);
}

}  // namespace
}  // namespace step_oracle::pointwise
