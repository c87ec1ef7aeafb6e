#include "csrc/kernels/norm/norm.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "csrc/kernels/core/bits.h"
#include "csrc/kernels/core/error.h"
#include "tests/support/same_bytes.h"
#include "tests/support/vectors.h"

namespace step_oracle {
namespace {

using Bytes = std::vector<std::uint8_t>;

DType dtype_of(const test::Array& a) { return test::float_type(a); }

void both(const std::function<void(bool)>& body) {
  body(true);
  test::for_each_isa_and_threads([&] { body(false); });
}

struct File {
  test::VectorFile file;
  long rows = 0, width = 0;
  explicit File(const std::string& name) : file(test::load_vectors(name)) {
    EXPECT_EQ(std::sscanf(file.meta.at("shape").get<std::string>().c_str(), "%ldx%ld", &rows, &width), 2);
  }
  const void* in(const char* n) const { return file.in(n).bytes.data(); }
  const float* floats(const char* n) const { return file.in(n).as<float>(); }
  const Bytes& want(const char* n) const { return file.out(n, "sm_90").bytes; }
};

TEST(NormVectors, Forward) {
  int cases = 0;
  for (const std::string prefix :
       {"layer_norm_f32.", "layer_norm_bf16.", "layer_norm_f16.", "layer_norm_rowwise_",
        "rms_norm_f32.", "rms_norm_bf16.", "rms_norm_f16."})
    for (const auto& name : test::vector_names(prefix)) {
      const File f(name);
      const bool rms = prefix.rfind("rms", 0) == 0;
      both([&](bool ref) {
        SCOPED_TRACE(name + (ref ? " ref" : " body"));
        Bytes y(f.want("y").size());
        std::vector<float> mean(static_cast<std::size_t>(f.rows)), rstd(mean);
        norm::ForwardParams p{rms,
                              dtype_of(f.file.in("x")),
                              f.rows,
                              f.width,
                              rms ? 1e-6 : 1e-5,
                              f.in("x"),
                              f.in("gamma"),
                              rms ? nullptr : f.in("beta"),
                              y.data(),
                              rms ? nullptr : mean.data(),
                              rstd.data(),
                              0,
                              0,
                              0,
                              0};
        ref ? norm::ref::forward(p) : norm::forward(p);
        EXPECT_SAME_BYTES(f.want("y").data(), y.data(), static_cast<std::int64_t>(y.size()));
        EXPECT_SAME_BYTES(reinterpret_cast<const float*>(f.want("rstd").data()), rstd.data(), f.rows);
        if (!rms) {
          EXPECT_SAME_BYTES(reinterpret_cast<const float*>(f.want("mean").data()), mean.data(), f.rows);
        }
      });
      ++cases;
    }
  std::printf("%d golden files\n", cases);
  EXPECT_EQ(cases, 18);
}

TEST(NormVectors, BackwardInput) {
  int cases = 0;
  for (const std::string prefix : {"layer_norm_bwd_", "rms_norm_bwd_"})
    for (const auto& name : test::vector_names(prefix)) {
      const File f(name);
      const bool rms = prefix.rfind("rms", 0) == 0;
      both([&](bool ref) {
        SCOPED_TRACE(name + (ref ? " ref" : " body"));
        Bytes dx(f.want("dx").size());
        norm::BackwardParams p{rms,
                               dtype_of(f.file.in("x")),
                               f.rows,
                               f.width,
                               f.in("dy"),
                               f.in("x"),
                               rms ? nullptr : f.floats("mean"),
                               f.floats("rstd"),
                               f.in("gamma"),
                               dx.data(),
                               0,
                               0,
                               0,
                               0};
        ref ? norm::ref::backward_input(p) : norm::backward_input(p);
        EXPECT_SAME_BYTES(f.want("dx").data(), dx.data(), static_cast<std::int64_t>(dx.size()));
      });
      ++cases;
    }
  std::printf("%d golden files\n", cases);
  EXPECT_EQ(cases, 17);
}

TEST(NormVectors, Parameters) {
  int cases = 0;
  for (const auto& name : test::vector_names("layer_norm_gamma_beta_")) {
    const File f(name);
    both([&](bool ref) {
      SCOPED_TRACE(name + (ref ? " ref" : " body"));
      Bytes dg(f.want("dgamma").size()), db(dg.size());
      norm::ParameterParams p{false,     dtype_of(f.file.in("x")), f.rows,           f.width,   f.in("dy"),
                              f.in("x"), f.floats("mean"),         f.floats("rstd"), dg.data(), db.data(),
                              132};
      ref ? norm::ref::backward_parameters(p) : norm::backward_parameters(p);
      EXPECT_SAME_BYTES(f.want("dgamma").data(), dg.data(), static_cast<std::int64_t>(dg.size()));
      EXPECT_SAME_BYTES(f.want("dbeta").data(), db.data(), static_cast<std::int64_t>(db.size()));
    });
    ++cases;
  }
  std::printf("%d golden files\n", cases);
  EXPECT_EQ(cases, 17);
}

// ---- generated ----
Bytes random_elements(DType type, std::int64_t n, bool special, std::mt19937& rng) {
  std::normal_distribution<float> normal(0.3f, 1.5f);
  Bytes out(static_cast<std::size_t>(n) * size_of(type));
  for (std::int64_t i = 0; i < n; ++i) {
    float x = normal(rng);
    const float odd[] = {0.0f, -0.0f, float_of(0x7fc01234u), float_of(1), -__builtin_inff(), 3e38f};
    if (special && rng() % 100 == 0) x = odd[rng() % 6];
    const std::uint32_t u = bits_of(x);
    const auto h = static_cast<std::uint16_t>(u >> 16);
    if (type == DType::kF32)
      std::memcpy(out.data() + 4 * i, &u, 4);
    else
      std::memcpy(out.data() + 2 * i, &h, 2);
  }
  return out;
}

TEST(Norm, BodyEqualsDefinition) {
  std::mt19937 rng(5);
  int cases = 0;
  for (const auto& [rows, width] : std::vector<std::pair<std::int64_t, std::int64_t>>{
           {1, 1}, {3, 4}, {2, 7}, {65, 64}, {130, 33}, {257, 36}, {5, 511}, {5, 512}, {4, 516}, {3, 1030}, {70000, 5}})
    for (const bool rms : {false, true})
      for (const DType type : {DType::kF32, DType::kBF16})
        for (const int form : {0, 1, 2, 3}) {
          if (rows > 1000 && (form || type == DType::kBF16)) continue;
          SCOPED_TRACE(std::to_string(rows) + "x" + std::to_string(width) + (rms ? " rms" : "") + " form " +
                       std::to_string(form));
          const std::int64_t n = rows * width;
          const bool special = type == DType::kF32 && form == 3;
          const Bytes x = random_elements(type, n, special, rng), dy = random_elements(type, n, special, rng);
          const Bytes gamma = random_elements(type, width, false, rng), beta = random_elements(type, width, false, rng);
          const void* g = form & 1 ? gamma.data() : nullptr;
          const void* b = form & 2 && !rms ? beta.data() : nullptr;
          const auto size = static_cast<std::size_t>(n) * size_of(type);
          std::vector<float> mean(static_cast<std::size_t>(rows)), rstd(mean), mean2(mean), rstd2(mean);
          Bytes want(size), got(size);
          for (const std::uint64_t address : {0, 4}) {
            norm::ForwardParams p{rms,         type,    rows, width,       1e-5,
                                  x.data(),    g,       b,    want.data(), rms ? nullptr : mean.data(),
                                  rstd.data(), address, 0,    0,           0};
            norm::ref::forward(p);
            test::for_each_isa_and_threads([&] {
              norm::ForwardParams q = p;
              q.y = got.data();
              q.mean = rms ? nullptr : mean2.data();
              q.rstd = rstd2.data();
              norm::forward(q);
              EXPECT_SAME_BYTES(want.data(), got.data(), static_cast<std::int64_t>(size));
              EXPECT_SAME_BYTES(rstd.data(), rstd2.data(), rows);
              EXPECT_SAME_BYTES(mean.data(), mean2.data(), rms ? 0 : rows);
            });
          }
          norm::BackwardParams back{rms,         type, rows,        width, dy.data(), x.data(), mean.data(),
                                    rstd.data(), g,    want.data(), 0,     0,         0,        0};
          norm::ref::backward_input(back);
          back.dx = got.data();
          test::for_each_isa_and_threads([&] {
            norm::backward_input(back);
            EXPECT_SAME_BYTES(want.data(), got.data(), static_cast<std::int64_t>(size));
          });
          norm::ParameterParams par{rms,         type,        rows,    width,   dy.data(), x.data(),
                                    mean.data(), rstd.data(), nullptr, nullptr, 132};
          const auto cells = static_cast<std::size_t>(norm::parameter_blocks(par) * width) * size_of(type);
          Bytes dg(cells), db(cells), dg2(cells), db2(cells);
          par.dgamma = dg.data();
          par.dbeta = db.data();
          norm::ref::backward_parameters(par);
          par.dgamma = dg2.data();
          par.dbeta = db2.data();
          test::for_each_isa_and_threads([&] {
            norm::backward_parameters(par);
            EXPECT_SAME_BYTES(dg.data(), dg2.data(), static_cast<std::int64_t>(cells));
            EXPECT_SAME_BYTES(db.data(), db2.data(), static_cast<std::int64_t>(cells));
          });
          ++cases;
        }
  std::printf("%d cases\n", cases);
  norm::ParameterParams large{false, DType::kF32, 70000, 5, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, 132};
  EXPECT_EQ(norm::parameter_blocks(large), 2188);
  EXPECT_THROW(
      norm::forward({false, DType::kI64, 1, 4, 1e-5, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, 0, 0, 0, 0}),
      Error);
}

}  // namespace
}  // namespace step_oracle
