#include "csrc/kernels/arith/element.h"
#include "csrc/kernels/core/lanes.h"
#include "csrc/kernels/loss/loss_body.h"
#include "csrc/kernels/loss/loss_ops.h"

SO_ISA_BEGIN
namespace {

using loss::Nll2dBackwardParams;
using loss::Nll2dParams;
using loss::NllBackwardParams;
using loss::NllParams;
using loss::Reduction;

template <class T>
void put(void* out, std::int64_t i, float value) {
  static_cast<T*>(out)[i] = narrow<T>(canonical(value));
}

template <class T>
float input(const NllParams& p, std::int64_t row, std::int64_t t) {
  return widen(static_cast<const T*>(p.x)[row * p.x_row + t * p.x_col]);
}

template <class T>
void each(const NllParams& p, std::int64_t begin, std::int64_t end) {
  for (std::int64_t row = begin; row < end; ++row) {
    const std::int64_t t = loss_ops::target_of(p.target, p.target_type, row);
    if (t == p.ignore_index)
      put<T>(p.loss, row, 0.0f);
    else
      put<T>(p.loss, row, -loss_ops::weight_of<T>(p.weight, t) * input<T>(p, row, t));
  }
}

template <class T>
void single(const NllParams& p) {
  const std::int64_t t = loss_ops::target_of(p.target, p.target_type, 0);
  const bool kept = t != p.ignore_index, mean = p.reduction == Reduction::kMean;
  const float w = kept ? loss_ops::weight_of<T>(p.weight, t) : 0.0f;
  put<T>(p.total_weight, 0, w);
  if (!kept)
    put<T>(p.loss, 0, 0.0f);
  else
    put<T>(p.loss, 0, !mean ? -w * input<T>(p, 0, t) : w == 0.0f ? card_nan() : -input<T>(p, 0, t));
}

template <class T>
void reduced(const NllParams& p, int threads) {
  if (p.vector) return single<T>(p);
  float sum[1024] = {}, weight[1024] = {};
  for (std::int64_t row = 0; row < p.rows; ++row) {
    const std::int64_t t = loss_ops::target_of(p.target, p.target_type, row);
    if (t == p.ignore_index) continue;
    const float w = loss_ops::weight_of<T>(p.weight, t);
    const std::int64_t own = row % threads;
    sum[own] = loss_ops::minus_product<T>(sum[own], input<T>(p, row, t), w);
    weight[own] = weight[own] + w;
  }
  const auto add = [](float a, float b) { return a + b; };
  const float total = fold_halves(sum, threads, add), weights = fold_halves(weight, threads, add);
  put<T>(p.total_weight, 0, weights);
  put<T>(p.loss, 0, p.reduction == Reduction::kMean ? total / weights : total);
}

template <class T>
void backward(const NllBackwardParams& p, std::int64_t begin, std::int64_t end) {
  T* out = static_cast<T*>(p.grad_x);
  for (std::int64_t i = begin * p.classes; i < end * p.classes; ++i) out[i] = T{};
  const T* grad = static_cast<const T*>(p.grad);
  float common = widen(grad[0]);
  if (p.reduction == Reduction::kMean)
    common = loss_ops::rounded<T>(common / widen(static_cast<const T*>(p.total_weight)[0]));
  for (std::int64_t row = begin; row < end; ++row) {
    const std::int64_t t = loss_ops::target_of(p.target, p.target_type, row);
    if (t == p.ignore_index) continue;
    const float w = loss_ops::weight_of<T>(p.weight, t);
    if (p.reduction == Reduction::kNone)
      put<T>(out, row * p.classes + t, -w * widen(grad[row * p.grad_stride]));
    else
      put<T>(out, row * p.classes + t, p.weight ? w * -common : -common);
  }
}

// ---- places
template <class T>
void each_place(const Nll2dParams& p, std::int64_t begin, std::int64_t end) {
  const T* x = static_cast<const T*>(p.x);
  for (std::int64_t i = begin; i < end; ++i) {
    const std::int64_t t = p.target[i], sample = i / p.places;
    if (t == p.ignore_index)
      put<T>(p.loss, i, 0.0f);
    else
      put<T>(p.loss, i,
             -widen(x[(sample * p.classes + t) * p.places + i % p.places]) * loss_ops::weight_of<T>(p.weight, t));
  }
}

template <class T>
void block_of_places(const Nll2dParams& p, std::int64_t sample, std::int64_t block, std::int64_t blocks, float* sum,
                     float* weight) {
  constexpr int kThreads = 1024;  // [src KernelUtils.h CUDA_NUM_THREADS]
  float sums[kThreads] = {}, weights[kThreads] = {};
  const T* x = static_cast<const T*>(p.x) + sample * p.classes * p.places;
  const std::int64_t* target = p.target + sample * p.places;
  for (std::int64_t first = block * kThreads; first < p.places; first += blocks * kThreads)
    for (std::int64_t i = first; i < first + kThreads && i < p.places; ++i) {
      if (target[i] == p.ignore_index) continue;
      const float w = loss_ops::weight_of<T>(p.weight, target[i]);
      sums[i - first] = loss_ops::minus_product<T>(sums[i - first], widen(x[target[i] * p.places + i]), w);
      weights[i - first] = weights[i - first] + w;
    }
  const auto add = [](float a, float b) { return a + b; };
  *weight = fold_block(weights, kThreads, 0.0f, add);
  *sum = fold_block(sums, kThreads, 0.0f, add);
}

template <class T>
void fold_places(const Nll2dParams& p, const float* sums, const float* weights, std::int64_t blocks) {
  float sum = 0.0f, weight = 0.0f;
  for (std::int64_t b = 0; b < blocks; ++b) {
    weight = loss_ops::rounded<T>(weight + loss_ops::rounded<T>(weights[b]));
    sum = loss_ops::rounded<T>(sum + loss_ops::rounded<T>(sums[b]));
  }
  put<T>(p.total_weight, 0, weight);
  put<T>(p.loss, 0, p.reduction == Reduction::kMean ? sum / weight : sum);
}

template <class T>
void places_backward(const Nll2dBackwardParams& p, std::int64_t begin, std::int64_t end) {
  const T* grad = static_cast<const T*>(p.grad);
  float common = widen(grad[0]);
  if (p.reduction == Reduction::kMean)
    common = loss_ops::rounded<T>(common / widen(static_cast<const T*>(p.total_weight)[0]));
  for (std::int64_t sample = begin; sample < end; ++sample) {
    T* out = static_cast<T*>(p.grad_x) + sample * p.classes * p.places;
    for (std::int64_t i = 0; i < p.classes * p.places; ++i) out[i] = T{};
    for (std::int64_t i = 0; i < p.places; ++i) {
      const std::int64_t t = p.target[sample * p.places + i];
      if (t == p.ignore_index) continue;
      const float w = loss_ops::weight_of<T>(p.weight, t);
      if (p.reduction == Reduction::kNone)
        put<T>(out, t * p.places + i, -w * widen(grad[sample * p.places + i]));
      else
        put<T>(out, t * p.places + i, p.weight ? w * -common : -common);
    }
  }
}

void nll_each(const NllParams& p, std::int64_t begin, std::int64_t end) {
  if (p.type == DType::kF32)
    each<float>(p, begin, end);
  else if (p.type == DType::kBF16)
    each<Bf16>(p, begin, end);
  else
    each<F16>(p, begin, end);
}
void nll_reduced(const NllParams& p, int threads) {
  if (p.type == DType::kF32)
    reduced<float>(p, threads);
  else if (p.type == DType::kBF16)
    reduced<Bf16>(p, threads);
  else
    reduced<F16>(p, threads);
}
void nll_backward(const NllBackwardParams& p, std::int64_t begin, std::int64_t end) {
  if (p.type == DType::kF32)
    backward<float>(p, begin, end);
  else if (p.type == DType::kBF16)
    backward<Bf16>(p, begin, end);
  else
    backward<F16>(p, begin, end);
}

void nll2d_each(const Nll2dParams& p, std::int64_t begin, std::int64_t end) {
  if (p.type == DType::kF32)
    each_place<float>(p, begin, end);
  else if (p.type == DType::kBF16)
    each_place<Bf16>(p, begin, end);
  else
    each_place<F16>(p, begin, end);
}
void nll2d_block(const Nll2dParams& p, std::int64_t sample, std::int64_t block, std::int64_t blocks, float* sum,
                 float* weight) {
  if (p.type == DType::kF32)
    block_of_places<float>(p, sample, block, blocks, sum, weight);
  else if (p.type == DType::kBF16)
    block_of_places<Bf16>(p, sample, block, blocks, sum, weight);
  else
    block_of_places<F16>(p, sample, block, blocks, sum, weight);
}
void nll2d_fold(const Nll2dParams& p, const float* sums, const float* weights, std::int64_t blocks) {
  if (p.type == DType::kF32)
    fold_places<float>(p, sums, weights, blocks);
  else if (p.type == DType::kBF16)
    fold_places<Bf16>(p, sums, weights, blocks);
  else
    fold_places<F16>(p, sums, weights, blocks);
}
void nll2d_backward(const Nll2dBackwardParams& p, std::int64_t begin, std::int64_t end) {
  if (p.type == DType::kF32)
    places_backward<float>(p, begin, end);
  else if (p.type == DType::kBF16)
    places_backward<Bf16>(p, begin, end);
  else
    places_backward<F16>(p, begin, end);
}

}  // namespace

extern const LossBody loss_body;
const LossBody loss_body = {&nll_each,    &nll_reduced, &nll_backward,  &nll2d_each,
                            &nll2d_block, &nll2d_fold,  &nll2d_backward};
SO_ISA_END
