// Nearest neighbours and padding: places as compiled, gradients in the compiled order; the product equals the
// definition.
#include "csrc/kernels/pool/planes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
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

using pool::Copies;
using pool::Sources;
using Bytes = std::vector<std::uint8_t>;
using I = std::int64_t;

pool::Planes contiguous(I n, I c, I h, I w, I oh, I ow) {
  return {n, c, {c * h * w, h * w, w, 1}, {c * oh * ow, oh * ow, ow, 1}};
}

TEST(PlanesVectors, Nearest) {
  int files = 0, unfused = 0, killed = 0;
  for (const auto& name : test::vector_names("nearest_")) {
    const auto file = test::load_vectors(name);
    const bool exact = name.find("exact") != std::string::npos;
    const DType type = name.find("bf16") != std::string::npos  ? DType::kBF16
                       : name.find("f16") != std::string::npos ? DType::kF16
                                                               : DType::kF32;
    long v[6];
    const auto text = file.meta.at("shape").get<std::string>();
    ASSERT_EQ(std::sscanf(text.c_str(), "%ldx%ldx%ldx%ld:%ldx%ld", v, v + 1, v + 2, v + 3, v + 4, v + 5), 6);
    const auto ratio = [](long a, long b) { return static_cast<float>(a) / static_cast<float>(b); };
    const Copies rows = pool::nearest(v[2], v[4], ratio(v[2], v[4]), exact),
                 columns = pool::nearest(v[3], v[5], ratio(v[3], v[5]), exact);
    const Sources row_sources = pool::nearest_sources(v[2], v[4], ratio(v[4], v[2]), exact),
                  column_sources = pool::nearest_sources(v[3], v[5], ratio(v[5], v[3]), exact);
    const auto planes = contiguous(v[0], v[1], v[2], v[3], v[4], v[5]);
    const auto& y = file.out("y", "sm_90");
    const auto& dx = file.out("dx", "sm_90");
    const auto check = [&](bool ref) {
      Bytes a(y.bytes.size()), b(dx.bytes.size());
      const pool::Copy copy{size_of(type), planes, rows, columns, file.in("x").bytes.data(), a.data()};
      ref ? pool::ref::copy_planes(copy) : pool::copy_planes(copy);
      const pool::CopyBackward back{type,    planes, row_sources, column_sources, false, file.in("dy").bytes.data(),
                                    b.data()};
      ref ? pool::ref::copy_planes_backward(back) : pool::copy_planes_backward(back);
      EXPECT_SAME_BYTES(y.bytes.data(), a.data(), static_cast<I>(a.size())) << name;
      EXPECT_SAME_BYTES(dx.bytes.data(), b.data(), static_cast<I>(b.size())) << name;
    };
    check(true);
    test::for_each_isa_and_threads([&] { check(false); });
    // A mutant: sums rounded to the type after each addition; for float32, columns before rows.
    Bytes mutant(dx.bytes.size());
    if (type == DType::kF32) {
      Sources turned_rows = row_sources;
      for (auto& list : turned_rows) std::reverse(list.begin(), list.end());
      pool::copy_planes_backward(
          {type, planes, turned_rows, column_sources, false, file.in("dy").bytes.data(), mutant.data()});
    } else {
      pool::copy_planes_backward(
          {type, planes, row_sources, column_sources, true, file.in("dy").bytes.data(), mutant.data()});
    }
    unfused += 1;
    killed += mutant != dx.bytes;
    ++files;
  }
  EXPECT_EQ(files, 18);
  EXPECT_GT(killed, 6);
  std::printf("%d golden files; mutants noticed in %d of %d (small windows add two)\n", files, killed, unfused);
}

TEST(Planes, EqualsDefinition) {
  std::mt19937 rng(5);
  int cases = 0;
  for (const DType type : {DType::kF32, DType::kBF16, DType::kF16})
    for (const bool reflects : {false, true})
      for (const bool each : {false, true}) {
        const Copies rows = pool::padded(6, 3, 2, reflects), columns = pool::padded(9, 4, -1, reflects);
        const Sources a = pool::sources_of(rows, 6), b = pool::sources_of(columns, 9);
        const I out = static_cast<I>(rows.size() * columns.size());
        const auto planes = contiguous(2, 3, 6, 9, static_cast<I>(rows.size()), static_cast<I>(columns.size()));
        Bytes x(static_cast<std::size_t>(6 * 54) * size_of(type)),
            dy(static_cast<std::size_t>(6 * out) * size_of(type));
        for (Bytes* bytes : {&x, &dy})
          for (std::size_t i = 0; i < bytes->size(); i += 2) {  // 16-bit numbers around one, or floats
            const auto word = static_cast<std::uint16_t>(0x3c00 + rng() % 0x600);
            (*bytes)[i] = static_cast<std::uint8_t>(word);
            (*bytes)[i + 1] = static_cast<std::uint8_t>(word >> 8);
          }
        const auto run = [&](bool ref) {
          std::vector<Bytes> v{Bytes(dy.size()), Bytes(x.size())};
          const pool::Copy copy{size_of(type), planes, rows, columns, x.data(), v[0].data()};
          ref ? pool::ref::copy_planes(copy) : pool::copy_planes(copy);
          const pool::CopyBackward back{type, planes, a, b, each, dy.data(), v[1].data()};
          ref ? pool::ref::copy_planes_backward(back) : pool::copy_planes_backward(back);
          return v;
        };
        const auto want = run(true);
        test::for_each_isa_and_threads([&] {
          const auto got = run(false);
          for (std::size_t k = 0; k < 2; ++k)
            EXPECT_SAME_BYTES(want[k].data(), got[k].data(), static_cast<I>(want[k].size()))
                << name_of(type) << " " << k;
        });
        ++cases;
      }
  std::printf("%d cases\n", cases);
}

TEST(Planes, Places) {
  EXPECT_EQ(pool::padded(4, 2, 3, true), (Copies{2, 1, 0, 1, 2, 3, 2, 1, 0}));
  EXPECT_EQ(pool::padded(3, 2, 1, false), (Copies{0, 0, 0, 1, 2, 2}));
  EXPECT_EQ(pool::padded(4, -1, 1, true), (Copies{1, 2, 3, 2}));
  const Sources one{{0}};
  EXPECT_FALSE(pool::sums_race(one, pool::sources_of(pool::padded(6, 2, 0, true), 6)));
  EXPECT_TRUE(pool::sums_race(one, pool::sources_of(pool::padded(3, 2, 2, true), 3)));
  EXPECT_TRUE(pool::sums_race(one, pool::sources_of(pool::padded(6, 2, 0, false), 6)));
  EXPECT_THROW(pool::copy_planes_backward({DType::kF64, {}, one, one, false, nullptr, nullptr}), Error);
}

}  // namespace
}  // namespace step_oracle
