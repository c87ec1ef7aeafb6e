// The golden vectors of the fused optimizers and of _foreach_norm, for the definition and every instruction set.
#include "tests/support/vectors.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "csrc/kernels/core/bits.h"
#include "csrc/kernels/optimizer/optimizer.h"
#include "tests/support/same_bytes.h"

namespace step_oracle::optimizer {
namespace {

using Bytes = std::vector<std::uint8_t>;

DType type_of(const test::Array& a) { return a.dtype == "U32" ? DType::kF32 : DType::kBF16; }
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

}  // namespace
}  // namespace step_oracle::optimizer
