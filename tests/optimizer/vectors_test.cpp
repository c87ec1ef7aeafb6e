// The golden vectors of the fused optimizers and of _foreach_norm, for the definition and every instruction set.
#include "tests/support/vectors.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "csrc/kernels/arith/libdevice.h"
#include "csrc/kernels/core/bits.h"
#include "csrc/kernels/optimizer/optimizer.h"
#include "tests/support/same_bytes.h"

namespace step_oracle::optimizer {
namespace {

using Bytes = std::vector<std::uint8_t>;

DType type_of(const test::Array& a) { return test::float_type(a); }
std::uint16_t nan_of(const std::string& arch) { return arch == "sm_75" ? 0x7fc0 : 0x7fff; }

void expect_bytes(const test::Array& want, const Bytes& got, const std::string& where) {
  ASSERT_EQ(want.bytes.size(), got.size()) << where;
  if (want.dtype == "U32")
    EXPECT_SAME_BYTES(want.as<std::uint32_t>(), reinterpret_cast<const std::uint32_t*>(got.data()), want.numel())
        << where;
  else
    EXPECT_SAME_BYTES(want.as<std::uint16_t>(), reinterpret_cast<const std::uint16_t*>(got.data()), want.numel())
        << where;
}

// "fused_adam_f32.plain:2000+519" -> "plain"; file names may write ':' as another character.
std::string mode_of(const test::VectorFile& file) {
  const std::string shape = file.meta.at("shape").get<std::string>();
  return shape.substr(0, shape.find(':'));
}

// Tensor j of each list, as a step changes them; `before` is what a run starts from.
struct Lists {
  std::map<std::string, Bytes> before, now;
  const test::VectorFile& file;
  std::string j;
  Lists(const test::VectorFile& f, int index, const char* names) : file(f), j(std::to_string(index)) {
    for (const char* n = names; *n; ++n) before[std::string(1, *n)] = f.in(*n + j).bytes;
    now = before;
  }
  void restart() {
    for (auto& [name, bytes] : now) std::memcpy(bytes.data(), before[name].data(), bytes.size());
  }
  void check(const std::string& arch, const std::string& where) {
    for (const auto& [name, bytes] : now)
      expect_bytes(file.out(name + j + "_out", arch), bytes, where + " " + name + j);
  }
};

void run_adam(const test::VectorFile& file, const std::string& arch, bool decoupled) {
  const auto hyper = file.meta.at("notes").at("hyper").get<std::vector<double>>();
  const std::string mode = mode_of(file);
  for (int j = 0; file.arrays.count("in_p" + std::to_string(j)); ++j) {
    Lists lists(file, j, "pgmv");
    AdamParams a{};
    a.n = file.in("p" + lists.j).numel();
    a.dtype = type_of(file.in("p" + lists.j));
    a.state_dtype = type_of(file.in("m" + lists.j));
    a.p = lists.now["p"].data(), a.g = lists.now["g"].data(), a.m = lists.now["m"].data(), a.v = lists.now["v"].data();
    std::memcpy(&a.step, file.in("step" + lists.j).bytes.data(), 4);
    a.lr = hyper[0], a.beta1 = hyper[1], a.beta2 = hyper[2], a.weight_decay = hyper[3], a.eps = hyper[4];
    a.mode = decoupled ? WeightDecay::kDecoupled : WeightDecay::kCoupled;
    a.maximize = mode.find("max") != std::string::npos;
    if (mode.find("scaled") != std::string::npos) a.grad_scale = file.in("grad_scale").as<float>();
    a.vectorised = a.n % 4 == 0;
    a.fuses_everywhere = a.dtype == DType::kBF16 && arch == "sm_75";
    a.bf16_nan = nan_of(arch);
    ref::adam(a);
    lists.check(arch, file.name + " ref " + arch);
    test::for_each_isa_and_threads([&] {
      lists.restart();
      adam(a);
      lists.check(arch, file.name + " " + arch);
    });
  }
}

TEST(OptimizerVectors, Adam) {
  int files = 0;
  for (const char* prefix : {"fused_adam_", "fused_adamw_"})
    for (const std::string& name : test::vector_names(prefix)) {
      const auto file = test::load_vectors(name);
      for (const std::string& arch : test::kArchs) run_adam(file, arch, std::string(prefix) == "fused_adamw_");
      ++files;
    }
  std::printf("%d files of vectors\n", files);
  EXPECT_EQ(files, 24);
}

TEST(OptimizerVectors, Sgd) {
  int files = 0;
  for (const std::string& name : test::vector_names("fused_sgd_")) {
    const auto file = test::load_vectors(name);
    const bool momentum = name.rfind("fused_sgd_momentum", 0) == 0;
    const std::string mode = mode_of(file);
    for (const std::string& arch : test::kArchs)
      for (int j = 0; file.arrays.count("in_p" + std::to_string(j)); ++j) {
        Lists lists(file, j, momentum ? "pgb" : "pg");
        SgdParams a{};
        a.n = file.in("p" + lists.j).numel();
        a.dtype = type_of(file.in("p" + lists.j));
        a.p = lists.now["p"].data(), a.g = lists.now["g"].data();
        if (momentum) a.buf = lists.now["b"].data();
        a.weight_decay = .01, a.momentum = momentum ? .9 : 0.0, a.lr = .1, a.dampening = mode == "nesterov" ? 0.0 : .2;
        a.nesterov = mode == "nesterov", a.first_step = mode == "first";
        a.bf16_nan = nan_of(arch);
        ref::sgd(a);
        lists.check(arch, name + " ref " + arch);
        test::for_each_isa_and_threads([&] {
          lists.restart();
          sgd(a);
          lists.check(arch, name + " " + arch);
        });
      }
    ++files;
  }
  std::printf("%d files of vectors\n", files);
  EXPECT_EQ(files, 8);
}

TEST(OptimizerVectors, ForeachNorm) {
  int files = 0;
  for (const std::string& name : test::vector_names("foreach_norm_")) {
    const auto file = test::load_vectors(name);
    int tensors = 0;
    while (file.arrays.count("in_x" + std::to_string(tensors))) ++tensors;
    ASSERT_GT(tensors, 0);
    std::int64_t most = 0;
    for (int j = 0; j < tensors; ++j) most = std::max(most, (file.in("x" + std::to_string(j)).numel() + 65535) / 65536);
    for (int j = 0; j < tensors; ++j) {
      const test::Array& x = file.in("x" + std::to_string(j));
      const test::Array& want = file.out("norm" + std::to_string(j), "sm_90");
      const test::Array& partials = file.out("partials", "sm_90");
      const NormParams p{x.bytes.data(), type_of(x), x.numel(), most, NormKind::kL2, x.numel() % 4 == 0, false};
      const auto check = [&](float got, const std::vector<float>& parts, const std::string& where) {
        EXPECT_SAME_BYTES(partials.as<float>() + j * most, parts.data(), most) << where << " partials of " << j;
        const std::uint32_t bits = bits_of(got);
        if (want.dtype == "U32")
          EXPECT_EQ(*want.as<std::uint32_t>(), bits) << where << " " << j;
        else
          EXPECT_EQ(*want.as<std::uint16_t>(), (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16) << where << " " << j;
      };
      std::vector<float> parts(static_cast<std::size_t>(most));
      check(ref::norm(p, parts.data()), parts, name + " ref");
      test::for_each_isa_and_threads([&] { check(norm(p, parts.data()), parts, name); });
    }
    ++files;
  }
  std::printf("%d files of vectors\n", files);
  EXPECT_EQ(files, 2);
}

// Would the vectors notice? Mutants of AdamW's update of one element, float32; hyper is lr, b1, b2, wd, eps.
struct Element {
  float p, g, m, v;
};
Element adamw(Element e, const std::vector<double>& hyper, float step, int mutation) {
  const float lr = static_cast<float>(hyper[0]), b1 = static_cast<float>(hyper[1]), b2 = static_cast<float>(hyper[2]),
              wd = static_cast<float>(hyper[3]), eps = static_cast<float>(hyper[4]);
  const float bc1 = 1.0f - libdevice::powf(b1, step), bc2 = __builtin_sqrtf(1.0f - libdevice::powf(b2, step));
  e.p = mutation == 1 ? e.p * (1.0f - lr * wd) : fma(e.p, -(lr * wd), e.p);
  e.m = mutation == 2 ? b1 * e.m + (1.0f - b1) * e.g : fma(e.m, b1, fma(e.g, -b1, e.g));
  const float q = e.g * e.g;
  e.v = mutation == 3 ? e.v * b2 + fma(q, -b2, q) : fma(e.v, b2, fma(q, -b2, q));
  const float denominator = mutation == 4 ? __builtin_sqrtf(e.v / (bc2 * bc2)) + eps : __builtin_sqrtf(e.v) / bc2 + eps;
  e.p = mutation == 5 ? e.p - lr * ((e.m / bc1) / denominator) : e.p - ((lr / bc1) * e.m) / denominator;
  return e;
}

TEST(OptimizerMutations, VectorsNotice) {
  bool noticed[6] = {};
  for (const std::string& name : test::vector_names("fused_adamw_f32.")) {
    const auto file = test::load_vectors(name);
    if (mode_of(file) != "plain") continue;
    const auto hyper = file.meta.at("notes").at("hyper").get<std::vector<double>>();
    for (int j = 0; file.arrays.count("in_p" + std::to_string(j)); ++j) {
      const std::string t = std::to_string(j);
      const auto in = [&](const char* n) { return file.in(n + t).as<float>(); };
      const auto out = [&](const char* n) { return file.out(n + t + "_out", "sm_90").as<std::uint32_t>(); };
      for (std::int64_t i = 0; i < file.in("p" + t).numel(); ++i)
        for (int mutation = 0; mutation < 6; ++mutation) {
          const Element e = adamw({in("p")[i], in("g")[i], in("m")[i], in("v")[i]}, hyper, in("step")[0], mutation);
          const bool differs =
              e.p == e.p && (bits_of(e.p) != out("p")[i] || bits_of(e.m) != out("m")[i] || bits_of(e.v) != out("v")[i]);
          noticed[mutation] |= differs;
        }
    }
  }
  EXPECT_FALSE(noticed[0]) << "the rule itself";
  int killed = 0;
  for (int mutation = 1; mutation < 6; ++mutation) {
    EXPECT_TRUE(noticed[mutation]) << mutation;
    killed += noticed[mutation];
  }
  std::printf("mutation score: %d of 5\n", killed);
}

}  // namespace
}  // namespace step_oracle::optimizer
