// Fused optimizer steps and the gradient scaler's two operators.
#include "csrc/kernels/optimizer/optimizer.h"

#include <ATen/native/ForeachUtils.h>

#include <cmath>

#include "csrc/kernels/optimizer/adagrad.h"
#include "csrc/oracle/aten/adapter.h"
#include "csrc/oracle/aten/maps.h"

namespace step_oracle::aten {
namespace {
using at::Tensor;
using at::TensorList;
using OptionalTensor = std::optional<Tensor>;

const float* value_or_null(const OptionalTensor& t) { return t && t->defined() ? t->const_data_ptr<float>() : nullptr; }
// A kernel that finds an infinity announced returns at once.
bool skips(const OptionalTensor& found_inf) {
  const float* flag = value_or_null(found_inf);
  return flag && *flag == 1.0f;
}
bool aligned(const Tensor& t) {
  return reinterpret_cast<std::uintptr_t>(t.const_data_ptr()) % (4 * t.element_size()) == 0;
}
double number_of(const Tensor& lr) {
  TORCH_CHECK(lr.scalar_type() == at::kFloat || lr.device().is_cpu(), "lr must be float32 on the device, not ",
              lr.scalar_type());
  return static_cast<double>(lr.item<float>());
}
void bump(std::initializer_list<TensorList> lists) {
  for (const TensorList list : lists)
    for (const Tensor& t : list) t.unsafeGetTensorImpl()->bump_version();
}

void require_lists(std::initializer_list<TensorList> lists, const char* op) {
  std::vector<TensorList> all(lists);
  TORCH_CHECK(!all.empty() && !all[0].empty(), op, ": the list of parameters is empty");
  for (const TensorList list : all) TORCH_CHECK(list.size() == all[0].size(), op, ": lists of different lengths");
  TORCH_CHECK(at::native::check_fast_path_restrictions(all, {}, false, true), op,
              ": params, grads and states must be dense, alike in sizes and strides, and on one device");
}

struct AdamOptions {
  double beta1, beta2, weight_decay, eps;
  bool amsgrad, maximize;
  optimizer::WeightDecay mode;
};

void adam_step(TensorList params, TensorList grads, TensorList exp_avgs, TensorList exp_avg_sqs,
               TensorList max_exp_avg_sqs, TensorList steps, double lr, const AdamOptions& o,
               const OptionalTensor& grad_scale, const OptionalTensor& found_inf) {
  const char* op = o.mode == optimizer::WeightDecay::kDecoupled ? "_fused_adamw_" : "_fused_adam_";
  if (o.amsgrad)
    require_lists({params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs}, op);
  else
    require_lists({params, grads, exp_avgs, exp_avg_sqs}, op);
  if (skips(found_inf)) return;
  const bool sm75 = card_of(params[0]).compute_capability() < 80;
  for (std::size_t i = 0; i < params.size(); ++i) {
    optimizer::AdamParams a{};
    a.n = params[i].numel();
    a.dtype = dtype_of(params[i], op);
    a.state_dtype = dtype_of(exp_avgs[i], op);
    a.p = params[i].mutable_data_ptr();
    a.g = grads[i].mutable_data_ptr();
    a.m = exp_avgs[i].mutable_data_ptr();
    a.v = exp_avg_sqs[i].mutable_data_ptr();
    a.vectorised =
        a.n % 4 == 0 && aligned(params[i]) && aligned(grads[i]) && aligned(exp_avgs[i]) && aligned(exp_avg_sqs[i]);
    if (o.amsgrad) {
      a.max_v = max_exp_avg_sqs[i].mutable_data_ptr();
      a.vectorised = a.vectorised && aligned(max_exp_avg_sqs[i]);
    }
    TORCH_CHECK(is_oracle(steps[i]) && steps[i].scalar_type() == at::kFloat, op,
                ": state_steps must be float32 on the device");
    a.step = *steps[i].const_data_ptr<float>();
    a.lr = lr, a.beta1 = o.beta1, a.beta2 = o.beta2, a.weight_decay = o.weight_decay, a.eps = o.eps;
    a.mode = o.mode;
    a.maximize = o.maximize;
    a.grad_scale = value_or_null(grad_scale);
    a.fuses_everywhere = sm75 && a.dtype == DType::kBF16;
    a.bf16_nan = bf16_nan_of_current_card();
    optimizer::adam(a);
  }
  bump({params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs});
}

#define SO_FUSED_ADAM(fn, mode)                                                                                       \
  void fn(TensorList params, TensorList grads, TensorList exp_avgs, TensorList exp_avg_sqs,                           \
          TensorList max_exp_avg_sqs, TensorList steps, double lr, double beta1, double beta2, double weight_decay,   \
          double eps, bool amsgrad, bool maximize, const OptionalTensor& grad_scale,                                  \
          const OptionalTensor& found_inf) {                                                                          \
    adam_step(params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, steps, lr,                                       \
              {beta1, beta2, weight_decay, eps, amsgrad, maximize, optimizer::WeightDecay::mode}, grad_scale,         \
              found_inf);                                                                                             \
  }                                                                                                                   \
  void fn##_tensor_lr(TensorList params, TensorList grads, TensorList exp_avgs, TensorList exp_avg_sqs,               \
                      TensorList max_exp_avg_sqs, TensorList steps, const Tensor& lr, double beta1, double beta2,     \
                      double weight_decay, double eps, bool amsgrad, bool maximize, const OptionalTensor& grad_scale, \
                      const OptionalTensor& found_inf) {                                                              \
    fn(params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, steps, number_of(lr), beta1, beta2, weight_decay, eps,  \
       amsgrad, maximize, grad_scale, found_inf);                                                                     \
  }
SO_FUSED_ADAM(fused_adam, kCoupled)
SO_FUSED_ADAM(fused_adamw, kDecoupled)

void fused_sgd(TensorList params, TensorList grads, TensorList buffers, double weight_decay, double momentum, double lr,
               double dampening, bool nesterov, bool maximize, bool first_step, const OptionalTensor& grad_scale,
               const OptionalTensor& found_inf) {
  if (buffers.empty())
    require_lists({params, grads}, "_fused_sgd_");
  else
    require_lists({params, grads, buffers}, "_fused_sgd_");
  if (skips(found_inf)) return;
  for (std::size_t i = 0; i < params.size(); ++i) {
    optimizer::SgdParams a{};
    a.n = params[i].numel();
    a.dtype = dtype_of(params[i], "_fused_sgd_");
    a.p = params[i].mutable_data_ptr();
    a.g = grads[i].mutable_data_ptr();
    a.buf = buffers.empty() ? nullptr : buffers[i].mutable_data_ptr();
    a.weight_decay = weight_decay, a.momentum = momentum, a.lr = lr, a.dampening = dampening;
    a.nesterov = nesterov, a.maximize = maximize, a.first_step = first_step;
    a.grad_scale = value_or_null(grad_scale);
    a.bf16_nan = bf16_nan_of_current_card();
    optimizer::sgd(a);
  }
  bump({params, grads, buffers});
}
void fused_sgd_tensor_lr(TensorList params, TensorList grads, TensorList buffers, double weight_decay, double momentum,
                         const Tensor& lr, double dampening, bool nesterov, bool maximize, bool first_step,
                         const OptionalTensor& grad_scale, const OptionalTensor& found_inf) {
  fused_sgd(params, grads, buffers, weight_decay, momentum, number_of(lr), dampening, nesterov, maximize, first_step,
            grad_scale, found_inf);
}

void fused_adagrad(TensorList params, TensorList grads, TensorList sums, TensorList steps, double lr, double lr_decay,
                   double weight_decay, double eps, bool maximize, const OptionalTensor& grad_scale,
                   const OptionalTensor& found_inf) {
  constexpr const char* kName = "_fused_adagrad_";
  require_lists({params, grads, sums}, kName);
  TORCH_CHECK(steps.size() == params.size(), kName, ": ", steps.size(), " state_steps for ", params.size(),
              " parameters");
  if (skips(found_inf)) return;
  for (std::size_t i = 0; i < params.size(); ++i) {
    TORCH_CHECK(is_oracle(steps[i]) && steps[i].scalar_type() == at::kFloat, kName,
                ": state_steps must be float32 on the device");
    optimizer::AdagradParams a{};
    a.n = params[i].numel();
    a.dtype = dtype_of(params[i], kName);
    a.p = params[i].mutable_data_ptr();
    a.g = grads[i].mutable_data_ptr();
    a.state = sums[i].mutable_data_ptr();
    a.step = *steps[i].const_data_ptr<float>();
    a.lr = lr, a.lr_decay = lr_decay, a.weight_decay = weight_decay, a.eps = eps;
    a.maximize = maximize;
    a.grad_scale = value_or_null(grad_scale);
    a.bf16_nan = bf16_nan_of_current_card();
    optimizer::adagrad(a);
  }
  bump({params, grads, sums});
}
void fused_adagrad_tensor_lr(TensorList params, TensorList grads, TensorList sums, TensorList steps, const Tensor& lr,
                             double lr_decay, double weight_decay, double eps, bool maximize,
                             const OptionalTensor& grad_scale, const OptionalTensor& found_inf) {
  fused_adagrad(params, grads, sums, steps, number_of(lr), lr_decay, weight_decay, eps, maximize, grad_scale,
                found_inf);
}

// g *= inv_scale, and *found_inf = 1 for an infinity or NaN. [src AmpKernels.cu]
void check_and_unscale(TensorList grads, Tensor& found_inf, const Tensor& inv_scale) {
  TORCH_CHECK(inv_scale.numel() == 1 && found_inf.numel() == 1, "inv_scale and found_inf must be 1-element tensors.");
  TORCH_CHECK(inv_scale.scalar_type() == at::kFloat && found_inf.scalar_type() == at::kFloat,
              "inv_scale and found_inf must be float tensors.");
  const float scale = *inv_scale.const_data_ptr<float>();
  float* flag = found_inf.mutable_data_ptr<float>();
  for (const Tensor& g : grads) {
    TORCH_CHECK_NOT_IMPLEMENTED(g.scalar_type() != at::kBFloat16,
                                "_amp_foreach_non_finite_check_and_unscale_ has no bfloat16 kernel, on a card either: "
                                "use a gradient scaler with float32 gradients, or none");
    const DType type = dtype_of(g, "_amp_foreach_non_finite_check_and_unscale_");
    const Tensor dense = g.is_non_overlapping_and_dense() ? g : g.contiguous();
    optimizer::unscale(dense.mutable_data_ptr(), type, dense.numel(), scale, flag, bf16_nan_of_current_card());
    if (!dense.is_same(g)) g.copy_(dense);
    g.unsafeGetTensorImpl()->bump_version();
  }
}

// [src AmpKernels.cu amp_update_scale_cuda_kernel]: the factors are doubles, the products round once to float.
Tensor& update_scale(Tensor& scale, Tensor& growth_tracker, const Tensor& found_inf, double growth_factor,
                     double backoff_factor, int64_t growth_interval) {
  TORCH_CHECK(growth_tracker.numel() == 1 && scale.numel() == 1 && found_inf.numel() == 1,
              "growth_tracker, current_scale and found_inf must be 1-element tensors.");
  TORCH_CHECK(growth_tracker.scalar_type() == at::kInt, "growth_tracker must be an int tensor.");
  TORCH_CHECK(scale.scalar_type() == at::kFloat && found_inf.scalar_type() == at::kFloat,
              "current_scale and found_inf must be float tensors.");
  float* current = scale.mutable_data_ptr<float>();
  int* tracker = growth_tracker.mutable_data_ptr<int>();
  if (*found_inf.const_data_ptr<float>() != 0.0f) {
    *current = static_cast<float>(static_cast<double>(*current) * backoff_factor);
    *tracker = 0;
    return scale;
  }
  const int successful = *tracker + 1;
  if (successful != growth_interval) {
    *tracker = successful;
    return scale;
  }
  const float grown = static_cast<float>(static_cast<double>(*current) * growth_factor);
  if (std::isfinite(grown)) *current = grown;
  *tracker = 0;
  return scale;
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
#define SO_OP(name, fn, klass) m.impl(name, SO_ADAPTER(fn));
#include "csrc/oracle/ops/optimizer.inc"
#undef SO_OP
}

}  // namespace
}  // namespace step_oracle::aten
