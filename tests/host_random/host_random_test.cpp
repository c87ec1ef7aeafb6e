#include "csrc/kernels/host_random/host_random.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "csrc/kernels/core/bits.h"
#include "csrc/kernels/core/error.h"
#include "csrc/kernels/host_random/host_random_body.h"
#include "tests/support/same_bytes.h"
#include "tests/support/sha256.h"

namespace step_oracle {
namespace {

using host_random::Dispatch;
using host_random::Fill;
using host_random::Generator;

constexpr Dispatch kDispatches[] = {Dispatch::kDefault, Dispatch::kAvx2, Dispatch::kAvx512, Dispatch::kAarch64};
constexpr DType kTypes[] = {DType::kF32, DType::kBF16, DType::kF16, DType::kF64};
const std::int64_t kSizes[] = {0,   1,   2,   7,   8,   9,   15,  16,  17,   31,   32,   33,   47,    48,
                               63,  64,  65,  255, 256, 257, 623, 624, 625,  1000, 4095, 4096, 4097,  4111,
                               4112, 10007};

std::vector<std::uint8_t> state_of(const Generator& g) {
  std::vector<std::uint8_t> bytes(host_random::kStateBytes);
  host_random::get_state(g, bytes.data());
  return bytes;
}

// Every size, type and dispatch, drawn one after the other: the body against the definition, and the state after it.
void walk(bool definition, std::vector<std::uint8_t>* out) {
  for (Dispatch d : kDispatches) {
    Generator g = host_random::seeded(0x1234567890abcdefull);
    for (DType type : kTypes)
      for (std::int64_t n : kSizes)
        for (int fn = 0; fn < 3; ++fn) {
          if (fn > 0 && type == DType::kF64) continue;
          std::vector<std::uint8_t> x(static_cast<std::size_t>(n) * size_of(type) + 8, 0xaa);
          const Fill f{n, type, x.data()};
          if (fn == 0) definition ? host_random::ref::uniform(g, d, f, -0.1, 0.7) : host_random::uniform(g, d, f, -0.1, 0.7);
          if (fn > 0)
            definition ? host_random::ref::normal(g, d, f, fn == 1, 0.25, 1.75)
                       : host_random::normal(g, d, f, fn == 1, 0.25, 1.75);
          out->insert(out->end(), x.begin(), x.end());
        }
    definition ? host_random::ref::skip(g, 12345) : host_random::skip(g, 12345);
    const auto state = state_of(g);
    out->insert(out->end(), state.begin(), state.end());
  }
}

TEST(HostRandom, BodyGivesTheDefinitionsBytes) {
  std::vector<std::uint8_t> expected;
  walk(true, &expected);
  ASSERT_GT(expected.size(), 1000000u);
  test::for_each_isa_and_threads([&] {
    std::vector<std::uint8_t> actual;
    walk(false, &actual);
    ASSERT_EQ(expected.size(), actual.size());
    EXPECT_SAME_BYTES(expected.data(), actual.data(), static_cast<std::int64_t>(expected.size()));
  });
}

// mt19937's published check: the 10000th word of seed 5489 [spec C++ standard, rand.predef].
TEST(HostRandom, TenThousandthWord) {
  Generator g = host_random::seeded(5489);
  host_random::skip(g, 9999);
  std::int64_t word = 0;
  host_random::random_from_to(g, 1, (1ull << 28) - 1, 0, &word);
  EXPECT_EQ(word, 4123659995ll % ((1ll << 28) - 1));
}

// Digests of torch 2.13.0's own fills over every argument that 24 bits can make
// [probe tests/python/host_fills.py arguments, ATEN_CPU_CAPABILITY=avx2 and default, x86-64, glibc 2.36].
struct Arguments {
  const char *radius, *cosine, *sine;
};
constexpr Arguments kCephes = {"88bdc07f060915411482e9b2ad8b371868cdd1af288cf6919cde64fc97babecd",
                               "77badab17cab99a4b665f00aa537d028b14ba24652cec844edaa0ee44d9cead8",
                               "74394660027a14e8801734f222b5ed72e309e57f6685d71983e937ada8e0f700"};
constexpr Arguments kLibm = {"f35901b23b042f60c79d66abc3c2bcb00e0769ee3e3993fdac3fed0c5a0a93fd",
                             "b58a64f494a53a9181679df2f464699742de29f97fd1421b33c3b331375ab69c",
                             "e6434709fdab4245243159aadb055957e8fd0c0fbd530dfe5f391824d10a45a6"};

void all_arguments(decltype(HostRandomBody::normals_cephes) fill, const Arguments& expected) {
  constexpr int kAll = 1 << 24;
  std::vector<float> radius(kAll), cosine(kAll), sine(kAll);
  for (int k = 0; k < kAll; k += 8) {
    float x[32];
    for (int j = 0; j < 8; ++j) {
      const float u = static_cast<float>(k + j) * 0x1p-24f;
      x[j] = u, x[8 + j] = 0.0f, x[16 + j] = 0.5f, x[24 + j] = u;
    }
    fill(x, 2, 0.0f, 1.0f);
    std::memcpy(&radius[static_cast<std::size_t>(k)], x, 32);
    std::memcpy(&cosine[static_cast<std::size_t>(k)], x + 16, 32);
    std::memcpy(&sine[static_cast<std::size_t>(k)], x + 24, 32);
  }
  EXPECT_EQ(test::sha256(radius.data(), radius.size() * 4), expected.radius);
  EXPECT_EQ(test::sha256(cosine.data(), cosine.size() * 4), expected.cosine);
  EXPECT_EQ(test::sha256(sine.data(), sine.size() * 4), expected.sine);
}
TEST(HostRandom, EveryArgumentOfTheAvx2Fill) { all_arguments(SO_BODY(host_random_body).normals_cephes, kCephes); }
TEST(HostRandom, EveryArgumentOfTheLibmFill) { all_arguments(SO_BODY(host_random_body).normals_libm, kLibm); }

// SHA-256 of what torch_fills.cpp writes [probe libtorch_cpu.so of torch 2.13.0's aarch64 wheel under qemu-user 7.2,
// glibc 2.36, 2026-11-30].
TEST(HostRandom, TorchOnAarch64) {
  const std::int64_t sizes[] = {0,  1,  2,  3,   7,   8,   9,   14,  15,  16,  17,   31,   32,   33,   47,   48,
                                63, 64, 65, 255, 256, 257, 607, 608, 623, 624, 625, 1000, 1023, 4095, 4096, 4097, 10007};
  const auto written = [&](Dispatch d) {
    Generator g = host_random::seeded(20261130);
    std::vector<std::uint8_t> out;
    const auto fill = [&](DType type, std::int64_t n, bool dense, bool normal, double a, double b) {
      const std::size_t at = out.size();
      out.resize(at + static_cast<std::size_t>(n) * size_of(type));
      const Fill f{n, type, out.data() + at};
      normal ? host_random::normal(g, d, f, dense, a, b) : host_random::uniform(g, d, f, a, b);
    };
    for (DType type : {DType::kF32, DType::kBF16, DType::kF16})
      for (std::int64_t n : sizes)
        for (bool dense : {true, false}) {
          fill(type, n, dense, true, 0.0, 0.02);
          fill(type, n, dense, true, 0.25, 1.75);
          fill(type, n, dense, false, -0.036, 0.036);
          fill(type, n, dense, false, 0.1, 0.9);
        }
    fill(DType::kF64, 1001, true, false, -0.3, 0.7);
    fill(DType::kF32, 1000003, true, true, 0.0, 0.02);
    fill(DType::kF32, 1000003, true, false, -0.05, 0.05);
    const auto state = state_of(g);
    out.insert(out.end(), state.begin(), state.end());
    return test::sha256(out.data(), out.size());
  };
  const char* expected = "82ffb0c30d471c62246bdfef1dabb3e8b09846def625fac56ddcd3fd53b162b1";
  EXPECT_EQ(written(Dispatch::kAarch64), expected);
  EXPECT_NE(written(Dispatch::kDefault), expected);
  EXPECT_NE(written(Dispatch::kAvx2), expected);
}

// Mutations: the fill's logarithm with another choice of the fused products. Each must show among the 2^24 arguments.
float log_with(bool fused, bool other_side, float x) {
  const auto sum = [&](float a, float b, float c) {
    if (fused) return fma(a, b, c);
    const float product = a * b;
    return product + c;
  };
  const std::uint32_t b = bits_of(x);
  float e = static_cast<float>(static_cast<int>(b >> 23) - 126);
  x = float_of((b & 0x007fffffu) | 0x3f000000u);
  if (x < 0x1.6a09e6p-1f) {
    e -= 1.0f;
    x = (x - 1.0f) + x;
  } else {
    x = x - 1.0f;
  }
  const float p[] = {0x1.204376p-4f,  -0x1.d7a37p-4f, 0x1.de4a34p-4f,  -0x1.fcba9ep-4f, 0x1.23d37ep-3f,
                     -0x1.555ca0p-3f, 0x1.999d58p-3f, -0x1.fffff8p-3f, 0x1.555554p-2f};
  const float z = x * x;
  float y = p[0];
  for (int i = 1; i < 9; ++i) y = sum(y, x, p[i]);
  y = y * x;
  y = other_side ? sum(e, -0x1.bd0106p-13f, y * z) : sum(y, z, e * -0x1.bd0106p-13f);
  y = sum(z, -0.5f, y);
  x = x + y;
  return sum(e, 0x1.63p-1f, x);
}
TEST(HostRandom, AnotherContractionShows) {
  int same = 0, other = 0, none = 0, all = 0;
  for (int k = 0; k < 1 << 24; k += 8 * 37, all += 8) {
    float x[16] = {};
    for (int j = 0; j < 8; ++j) x[j] = static_cast<float>(k + j) * 0x1p-24f;
    float radius[3][8];
    for (int j = 0; j < 8; ++j)
      for (int way = 0; way < 3; ++way)
        radius[way][j] = 0.0f + __builtin_sqrtf(-2.0f * log_with(way < 2, way == 1, 1.0f - x[j]));
    SO_BODY(host_random_body).normals_cephes(x, 1, 0.0f, 1.0f);
    for (int j = 0; j < 8; ++j) {
      same += bits_of(radius[0][j]) == bits_of(x[j]);
      other += bits_of(radius[1][j]) != bits_of(x[j]);
      none += bits_of(radius[2][j]) != bits_of(x[j]);
    }
  }
  EXPECT_EQ(same, all);
  EXPECT_GT(other, 50) << "of " << all;
  EXPECT_GT(none, 200) << "of " << all;
  std::printf("mutations noticed: another side %d, none fused %d of %d arguments\n", other, none, all);
}

TEST(HostRandom, TheDispatchShows) {
  std::vector<float> a(1 << 16), b(1 << 16);
  const auto differ = [&](auto&& draw) {
    Generator g = host_random::seeded(1), h = host_random::seeded(1);
    draw(g, Dispatch::kDefault, Fill{1 << 16, DType::kF32, a.data()});
    draw(h, Dispatch::kAvx2, Fill{1 << 16, DType::kF32, b.data()});
    int count = 0;
    for (std::size_t i = 0; i < a.size(); ++i) count += std::memcmp(&a[i], &b[i], 4) != 0;
    return count;
  };
  EXPECT_GT(differ([](Generator& g, Dispatch d, const Fill& f) { host_random::normal(g, d, f, true, 0, 1); }), 1000);
  EXPECT_GT(differ([](Generator& g, Dispatch d, const Fill& f) { host_random::uniform(g, d, f, -0.1, 0.7); }), 1000);
}

TEST(HostRandom, StatesGoInAndOut) {
  Generator g = host_random::seeded(7);
  float x[3];
  host_random::normal(g, Dispatch::kAvx2, {3, DType::kF32, x}, true, 0, 1);
  const auto state = state_of(g);
  Generator again = host_random::set_state(state.data(), host_random::kStateBytes);
  EXPECT_EQ(state_of(again), state);
  EXPECT_TRUE(again.has_normal);
  for (std::size_t byte : {8u, 12u, 16u, 30u}) {  // left, seeded, next, the high half of a word
    auto bad = state;
    bad[byte] ^= 0x41;
    EXPECT_THROW(host_random::set_state(bad.data(), host_random::kStateBytes), Error) << byte;
  }
  EXPECT_THROW(host_random::set_state(state.data(), 5055), Error);
}

TEST(HostRandom, Refusals) {
  Generator g = host_random::seeded(1);
  double x[32];
  EXPECT_THROW(host_random::normal(g, Dispatch::kAvx2, {32, DType::kF64, x}, true, 0, 1), Error);
  EXPECT_THROW(host_random::normal(g, Dispatch::kAvx2, {-1, DType::kF32, x}, true, 0, 1), Error);
  EXPECT_THROW(host_random::normal(g, Dispatch::kAvx2, {2, DType::kF32, x}, true, 0, -1), Error);
  EXPECT_THROW(host_random::uniform(g, Dispatch::kAvx2, {2, DType::kF32, x}, 1, 0), Error);
  EXPECT_THROW(host_random::uniform(g, Dispatch::kAvx2, {2, DType::kI64, x}, 0, 1), Error);
  EXPECT_THROW(host_random::dispatch_from_name("sse9"), Error);
}

TEST(HostRandom, WordsOfAFill) {
  for (DType type : kTypes)
    for (std::int64_t n : kSizes) {
      std::vector<std::uint8_t> x(static_cast<std::size_t>(n) * 8 + 8);
      Generator drawn = host_random::seeded(3), skipped = host_random::seeded(3);
      host_random::uniform(drawn, Dispatch::kAvx2, {n, type, x.data()}, 0, 1);
      host_random::skip(skipped, host_random::words_of_uniform(type, n));
      EXPECT_EQ(state_of(drawn), state_of(skipped)) << n;
      if (type == DType::kF64 || (n > 0 && n < 16)) continue;
      host_random::normal(drawn, Dispatch::kAvx2, {n, type, x.data()}, true, 0, 1);
      host_random::skip(skipped, host_random::words_of_normal(type, n));
      EXPECT_EQ(state_of(drawn), state_of(skipped)) << n;
    }
}

}  // namespace
}  // namespace step_oracle
