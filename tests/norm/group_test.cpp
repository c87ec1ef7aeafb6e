// Group norm: the definition and the bodies give the compiled kernels' bytes, and the bodies the definition's.
#include "csrc/kernels/norm/group.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "csrc/kernels/core/bits.h"
#include "csrc/kernels/core/error.h"
#include "tests/support/same_bytes.h"
#include "tests/support/vectors.h"

namespace step_oracle {
namespace {

using norm::GroupBackward;
using norm::GroupForward;
using norm::GroupShape;

void both(const std::function<void(bool)>& body) {
  body(true);
  test::for_each_isa_and_threads([&] { body(false); });
}

// "n x channels x groups x places"
GroupShape shape_of(const test::VectorFile& file, const test::Array& a) {
  long n = 0, c = 0, g = 0, places = 0;
  EXPECT_EQ(std::sscanf(file.meta.at("shape").get<std::string>().c_str(), "%ldx%ldx%ldx%ld", &n, &c, &g, &places), 4);
  return {test::float_type(a), n, c, g, places};
}
void same(const test::Array& want, const std::vector<std::uint8_t>& got, const std::string& what) {
  ASSERT_EQ(want.bytes.size(), got.size()) << what;
  EXPECT_SAME_BYTES(want.bytes.data(), got.data(), static_cast<std::int64_t>(got.size())) << what;
}

TEST(GroupNormVectors, Forward) {
  int cases = 0, unfused = 0;
  for (const auto& name : test::vector_names("group_norm_stats_")) {
    const auto file = test::load_vectors(name);
    const GroupShape s = shape_of(file, file.in("x"));
    const auto &mean = file.out("mean", "sm_90"), &rstd = file.out("rstd", "sm_90");
    both([&](bool ref) {
      std::vector<std::uint8_t> y(file.in("x").bytes.size()), m(mean.bytes.size()), r(rstd.bytes.size());
      const GroupForward p{s,
                           1e-5,
                           file.in("x").bytes.data(),
                           file.in("gamma").bytes.data(),
                           file.in("beta").bytes.data(),
                           y.data(),
                           m.data(),
                           r.data()};
      ref ? norm::ref::group_forward(p) : norm::group_forward(p);
      same(mean, m, name);
      same(rstd, r, name);
      if (s.type != DType::kF32) return;
      // y = fma(a, x, b) with the compiled kernel's a and b
      const float *a = file.out("a", "sm_90").as<float>(), *b = file.out("b", "sm_90").as<float>();
      std::vector<float> want(y.size() / 4);
      const float* x = file.in("x").as<float>();
      for (std::size_t i = 0; i < want.size(); ++i) {
        const auto c = i / static_cast<std::size_t>(s.places);
        want[i] = fma(a[c], x[i], b[c]);
        unfused += bits_of(a[c] * x[i] + b[c]) != bits_of(want[i]);
      }
      EXPECT_SAME_BYTES(want.data(), reinterpret_cast<const float*>(y.data()), static_cast<std::int64_t>(want.size()))
          << name;
    });
    ++cases;
  }
  EXPECT_EQ(cases, 6);
  EXPECT_GT(unfused, 0);
  std::printf("%d golden files\n", cases);
}

TEST(GroupNormVectors, Backward) {
  int cases = 0;
  for (const auto& name : test::vector_names("group_norm_bwd_")) {
    const auto file = test::load_vectors(name);
    const GroupShape s = shape_of(file, file.in("x"));
    const auto &dgamma = file.out("dgamma", "sm_90"), &dbeta = file.out("dbeta", "sm_90");
    both([&](bool ref) {
      std::vector<std::uint8_t> dx(file.in("x").bytes.size()), dg(dgamma.bytes.size()), db(dg.size());
      const GroupBackward p{s,
                            file.in("dy").bytes.data(),
                            file.in("x").bytes.data(),
                            file.in("mean").bytes.data(),
                            file.in("rstd").bytes.data(),
                            file.in("gamma").bytes.data(),
                            dx.data(),
                            dg.data(),
                            db.data()};
      ref ? norm::ref::group_backward(p) : norm::group_backward(p);
      same(dgamma, dg, name);
      same(dbeta, db, name);
      if (s.type != DType::kF32) return;
      // dx = fma(rstd gamma, dy, c2 x) + c3 with the compiled kernel's c2 and c3
      const float *c2 = file.out("c2", "sm_90").as<float>(), *c3 = file.out("c3", "sm_90").as<float>();
      const float *x = file.in("x").as<float>(), *dy = file.in("dy").as<float>();
      std::vector<float> want(dx.size() / 4);
      for (std::size_t i = 0; i < want.size(); ++i) {
        const auto c = i / static_cast<std::size_t>(s.places), g = c / static_cast<std::size_t>(s.per_group());
        const float c1 =
            file.in("rstd").as<float>()[g] * file.in("gamma").as<float>()[c % static_cast<std::size_t>(s.channels)];
        want[i] = fma(c1, dy[i], c2[g] * x[i]) + c3[g];
      }
      EXPECT_SAME_BYTES(want.data(), reinterpret_cast<const float*>(dx.data()), static_cast<std::int64_t>(want.size()))
          << name;
    });
    ++cases;
  }
  EXPECT_EQ(cases, 8);
  std::printf("%d golden files\n", cases);
}

// The maps around the sums, each against its own vector; `fused` says what a mutant would do.
TEST(GroupNormVectors, Maps) {
  using Map = float (*)(const float* v);
  const struct {
    const char* vectors;
    int inputs;
    Map map, mutant;
  } cases[] = {
      {"gn_y_f32.", 3, [](const float* v) { return fma(v[1], v[0], v[2]); },
       [](const float* v) { return v[1] * v[0] + v[2]; }},
      {"gn_y_plain_f32.", 3, [](const float* v) { return (v[0] - v[1]) * v[2]; },
       [](const float* v) { return fma(v[0], v[2], -(v[1] * v[2])); }},
      {"gn1_y_f32.", 5, [](const float* v) { return fma((v[0] - v[1]) * v[2], v[3], v[4]); },
       [](const float* v) { return fma(v[0] - v[1], v[2] * v[3], v[4]); }},
      {"gn1_y_gamma_f32.", 4, [](const float* v) { return ((v[0] - v[1]) * v[2]) * v[3]; },
       [](const float* v) { return (v[0] - v[1]) * (v[2] * v[3]); }},
      {"gn1_y_beta_f32.", 4, [](const float* v) { return fma(v[0] - v[1], v[2], v[3]); },
       [](const float* v) { return (v[0] - v[1]) * v[2] + v[3]; }},
      {"gn_dx_f32.", 5, [](const float* v) { return fma(v[2], v[0], v[3] * v[1]) + v[4]; },
       [](const float* v) { return fma(v[3], v[1], v[2] * v[0]) + v[4]; }},
      {"gn_dx_plain_f32.", 5, [](const float* v) { return fma(v[2], v[0], v[3] * v[1]) + v[4]; },
       [](const float* v) { return fma(v[3], v[1], v[2] * v[0]) + v[4]; }},
      {"gn1_dx_f32.", 6, [](const float* v) { return fma(v[2] * v[3], v[0], v[4] * v[1]) + v[5]; },
       [](const float* v) { return fma(v[4], v[1], (v[2] * v[3]) * v[0]) + v[5]; }},
  };
  int killed = 0;
  for (const auto& c : cases) {
    const auto names = test::vector_names(c.vectors);
    ASSERT_EQ(names.size(), 1u) << c.vectors;
    const auto file = test::load_vectors(names[0]);
    const auto& want = file.out("out", "sm_90");
    bool noticed = false;
    for (std::int64_t i = 0; i < want.numel(); ++i) {
      float v[6] = {};
      for (int k = 0; k < c.inputs; ++k) v[k] = file.in(std::string(1, "xyzuvw"[k])).as<float>()[i];
      ASSERT_EQ(bits_of(canonical(c.map(v))), want.as<std::uint32_t>()[i]) << c.vectors << " " << i;
      noticed |= bits_of(canonical(c.mutant(v))) != want.as<std::uint32_t>()[i];
    }
    EXPECT_TRUE(noticed) << c.vectors;
    killed += noticed;
  }
  std::printf("mutation score: %d of %zu\n", killed, std::size(cases));
}

TEST(GroupNorm, BodyEqualsDefinition) {
  std::mt19937 rng(6);
  std::normal_distribution<float> normal(0.3f, 1.0f);
  int cases = 0;
  for (const DType type : {DType::kF32, DType::kBF16, DType::kF16})
    for (const auto& [n, channels, groups, places] :
         {std::array{2, 6, 3, 1}, std::array{1, 4, 2, 7}, std::array{3, 8, 1, 70}, std::array{130, 4, 2, 3},
          std::array{140, 3, 3, 1}, std::array{2, 1200, 2, 1}, std::array{1, 2, 1, 1300}})
      for (const int given : {0, 1, 2, 3}) {
        const GroupShape s{type, n, channels, groups, places};
        const std::size_t size = size_of(type), count = static_cast<std::size_t>(n * channels * places);
        const auto fill = [&](std::size_t k) {
          std::vector<std::uint8_t> out(k * size);
          for (std::size_t i = 0; i < k; ++i) {
            const std::uint32_t u = bits_of(normal(rng));
            const auto half = static_cast<std::uint16_t>(type == DType::kBF16 ? u >> 16 : 0x3000 + u % 0x1800);
            size == 4 ? std::memcpy(&out[4 * i], &u, 4) : std::memcpy(&out[2 * i], &half, 2);
          }
          return out;
        };
        const auto x = fill(count), dy = fill(count), gamma = fill(static_cast<std::size_t>(channels)),
                   beta = fill(static_cast<std::size_t>(channels));
        const auto stats = static_cast<std::size_t>(n * groups) * size;
        std::vector<std::uint8_t> want[6], got[6];
        for (auto* v : {want, got}) {
          v[0].resize(count * size);
          v[1].resize(stats);
          v[2].resize(stats);
          v[3].resize(count * size);
          v[4].resize(static_cast<std::size_t>(channels) * size);
          v[5].resize(v[4].size());
        }
        const auto run = [&](std::vector<std::uint8_t>* v, bool ref) {
          const void *g = given & 1 ? gamma.data() : nullptr, *b = given & 2 ? beta.data() : nullptr;
          const GroupForward f{s, 1e-5, x.data(), g, b, v[0].data(), v[1].data(), v[2].data()};
          ref ? norm::ref::group_forward(f) : norm::group_forward(f);
          const GroupBackward back{s, dy.data(),   x.data(),    v[1].data(), v[2].data(),
                                   g, v[3].data(), v[4].data(), v[5].data()};
          ref ? norm::ref::group_backward(back) : norm::group_backward(back);
        };
        run(want, true);
        test::for_each_isa_and_threads([&] {
          run(got, false);
          for (int k = 0; k < 6; ++k)
            EXPECT_SAME_BYTES(want[k].data(), got[k].data(), static_cast<std::int64_t>(want[k].size()))
                << name_of(type) << " " << n << "x" << channels << "x" << groups << "x" << places << " part " << k;
        });
        ++cases;
      }
  std::printf("%d cases\n", cases);
  const GroupShape uneven{DType::kF32, 1, 5, 2, 1};
  EXPECT_THROW(norm::group_forward({uneven, 0, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr}), Error);
}

}  // namespace
}  // namespace step_oracle
