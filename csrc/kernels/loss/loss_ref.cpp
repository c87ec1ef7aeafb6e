// The definition: Loss.cu, thread by thread.
#include <vector>

#include "csrc/kernels/arith/element.h"
#include "csrc/kernels/loss/loss.h"
#include "csrc/kernels/loss/loss_ops.h"

namespace step_oracle::loss::ref {
namespace {

using loss_ops::rounded;
using loss_ops::target_of;
using loss_ops::weight_of;

template <class T>
void forward(const NllParams& p) {
  const auto x = [&](std::int64_t row, std::int64_t t) {
    return widen(static_cast<const T*>(p.x)[row * p.x_row + t * p.x_col]);
  };
  const auto store = [](void* out, std::int64_t i, float v) { static_cast<T*>(out)[i] = narrow<T>(canonical(v)); };
  if (p.reduction == Reduction::kNone) {
    for (std::int64_t row = 0; row < p.rows; ++row) {
      const std::int64_t t = target_of(p.target, p.target_type, row);
      store(p.loss, row, t == p.ignore_index ? 0.0f : -weight_of<T>(p.weight, t) * x(row, t));
    }
    return;
  }
  if (p.vector) {
    const std::int64_t t = target_of(p.target, p.target_type, 0);
    const float w = t == p.ignore_index ? 0.0f : weight_of<T>(p.weight, t);
    store(p.total_weight, 0, w);
    if (t == p.ignore_index)
      store(p.loss, 0, 0.0f);
    else if (p.reduction == Reduction::kSum)
      store(p.loss, 0, -w * x(0, t));
    else
      store(p.loss, 0, w == 0.0f ? card_nan() : -x(0, t));
    return;
  }
  const auto threads = static_cast<std::size_t>(nll_threads(p.rows));
  std::vector<float> inputs(threads), weights(threads);
  for (std::size_t thread = 0; thread < threads; ++thread)
    for (std::int64_t i = static_cast<std::int64_t>(thread); i < p.rows; i += static_cast<std::int64_t>(threads)) {
      const std::int64_t t = target_of(p.target, p.target_type, i);
      if (t == p.ignore_index) continue;
      const float w = weight_of<T>(p.weight, t);
      inputs[thread] = loss_ops::minus_product<T>(inputs[thread], x(i, t), w);
      weights[thread] = weights[thread] + w;
    }
  for (std::size_t stride = threads / 2; stride > 0; stride >>= 1)
    for (std::size_t i = 0; i < stride; ++i) {
      inputs[i] = inputs[i] + inputs[i + stride];
      weights[i] = weights[i] + weights[i + stride];
    }
  store(p.total_weight, 0, weights[0]);
  store(p.loss, 0, p.reduction == Reduction::kMean ? inputs[0] / weights[0] : inputs[0]);
}

template <class T>
void backward(const NllBackwardParams& p) {
  T* out = static_cast<T*>(p.grad_x);
  for (std::int64_t i = 0; i < p.rows * p.classes; ++i) out[i] = T{};
  for (std::int64_t row = 0; row < p.rows; ++row) {
    const std::int64_t t = target_of(p.target, p.target_type, row);
    if (t == p.ignore_index) continue;
    const float w = weight_of<T>(p.weight, t);
    float g = widen(static_cast<const T*>(p.grad)[p.reduction == Reduction::kNone ? row * p.grad_stride : 0]);
    if (p.reduction == Reduction::kMean) g = rounded<T>(g / widen(*static_cast<const T*>(p.total_weight)));
    const float value = p.reduction == Reduction::kNone ? -w * g : p.weight ? w * -g : -g;
    out[row * p.classes + t] = narrow<T>(canonical(value));
  }
}

// NLLLoss2d.cu: blocks of 1024 threads, block after block.
template <class T>
void forward_2d(const Nll2dParams& p) {
  const auto x = [&](std::int64_t sample, std::int64_t t, std::int64_t i) {
    return widen(static_cast<const T*>(p.x)[(sample * p.classes + t) * p.places + i]);
  };
  if (p.reduction == Reduction::kNone) {
    for (std::int64_t k = 0; k < p.batch * p.places; ++k) {
      const std::int64_t t = p.target[k];
      const float v = t == p.ignore_index ? 0.0f : -x(k / p.places, t, k % p.places) * weight_of<T>(p.weight, t);
      static_cast<T*>(p.loss)[k] = narrow<T>(canonical(v));
    }
    return;
  }
  const std::int64_t blocks = nll2d_blocks(p.batch, p.places), of_sample = blocks / p.batch, step = 1024 * of_sample;
  float loss = 0.0f, total = 0.0f;
  for (std::int64_t block = 0; block < blocks; ++block) {
    const std::int64_t sample = block / of_sample;
    float sums[1024], weights[1024];
    for (std::int64_t thread = 0; thread < 1024; ++thread) {
      sums[thread] = weights[thread] = 0.0f;
      for (std::int64_t i = block % of_sample * 1024 + thread; i < p.places; i += step) {
        const std::int64_t t = p.target[sample * p.places + i];
        if (t == p.ignore_index) continue;
        const float w = weight_of<T>(p.weight, t);
        sums[thread] = loss_ops::minus_product<T>(sums[thread], x(sample, t, i), w);
        weights[thread] = weights[thread] + w;
      }
    }
    for (float* v : {weights, sums}) {  // BlockReduceSum
      for (int offset = 16; offset > 0; offset /= 2)
        for (int warp = 0; warp < 32; ++warp)
          for (int lane = 0; lane < offset; ++lane)
            v[warp * 32 + lane] = v[warp * 32 + lane] + v[warp * 32 + lane + offset];
      for (int offset = 16; offset > 0; offset /= 2)
        for (int warp = 0; warp < offset; ++warp) v[warp * 32] = v[warp * 32] + v[(warp + offset) * 32];
    }
    total = rounded<T>(total + rounded<T>(weights[0]));
    loss = rounded<T>(loss + rounded<T>(sums[0]));
  }
  *static_cast<T*>(p.total_weight) = narrow<T>(canonical(total));
  *static_cast<T*>(p.loss) = narrow<T>(canonical(p.reduction == Reduction::kMean ? loss / total : loss));
}

template <class T>
void backward_2d(const Nll2dBackwardParams& p) {
  T* out = static_cast<T*>(p.grad_x);
  for (std::int64_t i = 0; i < p.batch * p.classes * p.places; ++i) out[i] = T{};
  for (std::int64_t k = 0; k < p.batch * p.places; ++k) {
    const std::int64_t t = p.target[k], sample = k / p.places;
    if (t == p.ignore_index) continue;
    const float w = weight_of<T>(p.weight, t);
    float g = widen(static_cast<const T*>(p.grad)[p.reduction == Reduction::kNone ? k : 0]);
    if (p.reduction == Reduction::kMean) g = rounded<T>(g / widen(*static_cast<const T*>(p.total_weight)));
    const float value = p.reduction == Reduction::kNone ? -w * g : p.weight ? w * -g : -g;
    out[(sample * p.classes + t) * p.places + k % p.places] = narrow<T>(canonical(value));
  }
}

}  // namespace

void nll_forward(const NllParams& p) {
  p.type == DType::kF32 ? forward<float>(p) : p.type == DType::kBF16 ? forward<Bf16>(p) : forward<F16>(p);
}
void nll_backward(const NllBackwardParams& p) {
  p.type == DType::kF32 ? backward<float>(p) : p.type == DType::kBF16 ? backward<Bf16>(p) : backward<F16>(p);
}

void nll2d_forward(const Nll2dParams& p) {
  p.type == DType::kF32 ? forward_2d<float>(p) : p.type == DType::kBF16 ? forward_2d<Bf16>(p) : forward_2d<F16>(p);
}
void nll2d_backward(const Nll2dBackwardParams& p) {
  p.type == DType::kF32 ? backward_2d<float>(p) : p.type == DType::kBF16 ? backward_2d<Bf16>(p) : backward_2d<F16>(p);
}

}  // namespace step_oracle::loss::ref
