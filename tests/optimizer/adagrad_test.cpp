// Fused Adagrad: the compiled kernel's bytes, and the definition's.
#include "csrc/kernels/optimizer/adagrad.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "csrc/kernels/arith/element.h"
#include "csrc/kernels/core/bits.h"
#include "csrc/kernels/core/error.h"
#include "tests/support/same_bytes.h"
#include "tests/support/vectors.h"

namespace step_oracle {
namespace {

using optimizer::AdagradParams;
using Bytes = std::vector<std::uint8_t>;

// Float in place of double, for the mutants' sake.
void in_float(const AdagradParams& a) {
  auto *p = static_cast<float*>(a.p), *g = static_cast<float*>(a.g), *s = static_cast<float*>(a.state);
  const auto lr = static_cast<float>(a.lr / (1 + (a.step - 1) * a.lr_decay));
  for (std::int64_t i = 0; i < a.n; ++i) {
    float grad = a.grad_scale ? g[i] / *a.grad_scale : g[i];
    grad = a.maximize ? -grad : grad;
    grad = fma(p[i], static_cast<float>(a.weight_decay), grad);
    s[i] = fma(grad, grad, s[i]);
    p[i] = p[i] - lr * grad / (std::sqrt(s[i]) + static_cast<float>(a.eps));
  }
}

TEST(AdagradVectors, Steps) {
  int files = 0, noticed = 0;
  for (const auto& name : test::vector_names("fused_adagrad_")) {
    const auto file = test::load_vectors(name);
    const std::string shape = file.meta.at("shape");
    const bool scaled = shape.find("scaled") == 0;
    const DType type = name.find("bf16") != std::string::npos  ? DType::kBF16
                       : name.find("f16") != std::string::npos ? DType::kF16
                                                               : DType::kF32;
    for (int j = 0; j < 2; ++j) {
      const auto key = [&](const char* part, const char* end = "") {
        return std::string(part).append(std::to_string(j)).append(end);
      };
      const auto run = [&](void (*step)(const AdagradParams&), bool check) {
        Bytes p = file.in(key("p")).bytes, g = file.in(key("g")).bytes, s = file.in(key("s")).bytes;
        AdagradParams a{};
        a.n = static_cast<std::int64_t>(p.size() / size_of(type));
        a.dtype = type;
        a.p = p.data(), a.g = g.data(), a.state = s.data();
        a.step = file.in(key("step")).as<float>()[0];
        a.lr = 0.01, a.lr_decay = shape.find("plain") == 0 ? 0.0 : 0.001,
        a.weight_decay = shape.find("decay") == 0 ? 0.1 : 0.0, a.eps = 1e-10;
        a.maximize = shape.find("max") == 0;
        a.grad_scale = scaled ? file.in("grad_scale").as<float>() : nullptr;
        step(a);
        if (!check) return p != file.out(key("p", "_out"), "sm_90").bytes;
        for (const auto& [part, got] : {std::pair{"p", &p}, std::pair{"g", &g}, std::pair{"s", &s}})
          EXPECT_SAME_BYTES(file.out(key(part, "_out"), "sm_90").bytes.data(), got->data(),
                            static_cast<std::int64_t>(got->size()))
              << name << " " << key(part);
        return false;
      };
      run(&optimizer::ref::adagrad, true);
      test::for_each_isa_and_threads([&] { run(&optimizer::adagrad, true); });
      if (type == DType::kF32) noticed += run(&in_float, false);
    }
    ++files;
  }
  EXPECT_EQ(files, 12);
  EXPECT_EQ(noticed, 6);  // steps of scaled gradients are too small
  std::printf("%d golden files; float for double noticed in %d of 8 tensors\n", files, noticed);
  AdagradParams wide{};
  wide.dtype = DType::kF64;
  EXPECT_THROW(optimizer::adagrad(wide), Error);
}

}  // namespace
}  // namespace step_oracle
