// The definition: lane by lane, as softmax_warp_forward and softmax_warp_backward of PersistentSoftmax.cuh have them
// with is_masked.
#include <vector>

#include "csrc/kernels/arith/libdevice.h"
#include "csrc/kernels/arith/typed_element.h"
#include "csrc/kernels/softmax/masked.h"

namespace step_oracle::softmax::ref {
namespace {

constexpr float kInfinity = __builtin_inff();

using typed::load;
using typed::store;

float rounded(DType type, float value) { return typed::rounded(type, canonical(value)); }

struct Warp {
  int lanes, iterations;
  explicit Warp(std::int64_t n) {
    int power = 1;
    while (power < n) power *= 2;
    lanes = power < 32 ? power : 32;
    iterations = power / lanes;
  }
  template <class Op>
  void reduce(std::vector<float>& lane, Op op) const {
    for (int offset = lanes / 2; offset > 0; offset /= 2) {
      const std::vector<float> before = lane;
      for (int l = 0; l < lanes; ++l) lane[l] = op(before[l], before[l ^ offset]);
    }
  }
};

void forward_row(const MaskedParams& p, std::int64_t row) {
  const Warp warp(p.n);
  const bool* mask = p.mask + row / p.rows_per_mask * p.n;
  std::vector<float> elements(static_cast<std::size_t>(warp.lanes * warp.iterations), -kInfinity), max, sum;
  for (std::int64_t i = 0; i < p.n; ++i) elements[i] = load(p.type, p.x, row * p.n + i);
  for (int l = 0; l < warp.lanes; ++l) {
    bool meaningful = false;
    float most = elements[l];
    for (int i = l; i < p.n; i += warp.lanes)
      if (!mask[i]) {
        most = meaningful && most > elements[i] ? most : elements[i];
        meaningful = true;
      }
    max.push_back(meaningful ? most : -kInfinity);
  }
  warp.reduce(max, [](float a, float b) { return a < b ? b : a; });
  for (int l = 0; l < warp.lanes; ++l) {
    float total = 0.0f;
    for (int it = 0; it < warp.iterations; ++it) {
      const int i = l + it * warp.lanes;
      const bool left_out = i >= p.n || mask[i];
      elements[i] = left_out ? 0.0f : libdevice::expf(elements[i] - max[l]);
      if (!left_out) total = total + elements[i];
    }
    sum.push_back(total);
  }
  warp.reduce(sum, [](float a, float b) { return a + b; });
  for (std::int64_t i = 0; i < p.n; ++i) {
    const float s = sum[i % warp.lanes];
    store(p.type, p.y, row * p.n + i, s == 0.0f ? float_of(0x7fc00000u) : canonical(elements[i] / s));
  }
}

void backward_row(const MaskedBackwardParams& p, std::int64_t row) {
  const Warp warp(p.n);
  const auto y = [&](std::int64_t i) { return load(p.type, p.y, row * p.n + i); };
  const auto grad = [&](std::int64_t i) { return rounded(p.type, load(p.type, p.grad, row * p.n + i) * y(i)); };
  const bool* mask = p.mask + row * p.n;
  std::vector<float> sum(static_cast<std::size_t>(warp.lanes), 0.0f);
  for (int l = 0; l < warp.lanes; ++l)
    for (std::int64_t i = l; i < p.n; i += warp.lanes)
      if (!mask[i]) sum[l] = sum[l] + grad(i);
  warp.reduce(sum, [](float a, float b) { return a + b; });
  for (std::int64_t i = 0; i < p.n; ++i)
    store(p.type, p.dx, row * p.n + i,
          mask[i] ? 0.0f : canonical(fma(-y(i), sum[i % warp.lanes], grad(i))));
}

}  // namespace

void masked_forward(const MaskedParams& p) {
  for (std::int64_t row = 0; row < p.rows; ++row) forward_row(p, row);
}
void masked_backward(const MaskedBackwardParams& p) {
  for (std::int64_t row = 0; row < p.rows; ++row) backward_row(p, row);
}

}  // namespace step_oracle::softmax::ref
