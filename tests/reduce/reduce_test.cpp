#include "csrc/kernels/reduce/reduce.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <functional>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "csrc/kernels/core/bits.h"
#include "csrc/kernels/core/error.h"
#include "tests/support/same_bytes.h"
#include "tests/support/vectors.h"

namespace step_oracle {
namespace {

using reduce::Op;
using reduce::Params;

// Bytes at a chosen address modulo 512.
struct Memory {
  std::vector<std::uint8_t> raw;
  std::uint64_t address;
  Memory(const void* data, std::size_t bytes, std::uint64_t address_) : raw(bytes + 1024), address(address_) {
    if (data) std::memcpy(at(), data, bytes);
  }
  std::uint8_t* at() {
    const auto base = reinterpret_cast<std::uintptr_t>(raw.data());
    return raw.data() + (512 - base % 512) % 512 + address;
  }
};

// rows x cols, contiguous: "row" sums each row, "col" each column, "all" everything, as coalesced dimensions.
reduce::Iterator iterator(const std::string& mode, std::int64_t rows, std::int64_t cols, std::int64_t in,
                          std::int64_t out) {
  reduce::Iterator it;
  if (mode == "all") {
    it.dims = it.reduced = 1;
    it.shape[0] = rows * cols;
    it.in_stride[0] = in;
    return it;
  }
  it.dims = 2;
  it.reduced = 1;
  const bool row = mode == "row";
  it.shape[0] = row ? cols : rows;
  it.shape[1] = row ? rows : cols;
  it.in_stride[0] = row ? in : cols * in;
  it.in_stride[1] = row ? cols * in : in;
  it.out_stride[1] = out;
  return it;
}

DType dtype_of(const test::Array& a) { return test::float_type(a); }

void both(const std::function<void(bool)>& body) {
  body(true);
  test::for_each_isa_and_threads([&] { body(false); });
}

TEST(ReduceVectors, SumMeanNorm2) {
  int cases = 0;
  for (const std::string prefix : {"sum_", "mean_", "norm2_"})
    for (const auto& name : test::vector_names(prefix)) {
      const auto file = test::load_vectors(name);
      const std::string shape = file.meta.at("shape");
      char mode[8];
      long rows = 0, cols = 0;
      ASSERT_EQ(std::sscanf(shape.c_str(), "%3[a-z]:%ldx%ld", mode, &rows, &cols), 3) << shape;
      const auto& x = file.in("x");
      const auto& want = file.out("y", "sm_90");
      both([&](bool ref) {
        SCOPED_TRACE(name + (ref ? " ref" : " body"));
        Params p;
        p.op = prefix == "sum_" ? Op::kSum : prefix == "mean_" ? Op::kMean : Op::kNorm2;
        p.in = dtype_of(x);
        p.out = dtype_of(want);
        const auto in = static_cast<std::int64_t>(size_of(p.in)), out = static_cast<std::int64_t>(size_of(p.out));
        p.iter = iterator(mode, rows, cols, in, out);
        std::vector<std::uint8_t> y(want.bytes.size());
        p.x = x.bytes.data();
        p.y = y.data();
        p.sms = 132;
        p.threads_per_sm = 2048;
        ref ? reduce::ref::run(p) : reduce::run(p);
        EXPECT_SAME_BYTES(want.bytes.data(), y.data(), static_cast<std::int64_t>(y.size()));
      });
      ++cases;
    }
  std::printf("%d golden files\n", cases);
  EXPECT_EQ(cases, 60);
}

// Norms of any order. A sum of powers that were rounded to the type first would be another number.
TEST(ReduceVectors, PowerNorms) {
  int cases = 0, noticed = 0;
  for (const auto& [prefix, order] : {std::pair{"norm3_", 3.0f}, std::pair{"norm_half_", 0.5f}})
    for (const auto& name : test::vector_names(prefix)) {
      const auto file = test::load_vectors(name);
      const std::string shape = file.meta.at("shape");
      char mode[8];
      long rows = 0, cols = 0;
      ASSERT_EQ(std::sscanf(shape.c_str(), "%3[a-z]:%ldx%ld", mode, &rows, &cols), 3) << shape;
      const auto& x = file.in("x");
      const auto& want = file.out("y", "sm_90");
      const auto run = [&](bool ref, float by) {
        Params p;
        p.in = dtype_of(x);
        p.out = dtype_of(want);
        p.iter = iterator(mode, rows, cols, static_cast<std::int64_t>(size_of(p.in)),
                          static_cast<std::int64_t>(size_of(p.out)));
        std::vector<std::uint8_t> y(want.bytes.size());
        p.x = x.bytes.data();
        p.y = y.data();
        p.sms = 132;
        p.threads_per_sm = 2048;
        ref ? reduce::ref::power_norm(p, by) : reduce::power_norm(p, by);
        return y;
      };
      both([&](bool ref) {
        const auto y = run(ref, order);
        EXPECT_SAME_BYTES(want.bytes.data(), y.data(), static_cast<std::int64_t>(y.size()))
            << name << (ref ? " ref" : "");
      });
      noticed += run(false, order * (1 + 0x1p-23f)) != want.bytes;
      ++cases;
    }
  std::printf("%d golden files; an ulp of the order noticed in %d\n", cases, noticed);
  EXPECT_EQ(cases, 16);
  EXPECT_GT(noticed, 4);
}

TEST(Reduce, PowerNormsEqualTheDefinition) {
  std::mt19937 rng(3);
  int cases = 0;
  for (const DType type : {DType::kF32, DType::kBF16, DType::kF16})
    for (const char* mode : {"row", "col", "all"})
      for (const auto& [rows, cols] : {std::array{3L, 1001L}, std::array{37L, 40L}, std::array{300L, 5L}})
        for (const std::uint64_t address : {0, 4, 8, 12}) {
          const auto size = static_cast<std::int64_t>(size_of(type));
          Params p;
          p.in = p.out = type;
          p.iter = iterator(mode, rows, cols, size, size);
          std::vector<std::uint8_t> x(static_cast<std::size_t>(rows * cols * size));
          for (std::size_t i = 1; i < x.size(); i += static_cast<std::size_t>(size)) {  // of moderate size
            x[i - 1] = static_cast<std::uint8_t>(rng());
            x[i + static_cast<std::size_t>(size) - 2] = static_cast<std::uint8_t>(0x3c + rng() % 4);
          }
          p.x = x.data();
          p.address = address;
          p.sms = 132;
          p.threads_per_sm = 2048;
          std::vector<std::uint8_t> want(static_cast<std::size_t>(rows * cols * size)), got = want;
          p.y = want.data();
          reduce::ref::power_norm(p, 1.7f);
          p.y = got.data();
          test::for_each_isa_and_threads([&] {
            reduce::power_norm(p, 1.7f);
            EXPECT_SAME_BYTES(want.data(), got.data(), static_cast<std::int64_t>(got.size()))
                << name_of(type) << " " << mode << " " << rows << "x" << cols << " +" << address;
          });
          ++cases;
        }
  std::printf("%d cases\n", cases);
}

// cumsum_*, cumprod_*: "inner:rows x columns" along the rows, "outer:" along the columns.
int scans(const std::string& prefix, bool product) {
  int cases = 0;
  for (const auto& name : test::vector_names(prefix)) {
    const auto file = test::load_vectors(name);
    const std::string shape = file.meta.at("shape");
    char mode[8];
    long rows = 0, cols = 0;
    EXPECT_EQ(std::sscanf(shape.c_str(), "%5[a-z]:%ldx%ld", mode, &rows, &cols), 3) << shape;
    const bool inner = std::string(mode) == "inner";
    const auto& x = file.in("x");
    const auto& want = file.out("y", "sm_90");
    both([&](bool ref) {
      SCOPED_TRACE(name + (ref ? " ref" : " body"));
      std::vector<std::uint8_t> y(want.bytes.size());
      const reduce::ScanParams p{dtype_of(x),      dtype_of(x),    inner ? rows : 1, inner ? cols : rows,
                                 inner ? 1 : cols, x.bytes.data(), y.data(),         product};
      ref ? reduce::ref::scan(p) : reduce::scan(p);
      EXPECT_SAME_BYTES(want.bytes.data(), y.data(), static_cast<std::int64_t>(y.size()));
    });
    ++cases;
  }
  std::printf("%d golden files\n", cases);
  return cases;
}
TEST(ReduceVectors, Cumsum) { EXPECT_EQ(scans("cumsum_", false), 9); }
TEST(ReduceVectors, Cumprod) { EXPECT_EQ(scans("cumprod_", true), 9); }

TEST(Reduce, ProductsEqualTheDefinition) {
  std::mt19937 rng(8);
  int cases = 0;
  for (const DType type : {DType::kF32, DType::kF64, DType::kBF16, DType::kF16, DType::kI32, DType::kBool})
    for (const auto& [outer, n, inner] :
         {std::array{1, 40, 3}, std::array{4, 33, 1}, std::array{2, 1100, 1}, std::array{3, 9, 5}}) {
      const std::size_t count = static_cast<std::size_t>(outer * n * inner), size = size_of(type);
      const bool floats = type != DType::kI32 && type != DType::kBool;
      std::vector<std::uint8_t> x(count * size), want(count * (floats ? size : 8)), got(want.size());
      for (std::size_t i = 0; i < count; ++i) {
        const float f = 0.9f + static_cast<float>(rng() % 1000) * 2e-4f;
        const double d = f;
        const std::uint32_t u = type == DType::kF32 ? bits_of(f) : rng() % 3;
        const auto half = static_cast<std::uint16_t>(type == DType::kBF16 ? bits_of(f) >> 16 : 0x3b80 + rng() % 0xff);
        if (type == DType::kF64) std::memcpy(&x[8 * i], &d, 8);
        if (size == 4) std::memcpy(&x[4 * i], &u, 4);
        if (size == 2) std::memcpy(&x[2 * i], &half, 2);
        if (size == 1) x[i] = rng() % 8 != 0;
      }
      reduce::ScanParams p{type, floats ? type : DType::kI64, outer, n, inner, x.data(), want.data(), true};
      reduce::ref::scan(p);
      p.y = got.data();
      test::for_each_isa_and_threads([&] {
        reduce::scan(p);
        EXPECT_SAME_BYTES(want.data(), got.data(), static_cast<std::int64_t>(want.size())) << name_of(type);
      });
      ++cases;
    }
  std::printf("%d cases\n", cases);
}

struct Case {
  const char* mode;
  std::int64_t rows, cols, pad;  // pad: elements between rows beyond cols
  std::uint64_t address;         // in elements
  int sms, threads;
};

const std::vector<Case> kCases{
    {"row", 1, 1, 0, 0, 132, 2048},     {"row", 5, 31, 0, 0, 132, 2048},    {"row", 3, 127, 0, 1, 132, 2048},
    {"row", 7, 128, 0, 0, 132, 2048},   {"row", 7, 129, 0, 3, 108, 2048},   {"row", 2, 20001, 1, 1, 58, 1536},
    {"row", 1, 70003, 0, 2, 58, 1536},  {"row", 33, 1030, 2, 0, 40, 1024},  {"row", 2, 300000, 0, 0, 132, 2048},
    {"all", 300, 501, 0, 5, 132, 2048}, {"all", 1, 262144, 0, 0, 40, 1024}, {"all", 37, 3, 0, 7, 132, 2048},
    {"col", 1, 7, 0, 0, 132, 2048},     {"col", 70, 33, 0, 0, 132, 2048},   {"col", 1000, 66, 2, 0, 132, 2048},
    {"col", 9000, 8, 0, 0, 58, 1536},   {"col", 9000, 8, 0, 2, 58, 1536},   {"col", 515, 260, 4, 4, 132, 2048},
    {"col", 20000, 3, 1, 0, 40, 1024},  {"col", 4, 1000, 0, 1, 132, 2048},
};

std::vector<std::uint8_t> random_elements(DType type, std::int64_t n, int special, std::mt19937& rng) {
  std::normal_distribution<float> normal(0.1f, 1.0f);
  std::vector<std::uint8_t> out(static_cast<std::size_t>(n) * size_of(type));
  for (std::int64_t i = 0; i < n; ++i) {
    float x = normal(rng);
    if (special && static_cast<int>(rng() % 50) < special) {
      const float odd[] = {0.0f, -0.0f, float_of(0x7fc01234u), float_of(1), -__builtin_inff(), __builtin_inff()};
      x = odd[rng() % (special > 1 ? 6 : 2)];
    }
    std::uint8_t* at = out.data() + static_cast<std::size_t>(i) * size_of(type);
    const double wide = x;
    const std::uint32_t bits = bits_of(x);
    const auto half = static_cast<std::uint16_t>(bits >> 16);
    if (type == DType::kF32)
      std::memcpy(at, &bits, 4);
    else if (type == DType::kF64)
      std::memcpy(at, &wide, 8);
    else
      std::memcpy(at, &half, 2);
  }
  return out;
}

void compare(Op op, DType type, DType out_type, const Case& c, int special, std::mt19937& rng) {
  const auto size = static_cast<std::int64_t>(size_of(type)), out = static_cast<std::int64_t>(size_of(out_type));
  const std::int64_t pitch = c.cols + c.pad, n = c.rows * pitch;
  auto bytes = random_elements(type, n, special, rng);
  Memory x(bytes.data(), bytes.size(), c.address * static_cast<std::uint64_t>(size));
  Params p;
  p.op = op;
  p.in = type;
  p.out = out_type;
  p.iter = iterator(c.mode, c.rows, c.cols, size, out);
  if (c.pad) p.iter.in_stride[std::string(c.mode) == "row" ? 1 : 0] = pitch * size;
  p.x = x.at();
  p.address = x.address;
  p.sms = c.sms;
  p.threads_per_sm = c.threads;
  const auto g = reduce::plan(p);
  std::vector<std::uint8_t> want(static_cast<std::size_t>(g.outputs * out)), want2(want.size());
  p.y = want.data();
  p.y2 = want2.data();
  reduce::ref::run(p);
  test::for_each_isa_and_threads([&] {
    std::vector<std::uint8_t> y(want.size()), y2(want.size());
    p.y = y.data();
    p.y2 = y2.data();
    reduce::run(p);
    EXPECT_SAME_BYTES(want.data(), y.data(), static_cast<std::int64_t>(y.size()));
    EXPECT_SAME_BYTES(want2.data(), y2.data(), static_cast<std::int64_t>(y2.size()));
  });
}

TEST(Reduce, BodyEqualsDefinition) {
  std::mt19937 rng(7);
  int cases = 0;
  for (const Case& c : kCases)
    for (Op op : {Op::kSum, Op::kMean, Op::kNanSum, Op::kProd, Op::kMax, Op::kMin, Op::kNorm0, Op::kNorm1, Op::kNorm2,
                  Op::kNormInf, Op::kNormNegInf, Op::kPowerSum2, Op::kVarMean, Op::kStd}) {
      const bool big = c.rows * c.cols > 100000;
      if (big && op != Op::kSum && op != Op::kNorm2 && op != Op::kVarMean) continue;
      SCOPED_TRACE(std::string(c.mode) + " " + std::to_string(c.rows) + "x" + std::to_string(c.cols) + " op " +
                   std::to_string(static_cast<int>(op)));
      for (int special : {0, 1, 2}) compare(op, DType::kF32, DType::kF32, c, special, rng), ++cases;
      if (big) continue;
      compare(op, DType::kBF16, DType::kBF16, c, 0, rng), ++cases;
      compare(op, DType::kF64, DType::kF64, c, 0, rng), ++cases;
      if (op != Op::kMax && op != Op::kMin) compare(op, DType::kBF16, DType::kF32, c, 0, rng), ++cases;
    }
  std::printf("%d cases\n", cases);
}

// Would the golden vectors notice another order, another card, another fusion?
std::vector<float> reduced(const std::string& mode, long rows, long cols, const float* x, Op op, int sms,
                           std::uint64_t address) {
  Params p;
  p.op = op;
  p.iter = iterator(mode, rows, cols, 4, 4);
  p.x = x;
  p.address = address;
  p.sms = sms;
  p.threads_per_sm = 2048;
  std::vector<float> y(static_cast<std::size_t>(reduce::plan(p).outputs));
  p.y = y.data();
  reduce::ref::run(p);
  return y;
}

TEST(ReduceMutations, VectorsNotice) {
  using Values = std::vector<float>;
  struct Mutant {
    const char* vectors;
    const char* mode;
    long rows, cols;
    Values (*value)(const Mutant& m, const float* x);
  };
  const Mutant mutants[] = {
      // one after the other
      {"sum_f32.row_33x257", "row", 33, 257,
       [](const Mutant& m, const float* x) {
         Values y(static_cast<std::size_t>(m.rows));
         for (std::size_t r = 0; r < y.size(); ++r)
           for (long i = 0; i < m.cols; ++i) y[r] = y[r] + x[static_cast<long>(r) * m.cols + i];
         return y;
       }},
      // an unaligned tensor
      {"sum_f32.row_33x257", "row", 33, 257,
       [](const Mutant& m, const float* x) { return reduced(m.mode, m.rows, m.cols, x, Op::kSum, 132, 4); }},
      // one multiprocessor
      {"sum_f32.col_16400x8", "col", 16400, 8,
       [](const Mutant& m, const float* x) { return reduced(m.mode, m.rows, m.cols, x, Op::kSum, 1, 0); }},
      // a division in place of the factor
      {"mean_f32.col_129x40", "col", 129, 40,
       [](const Mutant& m, const float* x) {
         Values y = reduced(m.mode, m.rows, m.cols, x, Op::kSum, 132, 0);
         for (float& v : y) v = v / static_cast<float>(m.rows);
         return y;
       }},
      // squares rounded before they are added
      {"norm2_f32.col_100x36", "col", 100, 36,
       [](const Mutant& m, const float* x) {
         Values squares(x, x + m.rows * m.cols);
         for (float& v : squares) v = v * v;
         Values y = reduced(m.mode, m.rows, m.cols, squares.data(), Op::kSum, 132, 0);
         for (float& v : y) v = __builtin_sqrtf(v);
         return y;
       }},
  };
  std::size_t noticed = 0;
  for (const Mutant& m : mutants) {
    const auto file = test::load_vectors(m.vectors);
    const Values y = m.value(m, file.in("x").as<float>());
    const bool differs = std::memcmp(y.data(), file.out("y", "sm_90").bytes.data(), y.size() * 4) != 0;
    EXPECT_TRUE(differs) << m.vectors;
    noticed += differs;
  }
  std::printf("%zu of %zu mutants noticed\n", noticed, std::size(mutants));
}

}  // namespace
}  // namespace step_oracle
