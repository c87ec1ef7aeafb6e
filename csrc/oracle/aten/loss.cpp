// nll_loss, as CUDA's Loss.cu calls its kernels.
#include "csrc/kernels/loss/loss.h"

#include <ATen/Context.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/nll_loss_backward_meta.h>
#include <ATen/ops/nll_loss_forward_meta.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>

#include <limits>
#include <tuple>

#include "csrc/oracle/aten/adapter.h"
#include "csrc/oracle/aten/races.h"
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

// ---- places of an image ----
void check_2d(const at::Tensor& input, const at::Tensor& target, const at::Tensor& weight) {
  TORCH_CHECK(target.dim() == 3,
              "only batches of spatial targets supported (3D tensors) but got targets of size: : ", target.sizes());
  TORCH_CHECK(input.dim() == 4,
              "only batches of spatial inputs supported (4D tensors), but got input of size: ", input.sizes());
  TORCH_CHECK(!weight.defined() || weight.numel() == input.size(1),
              "weight tensor should be defined either for all or no classes");
  TORCH_CHECK(input.size(0) == target.size(0) && input.size(2) == target.size(1) && input.size(3) == target.size(2),
              "input and target batch or spatial sizes don't match: target ", target.sizes(), ", input ",
              input.sizes());
  TORCH_CHECK(target.scalar_type() == at::kLong, "expected scalar type Long but found ", target.scalar_type());
}

std::tuple<at::Tensor&, at::Tensor&> nll2d_forward_out(const at::Tensor& self, const at::Tensor& target,
                                                       const std::optional<at::Tensor>& weight_opt, int64_t reduction,
                                                       int64_t ignore_index, at::Tensor& output,
                                                       at::Tensor& total_weight) {
  const bool each = reduction == static_cast<int64_t>(loss::Reduction::kNone);
  if (!each) at::globalContext().alertNotDeterministic("nll_loss2d_forward_out_cuda_template");
  const at::Tensor weight = weight_of(weight_opt, self);
  check_2d(self, target, weight);
  total_weight.resize_({});
  at::native::resize_output(output, each ? target.sizes() : at::IntArrayRef{});
  if (!each) total_weight.zero_();
  if (target.numel() == 0) {
    if (!each)
      output.fill_(reduction == static_cast<int64_t>(loss::Reduction::kMean) ? std::numeric_limits<double>::quiet_NaN()
                                                                             : 0.0);
    return {output, total_weight};
  }
  const at::Tensor x = self.contiguous(), t = target.contiguous(), result = output.contiguous();
  const int64_t places = x.size(2) * x.size(3), blocks = loss::nll2d_blocks(x.size(0), places);
  if (!each && blocks > 2)
    on_race("nll_loss2d_forward",
            fmt::format("of {} samples adds the sums of {} blocks by atomic additions, whose order is not defined",
                        x.size(0), blocks),
            "Use reduction='none' and take the mean, or make the batch at most 2 samples");
  loss::nll2d_forward({dtype_of(x, "nll_loss2d_forward"), static_cast<loss::Reduction>(reduction), x.size(0), x.size(1),
                       places, x.const_data_ptr(), t.const_data_ptr<int64_t>(),
                       weight.defined() ? weight.const_data_ptr() : nullptr, ignore_index, result.mutable_data_ptr(),
                       total_weight.mutable_data_ptr()});
  if (!result.is_same(output)) output.copy_(result);
  return {output, total_weight};
}
std::tuple<at::Tensor, at::Tensor> nll2d_forward(const at::Tensor& self, const at::Tensor& target,
                                                 const std::optional<at::Tensor>& weight, int64_t reduction,
                                                 int64_t ignore_index) {
  at::Tensor output = at::empty({0}, self.options()), total_weight = at::empty({0}, self.options());
  nll2d_forward_out(self, target, weight, reduction, ignore_index, output, total_weight);
  return {output, total_weight};
}

at::Tensor& nll2d_backward_out(const at::Tensor& grad_output, const at::Tensor& self, const at::Tensor& target,
                               const std::optional<at::Tensor>& weight_opt, int64_t reduction, int64_t ignore_index,
                               const at::Tensor& total_weight, at::Tensor& grad_input) {
  const at::Tensor weight = weight_of(weight_opt, self);
  check_2d(self, target, weight);
  grad_input.resize_as_(self);
  grad_input.zero_();
  TORCH_CHECK(grad_input.is_contiguous(), "grad_input must be contiguous");
  TORCH_CHECK(total_weight.numel() == 1,
              "expected total_weight to be a single element tensor, got: ", total_weight.sizes(), " (",
              total_weight.numel(), " elements)");
  if (target.numel() == 0) return grad_input;
  const at::Tensor t = target.contiguous(), grad = grad_output.contiguous();
  loss::nll2d_backward({dtype_of(self, "nll_loss2d_backward"), static_cast<loss::Reduction>(reduction), self.size(0),
                        self.size(1), self.size(2) * self.size(3), grad.const_data_ptr(), t.const_data_ptr<int64_t>(),
                        weight.defined() ? weight.const_data_ptr() : nullptr, ignore_index,
                        total_weight.const_data_ptr(), grad_input.mutable_data_ptr()});
  return grad_input;
}
at::Tensor nll2d_backward(const at::Tensor& grad_output, const at::Tensor& self, const at::Tensor& target,
                          const std::optional<at::Tensor>& weight, int64_t reduction, int64_t ignore_index,
                          const at::Tensor& total_weight) {
  at::Tensor grad_input = at::zeros_like(self);
  return nll2d_backward_out(grad_output, self, target, weight, reduction, ignore_index, total_weight, grad_input);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
#define SO_OP(name, fn, klass) m.impl(name, SO_ADAPTER(fn));
#include "csrc/oracle/ops/loss.inc"
#undef SO_OP
}

}  // namespace step_oracle::aten
