#include "csrc/kernels/arith/mufu.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/sha256.h"

namespace step_oracle {
namespace {

template <class Fn>
std::string digest(std::uint32_t n, Fn&& fn) {
  std::vector<float> words(n);
  for (std::uint32_t j = 0; j < n; ++j) words[j] = fn(j);
  return test::sha256(words.data(), words.size() * 4);
}
float from_one(std::uint32_t j) { return float_of(0x3f800000u + j); }
float step(std::uint32_t j, float unit) { return static_cast<float>(static_cast<std::int32_t>(j)) * unit; }

// Each word of each table: SHA-256 of the words a card returns, little endian. What is known of each: mufu.h.
TEST(Mufu, TablesEqualTheRecordedDigests) {
  EXPECT_EQ(digest(1u << 23, [](auto j) { return mufu::ex2_ftz(step(j, 0x1p-23f)); }),
            "b2a42c4a626469c986e33e43f16f41bde9d84de94347cd9ceaa1bd68d36bcdf0");
  EXPECT_EQ(digest(1u << 23, [](auto j) { return mufu::rcp_ftz(from_one(j)); }),
            "c408381446132e07fa5581e930dc33fb790bea7ec4276ef3621e322df2492a55");
  EXPECT_EQ(digest(1u << 24, [](auto j) { return mufu::rsqrt_ftz(from_one(j)); }),
            "218fc04d271773269367dedf4cff9ff719081b1218c3d67d248d8d6126040246");
  EXPECT_EQ(digest(1u << 23, [](auto j) { return mufu::lg2_ftz(from_one(j)); }),
            "7fd9be9a924e40a0ee18ba20e7f5158135112947597c8dd86131d3d4d8f9dbfa");
  EXPECT_EQ(digest(1u << 23, [](auto j) { return mufu::sin_turns(step(j, 0x1p-25f)); }),
            "57676af4861bf1ab7f9ee4cb0875a4e1abb7725e77fa0016a38c8a233c875ce6");
}

// The squarer's definition, term by term: x_i at 2i and x_i x_j at i + j + 1, columns from 2^19 on.
std::int32_t squarer_by_terms(std::int32_t x) {
  std::int64_t s = 0;
  for (int i = 0; i < 17; ++i) {
    if (!(x >> i & 1)) continue;
    if (2 * i >= 19) s += std::int64_t{1} << (2 * i);
    for (int j = i + 1; j < 17; ++j)
      if ((x >> j & 1) && i + j + 1 >= 19) s += std::int64_t{1} << (i + j + 1);
  }
  return static_cast<std::int32_t>(s >> 19);
}
TEST(Mufu, SquarerForEveryArgument) {
  for (std::int32_t x = 0; x < 1 << 17; ++x) ASSERT_EQ(mufu::squarer(x), squarer_by_terms(x)) << x;
}

struct Point {
  std::uint32_t x, y;
};
template <std::size_t kCount, class Fn>
void expect_points(const Point (&points)[kCount], Fn&& fn) {
  for (const Point& p : points) EXPECT_EQ(bits_of(fn(float_of(p.x))), p.y) << std::hex << "0x" << p.x;
}

TEST(Mufu, RulesAroundTheTables) {
  const Point ex2[] = {{0, 0x3f800000},          {0x80000000, 0x3f800000}, {1, 0x3f800000},
                       {0x807fffff, 0x3f800000}, {0x33ffffff, 0x3f800000}, {0x3f800000, 0x40000000},
                       {0xbf800000, 0x3f000000}, {0x42fe0000, 0x7f000000}, {0x43000000, 0x7f800000},
                       {0xc2fc0000, 0x00800000}, {0xc2fc0001, 0},          {0xc3000000, 0},
                       {0x7f800000, 0x7f800000}, {0xff800000, 0},          {0x7f800001, 0x7fffffff},
                       {0xffc00000, 0x7fffffff}, {0x7f7fffff, 0x7f800000}, {0xff7fffff, 0}};
  expect_points(ex2, [](float x) { return mufu::ex2_ftz(x); });
  const Point ex2_subnormal[] = {{0xc2fc0000, 0x00800000}, {0xc2fe0000, 0x003fffff}, {0xc3150000, 1}, {0xc3160000, 0}};
  expect_points(ex2_subnormal, [](float x) { return mufu::ex2(x); });
  const Point rcp[] = {{0x3f800000, 0x3f800000}, {0x40000000, 0x3f000000}, {0, 0x7f800000},
                       {0x80000000, 0xff800000}, {0x007fffff, 0x7f800000}, {0x807fffff, 0xff800000},
                       {0x00800000, 0x7e800000}, {0x7e800000, 0x00800000}, {0x7e800001, 0},
                       {0xfe800001, 0x80000000}, {0x7f000000, 0},          {0xff800000, 0x80000000},
                       {0x7f800000, 0},          {0xffffffff, 0x7fffffff}};
  expect_points(rcp, [](float x) { return mufu::rcp_ftz(x); });
  const Point rsqrt[] = {{0x3f800000, 0x3f800000}, {0x40800000, 0x3f000000}, {0, 0x7f800000},
                         {0x80000000, 0xff800000}, {0x007fffff, 0x7f800000}, {0x807fffff, 0xff800000},
                         {0xbf800000, 0x7fffffff}, {0x7f800000, 0},          {0xff800000, 0x7fffffff},
                         {0x7fc00000, 0x7fffffff}, {0x00800000, 0x5f000000}};
  expect_points(rsqrt, [](float x) { return mufu::rsqrt_ftz(x); });
  const Point rsqrt_subnormal[] = {{0x00000002, 0x64800000}, {0x80000001, 0x7fffffff}, {0x00800000, 0x5f000000}};
  expect_points(rsqrt_subnormal, [](float x) { return mufu::rsqrt(x); });
  const Point lg2[] = {{0x3f800000, 0},          {0x3f000000, 0xbf7ffffe}, {0x3e800000, 0xbfffffff},
                       {0x3f7fffff, 0xb24b4000}, {0x3f800001, 0x3495f600}, {0x41200000, 0x40549a78},
                       {0, 0xff800000},          {0x80000001, 0xff800000}, {0xbf800000, 0x7fffffff},
                       {0x7f800000, 0x7f800000}, {0xff800000, 0x7fffffff}};
  expect_points(lg2, [](float x) { return mufu::lg2_ftz(x); });
  const Point sin[] = {{0, 0}, {0x80000000, 0x80000000}, {0x3e800000, 0x3f800000}, {0x7f800000, 0x7fffffff}};
  expect_points(sin, [](float x) { return mufu::sin_turns(x); });
  const Point cos[] = {{0, 0x3f800000}, {0x80000000, 0x3f800000}, {0x4b800000, 0x3f800000}, {0xff800000, 0x7fffffff}};
  expect_points(cos, [](float x) { return mufu::cos_turns(x); });
}

}  // namespace
}  // namespace step_oracle
