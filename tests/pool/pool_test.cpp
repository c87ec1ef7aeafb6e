// Pooling: the definition and the product give the compiled kernels' bytes, and the product the definition's.
#include "csrc/kernels/pool/pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "csrc/kernels/arith/element.h"
#include "csrc/kernels/core/bits.h"
#include "csrc/kernels/core/error.h"
#include "tests/support/same_bytes.h"
#include "tests/support/vectors.h"

namespace step_oracle {
namespace {

using pool::Shape;
using pool::Window;
using Bytes = std::vector<std::uint8_t>;

struct Case {
  test::VectorFile file;
  Shape shape;
  Window window;
  const void* in(const char* name) const { return file.in(name).bytes.data(); }
  void check(const char* name, const Bytes& got) const {
    for (const std::string& arch : test::kArchs) {
      const auto& want = file.out(name, arch);
      ASSERT_EQ(want.bytes.size(), got.size()) << file.name;
      // Compute capability 7.5 has another bfloat16 NaN, which the device's edge gives.
      if (arch == "sm_75" && shape.type == DType::kBF16) continue;
      EXPECT_SAME_BYTES(want.bytes.data(), got.data(), static_cast<std::int64_t>(got.size()))
          << file.name << " " << name << " " << arch;
    }
  }
  Bytes room(const char* name) const { return Bytes(file.out(name, "sm_90").bytes.size()); }
};

std::int64_t outputs(std::int64_t size, const Window& w, int k, bool ceil) {
  const std::int64_t v = size + 2 * w.pad[k] - w.dilation[k] * (w.kernel[k] - 1) - 1;
  const std::int64_t o = (ceil ? v + w.stride[k] - 1 : v) / w.stride[k] + 1;
  return ceil && (o - 1) * w.stride[k] >= size + w.pad[k] ? o - 1 : o;
}
// "n x c x h x w : kernel : stride : pad : dilation [: c]", or ": out_h x out_w"
Case case_of(const std::string& name, bool adaptive) {
  Case c{test::load_vectors(name), {}, {}};
  const auto text = c.file.meta.at("shape").get<std::string>();
  Shape& s = c.shape;
  Window& w = c.window;
  s.type = name.find("_bf16") != std::string::npos  ? DType::kBF16
           : name.find("_f16") != std::string::npos ? DType::kF16
                                                    : DType::kF32;
  s.channels_last = name.find("_last_") != std::string::npos;
  long v[12] = {};
  if (adaptive) {
    EXPECT_EQ(std::sscanf(text.c_str(), "%ldx%ldx%ldx%ld:%ldx%ld", v, v + 1, v + 2, v + 3, v + 4, v + 5), 6);
    s = {s.type, s.channels_last, v[0], v[1], v[2], v[3], v[4], v[5]};
    return c;
  }
  EXPECT_EQ(std::sscanf(text.c_str(), "%ldx%ldx%ldx%ld:%ldx%ld:%ldx%ld:%ldx%ld:%ldx%ld", v, v + 1, v + 2, v + 3, v + 4,
                        v + 5, v + 6, v + 7, v + 8, v + 9, v + 10, v + 11),
            12);
  w = {{v[4], v[5]}, {v[6], v[7]}, {v[8], v[9]}, {v[10], v[11]}};
  const bool ceil = text.back() == 'c';
  s = {s.type, s.channels_last, v[0], v[1], v[2], v[3], outputs(v[2], w, 0, ceil), outputs(v[3], w, 1, ceil)};
  return c;
}
int each(const char* prefix, bool adaptive, const std::function<void(const Case&, bool ref)>& body) {
  int files = 0;
  for (const auto& name : test::vector_names(prefix)) {
    const Case c = case_of(name, adaptive);
    body(c, true);
    test::for_each_isa_and_threads([&] { body(c, false); });
    ++files;
  }
  std::printf("%d golden files\n", files);
  return files;
}

TEST(PoolVectors, Max) {
  EXPECT_EQ(each("max_pool_", false,
                 [](const Case& c, bool ref) {
                   Bytes y = c.room("y"), dx = c.room("dx"), indices = c.room("indices");
                   auto* places = reinterpret_cast<std::int64_t*>(indices.data());
                   const pool::Max p{c.shape, c.window, c.in("x"), y.data(), places};
                   ref ? pool::ref::max_forward(p) : pool::max_forward(p);
                   const pool::MaxBackward b{c.shape, c.window, c.in("dy"), places, dx.data()};
                   ref ? pool::ref::max_backward(b) : pool::max_backward(b);
                   c.check("y", y);
                   c.check("indices", indices);
                   c.check("dx", dx);
                 }),
            18);
}

TEST(PoolVectors, Average) {
  EXPECT_EQ(each("avg_pool_", false,
                 [](const Case& c, bool ref) {
                   for (const auto& [suffix, count, divisor] :
                        {std::tuple{"", true, 0}, std::tuple{"_inside", false, 0}, std::tuple{"_by7", true, 7}}) {
                     const std::string out = std::string("y") + suffix, grad = std::string("dx") + suffix;
                     Bytes y = c.room(out.c_str()), dx = c.room(grad.c_str());
                     const pool::Average f{c.shape, c.window, count, divisor, c.in("x"), y.data()},
                         b{c.shape, c.window, count, divisor, c.in("dy"), dx.data()};
                     ref ? pool::ref::average_forward(f) : pool::average_forward(f);
                     ref ? pool::ref::average_backward(b) : pool::average_backward(b);
                     c.check(out.c_str(), y);
                     c.check(grad.c_str(), dx);
                   }
                 }),
            18);
}

TEST(PoolVectors, Adaptive) {
  EXPECT_EQ(each("adaptive_pool_", true,
                 [](const Case& c, bool ref) {
                   Bytes y = c.room("y"), dx = c.room("dx");
                   const pool::Adaptive f{c.shape, c.in("x"), y.data()}, b{c.shape, c.in("dy"), dx.data()};
                   ref ? pool::ref::adaptive_forward(f) : pool::adaptive_forward(f);
                   ref ? pool::ref::adaptive_backward(b) : pool::adaptive_backward(b);
                   c.check("y", y);
                   c.check("dx", dx);  // where windows race, the executor adds in thread order, as the definition does
                 }),
            15);
}

// ---- mutants: short twins with one thing changed, against the vectors of contiguous tensors
enum class Mutant { kNone, kTies, kNan, kReciprocal, kBackwards, kOneDivision, kColumns, kPadding, kCount };

float value(const Case& c, const char* name, std::int64_t i) {
  return c.shape.type == DType::kF32 ? c.file.in(name).as<float>()[i] : widen(c.file.in(name).as<Bf16>()[i]);
}
bool differs(const Case& c, const char* name, std::int64_t i, float v) {
  const auto& want = c.file.out(name, "sm_90");
  return c.shape.type == DType::kF32 ? bits_of(v) != want.as<std::uint32_t>()[i]
                                     : narrow<Bf16>(v).bits != want.as<std::uint16_t>()[i];
}
bool max_noticed(const Case& c, Mutant m) {
  const Shape& s = c.shape;
  const Window& w = c.window;
  for (std::int64_t plane = 0; plane < s.n * s.channels; ++plane)
    for (std::int64_t o = 0; o < s.out_height * s.out_width; ++o) {
      float most = -__builtin_inff();
      std::int64_t where = -1;
      for (std::int64_t i = 0; i < w.kernel[0]; ++i)
        for (std::int64_t j = 0; j < w.kernel[1]; ++j) {
          const std::int64_t h = o / s.out_width * w.stride[0] - w.pad[0] + i * w.dilation[0],
                             x = o % s.out_width * w.stride[1] - w.pad[1] + j * w.dilation[1];
          if (h < 0 || h >= s.height || x < 0 || x >= s.width) continue;
          if (where < 0) where = h * s.width + x;
          const float v = value(c, "x", (plane * s.height + h) * s.width + x);
          if (v > most || (v != v && m != Mutant::kNan) || (m == Mutant::kTies && v == most))
            most = v, where = h * s.width + x;
        }
      if (c.file.out("indices", "sm_90").as<std::int64_t>()[plane * s.out_height * s.out_width + o] != where)
        return true;
    }
  return false;
}
bool average_noticed(const Case& c, Mutant m, bool adaptive) {
  const Shape& s = c.shape;
  const Window& w = c.window;
  for (std::int64_t plane = 0; plane < s.n * s.channels; ++plane)
    for (std::int64_t oh = 0; oh < s.out_height; ++oh)
      for (std::int64_t ow = 0; ow < s.out_width; ++ow) {
        std::int64_t h0 = oh * w.stride[0] - w.pad[0], h1 = std::min(h0 + w.kernel[0], s.height + w.pad[0]),
                     w0 = ow * w.stride[1] - w.pad[1], w1 = std::min(w0 + w.kernel[1], s.width + w.pad[1]);
        if (adaptive)
          h0 = oh * s.height / s.out_height, h1 = ((oh + 1) * s.height + s.out_height - 1) / s.out_height,
          w0 = ow * s.width / s.out_width, w1 = ((ow + 1) * s.width + s.out_width - 1) / s.out_width;
        if (m == Mutant::kPadding) h0 = std::max<std::int64_t>(h0, 0), w0 = std::max<std::int64_t>(w0, 0);
        const auto high = static_cast<float>(h1 - h0), wide = static_cast<float>(w1 - w0);
        std::vector<float> in;
        const bool columns = m == Mutant::kColumns;
        for (std::int64_t a = columns ? w0 : h0; a < (columns ? w1 : h1); ++a)
          for (std::int64_t b = columns ? h0 : w0; b < (columns ? h1 : w1); ++b) {
            const std::int64_t h = columns ? b : a, x = columns ? a : b;
            if (h >= 0 && h < s.height && x >= 0 && x < s.width)
              in.push_back(value(c, "x", (plane * s.height + h) * s.width + x));
          }
        if (m == Mutant::kBackwards) std::reverse(in.begin(), in.end());
        float sum = 0;
        for (const float v : in) sum = sum + v;
        const float y = in.empty()                              ? 0.0f
                        : m == Mutant::kReciprocal              ? sum * (1.0f / (high * wide))
                        : adaptive && m != Mutant::kOneDivision ? sum / high / wide
                                                                : sum / (high * wide);
        if (differs(c, "y", (plane * s.out_height + oh) * s.out_width + ow, y)) return true;
      }
  return false;
}
TEST(PoolMutants, AreNoticed) {
  int killed = 0;
  for (int i = 0; i < static_cast<int>(Mutant::kCount); ++i) {
    const auto m = static_cast<Mutant>(i);
    bool noticed = false;
    for (const char* type : {"f32.", "bf16."}) {
      for (const auto& name : test::vector_names(std::string("max_pool_") + type))
        noticed |= m <= Mutant::kNan && max_noticed(case_of(name, false), m);
      for (const auto& name : test::vector_names(std::string("avg_pool_") + type))
        noticed |= average_noticed(case_of(name, false), m, false);
      for (const auto& name : test::vector_names(std::string("adaptive_pool_") + type))
        noticed |= average_noticed(case_of(name, true), m, true);
    }
    EXPECT_EQ(noticed, m != Mutant::kNone) << "mutant " << i;
    killed += noticed;
  }
  std::printf("mutation score: %d of %d\n", killed, static_cast<int>(Mutant::kCount) - 1);
}

TEST(Pool, EqualsDefinition) {
  std::mt19937 rng(4);
  std::normal_distribution<float> normal(0.0f, 1.0f);
  int count = 0;
  for (const DType type : {DType::kF32, DType::kBF16, DType::kF16})
    for (const bool last : {false, true})
      for (const auto& w : {Window{{2, 2}, {2, 2}, {0, 0}, {1, 1}}, Window{{3, 3}, {1, 1}, {1, 1}, {1, 1}},
                            Window{{5, 2}, {3, 1}, {2, 1}, {1, 1}}, Window{{2, 3}, {1, 2}, {1, 1}, {3, 2}},
                            Window{{1, 1}, {2, 2}, {0, 0}, {1, 1}}}) {
        const bool dilated = w.dilation[0] > 1;
        const std::int64_t n = 2, c = 3, h = 13, width = 10, oh = outputs(h, w, 0, true),
                           ow = outputs(width, w, 1, true);
        const Shape s{type, last, n, c, h, width, oh, ow}, a{type, last, n, c, h, width, 5, 4};
        const auto fill = [&](std::int64_t k) {
          Bytes out(static_cast<std::size_t>(k) * size_of(type));
          for (std::int64_t i = 0; i < k; ++i) {
            const float v = normal(rng);
            type == DType::kF32    ? void(reinterpret_cast<float*>(out.data())[i] = v)
            : type == DType::kBF16 ? void(reinterpret_cast<Bf16*>(out.data())[i] = narrow<Bf16>(v))
                                   : void(reinterpret_cast<F16*>(out.data())[i] = narrow<F16>(v));
          }
          return out;
        };
        const Bytes x = fill(n * c * h * width), dy = fill(n * c * oh * ow), da = fill(n * c * 20);
        const auto run = [&](bool ref) {
          std::vector<Bytes> v{dy, x, Bytes(dy.size() / size_of(type) * 8), dy, x, da, x};
          auto* places = reinterpret_cast<std::int64_t*>(v[2].data());
          const pool::Max m{s, w, x.data(), v[0].data(), places};
          ref ? pool::ref::max_forward(m) : pool::max_forward(m);
          const pool::MaxBackward b{s, w, dy.data(), places, v[1].data()};
          ref ? pool::ref::max_backward(b) : pool::max_backward(b);
          if (!dilated) {
            const pool::Average f{s, w, false, 0, x.data(), v[3].data()}, g{s, w, true, 0, dy.data(), v[4].data()};
            ref ? pool::ref::average_forward(f) : pool::average_forward(f);
            ref ? pool::ref::average_backward(g) : pool::average_backward(g);
          }
          const pool::Adaptive f{a, x.data(), v[5].data()}, g{a, da.data(), v[6].data()};
          ref ? pool::ref::adaptive_forward(f) : pool::adaptive_forward(f);
          ref ? pool::ref::adaptive_backward(g) : pool::adaptive_backward(g);
          return v;
        };
        const auto want = run(true);
        test::for_each_isa_and_threads([&] {
          const auto got = run(false);
          for (std::size_t k = 0; k < want.size(); ++k)
            EXPECT_SAME_BYTES(want[k].data(), got[k].data(), static_cast<std::int64_t>(want[k].size()))
                << name_of(type) << (last ? " last" : "") << " part " << k;
        });
        ++count;
      }
  std::printf("%d cases\n", count);
  EXPECT_THROW(pool::adaptive_forward({{DType::kF64, false, 1, 1, 1, 1, 1, 1}, nullptr, nullptr}), Error);
}

TEST(Pool, WhatRaces) {
  const auto races = [](std::int64_t h, std::int64_t w, std::int64_t oh, std::int64_t ow) {
    return pool::adaptive_races({DType::kF32, false, 1, 1, h, w, oh, ow});
  };
  EXPECT_FALSE(races(8, 8, 4, 2));  // windows that do not meet
  EXPECT_FALSE(races(7, 8, 3, 2));  // two, on one axis
  EXPECT_TRUE(races(7, 7, 3, 3));   // four at a corner
  EXPECT_TRUE(races(2, 1, 6, 1));   // more outputs than inputs
  EXPECT_FALSE(pool::adaptive_races({DType::kF32, true, 1, 1, 7, 7, 3, 3}));
}

}  // namespace
}  // namespace step_oracle
