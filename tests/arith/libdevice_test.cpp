#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "csrc/kernels/arith/libdevice_angles.h"
#include "tests/arith/samples.h"
#include "tests/support/sha256.h"
#include "tests/support/vectors.h"

namespace step_oracle {
namespace {

// Digests of libdevice.10.bc of CUDA 13.0 compiled for a CPU, NaN as 0x7fffffff, over sample_words(). On
// how many more inputs the two were compared: docs/evidence.md.
struct Row {
  const char* name;
  float (*fn)(float);
  const char* digest;
};
struct PairRow {
  const char* name;
  float (*fn)(float, float);
  const char* digest;
};
constexpr const char* kPowfDigest = "001f6622f6b991e41958f19c7e4e36f2fce885bc77be67990790dc8ce847a2b2";
#define SO_ROW(name, digest) {#name, [](float x) { return libdevice::name(x); }, digest}
const Row kRows[] = {
#include "tests/arith/libdevice_digests.inc"
};
#undef SO_ROW

TEST(Libdevice, EqualsTheVendorsCode) {
  const auto words = test::sample_words();
  std::vector<float> y(words.size());
  for (const Row& row : kRows) {
    for (std::size_t i = 0; i < words.size(); ++i) y[i] = row.fn(float_of(words[i]));
    EXPECT_EQ(test::sha256(y.data(), y.size() * 4), row.digest) << row.name;
  }
  EXPECT_EQ(std::size(kRows), 22u);
}

TEST(Libdevice, FunctionsOfTwoEqualTheVendorsCode) {
  const PairRow rows[] = {
      {"powf", [](float x, float y) { return libdevice::powf(x, y); }, kPowfDigest},
      {"atan2f", [](float x, float y) { return libdevice::atan2f(x, y); },
       "3576340bf0419c02bcb59c00a948951de1237cd99e98145f476ff2d619cf1d66"},
      {"hypotf", [](float x, float y) { return libdevice::hypotf(x, y); },
       "4ef8f334529a6f9cb6799bd8c429e5cf41f25942bdc5fa29f917190bac8eb71b"},
  };
  const auto pairs = test::sample_pairs();
  std::vector<float> y(pairs.size());
  for (const PairRow& row : rows) {
    for (std::size_t i = 0; i < pairs.size(); ++i) y[i] = row.fn(float_of(pairs[i].x), float_of(pairs[i].y));
    EXPECT_EQ(test::sha256(y.data(), y.size() * 4), row.digest) << row.name;
  }
}

TEST(Libdevice, TheMachineCodeOfTorchUsesTheseFunctions) {
  const struct {
    const char* prefix;
    float (*fn)(float);
  } cases[] = {{"exp_f32.", [](float x) { return libdevice::expf(x); }},
               {"log_f32.", [](float x) { return libdevice::logf(x); }},
               {"tanh_f32.", [](float x) { return libdevice::tanhf(x); }},
               {"sin_f32.", [](float x) { return libdevice::sinf(x); }},
               {"cos_f32.", [](float x) { return libdevice::cosf(x); }},
               {"rsqrt_f32.", [](float x) { return libdevice::rsqrtf(x); }}};
  int files = 0;
  for (const auto& c : cases)
    for (const std::string& name : test::vector_names(c.prefix)) {
      const auto v = test::load_vectors(name);
      const float* x = v.in("x").as<float>();
      const auto& out = v.out("out", "sm_90");
      ++files;
      for (std::int64_t i = 0; i < out.numel(); ++i)
        ASSERT_EQ(bits_of(c.fn(x[i])), out.as<std::uint32_t>()[i]) << name << " element " << i << " x " << x[i];
    }
  EXPECT_EQ(files, 18);
}

}  // namespace
}  // namespace step_oracle
