#include "csrc/kernels/softmax/softmax.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "csrc/kernels/arith/convert.h"
#include "csrc/kernels/arith/libdevice.h"
#include "csrc/kernels/core/bits.h"
#include "csrc/kernels/core/error.h"
#include "tests/support/same_bytes.h"
#include "tests/support/vectors.h"

namespace step_oracle {
namespace {

DType dtype_of(const test::Array& a) { return test::float_type(a); }

void both(const std::function<void(bool)>& body) {
  body(true);
  test::for_each_isa_and_threads([&] { body(false); });
}

bool is_backward(const std::string& name) { return name.find("_bwd") != std::string::npos; }

TEST(SoftmaxVectors, All) {
  int cases = 0;
  for (const std::string prefix : {"softmax_", "log_softmax_"})
    for (const auto& name : test::vector_names(prefix)) {
      const auto file = test::load_vectors(name);
      long rows = 0, n = 0;
      ASSERT_EQ(std::sscanf(file.meta.at("shape").get<std::string>().c_str(), "%ldx%ld", &rows, &n), 2);
      const bool log = prefix == "log_softmax_", back = is_backward(name);
      const auto& want = file.out(back ? "dx" : "y", "sm_90");
      std::vector<std::uint8_t> got(want.bytes.size());
      both([&](bool ref) {
        SCOPED_TRACE(name + (ref ? " ref" : " body"));
        if (back) {
          const auto &grad = file.in("grad"), &y = file.in("output");
          const softmax::BackwardParams p{
              log, dtype_of(grad), dtype_of(want), rows, n, 1, grad.bytes.data(), y.bytes.data(), got.data(), 0, 0, 0};
          ref ? softmax::ref::backward(p) : softmax::backward(p);
        } else {
          const auto& x = file.in("x");
          const softmax::Params p{log, dtype_of(x), dtype_of(want), rows, n, 1, x.bytes.data(), got.data(), 0, 0};
          ref ? softmax::ref::forward(p) : softmax::forward(p);
        }
        EXPECT_SAME_BYTES(want.bytes.data(), got.data(), static_cast<std::int64_t>(got.size()));
      });
      ++cases;
    }
  std::printf("%d golden files\n", cases);
  EXPECT_EQ(cases, 106);
}

struct Case {
  std::int64_t outer, n, inner;
  std::uint64_t address;  // elements
};
const std::vector<Case> kCases{
    {3, 1, 1, 0},     {9, 2, 1, 0},     {5, 31, 1, 0},    {5, 33, 1, 1},    {4, 129, 1, 0},   {2, 1025, 1, 0},
    {2, 2049, 1, 0},  {2, 4096, 1, 2},  {2, 9216, 1, 0},  {2, 9217, 1, 1},  {2, 12252, 1, 0}, {2, 12256, 1, 0},
    {1, 12268, 1, 0}, {1, 12272, 1, 0}, {3, 24500, 1, 0}, {3, 20001, 1, 3}, {2, 7, 5, 0},     {2, 64, 3, 0},
    {1, 100, 70, 0},  {2, 130, 64, 0},  {1, 3, 1500, 0},
};

std::vector<float> random_values(std::int64_t n, bool special, std::mt19937& rng) {
  std::normal_distribution<float> normal(0.0f, 3.0f);
  std::vector<float> out(static_cast<std::size_t>(n));
  for (float& x : out) {
    x = normal(rng);
    const float odd[] = {0.0f, -0.0f, float_of(0x7fc01234u), float_of(1), -__builtin_inff(), __builtin_inff()};
    if (special && rng() % 40 == 0) x = odd[rng() % 6];
  }
  return out;
}

std::vector<std::uint8_t> encoded(const std::vector<float>& v, DType type) {
  std::vector<std::uint8_t> out(v.size() * size_of(type));
  for (std::size_t i = 0; i < v.size(); ++i) {
    const std::uint32_t u = bits_of(v[i]);
    const auto h =
        static_cast<std::uint16_t>(type == DType::kBF16 ? u >> 16 : (u >> 16 & 0x8000u) | 0x3000u | (u >> 13 & 0x7ffu));
    if (type == DType::kF32)
      std::memcpy(out.data() + 4 * i, &u, 4);
    else
      std::memcpy(out.data() + 2 * i, &h, 2);
  }
  return out;
}

TEST(Softmax, BodyEqualsDefinition) {
  std::mt19937 rng(11);
  int cases = 0;
  for (const Case& c : kCases)
    for (const bool log : {false, true})
      for (const auto& [in, out] : {std::pair{DType::kF32, DType::kF32},
                                    {DType::kBF16, DType::kBF16},
                                    {DType::kF16, DType::kF16},
                                    {DType::kBF16, DType::kF32}})
        for (const bool special : {false, true}) {
          if (special && in != DType::kF32) continue;
          SCOPED_TRACE(std::to_string(c.outer) + "x" + std::to_string(c.n) + "x" + std::to_string(c.inner) +
                       (log ? " log" : ""));
          const std::int64_t n = c.outer * c.n * c.inner;
          const auto x = encoded(random_values(n, special, rng), in), g = encoded(random_values(n, special, rng), in);
          const std::uint64_t address = c.address * size_of(in);
          std::vector<std::uint8_t> want(static_cast<std::size_t>(n) * size_of(out)), got(want.size());
          softmax::Params p{log, in, out, c.outer, c.n, c.inner, x.data(), want.data(), address, 0};
          softmax::ref::forward(p);
          p.y = got.data();
          test::for_each_isa_and_threads([&] {
            softmax::forward(p);
            EXPECT_SAME_BYTES(want.data(), got.data(), static_cast<std::int64_t>(got.size()));
          });
          const DType dx = in != out ? DType::kF32 : in;  // mixed backward: float32 in, bfloat16 out
          softmax::BackwardParams b{log, dx, in, c.outer, c.n, c.inner, g.data(), x.data(), want.data(), address, 0, 0};
          const auto gf = encoded(random_values(n, special, rng), dx), yf = encoded(random_values(n, special, rng), dx);
          b.grad = gf.data();
          b.y = yf.data();
          want.assign(static_cast<std::size_t>(n) * size_of(in), 0);
          got.assign(want.size(), 0);
          b.dx = want.data();
          softmax::ref::backward(b);
          b.dx = got.data();
          test::for_each_isa_and_threads([&] {
            softmax::backward(b);
            EXPECT_SAME_BYTES(want.data(), got.data(), static_cast<std::int64_t>(got.size()));
          });
          ++cases;
        }
  std::printf("%d cases\n", cases);
}

// Exponentials and quotients that are subnormal, or zero: what the fast forms of both leave to the slow ones.
TEST(Softmax, WideRowsAndSmallQuotients) {
  std::mt19937 rng(12);
  int subnormal = 0;
  for (const std::int64_t n : {16, 33, 300, 1024, 5000, 9217, 20001})
    for (const float width : {20.0f, 60.0f, 80.0f, 87.0f, 100.0f, 300.0f})
      for (const DType out : {DType::kF32, DType::kBF16}) {
        SCOPED_TRACE(std::to_string(n) + " width " + std::to_string(width));
        std::uniform_real_distribution<float> uniform(-width, 0.0f);
        std::vector<float> x(static_cast<std::size_t>(n));
        for (float& v : x) v = rng() % 50 == 0 ? -__builtin_inff() : uniform(rng);
        x[rng() % x.size()] = 0.0f;
        const auto in = encoded(x, out);
        std::vector<std::uint8_t> want(x.size() * size_of(out)), got(want.size());
        softmax::Params p{false, out, out, 1, n, 1, in.data(), want.data(), 0, 0};
        softmax::ref::forward(p);
        p.y = got.data();
        test::for_each_isa_and_threads([&] {
          softmax::forward(p);
          EXPECT_SAME_BYTES(want.data(), got.data(), static_cast<std::int64_t>(got.size()));
        });
        if (out == DType::kF32)
          for (std::int64_t i = 0; i < n; ++i) {
            const float q = reinterpret_cast<const float*>(want.data())[i];
            subnormal += q > 0.0f && q < 0x1p-126f;
          }
      }
  std::printf("%d subnormal quotients\n", subnormal);
  EXPECT_GT(subnormal, 100);
}

std::uint16_t rounded(DType type, float x) { return type == DType::kBF16 ? convert::to_bf16(x) : convert::to_fp16(x); }
float widened(DType type, std::uint16_t h) {
  return type == DType::kBF16 ? convert::from_bf16(h) : convert::from_fp16(h);
}

TEST(Softmax, TheProductWithTheGradientIsRounded) {
  std::mt19937 rng(13);
  for (const Case& c : kCases)
    for (const DType type : {DType::kF32, DType::kBF16, DType::kF16}) {
      SCOPED_TRACE(std::to_string(c.outer) + "x" + std::to_string(c.n) + "x" + std::to_string(c.inner));
      const std::int64_t n = c.outer * c.n * c.inner;
      const bool special = type == DType::kF32;
      const auto grad = encoded(random_values(n, special, rng), type),
                 y = encoded(random_values(n, special, rng), type);
      std::vector<std::uint8_t> product(grad.size()), want(grad.size()), got(grad.size());
      for (std::int64_t i = 0; i < n; ++i) {
        if (type == DType::kF32) {
          reinterpret_cast<float*>(product.data())[i] =
              canonical(reinterpret_cast<const float*>(grad.data())[i] * reinterpret_cast<const float*>(y.data())[i]);
        } else {
          const auto g = reinterpret_cast<const std::uint16_t*>(grad.data())[i],
                     o = reinterpret_cast<const std::uint16_t*>(y.data())[i];
          reinterpret_cast<std::uint16_t*>(product.data())[i] = rounded(type, widened(type, g) * widened(type, o));
        }
      }
      softmax::BackwardParams p{false,          type,     type,        c.outer, c.n, c.inner,
                                product.data(), y.data(), want.data(), 0,       0,   0};
      softmax::ref::backward(p);
      p.grad = grad.data(), p.dx = got.data(), p.multiplies = true;
      test::for_each_isa_and_threads([&] {
        softmax::backward(p);
        EXPECT_SAME_BYTES(want.data(), got.data(), static_cast<std::int64_t>(got.size()));
      });
    }
}

TEST(Softmax, KernelByWidthAndAlignment) {
  using softmax::Kernel;
  softmax::Params p{false, DType::kF32, DType::kF32, 1, 0, 1, nullptr, nullptr, 0, 0};
  const auto kernel = [&](std::int64_t n) {
    p.n = n;
    return softmax::plan_forward(p).kernel;
  };
  EXPECT_EQ(kernel(2048), Kernel::kWarp);
  EXPECT_EQ(kernel(2049), Kernel::kRegister);
  EXPECT_EQ(kernel(9216), Kernel::kRegister);
  EXPECT_EQ(kernel(9217), Kernel::kGeneral);
  EXPECT_EQ(kernel(9220), Kernel::kShared);
  EXPECT_EQ(kernel(12252), Kernel::kShared);
  EXPECT_EQ(kernel(12256), Kernel::kGeneral);
  p.x_address = 4;
  EXPECT_EQ(kernel(9220), Kernel::kGeneral);
  p.n = -1;
  EXPECT_THROW(softmax::forward(p), Error);
}

// Would the vectors notice? A mutant drops a fusion, takes the reciprocal, or sums in another order.
using RowMutant = void (*)(const float* x, const float* y, std::int64_t n, float* out);
float serial_sum(const float* x, std::int64_t n, float max) {
  float sum = 0.0f;
  for (std::int64_t i = 0; i < n; ++i) sum = sum + libdevice::expf(x[i] - max);
  return sum;
}
float most(const float* x, std::int64_t n) { return *std::max_element(x, x + n); }
float lanes_sum(const float* v, std::int64_t n, bool upwards) {
  float lane[32] = {};
  for (std::int64_t i = 0; i < n; ++i) lane[i % 32] = lane[i % 32] + v[i];
  for (int o = upwards ? 1 : 16; o > 0 && o < 32; o = upwards ? o * 2 : o / 2) {
    float next[32];
    for (int l = 0; l < 32; ++l) next[l] = lane[l] + lane[l ^ o];
    std::copy(next, next + 32, lane);
  }
  return lane[0];
}
const struct {
  const char* vectors;
  bool backward;
  RowMutant mutant;
} kRowMutants[] = {
    {"softmax_f32.", false,
     [](const float* x, const float*, std::int64_t n, float* out) {
       const float max = most(x, n), sum = serial_sum(x, n, max);
       for (std::int64_t i = 0; i < n; ++i) out[i] = libdevice::expf(x[i] - max) / sum;
     }},
    {"softmax_f32.", false,
     [](const float* x, const float*, std::int64_t n, float* out) {
       const float max = most(x, n);
       std::vector<float> e(static_cast<std::size_t>(n));
       for (std::int64_t i = 0; i < n; ++i) e[static_cast<std::size_t>(i)] = libdevice::expf(x[i] - max);
       const float inverse = 1.0f / lanes_sum(e.data(), n, false);
       for (std::int64_t i = 0; i < n; ++i) out[i] = e[static_cast<std::size_t>(i)] * inverse;
     }},
    {"softmax_f32.", false,
     [](const float* x, const float*, std::int64_t n, float* out) {
       const float max = most(x, n);
       std::vector<float> e(static_cast<std::size_t>(n));
       for (std::int64_t i = 0; i < n; ++i) e[static_cast<std::size_t>(i)] = libdevice::expf(x[i] - max);
       const float sum = lanes_sum(e.data(), n, true);
       for (std::int64_t i = 0; i < n; ++i) out[i] = e[static_cast<std::size_t>(i)] / sum;
     }},
    {"log_softmax_f32.", false,
     [](const float* x, const float*, std::int64_t n, float* out) {
       const float max = most(x, n), sum = libdevice::logf(serial_sum(x, n, max)) + max;
       for (std::int64_t i = 0; i < n; ++i) out[i] = x[i] - sum;
     }},
    {"softmax_bwd_f32.", true,
     [](const float* g, const float* y, std::int64_t n, float* out) {
       std::vector<float> products(static_cast<std::size_t>(n));
       for (std::int64_t i = 0; i < n; ++i) products[static_cast<std::size_t>(i)] = g[i] * y[i];
       const float sum = lanes_sum(products.data(), n, false);
       for (std::int64_t i = 0; i < n; ++i) out[i] = (g[i] - sum) * y[i];
     }},
    {"log_softmax_bwd_f32.", true,
     [](const float* g, const float* y, std::int64_t n, float* out) {
       const float sum = lanes_sum(g, n, false);
       for (std::int64_t i = 0; i < n; ++i) out[i] = g[i] - libdevice::expf(y[i]) * sum;
     }},
};

TEST(SoftmaxMutations, VectorsNotice) {
  int killed = 0;
  for (const auto& [vectors, backward, mutant] : kRowMutants) {
    bool noticed = false;
    for (const std::string& name : test::vector_names(vectors)) {
      const auto file = test::load_vectors(name);
      long rows = 0, n = 0;
      ASSERT_EQ(std::sscanf(file.meta.at("shape").get<std::string>().c_str(), "%ldx%ld", &rows, &n), 2);
      const auto& want = file.out(backward ? "dx" : "y", "sm_90");
      const float* x = file.in(backward ? "grad" : "x").as<float>();
      const float* y = backward ? file.in("output").as<float>() : x;
      std::vector<float> got(static_cast<std::size_t>(n));
      for (long r = 0; r < rows; ++r) {
        mutant(x + r * n, y + r * n, n, got.data());
        for (long i = 0; i < n; ++i)
          noticed |= got[static_cast<std::size_t>(i)] == got[static_cast<std::size_t>(i)] &&
                     bits_of(got[static_cast<std::size_t>(i)]) != want.as<std::uint32_t>()[r * n + i];
      }
    }
    EXPECT_TRUE(noticed) << vectors << " mutant " << killed;
    killed += noticed;
  }
  std::printf("mutation score: %d of %zu\n", killed, std::size(kRowMutants));
}

}  // namespace
}  // namespace step_oracle
