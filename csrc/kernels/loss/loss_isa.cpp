#include "csrc/kernels/arith/element.h"
#include "csrc/kernels/core/lanes.h"
#include "csrc/kernels/loss/loss_body.h"
#include "csrc/kernels/loss/loss_ops.h"

SO_ISA_BEGIN
namespace {

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

}  // namespace

extern const LossBody loss_body;
const LossBody loss_body = {&nll_each, &nll_reduced, &nll_backward};
SO_ISA_END
