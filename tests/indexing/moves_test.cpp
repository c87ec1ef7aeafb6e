// Sorts and windows: the bodies give the definition's bytes, the compiled kernel's where there is a golden vector.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

#include "csrc/kernels/core/bits.h"
#include "csrc/kernels/core/error.h"
#include "csrc/kernels/indexing/search.h"
#include "csrc/kernels/indexing/sort.h"
#include "csrc/kernels/indexing/windows.h"
#include "tests/support/same_bytes.h"
#include "tests/support/vectors.h"

namespace step_oracle {
namespace {

// Few different values, so that ties are many; zeros of both signs and NaNs of both signs.
std::vector<std::uint8_t> tied(DType type, std::int64_t n, std::mt19937& rng) {
  const std::uint32_t special[] = {0, 0x80000000u, 0x7fc00000u, 0xffc00001u, 0x7f800000u, 0xff800000u, 1, 0x80000001u};
  const auto size = static_cast<std::int64_t>(size_of(type));
  std::vector<std::uint8_t> out(static_cast<std::size_t>(n * size));
  for (std::int64_t i = 0; i < n; ++i) {
    const std::uint32_t pick = rng();
    std::uint64_t v = pick % 13;
    const float f = static_cast<float>(static_cast<int>(pick % 9) - 4) * 0.5f;
    const std::uint32_t u = pick % 5 == 0 ? special[pick / 5 % std::size(special)] : bits_of(f);
    if (type == DType::kF32) v = u;
    if (type == DType::kF64) v = bits_of(static_cast<double>(float_of(u)));
    if (type == DType::kBF16) v = u >> 16;
    if (type == DType::kF16)
      v = (u >> 16 & 0x8000u) | (pick % 5 == 0 ? u >> 13 & 0x7fffu : 0x3c00u + pick % 3 * 0x200u);
    if (type == DType::kI8 || type == DType::kI64) v -= 6;
    if (type == DType::kBool) v &= 1;
    std::memcpy(out.data() + i * size, &v, static_cast<std::size_t>(size));
  }
  return out;
}

const DType kTypes[] = {DType::kF32, DType::kF64, DType::kBF16, DType::kF16, DType::kI64, DType::kI8, DType::kU8};

TEST(Sort, BodyEqualsDefinition) {
  std::mt19937 rng(3);
  int cases = 0;
  for (const DType type : kTypes)
    for (const std::int64_t n : {0, 1, 2, 3, 31, 32, 33, 127, 128, 129, 700})
      for (const bool descending : {false, true})
        for (const bool stable : {false, true}) {
          const std::int64_t rows = 3;
          const auto x = tied(type, rows * n, rng);
          std::vector<std::uint8_t> want(x.size()), got(x.size());
          std::vector<std::int64_t> want_at(static_cast<std::size_t>(rows * n)), got_at(want_at.size());
          indexing::SortParams p{type, rows, n, descending, stable, x.data(), want.data(), want_at.data()};
          indexing::ref::sort(p);
          p.values = got.data();
          p.indices = got_at.data();
          test::for_each_isa_and_threads([&] {
            indexing::sort(p);
            EXPECT_SAME_BYTES(want.data(), got.data(), static_cast<std::int64_t>(want.size()))
                << name_of(type) << " " << n << descending << stable;
            EXPECT_SAME_BYTES(want_at.data(), got_at.data(), rows * n) << name_of(type) << " " << n;
          });
          ++cases;
        }
  std::printf("%d cases\n", cases);
}

TEST(Sort, TopBodyEqualsDefinition) {
  std::mt19937 rng(4);
  int cases = 0;
  for (const DType type : kTypes)
    for (const std::int64_t n : {1, 2, 33, 150, 300})
      for (const std::int64_t k : {std::int64_t{0}, std::int64_t{1}, n / 2, n})
        for (const bool largest : {false, true})
          for (const bool sorted : {false, true}) {
            const std::int64_t rows = 2;
            const auto x = tied(type, rows * n, rng);
            const auto bytes = static_cast<std::size_t>(rows * k) * size_of(type);
            std::vector<std::uint8_t> want(bytes + 1), got(bytes + 1);
            std::vector<std::int64_t> want_at(static_cast<std::size_t>(rows * k) + 1), got_at(want_at.size());
            indexing::TopParams p{type, rows, n, k, largest, sorted, x.data(), want.data(), want_at.data()};
            indexing::ref::top(p);
            p.values = got.data();
            p.indices = got_at.data();
            test::for_each_isa_and_threads([&] {
              indexing::top(p);
              EXPECT_SAME_BYTES(want.data(), got.data(), static_cast<std::int64_t>(want.size())) << name_of(type);
              EXPECT_SAME_BYTES(want_at.data(), got_at.data(), rows * k) << name_of(type) << " " << n << " " << k;
            });
            ++cases;
          }
  std::printf("%d cases\n", cases);
}

// What the three algorithms do with ties, zeros and NaNs, stated by hand.
TEST(Sort, Ties) {
  const float x[3] = {1.0f, 1.0f, 1.0f};
  float values[3];
  std::int64_t at[3];
  indexing::sort({DType::kF32, 1, 3, false, true, x, values, at});
  EXPECT_EQ(at[0], 0);
  EXPECT_EQ(at[2], 2);
  std::vector<float> many(200, 0.0f), sorted(200);
  std::vector<std::int64_t> where(200);
  many[0] = float_of(0x7fc00000u);
  many[1] = float_of(0xffc00000u);  // a NaN with its sign: the smallest for the radix sort
  many[2] = -0.0f;
  indexing::sort({DType::kF32, 1, 200, false, false, many.data(), sorted.data(), where.data()});
  EXPECT_EQ(where[0], 1);
  EXPECT_EQ(where[1], 2) << "-0 equals +0";
  EXPECT_EQ(where[199], 0);
  EXPECT_THROW(indexing::top({DType::kBool, 1, 2, 1, true, true, x, values, at}), Error);
}

const indexing::Windows kWindows[] = {
    {1, 5, 7, 3, 2, 0, 0, 1, 1, 1, 1}, {6, 9, 11, 3, 2, 1, 2, 2, 1, 1, 2},   {2, 8, 8, 3, 3, 1, 1, 1, 1, 1, 1},
    {3, 6, 6, 2, 2, 0, 0, 3, 3, 1, 1}, {2, 4, 1030, 1, 5, 0, 2, 1, 1, 1, 1}, {1, 12, 10, 4, 3, 3, 2, 2, 3, 2, 2},
    {0, 4, 4, 2, 2, 0, 0, 1, 1, 1, 1},
};

TEST(Windows, BodyEqualsDefinition) {
  std::mt19937 rng(5);
  std::normal_distribution<float> normal(0, 1);
  int cases = 0;
  for (const auto& w : kWindows)
    for (const DType type : {DType::kF32, DType::kF64, DType::kBF16, DType::kF16}) {
      const auto size = static_cast<std::int64_t>(size_of(type));
      const std::int64_t image = w.planes * w.height * w.width,
                         columns = w.planes * w.kernel_height * w.kernel_width * w.down() * w.across();
      std::vector<std::uint8_t> from(static_cast<std::size_t>(columns * size));
      for (std::int64_t i = 0; i < columns; ++i) {
        const float f = normal(rng);
        const double d = f;
        const std::uint32_t u = bits_of(f);
        const std::uint16_t half = static_cast<std::uint16_t>(type == DType::kBF16 ? u >> 16 : 0x3000 + u % 0x1800);
        const void* v = size == 8 ? static_cast<const void*>(&d) : size == 4 ? static_cast<const void*>(&f) : &half;
        std::memcpy(from.data() + i * size, v, static_cast<std::size_t>(size));
      }
      std::vector<std::uint8_t> want(static_cast<std::size_t>(image * size) + 1), got(want.size());
      std::vector<std::uint8_t> out(from.size()), again(from.size());
      indexing::ref::col2im(w, type, from.data(), want.data());
      indexing::ref::im2col(w, size, want.data(), out.data());
      test::for_each_isa_and_threads([&] {
        indexing::col2im(w, type, from.data(), got.data());
        EXPECT_SAME_BYTES(want.data(), got.data(), image * size) << name_of(type);
        indexing::im2col(w, size, want.data(), again.data());
        EXPECT_SAME_BYTES(out.data(), again.data(), columns * size) << name_of(type);
      });
      ++cases;
    }
  std::printf("%d cases\n", cases);
  EXPECT_THROW(indexing::im2col({1, 2, 2, 3, 3, 0, 0, 0, 1, 1, 1}, 4, nullptr, nullptr), Error);
}

// "batch x channels x height x width : kernel : padding : stride : dilation"
indexing::Windows windows_of(const std::string& shape) {
  long b, c, h, w, kh, kw, ph, pw, sh, sw, dh, dw;
  EXPECT_EQ(std::sscanf(shape.c_str(), "%ldx%ldx%ldx%ld:%ldx%ld:%ldx%ld:%ldx%ld:%ldx%ld", &b, &c, &h, &w, &kh, &kw, &ph,
                        &pw, &sh, &sw, &dh, &dw),
            12);
  return {b * c, h, w, kh, kw, ph, pw, sh, sw, dh, dw};
}

// The mutants: columns right to left, and bottom to top, and a 16-bit sum rounded at each step.
float mutant(const indexing::Windows& w, const float* columns, std::int64_t index, bool up) {
  float sum = 0.0f;
  const std::int64_t x = index % w.width, y = index / w.width % w.height, plane = index / (w.width * w.height);
  for (std::int64_t a = 0; a < w.down(); ++a)
    for (std::int64_t b = 0; b < w.across(); ++b) {
      const std::int64_t h_col = up ? w.down() - 1 - a : a, w_col = up ? b : w.across() - 1 - b;
      const std::int64_t i = y + w.pad_height - h_col * w.stride_height, j = x + w.pad_width - w_col * w.stride_width;
      if (i < 0 || j < 0 || i % w.dilation_height || j % w.dilation_width || i / w.dilation_height >= w.kernel_height ||
          j / w.dilation_width >= w.kernel_width)
        continue;
      const std::int64_t tap =
          (plane * w.kernel_height + i / w.dilation_height) * w.kernel_width + j / w.dilation_width;
      sum = sum + columns[(tap * w.down() + h_col) * w.across() + w_col];
    }
  return sum;
}

TEST(WindowsVectors, Col2im) {
  int files = 0, killed[2] = {0, 0};
  for (const auto& name : test::vector_names("col2im_")) {
    const auto file = test::load_vectors(name);
    const auto w = windows_of(file.meta.at("shape").get<std::string>());
    const auto& want = file.out("image", "sm_90");
    const DType type = test::float_type(want);
    std::vector<std::uint8_t> got(want.bytes.size());
    indexing::ref::col2im(w, type, file.in("columns").bytes.data(), got.data());
    EXPECT_SAME_BYTES(want.bytes.data(), got.data(), static_cast<std::int64_t>(got.size())) << name << " ref";
    test::for_each_isa_and_threads([&] {
      std::fill(got.begin(), got.end(), 1);
      indexing::col2im(w, type, file.in("columns").bytes.data(), got.data());
      EXPECT_SAME_BYTES(want.bytes.data(), got.data(), static_cast<std::int64_t>(got.size())) << name;
    });
    if (type == DType::kF32)
      for (const int up : {0, 1}) {
        bool noticed = false;
        for (std::int64_t i = 0; i < want.numel(); ++i)
          noticed |= bits_of(mutant(w, file.in("columns").as<float>(), i, up)) != want.as<std::uint32_t>()[i];
        killed[up] += noticed;
      }
    ++files;
  }
  EXPECT_EQ(files, 6);
  EXPECT_GT(killed[0], 0);
  EXPECT_GT(killed[1], 0);
  std::printf("%d files of vectors; mutation score: %d of 2\n", files, (killed[0] > 0) + (killed[1] > 0));
}

// ---- searches and running extremes, against counting
float number(DType type, const std::uint8_t* at) {
  std::uint32_t u = 0;
  std::memcpy(&u, at, size_of(type));
  return type == DType::kF32 ? float_of(u) : static_cast<float>(static_cast<std::int8_t>(u));
}

TEST(Search, CountsWhatIsBelow) {
  std::mt19937 rng(14);
  int cases = 0;
  for (const DType type : {DType::kF32, DType::kI8})
    for (const bool right : {false, true})
      for (const bool one_row : {false, true})
        for (const DType out : {DType::kI64, DType::kI32}) {
          const std::int64_t rows = 3, length = 17, per_row = 50, n = rows * per_row;
          std::vector<std::uint8_t> sequence(static_cast<std::size_t>(rows * length) * size_of(type)),
              values(static_cast<std::size_t>(n) * size_of(type)), got(static_cast<std::size_t>(n) * size_of(out));
          for (std::int64_t i = 0; i < rows * length; ++i) {
            const float f = static_cast<float>(i % length) * 0.5f;
            const auto b = static_cast<std::int8_t>(i % length / 2);
            type == DType::kF32 ? std::memcpy(&sequence[static_cast<std::size_t>(4 * i)], &f, 4)
                                : std::memcpy(&sequence[static_cast<std::size_t>(i)], &b, 1);
          }
          for (std::int64_t i = 0; i < n; ++i) {
            const float f = static_cast<float>(rng() % 24) * 0.5f - 1.0f;
            const auto b = static_cast<std::int8_t>(f);
            type == DType::kF32 ? std::memcpy(&values[static_cast<std::size_t>(4 * i)], &f, 4)
                                : std::memcpy(&values[static_cast<std::size_t>(i)], &b, 1);
          }
          test::for_each_isa_and_threads([&] {
            indexing::search(
                {type, n, per_row, length, one_row, right, sequence.data(), values.data(), nullptr, out, got.data()});
            for (std::int64_t i = 0; i < n; ++i) {
              std::int64_t want = 0, place = 0;
              for (std::int64_t k = 0; k < length; ++k) {
                const std::int64_t place_in = (one_row ? 0 : i / per_row) * length + k;
                const float at = number(type, &sequence[static_cast<std::size_t>(place_in) * size_of(type)]),
                            v = number(type, &values[static_cast<std::size_t>(i) * size_of(type)]);
                want += right ? at <= v : at < v;
              }
              std::memcpy(&place, &got[static_cast<std::size_t>(i) * size_of(out)], size_of(out));
              ASSERT_EQ(place, want) << i;
            }
          });
          ++cases;
        }
  const float row[4] = {1.0f, 2.0f, 3.0f, float_of(0x7fc00000u)}, nan = row[3];
  std::int64_t place = 0;
  indexing::search({DType::kF32, 1, 1, 4, true, false, row, &nan, nullptr, DType::kI64, &place});
  EXPECT_EQ(place, 4) << "no comparison with a NaN holds";
  const std::int64_t order[4] = {2, 0, 1, 3};
  const float shuffled[4] = {2.0f, 3.0f, 1.0f, 9.0f}, value = 2.5f;
  indexing::search({DType::kF32, 1, 1, 4, true, false, shuffled, &value, order, DType::kI64, &place});
  EXPECT_EQ(place, 2);
  std::printf("%d cases\n", cases);
}

TEST(Extremes, LatestOfEqualOnesAndNaN) {
  const float nan = float_of(0x7fc00007u);
  const float x[12] = {1, 5, 5, 0, -0.0f, 0.0f, 3, nan, 9, nan, 2, 2};
  float values[12];
  std::int64_t at[12];
  for (const bool max : {true, false}) {
    indexing::running_extremes({DType::kF32, max, 2, 6, 1, x, values, at});
    const std::int64_t maxima[12] = {0, 1, 2, 2, 2, 2, 0, 1, 1, 3, 3, 3},
                       minima[12] = {0, 0, 0, 3, 4, 5, 0, 1, 1, 3, 3, 3};
    EXPECT_SAME_BYTES(max ? maxima : minima, at, 12);
    for (int i = 0; i < 12; ++i) EXPECT_EQ(bits_of(values[i]), bits_of(x[i / 6 * 6 + at[i]])) << i;
    indexing::running_extremes({DType::kF32, max, 1, 2, 6, x, values, at});  // along the other dimension
    EXPECT_EQ(at[6], max ? 1 : 0);
    EXPECT_EQ(at[7], 1);
  }
}

}  // namespace
}  // namespace step_oracle
