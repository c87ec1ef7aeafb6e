#include "csrc/kernels/random/random.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "csrc/kernels/arith/philox.h"
#include "csrc/kernels/card/card.h"
#include "csrc/kernels/core/bits.h"
#include "csrc/kernels/core/error.h"
#include "tests/support/same_bytes.h"
#include "tests/support/sha256.h"
#include "tests/support/vectors.h"

namespace step_oracle {
namespace {

using random::Fill;
using random::Stream;

Stream stream_of(const char* card, std::uint64_t seed, std::uint64_t offset) {
  const Card& c = card_by_name(card);
  return {seed, offset, c.sms, c.threads_per_sm, c.compute_capability()};
}

// 64 bits of the SHA-256 of 40,961 normals of two cards, seed 1234, torch 2.11.0+cu128
// [https://github.com/pytorch/pytorch/issues/194676]
TEST(Published, NormalsOfTwoCards) {
  for (auto [card, digest] : {std::pair{"t4", "1e6b6814d99649e0"}, std::pair{"l4", "944733fd5370b130"}}) {
    test::for_each_isa_and_threads([&] {
      std::vector<float> x(40961);
      random::normal(stream_of(card, 1234, 0), {40961, DType::kF32, x.data()}, 0.0, 1.0);
      EXPECT_EQ(test::sha256(x.data(), x.size() * 4).substr(0, 16), digest) << card;
    });
  }
}

// Cards that the table does not have; values as printed [records of tests/data/published/random.json].
const Stream kRtx3060{42, 0, 28, 1536, 86};
std::string decimals(float x) {
  char text[16];
  std::snprintf(text, sizeof text, "%.4f", static_cast<double>(x));
  return text;
}
TEST(Published,
     NormalsOfAnRtx3060) {  // b-randn-131072-s42: rows of 2048, first and last three of rows 0 to 2, 61 to 63
  const char* printed[] = {"0.1940",  "2.1614",  "-0.1721", "1.4540",  "-2.7733", "-0.8932", "-0.4574", "0.8063",
                           "0.1580",  "0.1124",  "0.2769",  "-1.2535", "1.1346",  "-0.6329", "-0.9147", "-1.0001",
                           "-1.1552", "-0.6955", "-0.4861", "0.3358",  "1.0578",  "-0.7282", "0.5087",  "0.1318",
                           "0.7881",  "0.8339",  "-1.1424", "-0.6297", "-1.1112", "-0.4091", "-1.2356", "-0.4083",
                           "-0.4695", "-0.4841", "1.2850",  "-0.0282"};
  std::vector<float> x(64 * 2048);
  random::normal(kRtx3060, {64 * 2048, DType::kF32, x.data()}, 0.0, 1.0);
  const char** next = printed;
  for (std::size_t row : {0, 1, 2, 61, 62, 63})
    for (std::size_t column : {0, 1, 2, 2045, 2046, 2047})
      EXPECT_EQ(decimals(x[row * 2048 + column]), *next++) << row << ' ' << column;
}
TEST(Published, TwoUniformsOfAnRtx3060) {  // b-vecadd-28sm
  const std::int64_t n = 98432;
  std::vector<float> x(98432), y(98432);
  Stream s = kRtx3060;
  s.seed = 0;
  s.offset += random::uniform(s, {n, DType::kF32, x.data()}, 0.0, 1.0);
  random::uniform(s, {n, DType::kF32, y.data()}, 0.0, 1.0);
  const std::pair<std::size_t, const char*> printed[] = {{0, "1.3713"},     {1, "1.3076"},     {2, "0.4940"},
                                                         {98429, "1.3374"}, {98430, "1.4960"}, {98431, "0.9115"}};
  for (const auto& [i, text] : printed) EXPECT_EQ(decimals(x[i] + y[i]), text) << i;
}
TEST(Published, DropoutOfAK80) {  // b-dropout-k80 [https://github.com/pytorch/pytorch/issues/25690]: the scalar kernel
  const std::int64_t n = 1000000;
  std::vector<float> x(1000000, 1.0f), y(1000000);
  std::vector<std::uint8_t> mask(1000000);
  random::dropout({0, 0, 13, 2048, 37}, {n, DType::kF32, x.data(), y.data(), mask.data(), 0.5, 1});
  double sum = 0;
  for (float v : y) sum += std::abs(static_cast<double>(v));
  EXPECT_EQ(sum, 999100.0);
}

// The witness runs a fixed grid: a card of `blocks` multiprocessors with 256 threads each.
Stream stream_of(const test::VectorFile& v, int blocks) {
  return {v.meta.at("notes").at("philox_seed").get<std::uint64_t>(),
          v.meta.at("notes").at("philox_offset").get<std::uint64_t>(), blocks, 256, 80};
}
int blocks_of(const test::VectorFile& v, std::int64_t n) {
  const auto at = v.name.find('_', v.name.find('.'));
  return at == std::string::npos ? static_cast<int>((n + 255) / 256) : std::stoi(v.name.substr(at + 1));
}
DType type_of(const test::Array& a) { return test::float_type(a); }

TEST(Witness, UniformAndBernoulli) {
  int cases = 0;
  for (const char* prefix : {"uniform_", "bernoulli_"})
    for (const std::string& name : test::vector_names(prefix)) {
      const auto v = test::load_vectors(name);
      ++cases;
      for (const std::string& arch : test::kArchs) {
        const auto& expected = v.out("out", arch);
        const std::int64_t n = expected.numel();
        test::for_each_isa_and_threads([&] {
          SCOPED_TRACE(name);
          std::vector<std::uint8_t> got(expected.bytes.size());
          const Stream s = stream_of(v, blocks_of(v, n));
          const Fill f{n, type_of(expected), got.data()};
          if (name[0] == 'u')
            random::uniform(s, f, -1.0, 2.0);
          else
            random::bernoulli(s, f, 0.3);
          EXPECT_SAME_BYTES(expected.bytes.data(), got.data(), static_cast<std::int64_t>(got.size()));
        });
      }
    }
  EXPECT_EQ(cases, 12);
}

// Would the vectors notice? Element i of a uniform fill from [-1, 2), with one part of the rule changed.
float element_of(const Stream& s, int blocks, std::int64_t i, int mutation) {
  const std::int64_t threads = blocks * 256, turn = i / threads;
  const auto thread = static_cast<std::uint64_t>(i % threads);
  const std::uint64_t draw = s.offset / 4 + static_cast<std::uint64_t>(turn / 4);
  const philox::Block b = mutation == 1   ? philox::block<9>(s.seed, thread, draw)
                          : mutation == 2 ? philox::block(s.seed, draw, thread)
                          : mutation == 3 ? philox::block(s.seed, thread, draw + 1)
                                          : philox::block(s.seed, thread, draw);
  const std::uint32_t word = b.word[mutation == 4 ? 3 - turn % 4 : turn % 4];
  const float u = mutation == 5 ? static_cast<float>(word >> 8) * 0x1p-24f : philox::uniform(word);
  const float v = mutation == 6 ? u * 3.0f - 1.0f : fma(u, 3.0f, -1.0f);
  return v == 2.0f ? -1.0f : v;
}
TEST(Witness, UniformNoticesMutants) {
  bool noticed[7] = {};
  for (const std::string& name : test::vector_names("uniform_f32.")) {
    const auto v = test::load_vectors(name);
    const auto& want = v.out("out", "sm_90");
    const int blocks = blocks_of(v, want.numel());
    for (std::int64_t i = 0; i < want.numel(); ++i)
      for (int mutation = 0; mutation < 7; ++mutation)
        noticed[mutation] |=
            bits_of(element_of(stream_of(v, blocks), blocks, i, mutation)) != want.as<std::uint32_t>()[i];
  }
  EXPECT_FALSE(noticed[0]) << "the rule itself";
  int killed = 0;
  for (int mutation = 1; mutation < 7; ++mutation) {
    EXPECT_TRUE(noticed[mutation]) << mutation;
    killed += noticed[mutation];
  }
  std::printf("mutation score: %d of 6\n", killed);
}

TEST(Witness, Dropout) {
  int cases = 0;
  for (const std::string& name : test::vector_names("dropout_")) {
    const auto v = test::load_vectors(name);
    ++cases;
    const auto& x = v.in("x");
    const std::int64_t n = x.numel();
    const double p = std::stod(name.substr(name.find('x', name.find('.')) + 1));
    const int vector = name.find("vec8") != std::string::npos ? 8 : name.find("vec4") != std::string::npos ? 4 : 1;
    for (const std::string& arch : test::kArchs) {
      const auto& y = v.out("y", arch);
      const auto& mask = v.out("mask", arch);
      test::for_each_isa_and_threads([&] {
        SCOPED_TRACE(name + " " + arch);
        std::vector<std::uint8_t> got(y.bytes.size()), got_mask(static_cast<std::size_t>(n));
        Stream s = stream_of(v, 2);
        s.compute_capability = std::stoi(arch.substr(3));
        const random::Dropout d{n, type_of(x), x.bytes.data(), got.data(), got_mask.data(), p, vector};
        random::dropout(s, d);
        EXPECT_SAME_BYTES(y.bytes.data(), got.data(), static_cast<std::int64_t>(got.size()));
        EXPECT_SAME_BYTES(mask.bytes.data(), got_mask.data(), n);
        if (d.dtype == DType::kF32) {
          std::vector<std::uint8_t> ref(y.bytes.size()), ref_mask(static_cast<std::size_t>(n));
          random::ref::dropout(s, {n, d.dtype, d.x, ref.data(), ref_mask.data(), p, vector});
          EXPECT_SAME_BYTES(y.bytes.data(), ref.data(), static_cast<std::int64_t>(ref.size()));
          EXPECT_SAME_BYTES(mask.bytes.data(), ref_mask.data(), n);
        }
      });
    }
  }
  EXPECT_EQ(cases, 13);
}

// Sizes around blocks, tiles, one wave and several.
const std::int64_t kSizes[] = {0, 1, 3, 255, 256, 257, 511, 513, 1024, 2049, 6144, 6145, 24576, 24577, 60001};

TEST(Definition, BodyEqualsTheKernelsThreadByThread) {
  const Stream streams[] = {{42, 0, 3, 2048, 80}, {0x123456789abcdefull, 4 * 0xfffffffeull, 4, 1536, 86}};
  for (const Stream& s : streams)
    for (std::int64_t n : kSizes) {
      SCOPED_TRACE(n);
      const auto size = static_cast<std::size_t>(n);
      std::vector<float> u(size), g(size), e(size);
      std::vector<std::int64_t> narrow(size), wide(size);
      const auto a = random::ref::uniform(s, n, u.data(), -0.25, 0.5);
      const auto b = random::ref::normal(s, n, g.data(), 0.5, 0.02);
      const auto c = random::ref::exponential(s, n, e.data(), 1.5);
      const auto k = random::ref::random_from_to(s, n, narrow.data(), 50257, -7);
      const auto w = random::ref::random_from_to(s, n, wide.data(), (1ull << 40) + 3, 5);
      test::for_each_isa_and_threads([&] {
        std::vector<float> x(size);
        std::vector<std::int64_t> i(size);
        EXPECT_EQ(random::uniform(s, {n, DType::kF32, x.data()}, -0.25, 0.5), a);
        EXPECT_SAME_BYTES(u.data(), x.data(), n);
        EXPECT_EQ(random::normal(s, {n, DType::kF32, x.data()}, 0.5, 0.02), b);
        EXPECT_SAME_BYTES(g.data(), x.data(), n);
        EXPECT_EQ(random::exponential(s, {n, DType::kF32, x.data()}, 1.5), c);
        EXPECT_SAME_BYTES(e.data(), x.data(), n);
        EXPECT_EQ(random::random_from_to(s, {n, DType::kI64, i.data()}, 50257, -7), k);
        EXPECT_SAME_BYTES(narrow.data(), i.data(), n);
        EXPECT_EQ(random::random_from_to(s, {n, DType::kI64, i.data()}, (1ull << 40) + 3, 5), w);
        EXPECT_SAME_BYTES(wide.data(), i.data(), n);
      });
    }
}

TEST(Definition, DropoutOfEveryWidth) {
  const Stream s{7, 12, 2, 512, 80};
  for (std::int64_t n : kSizes)
    for (int vector : {1, 2, 4, 8}) {
      if (n == 0 || n % vector != 0) continue;
      SCOPED_TRACE(std::to_string(n) + " by " + std::to_string(vector));
      const auto size = static_cast<std::size_t>(n);
      std::vector<float> x(size), expected(size);
      std::vector<std::uint8_t> mask(size);
      random::uniform(s, {n, DType::kF32, x.data()}, -1.0, 1.0);
      x[0] = float_of(0xffc00000u);
      const auto advance =
          random::ref::dropout(s, {n, DType::kF32, x.data(), expected.data(), mask.data(), 0.3, vector});
      test::for_each_isa_and_threads([&] {
        std::vector<float> y(size);
        std::vector<std::uint8_t> m(size);
        EXPECT_EQ(random::dropout(s, {n, DType::kF32, x.data(), y.data(), m.data(), 0.3, vector}), advance);
        EXPECT_SAME_BYTES(expected.data(), y.data(), n);
        EXPECT_SAME_BYTES(mask.data(), m.data(), n);
      });
    }
}

TEST(Dropout, WidthAndBackward) {
  EXPECT_EQ(random::dropout_vector(DType::kF32, 4096), 4);
  EXPECT_EQ(random::dropout_vector(DType::kBF16, 4096), 8);
  EXPECT_EQ(random::dropout_vector(DType::kBF16, 4100), 4);
  EXPECT_EQ(random::dropout_vector(DType::kF32, 4098), 2);
  EXPECT_EQ(random::dropout_vector(DType::kF32, 4097), 1);
  EXPECT_EQ(random::dropout_vector(DType::kF32, 4096, false), 1);
  const float g[4] = {1.0f, -2.0f, 0.1f, 3.0f};
  const std::uint8_t mask[4] = {1, 0, 1, 0};
  float y[4];
  random::dropout_backward({4, DType::kF32, g, mask, y, 1.0 / 0.9});
  const float scale = static_cast<float>(1.0 / 0.9);
  const float expected[4] = {scale, -0.0f, 0.1f * scale, 0.0f};
  EXPECT_SAME_BYTES(expected, y, 4);
}

TEST(Randperm, IsAPermutationAndIslandsAreShuffled) {
  const Stream s = stream_of("h100-sxm", 0, 0);
  for (std::int64_t n : {0, 1, 2, 17, 5000, 200000}) {
    std::vector<std::int64_t> p(static_cast<std::size_t>(n)), seen(static_cast<std::size_t>(n));
    random::randperm(s, {n, DType::kI64, p.data()});
    for (auto i : p) ++seen[static_cast<std::size_t>(i)];
    for (auto c : seen) ASSERT_EQ(c, 1);
  }
  // Keys of 200,000 have 36 bits; about one seed in ten has two equal ones. Both index types give the same order.
  std::vector<std::int64_t> a(5000);
  std::vector<std::int32_t> b(5000);
  EXPECT_EQ(random::randperm(s, {5000, DType::kI64, a.data()}), random::randperm(s, {5000, DType::kI32, b.data()}));
  for (std::size_t i = 0; i < a.size(); ++i) ASSERT_EQ(a[i], b[i]);
}

TEST(Errors, NameTheValueAndTheWayOut) {
  const Stream s{1, 2, 1, 256, 80};
  float x;
  EXPECT_THROW(random::uniform(s, {1, DType::kF32, &x}, 0, 1), Error);
  EXPECT_THROW(random::uniform({1, 0, 1, 256, 80}, {-1, DType::kF32, &x}, 0, 1), Error);
  double d;
  try {
    random::normal({1, 0, 1, 256, 80}, {1, DType::kF64, &d}, 0, 1);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kUnsupported);
    EXPECT_NE(std::string(e.what()).find("float32"), std::string::npos);
  }
}

}  // namespace
}  // namespace step_oracle
