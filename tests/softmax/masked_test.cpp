#include "csrc/kernels/softmax/masked.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "csrc/kernels/arith/convert.h"
#include "csrc/kernels/arith/libdevice.h"
#include "csrc/kernels/core/bits.h"
#include "csrc/kernels/core/error.h"
#include "csrc/kernels/softmax/softmax.h"
#include "tests/support/same_bytes.h"

namespace step_oracle {
namespace {

using Bytes = std::vector<std::uint8_t>;
constexpr DType kTypes[] = {DType::kF32, DType::kBF16, DType::kF16};

std::uint32_t word_of(DType type, float x) {
  if (type == DType::kF32) return bits_of(x);
  return type == DType::kBF16 ? convert::to_bf16(x) : convert::to_fp16(x);
}
Bytes random_bytes(DType type, std::int64_t n, bool special, std::mt19937& rng) {
  std::normal_distribution<float> normal(0.0f, 3.0f);
  const std::size_t size = size_of(type);
  Bytes out(static_cast<std::size_t>(n) * size);
  for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i) {
    const float odd[] = {0.0f, -0.0f, float_of(0x7fc01234u), float_of(1), -__builtin_inff(), __builtin_inff()};
    const float x = special && rng() % 20 == 0 ? odd[rng() % 6] : normal(rng);
    const std::uint32_t word = word_of(type, x);
    std::memcpy(out.data() + i * size, &word, size);
  }
  return out;
}
// Of `in_eight` eighths; the first row is left out whole.
std::unique_ptr<bool[]> random_mask(std::int64_t rows, std::int64_t n, unsigned in_eight, std::mt19937& rng) {
  auto mask = std::make_unique<bool[]>(static_cast<std::size_t>(rows * n));
  for (std::int64_t i = 0; i < rows * n; ++i) mask[static_cast<std::size_t>(i)] = i < n || rng() % 8 < in_eight;
  return mask;
}

constexpr std::int64_t kWidths[] = {1, 2, 3, 16, 31, 32, 33, 64, 65, 128, 129, 300, 513, 1023, 1024};

TEST(MaskedSoftmax, BodyEqualsDefinition) {
  std::mt19937 rng(21);
  int cases = 0;
  for (const std::int64_t n : kWidths)
    for (const DType type : kTypes)
      for (const unsigned in_eight : {0u, 2u, 7u})
        for (const bool special : {false, true}) {
          const std::int64_t rows = 20;
          SCOPED_TRACE(std::to_string(n) + " " + std::string(name_of(type)) + " " + std::to_string(in_eight));
          const auto mask = random_mask(rows, n, in_eight, rng);
          const Bytes x = random_bytes(type, rows * n, special, rng), y = random_bytes(type, rows * n, special, rng);
          Bytes want(x.size()), got(x.size());
          const std::int64_t rows_per_mask = rng() % 2 ? 1 : 4;
          softmax::MaskedParams p{type, rows, n, rows_per_mask, x.data(), mask.get(), want.data()};
          softmax::ref::masked_forward(p);
          p.y = got.data();
          softmax::MaskedBackwardParams b{type, rows, n, x.data(), y.data(), mask.get(), nullptr};
          Bytes dx(x.size()), mine(x.size());
          b.dx = dx.data();
          softmax::ref::masked_backward(b);
          b.dx = mine.data();
          test::for_each_isa_and_threads([&] {
            softmax::masked_forward(p);
            EXPECT_SAME_BYTES(want.data(), got.data(), static_cast<std::int64_t>(got.size()));
            softmax::masked_backward(b);
            EXPECT_SAME_BYTES(dx.data(), mine.data(), static_cast<std::int64_t>(mine.size()));
          });
          ++cases;
        }
  std::printf("%d cases\n", cases);
}

TEST(MaskedSoftmax, ARowThatIsLeftOut) {
  const float x[] = {1.0f, 2.0f};
  const bool mask[] = {true, true};
  float y[2];
  softmax::masked_forward({DType::kF32, 1, 2, 1, x, mask, y});
  EXPECT_EQ(bits_of(y[0]), 0x7fc00000u);  // not what arithmetic makes
  EXPECT_EQ(bits_of(y[1]), 0x7fc00000u);
  softmax::masked_backward({DType::kF32, 1, 2, x, x, mask, y});
  EXPECT_EQ(bits_of(y[0]), 0u);
}

TEST(MaskedSoftmax, RefusesWhatNoKernelTakes) {
  EXPECT_THROW(softmax::masked_forward({DType::kF32, 1, 1025, 1, nullptr, nullptr, nullptr}), Error);
  EXPECT_THROW(softmax::masked_forward({DType::kF64, 1, 4, 1, nullptr, nullptr, nullptr}), Error);
  EXPECT_THROW(softmax::masked_forward({DType::kF32, 1, 4, 0, nullptr, nullptr, nullptr}), Error);
  EXPECT_THROW(softmax::masked_backward({DType::kF32, -1, 4, nullptr, nullptr, nullptr, nullptr}), Error);
}

// Would the definition's bytes tell other readings of the source apart?
using Forward = std::function<void(const float* x, const bool* mask, std::int64_t n, float* y)>;
void plain(const float* x, std::int64_t n, float* y) {
  softmax::ref::forward({false, DType::kF32, DType::kF32, 1, n, 1, x, y, 0, 0});
}
const Forward kMutants[] = {
    [](const float* x, const bool*, std::int64_t n, float* y) { plain(x, n, y); },  // no mask
    [](const float* x, const bool* mask, std::int64_t n, float* y) {                // masked after the sum
      plain(x, n, y);
      for (std::int64_t i = 0; i < n; ++i) y[i] = mask[i] ? 0.0f : y[i];
    },
    [](const float* x, const bool* mask, std::int64_t n, float* y) {  // the other meaning of the mask
      std::vector<float> v(x, x + n);
      for (std::int64_t i = 0; i < n; ++i)
        if (!mask[i]) v[static_cast<std::size_t>(i)] = -__builtin_inff();
      plain(v.data(), n, y);
    },
    [](const float* x, const bool* mask, std::int64_t n, float* y) {  // elements that stay move together
      std::vector<float> v;
      for (std::int64_t i = 0; i < n; ++i)
        if (!mask[i]) v.push_back(x[i]);
      std::vector<float> out(v.size());
      plain(v.data(), static_cast<std::int64_t>(v.size()), out.data());
      for (std::int64_t i = 0, k = 0; i < n; ++i) y[i] = mask[i] ? 0.0f : out[static_cast<std::size_t>(k++)];
    },
    [](const float* x, const bool* mask, std::int64_t n, float* y) {  // the maximum of all elements
      std::vector<float> e(x, x + n);
      float max = -__builtin_inff(), lane[32] = {};
      for (const float v : e) max = max < v ? v : max;
      for (std::int64_t i = 0; i < n; ++i) {
        y[i] = mask[i] ? 0.0f : libdevice::expf(x[i] - max);
        lane[i % 32] = lane[i % 32] + y[i];
      }
      for (int o = 16; o > 0; o /= 2)
        for (int l = 0; l < o; ++l) lane[l] = lane[l] + lane[l + o];
      for (std::int64_t i = 0; i < n; ++i) y[i] = y[i] / lane[0];
    },
    [](const float* x, const bool* mask, std::int64_t n, float* y) {  // NaN of arithmetic where all is left out
      std::vector<float> v(x, x + n);
      for (std::int64_t i = 0; i < n; ++i)
        if (mask[i]) v[static_cast<std::size_t>(i)] = -__builtin_inff();
      plain(v.data(), n, y);
    },
};

TEST(MaskedSoftmaxMutations, TheDefinitionNotices) {
  std::mt19937 rng(22);
  const std::int64_t rows = 12, n = 200;
  const auto mask = random_mask(rows, n, 3, rng);
  const Bytes x = random_bytes(DType::kF32, rows * n, false, rng);
  Bytes want(x.size()), got(x.size());
  softmax::masked_forward({DType::kF32, rows, n, 1, x.data(), mask.get(), want.data()});
  int killed = 0;
  for (const Forward& mutant : kMutants) {
    for (std::int64_t r = 0; r < rows; ++r)
      mutant(reinterpret_cast<const float*>(x.data()) + r * n, mask.get() + r * n, n,
             reinterpret_cast<float*>(got.data()) + r * n);
    EXPECT_NE(want, got) << "mutant " << killed;
    killed += want != got;
  }
  std::printf("mutation score: %d of %zu\n", killed, std::size(kMutants));
}

}  // namespace
}  // namespace step_oracle
