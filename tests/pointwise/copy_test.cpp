#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

#include "csrc/kernels/core/error.h"
#include "csrc/kernels/pointwise/element.h"
#include "csrc/kernels/pointwise/pointwise.h"
#include "tests/support/same_bytes.h"

namespace step_oracle::pointwise {
namespace {

#if defined(__aarch64__)
using CompilersHalf = __fp16;  // GCC 12 has no _Float16 in C++ there
#else
using CompilersHalf = _Float16;
#endif

// float16 and bfloat16 against the compiler's own conversions, every 16-bit pattern and many floats.
TEST(Convert, SixteenBits) {
  std::int64_t cases = 0;
  for (std::uint32_t u = 0; u < 0x10000; ++u) {
    CompilersHalf h;
    const auto bits = static_cast<std::uint16_t>(u);
    std::memcpy(&h, &bits, 2);
    const float f = static_cast<float>(h), g = widen(Half{bits});
    EXPECT_TRUE(bits_of(f) == bits_of(g) || (f != f && g != g)) << u;
    ++cases;
  }
  for (std::uint64_t u = 0; u < 0x100000000ull; u += 4099) {
    const float x = float_of(static_cast<std::uint32_t>(u));
    if (x != x) {
      EXPECT_EQ(narrow_half(x).bits, 0x7fff);
      EXPECT_EQ(narrow(x, 0x7fc0).bits, 0x7fc0);
      EXPECT_EQ(narrow_exact(x).bits, u >> 16);
      continue;
    }
    const auto h = static_cast<CompilersHalf>(x);
    std::uint16_t want;
    std::memcpy(&want, &h, 2);
    EXPECT_EQ(narrow_half(x).bits, want) << u;
    // bfloat16: of the two neighbours the nearer one, on a tie the even one. Infinity counts as 2^128.
    const auto low = static_cast<std::uint32_t>(u) >> 16, rest = static_cast<std::uint32_t>(u) & 0xffffu;
    EXPECT_EQ(narrow(x, 0x7fff).bits, low + (rest > 0x8000 || (rest == 0x8000 && (low & 1)))) << u;
    ++cases;
  }
  std::printf("%lld cases\n", static_cast<long long>(cases));
}

TEST(Convert, FloatToIntegers) {
  const struct {
    double x;
    std::int64_t i64;
    std::int32_t i32;
  } cases[] = {{0.0, 0, 0},
               {-0.9, 0, 0},
               {1.999, 1, 1},
               {-7.5, -7, -7},
               {2147483648.0, 2147483648, INT32_MAX},
               {-2147483649.0, -2147483649, INT32_MIN},
               {0x1p63, INT64_MAX, INT32_MAX},
               {-0x1p63, INT64_MIN, INT32_MIN},
               {__builtin_inf(), INT64_MAX, INT32_MAX},
               {-__builtin_inf(), INT64_MIN, INT32_MIN},
               {__builtin_nan(""), INT64_MIN, INT32_MIN}};  // from double; from float 0
  for (const auto& c : cases) {
    EXPECT_EQ(to_int64(c.x), c.i64) << c.x;
    EXPECT_EQ(to_int32(c.x), c.i32) << c.x;
  }
  EXPECT_EQ(zero_for_nan(__builtin_nanf("")), 0.0);
}

TEST(Copy, EveryPairOfTypes) {
  const DType types[] = {DType::kF32, DType::kF64, DType::kF16, DType::kBF16, DType::kI8,
                         DType::kU8,  DType::kI16, DType::kI32, DType::kI64,  DType::kBool};
  std::mt19937_64 gen(23);
  int pairs = 0;
  for (DType to : types)
    for (DType from : types) {
      for (std::int64_t n : {1, 7, 33, 1030})
        for (int form = 0; form < 4; ++form) {
          const auto in_size = size_of(from), out_size = size_of(to);
          const std::size_t in_step = form & 1 ? 2 : 1, out_step = form & 2 ? 3 : 1;
          std::vector<char> in(static_cast<std::size_t>(n) * in_step * in_size);
          for (auto& c : in) c = static_cast<char>(gen());
          if (from == DType::kBool)
            for (auto& c : in) c &= 1;
          std::vector<char> out(static_cast<std::size_t>(n) * out_step * out_size, 0x55);
          Loop loop;
          loop.ndim = 1;
          loop.shape[0] = n;
          loop.operands = 2;
          loop.operand[0] = {out.data(), to, {static_cast<std::int64_t>(out_step * out_size)}};
          loop.operand[1] = {in.data(), from, {static_cast<std::int64_t>(in_step * in_size)}};
          ref::copy(loop);
          const std::vector<char> want = out;
          test::for_each_isa_and_threads([&] {
            std::fill(out.begin(), out.end(), 0x55);
            copy(loop);
            EXPECT_SAME_BYTES(want.data(), out.data(), static_cast<std::int64_t>(out.size()))
                << name_of(from) << " to " << name_of(to);
          });
        }
      ++pairs;
    }
  std::printf("%d pairs\n", pairs);
}

// Permuted copies of three dimensions, some of which are matrices worth tiling.
TEST(Copy, PermutedDimensions) {
  std::mt19937_64 gen(25);
  for (const DType type : {DType::kBool, DType::kBF16, DType::kF32, DType::kI64})
    for (int repeat = 0; repeat < 20; ++repeat) {
      std::int64_t shape[3];
      for (auto& s : shape) s = 1 + static_cast<std::int64_t>(gen() % (repeat % 2 ? 80 : 12));
      const auto size = static_cast<std::int64_t>(size_of(type));
      std::vector<char> in(static_cast<std::size_t>(shape[0] * shape[1] * shape[2] * size)), out(in.size());
      for (auto& c : in) c = static_cast<char>(gen() & 1);
      Loop loop;
      loop.ndim = 3;
      loop.operands = 2;
      int order[3] = {0, 1, 2};
      std::shuffle(order, order + 3, gen);
      std::int64_t dense = size, permuted = size;
      loop.operand[0].data = out.data(), loop.operand[0].dtype = type;
      loop.operand[1].data = in.data(), loop.operand[1].dtype = type;
      for (int d = 0; d < 3; ++d) {
        loop.shape[d] = shape[d];
        loop.operand[0].stride[d] = dense;
        dense *= shape[d];
        loop.operand[1].stride[order[d]] = permuted;
        permuted *= shape[order[d]];
      }
      ref::copy(loop);
      const std::vector<char> want = out;
      test::for_each_isa_and_threads([&] {
        std::fill(out.begin(), out.end(), 7);
        copy(loop);
        EXPECT_SAME_BYTES(want.data(), out.data(), static_cast<std::int64_t>(out.size()));
      });
    }
}

TEST(Select, ByMask) {
  std::mt19937_64 gen(24);
  for (DType type : {DType::kBool, DType::kF16, DType::kF32, DType::kI64})
    for (std::int64_t n : {1, 40, 1000})
      for (bool once : {false, true}) {
        const auto size = size_of(type);
        std::vector<char> a(static_cast<std::size_t>(n) * size), b(a.size()), mask(static_cast<std::size_t>(n)),
            out(a.size());
        for (auto* v : {&a, &b, &mask})
          for (auto& c : *v) c = static_cast<char>(gen());
        for (auto& c : mask) c &= 1;
        const Operand operands[4] = {
            {out.data(), type, {}}, {mask.data(), DType::kBool, {}}, {a.data(), type, {}}, {b.data(), type, {}}};
        const Loop loop = contiguous_loop(n, operands, 4, once ? 4u : 0u);
        test::for_each_isa_and_threads([&] {
          std::fill(out.begin(), out.end(), 0);
          select(loop);
          for (std::size_t i = 0; i < mask.size(); ++i) {
            const char* want = mask[i] ? a.data() + (once ? 0 : i * size) : b.data() + i * size;
            ASSERT_EQ(std::memcmp(out.data() + i * size, want, size), 0);
          }
        });
      }
}

TEST(Triangle, KeepsItsSide) {
  for (std::int64_t rows : {1, 5, 12})
    for (std::int64_t cols : {1, 7, 12})
      for (std::int64_t diagonal = -13; diagonal <= 13; ++diagonal)
        for (bool upper : {false, true}) {
          std::vector<float> in(static_cast<std::size_t>(2 * rows * cols), 3.0f), out(in.size(), 9.0f);
          const Triangle t{2,        rows, cols,       diagonal,        upper,    4, in.data(), rows * cols * 4,
                           cols * 4, 4,    out.data(), rows * cols * 4, cols * 4, 4};
          triangle(t);
          for (std::int64_t i = 0; i < 2 * rows * cols; ++i) {
            const std::int64_t r = i / cols % rows, c = i % cols;
            const bool keep = upper ? c - r >= diagonal : c - r <= diagonal;
            ASSERT_EQ(out[static_cast<std::size_t>(i)], keep ? 3.0f : 0.0f)
                << rows << 'x' << cols << ' ' << diagonal << ' ' << upper;
          }
        }
}

TEST(Arange, FusesTheStep) {
  std::vector<float> out(3000);
  const float start = 0.1f, step = 0.3f;
  test::for_each_isa_and_threads([&] {
    arange(out.data(), DType::kF32, 3000, Scalars::of(0.1, 0.3));
    for (int i = 0; i < 3000; ++i)
      ASSERT_EQ(bits_of(out[static_cast<std::size_t>(i)]), bits_of(__builtin_fmaf(step, static_cast<float>(i), start)));
  });
  std::vector<std::int64_t> ints(100);
  arange(ints.data(), DType::kI64, 100, Scalars::of_int(-5, 3));
  EXPECT_EQ(ints[99], 292);
}

TEST(Rows, MissingOneIsNamed) {
  try {
    row("exp", DType::kI64);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kUnsupported);
    EXPECT_NE(std::string(e.what()).find("'exp' has no int64 kernel"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace step_oracle::pointwise
