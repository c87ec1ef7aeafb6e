// The inputs of the digests in libdevice_test.cpp: every 65,521st float and values at boundaries.
#pragma once
#include <cstdint>
#include <vector>

namespace step_oracle::test {

inline const std::vector<std::uint32_t>& boundary_words() {
  static const std::vector<std::uint32_t> words = [] {
    const std::uint32_t positive[] = {0x00000000, 0x00000001, 0x00000002, 0x007fffff,  // zero and subnormals
                                      0x00800000, 0x00800001, 0x00ffffff, 0x01000000,  // the smallest normals
                                      0x33000000, 0x33800000, 0x34000000, 0x34000001,  // around an ulp of one
                                      0x3727c5ac, 0x38d1b717, 0x3a83126f, 0x3c23d70a, 0x3dcccccd,  // powers of ten
                                      0x3ed1eb84, 0x3ed1eb85, 0x3f000000, 0x3f199999, 0x3f19999a, 0x3f2aaaab,
                                      0x3f3504f3, 0x3f3504f4,  // branch points
                                      0x3f7fffff, 0x3f800000, 0x3f800001, 0x3f8060fd, 0x3f8060fe, 0x3faaaaab,
                                      0x3fc00000, 0x3fc90fdb, 0x40000000, 0x40400000, 0x40490fdb, 0x40800000,
                                      0x40800001, 0x4080fb8d, 0x40a00000, 0x40c90fdb, 0x41102cb3, 0x41102cb4,
                                      0x4120e147, 0x4120e148, 0x41200000, 0x42aeac4f, 0x42aeac50, 0x42b00000,
                                      0x42b17217, 0x42b17218, 0x42cff1b5, 0x42fc0000, 0x42fe0000, 0x43000000,
                                      0x43160000, 0x43180000, 0x43190000, 0x47ce4780, 0x47ce47ff, 0x47ce4800,
                                      0x47ce4801, 0x4a800001, 0x4b000000, 0x4b000001, 0x4b7fffff, 0x4b800000,
                                      0x4b800001, 0x4f000000, 0x5f000000, 0x7e800000, 0x7effffff, 0x7f000000,
                                      0x7f7fffff, 0x7f800000, 0x7f800001, 0x7fc00000, 0x7fffffff};  // infinity, NaN
    std::vector<std::uint32_t> all;
    for (std::uint32_t w : positive) all.push_back(w), all.push_back(w | 0x80000000u);
    return all;
  }();
  return words;
}

inline std::vector<std::uint32_t> sample_words() {
  std::vector<std::uint32_t> all = boundary_words();
  for (std::uint64_t w = 0; w < std::uint64_t{1} << 32; w += 65521) all.push_back(static_cast<std::uint32_t>(w));
  return all;
}

struct WordPair {
  std::uint32_t x, y;
};
// All pairs of boundary values, then 60,000 pairs where powf is finite: x in [2^-20, 2^20), |y| < 16.
inline std::vector<WordPair> sample_pairs() {
  std::vector<WordPair> all;
  for (std::uint32_t x : boundary_words())
    for (std::uint32_t y : boundary_words()) all.push_back({x, y});
  std::uint64_t s = 0x9e3779b97f4a7c15ull;
  for (int i = 0; i < 60000; ++i) {
    s = s * 6364136223846793005ull + 1442695040888963407ull;
    const std::uint32_t a = static_cast<std::uint32_t>(s >> 32);
    s = s * 6364136223846793005ull + 1442695040888963407ull;
    const std::uint32_t b = static_cast<std::uint32_t>(s >> 32);
    all.push_back({0x35800000u + a % 0x14000000u, (b & 0x80000000u) | (0x38000000u + b % 0x09800000u)});
  }
  return all;
}

}  // namespace step_oracle::test
