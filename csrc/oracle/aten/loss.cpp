// nll_loss, as CUDA's Loss.cu calls its kernels.
#include "csrc/kernels/loss/loss.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/nll_loss_backward_meta.h>
#include <ATen/ops/nll_loss_forward_meta.h>

#include <limits>
#include <tuple>

#include "csrc/oracle/aten/adapter.h"
#include "csrc/oracle/aten/structured.h"

namespace step_oracle::aten {
namespace {

// Owned, so that contiguous copies live as long as the pointers to them.
at::Tensor weight_of(const std::optional<at::Tensor>& weight, const at::Tensor& self) {
  if (!weight || !weight->defined()) return {};
  TORCH_CHECK(weight->scalar_type() == self.scalar_type(), "expected scalar type ", self.scalar_type(), " but found ",
              weight->scalar_type());
  return weight->contiguous();
}

std::tuple<at::Tensor&, at::Tensor&> nll_forward_out(const at::Tensor& self, const at::Tensor& target,
                                                     const std::optional<at::Tensor>& weight_opt, int64_t reduction,
                                                     int64_t ignore_index, at::Tensor& output,
                                                     at::Tensor& total_weight) {
  const at::Tensor weight = weight_of(weight_opt, self);
  Structured<at::meta::structured_nll_loss_forward, 2> op(output, total_weight);
  op.meta(self, target, weight.defined() ? at::OptionalTensorRef(weight) : at::OptionalTensorRef(), reduction,
          ignore_index);
  const at::Tensor &loss = op.output(0), &total = op.output(1);
  const at::Tensor x = self.contiguous(), t = target.contiguous();
  const bool each = reduction == static_cast<int64_t>(loss::Reduction::kNone) && self.dim() == 2;
  if (each) total.zero_();
  if (target.numel() == 0) {
    if (!each) {
      total.zero_();
      loss.fill_(reduction == static_cast<int64_t>(loss::Reduction::kMean) ? std::numeric_limits<double>::quiet_NaN()
                                                                           : 0.0);
    }
  } else {
    loss::NllParams p{};
    p.type = dtype_of(x, "nll_loss");
    p.target_type = dtype_of(t, "nll_loss");
    // A vector without a reduction runs the kernel of the sum.
    p.reduction = each ? loss::Reduction::kNone : reduction == 1 ? loss::Reduction::kMean : loss::Reduction::kSum;
    p.vector = x.dim() == 1;
    p.rows = p.vector ? 1 : x.size(0);
    p.classes = x.size(-1);
    p.x_row = p.classes;
    p.x_col = 1;
    p.x = x.const_data_ptr();
    p.target = t.const_data_ptr();
    p.weight = weight.defined() ? weight.const_data_ptr() : nullptr;
    p.ignore_index = ignore_index;
    const at::Tensor result = loss.contiguous();
    p.loss = result.mutable_data_ptr();
    p.total_weight = total.mutable_data_ptr();
    loss::nll_forward(p);
    if (!result.is_same(loss)) loss.copy_(result);
  }
  op.finish();
  return {output, total_weight};
}

at::Tensor& nll_backward_out(const at::Tensor& grad_output, const at::Tensor& self, const at::Tensor& target,
                             const std::optional<at::Tensor>& weight_opt, int64_t reduction, int64_t ignore_index,
                             const at::Tensor& total_weight, at::Tensor& grad_input) {
  const at::Tensor weight = weight_of(weight_opt, self);
  Structured<at::meta::structured_nll_loss_backward> op(grad_input);
  op.meta(grad_output, self, target, weight.defined() ? at::OptionalTensorRef(weight) : at::OptionalTensorRef(),
          reduction, ignore_index, total_weight);
  const at::Tensor& dx = op.output(0);
  const at::Tensor t = target.contiguous();
  if (target.numel() == 0) {
    dx.zero_();
  } else {
    const bool each = reduction == static_cast<int64_t>(loss::Reduction::kNone) && self.dim() == 2;
    const at::Tensor grad = grad_output.contiguous(), result = dx.contiguous();
    loss::NllBackwardParams p{};
    p.type = dtype_of(self, "nll_loss_backward");
    p.target_type = dtype_of(t, "nll_loss_backward");
    p.reduction = each ? loss::Reduction::kNone : reduction == 1 ? loss::Reduction::kMean : loss::Reduction::kSum;
    p.rows = self.dim() == 1 ? 1 : self.size(0);
    p.classes = self.size(-1);
    p.grad = grad.const_data_ptr();
    p.grad_stride = 1;
    p.target = t.const_data_ptr();
    p.weight = weight.defined() ? weight.const_data_ptr() : nullptr;
    p.ignore_index = ignore_index;
    p.total_weight = total_weight.const_data_ptr();
    p.grad_x = result.mutable_data_ptr();
    loss::nll_backward(p);
    if (!result.is_same(dx)) dx.copy_(result);
  }
  op.finish();
  return grad_input;
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
#define SO_OP(name, fn, klass) m.impl(name, SO_ADAPTER(fn));
#include "csrc/oracle/ops/loss.inc"
#undef SO_OP
}

}  // namespace step_oracle::aten
