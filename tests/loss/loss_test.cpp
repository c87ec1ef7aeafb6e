#include "csrc/kernels/loss/loss.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "csrc/kernels/core/bits.h"
#include "csrc/kernels/core/error.h"
#include "tests/support/same_bytes.h"
#include "tests/support/vectors.h"

namespace step_oracle {
namespace {

using loss::Reduction;

DType dtype_of(const test::Array& a) { return test::float_type(a); }

void both(const std::function<void(bool)>& body) {
  body(true);
  test::for_each_isa_and_threads([&] { body(false); });
}

TEST(LossVectors, NllForwardAndBackward) {
  int cases = 0;
  for (const auto& name : test::vector_names("nll_loss_")) {
    const auto file = test::load_vectors(name);
    long rows = 0, classes = 0;
    ASSERT_EQ(std::sscanf(file.meta.at("shape").get<std::string>().c_str(), "%ldx%ld", &rows, &classes), 2);
    const void* target = file.in("target").bytes.data();
    both([&](bool ref) {
      SCOPED_TRACE(name + (ref ? " ref" : " body"));
      if (name.find("_bwd_") != std::string::npos) {
        const auto& want = file.out("grad_input", "sm_90");
        std::vector<std::uint8_t> got(want.bytes.size());
        const loss::NllBackwardParams p{dtype_of(want),
                                        DType::kI64,
                                        Reduction::kMean,
                                        rows,
                                        classes,
                                        file.in("grad_output").bytes.data(),
                                        0,
                                        target,
                                        nullptr,
                                        -100,
                                        file.in("total_weight").bytes.data(),
                                        got.data()};
        ref ? loss::ref::nll_backward(p) : loss::nll_backward(p);
        EXPECT_SAME_BYTES(want.bytes.data(), got.data(), static_cast<std::int64_t>(got.size()));
      } else {
        const auto &want = file.out("loss", "sm_90"), &weight = file.out("total_weight", "sm_90");
        std::uint32_t value = 0, total = 0;
        const loss::NllParams p{dtype_of(want), DType::kI64, Reduction::kMean,          false,  rows,    classes,
                                classes,        1,           file.in("x").bytes.data(), target, nullptr, -100,
                                &value,         &total};
        ref ? loss::ref::nll_forward(p) : loss::nll_forward(p);
        EXPECT_SAME_BYTES(want.bytes.data(), reinterpret_cast<std::uint8_t*>(&value),
                          static_cast<std::int64_t>(want.bytes.size()));
        EXPECT_SAME_BYTES(weight.bytes.data(), reinterpret_cast<std::uint8_t*>(&total),
                          static_cast<std::int64_t>(weight.bytes.size()));
      }
    });
    ++cases;
  }
  std::printf("%d golden files\n", cases);
  EXPECT_EQ(cases, 15);
}

std::vector<std::uint8_t> random_elements(DType type, std::int64_t n, std::mt19937& rng) {
  std::normal_distribution<float> normal(-1.0f, 1.0f);
  std::vector<std::uint8_t> out(static_cast<std::size_t>(n) * size_of(type));
  for (std::int64_t i = 0; i < n; ++i) {
    const std::uint32_t u = bits_of(normal(rng));
    const auto h = static_cast<std::uint16_t>(u >> 16);
    type == DType::kF32 ? std::memcpy(out.data() + 4 * i, &u, 4) : std::memcpy(out.data() + 2 * i, &h, 2);
  }
  return out;
}

TEST(Loss, BodyEqualsDefinition) {
  std::mt19937 rng(3);
  int cases = 0;
  for (const std::int64_t rows : {1, 15, 16, 511, 512, 723, 724, 3000, 40000})
    for (const std::int64_t classes : {1, 10})
      for (const DType type : {DType::kF32, DType::kBF16})
        for (const Reduction r : {Reduction::kNone, Reduction::kMean, Reduction::kSum})
          for (const bool weighted : {false, true})
            for (const bool vector : {false, true}) {
              if (vector && rows != 1) continue;
              const auto x = random_elements(type, rows * classes, rng), w = random_elements(type, classes, rng),
                         g = random_elements(type, rows, rng);
              std::vector<std::int64_t> target(static_cast<std::size_t>(rows));
              for (auto& t : target) t = rng() % 10 == 0 ? -100 : static_cast<std::int64_t>(rng()) % classes;
              const std::size_t size = size_of(type), n = r == Reduction::kNone ? static_cast<std::size_t>(rows) : 1;
              std::vector<std::uint8_t> want(n * size), got(n * size), tw(size), tg(size);
              loss::NllParams p{type,
                                DType::kI64,
                                r,
                                vector,
                                rows,
                                classes,
                                classes,
                                1,
                                x.data(),
                                target.data(),
                                weighted ? w.data() : nullptr,
                                -100,
                                want.data(),
                                tw.data()};
              loss::ref::nll_forward(p);
              const auto cells = static_cast<std::size_t>(rows * classes) * size;
              std::vector<std::uint8_t> gw(cells), gg(cells, 1);
              loss::NllBackwardParams b{type, DType::kI64,   r,        rows, classes,  g.data(),
                                        1,    target.data(), p.weight, -100, g.data(), gw.data()};
              loss::ref::nll_backward(b);
              p.loss = got.data();
              p.total_weight = tg.data();
              b.grad_x = gg.data();
              test::for_each_isa_and_threads([&] {
                loss::nll_forward(p);
                loss::nll_backward(b);
                EXPECT_SAME_BYTES(want.data(), got.data(), static_cast<std::int64_t>(want.size()));
                EXPECT_SAME_BYTES(tw.data(), tg.data(), static_cast<std::int64_t>(size));
                EXPECT_SAME_BYTES(gw.data(), gg.data(), static_cast<std::int64_t>(cells));
              });
              ++cases;
            }
  std::printf("%d cases\n", cases);
}

TEST(Loss, ThreadsAndBadTargets) {
  EXPECT_EQ(loss::nll_threads(1), 32);
  EXPECT_EQ(loss::nll_threads(16 * 45), 32);  // log2(45) = 5.49
  EXPECT_EQ(loss::nll_threads(16 * 46), 64);  // log2(46) = 5.52
  EXPECT_EQ(loss::nll_threads(16 * 64), 64);
  EXPECT_EQ(loss::nll_threads(1 << 20), 1024);
  float x[2] = {-1, -2}, out = 0, weight = 0;
  std::int64_t target = 2;
  const loss::NllParams p{DType::kF32, DType::kI64, Reduction::kMean, false,   1,    2,    2,
                          1,           x,           &target,          nullptr, -100, &out, &weight};
  EXPECT_THROW(loss::nll_forward(p), Error);
}

// A mutant of the block's sum: threads in order instead of the tree.
float serial(const test::VectorFile& file, std::int64_t classes, std::int64_t places) {
  const float* x = file.in("x").as<float>();
  const float* weight = file.in("weight").as<float>();
  const std::int64_t* target = file.in("target").as<std::int64_t>();
  float sum = 0.0f, total = 0.0f;
  for (std::int64_t i = 0; i < places; ++i) {
    if (target[i] < 0) continue;
    EXPECT_LT(target[i], classes);
    sum = fma(-x[target[i] * places + i], weight[target[i]], sum);
    total = total + weight[target[i]];
  }
  return sum / total;
}

TEST(LossVectors, Nll2d) {
  int cases = 0, killed = 0;
  for (const auto& name : test::vector_names("nll2d_")) {
    const auto file = test::load_vectors(name);
    long batch = 0, classes = 0, places = 0;
    ASSERT_EQ(std::sscanf(file.meta.at("shape").get<std::string>().c_str(), "%ldx%ldx%ld", &batch, &classes, &places),
              3);
    const std::int64_t* target = file.in("target").as<std::int64_t>();
    both([&](bool ref) {
      SCOPED_TRACE(name + (ref ? " ref" : " body"));
      if (name.find("_bwd_") != std::string::npos) {
        const auto& want = file.out("grad_x", "sm_90");
        std::vector<std::uint8_t> got(want.bytes.size(), 1);
        const loss::Nll2dBackwardParams p{dtype_of(want), Reduction::kMean,
                                          batch,          classes,
                                          places,         file.in("grad").bytes.data(),
                                          target,         file.in("weight").bytes.data(),
                                          -100,           file.in("total_weight").bytes.data(),
                                          got.data()};
        ref ? loss::ref::nll2d_backward(p) : loss::nll2d_backward(p);
        EXPECT_SAME_BYTES(want.bytes.data(), got.data(), static_cast<std::int64_t>(got.size()));
        return;
      }
      const auto &want = file.out("loss", "sm_90"), &total = file.out("total_weight", "sm_90");
      std::vector<std::uint8_t> got(want.bytes.size()), weight(want.bytes.size());
      const loss::Nll2dParams p{dtype_of(want), Reduction::kMean,
                                batch,          classes,
                                places,         file.in("x").bytes.data(),
                                target,         file.in("weight").bytes.data(),
                                -100,           got.data(),
                                weight.data()};
      ref ? loss::ref::nll2d_forward(p) : loss::nll2d_forward(p);
      EXPECT_SAME_BYTES(want.bytes.data(), got.data(), static_cast<std::int64_t>(got.size()));
      EXPECT_SAME_BYTES(total.bytes.data(), weight.data(), static_cast<std::int64_t>(weight.size()));
    });
    if (name.find("nll2d_f32.1x") == 0)
      killed += bits_of(serial(file, classes, places)) != file.out("loss", "sm_90").as<std::uint32_t>()[0];
    ++cases;
  }
  EXPECT_EQ(cases, 9);
  EXPECT_EQ(killed, 1);
  std::printf("%d golden files; mutation score: %d of 1\n", cases, killed);
}

TEST(Loss, Nll2dBodyEqualsDefinition) {
  std::mt19937 rng(12);
  std::normal_distribution<float> normal(0.0f, 1.0f);
  int cases = 0;
  for (const DType type : {DType::kF32, DType::kBF16, DType::kF16})
    for (const auto& [batch, classes, places] :
         {std::tuple{1, 3, 1}, std::tuple{2, 5, 1025}, std::tuple{3, 2, 37}, std::tuple{1, 2, 263000}})
      for (const Reduction reduction : {Reduction::kNone, Reduction::kMean, Reduction::kSum}) {
        const auto n = static_cast<std::size_t>(batch * classes * places);
        const std::size_t size = size_of(type);
        const auto fill = [&](std::size_t count) {
          std::vector<std::uint8_t> out(count * size);
          for (std::size_t i = 0; i < count; ++i) {
            const std::uint32_t u = bits_of(normal(rng));
            const auto half = static_cast<std::uint16_t>(type == DType::kBF16 ? u >> 16 : 0x3000 + u % 0x1800);
            size == 4 ? std::memcpy(&out[4 * i], &u, 4) : std::memcpy(&out[2 * i], &half, 2);
          }
          return out;
        };
        const auto x = fill(n), weight = fill(static_cast<std::size_t>(classes)),
                   grad = fill(static_cast<std::size_t>(batch * places)), total = fill(1);
        std::vector<std::int64_t> target(static_cast<std::size_t>(batch * places));
        for (auto& t : target) t = rng() % 9 == 0 ? -100 : static_cast<std::int64_t>(rng()) % classes;
        const void* weights = cases % 2 ? weight.data() : nullptr;
        std::vector<std::uint8_t> want(static_cast<std::size_t>(batch * places) * size), got(want.size()), w(size),
            v(size), dx(n * size), dy(n * size);
        loss::Nll2dParams p{type,          reduction, batch, classes,     places,  x.data(),
                            target.data(), weights,   -100,  want.data(), w.data()};
        loss::ref::nll2d_forward(p);
        loss::Nll2dBackwardParams b{type,          reduction, batch, classes,      places,   grad.data(),
                                    target.data(), weights,   -100,  total.data(), dx.data()};
        loss::ref::nll2d_backward(b);
        p.loss = got.data();
        p.total_weight = v.data();
        b.grad_x = dy.data();
        test::for_each_isa_and_threads([&] {
          loss::nll2d_forward(p);
          EXPECT_SAME_BYTES(want.data(), got.data(), static_cast<std::int64_t>(got.size()));
          EXPECT_SAME_BYTES(w.data(), v.data(), static_cast<std::int64_t>(size));
          loss::nll2d_backward(b);
          EXPECT_SAME_BYTES(dx.data(), dy.data(), static_cast<std::int64_t>(dy.size()));
        });
        ++cases;
      }
  std::printf("%d cases\n", cases);
  EXPECT_EQ(loss::nll2d_blocks(2, 512 * 512), 4);
  EXPECT_EQ(loss::nll2d_blocks(2, 1000), 2);
}

}  // namespace
}  // namespace step_oracle
