// Activations, gates and elementwise losses, as CUDA's Activation*.cu, BinaryMiscOpsKernels.cu, PointwiseOpsKernel.cu
// and Loss.cu call their kernels. As in pointwise.cpp, torch's own host code runs over stubs.
#define AT_PER_OPERATOR_HEADERS
#include <ATen/TensorIterator.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/native/Activation.h>
#include <ATen/native/BinaryOps.h>
#include <ATen/native/PointwiseOps.h>
#include <ATen/native/Resize.h>
#include <ATen/native/UnaryOps.h>
#include <ATen/ops/_prelu_kernel_backward_native.h>
#include <ATen/ops/_prelu_kernel_native.h>
#include <ATen/ops/copysign_native.h>
#include <ATen/ops/elu_backward_native.h>
#include <ATen/ops/elu_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/fmax_native.h>
#include <ATen/ops/fmin_native.h>
#include <ATen/ops/glu_native.h>
#include <ATen/ops/hardshrink_backward_native.h>
#include <ATen/ops/hardshrink_native.h>
#include <ATen/ops/hardsigmoid_backward_native.h>
#include <ATen/ops/hardsigmoid_native.h>
#include <ATen/ops/hardswish_backward_native.h>
#include <ATen/ops/hardswish_native.h>
#include <ATen/ops/hardtanh_backward_native.h>
#include <ATen/ops/heaviside_native.h>
#include <ATen/ops/huber_loss_backward_native.h>
#include <ATen/ops/huber_loss_native.h>
#include <ATen/ops/logaddexp_native.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/mish_backward_native.h>
#include <ATen/ops/mish_native.h>
#include <ATen/ops/nan_to_num_native.h>
#include <ATen/ops/signbit_native.h>
#include <ATen/ops/smooth_l1_loss_backward_native.h>
#include <ATen/ops/smooth_l1_loss_native.h>
#include <ATen/ops/softplus_backward_native.h>
#include <ATen/ops/softplus_native.h>
#include <ATen/ops/softshrink_backward_native.h>
#include <ATen/ops/softshrink_native.h>
#include <ATen/ops/squeeze.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/xlogy_native.h>

#include <tuple>

#include "csrc/oracle/aten/adapter.h"
#include "csrc/oracle/aten/iterator.h"
#include "csrc/oracle/aten/maps.h"
#include "csrc/oracle/aten/structured_call.h"

namespace step_oracle::aten {
namespace {

#define SO_STRUCTURED(name, parameters, ...) \
  at::Tensor& name##_out parameters { return structured<at::native::structured_##name##_out>(__VA_ARGS__); }
using T = const at::Tensor&;
using S = const at::Scalar&;
SO_STRUCTURED(elu, (T self, S alpha, S scale, S input_scale, at::Tensor& out), out, self, alpha, scale, input_scale)
SO_STRUCTURED(elu_backward, (T grad, S alpha, S scale, S input_scale, bool is_result, T self, at::Tensor& out), out,
              grad, alpha, scale, input_scale, is_result, self)
SO_STRUCTURED(softplus, (T self, S beta, S threshold, at::Tensor& out), out, self, beta, threshold)
SO_STRUCTURED(softplus_backward, (T grad, T self, S beta, S threshold, at::Tensor& out), out, grad, self, beta,
              threshold)
SO_STRUCTURED(mish, (T self, at::Tensor& out), out, self)
SO_STRUCTURED(hardsigmoid, (T self, at::Tensor& out), out, self)
SO_STRUCTURED(hardsigmoid_backward, (T grad, T self, at::Tensor& out), out, grad, self)
SO_STRUCTURED(hardshrink, (T self, S lambda, at::Tensor& out), out, self, lambda)
SO_STRUCTURED(hardshrink_backward, (T grad, T self, S lambda, at::Tensor& out), out, grad, self, lambda)
SO_STRUCTURED(softshrink, (T self, S lambda, at::Tensor& out), out, self, lambda)
SO_STRUCTURED(softshrink_backward, (T grad, T self, S lambda, at::Tensor& out), out, grad, self, lambda)
SO_STRUCTURED(glu, (T self, int64_t dim, at::Tensor& out), out, self, dim)
SO_STRUCTURED(smooth_l1_loss, (T self, T target, int64_t reduction, double beta, at::Tensor& out), out, self, target,
              reduction, beta)
SO_STRUCTURED(xlogy, (T self, T other, at::Tensor& out), out, self, other)
SO_STRUCTURED(logaddexp, (T self, T other, at::Tensor& out), out, self, other)
SO_STRUCTURED(fmax, (T self, T other, at::Tensor& out), out, self, other)
SO_STRUCTURED(fmin, (T self, T other, at::Tensor& out), out, self, other)
SO_STRUCTURED(copysign, (T self, T other, at::Tensor& out), out, self, other)
SO_STRUCTURED(signbit, (T self, at::Tensor& out), out, self)
SO_STRUCTURED(heaviside, (T self, T values, at::Tensor& out), out, self, values)

constexpr auto mish_backward = &at::native::mish_backward;
constexpr auto hardswish = &at::native::hardswish;
constexpr auto hardswish_in_place = &at::native::hardswish_;
constexpr auto hardswish_out = &at::native::hardswish_out;
constexpr auto hardswish_backward = &at::native::hardswish_backward;
constexpr auto hardtanh_backward = &at::native::hardtanh_backward;
constexpr auto hardtanh_backward_out = &at::native::hardtanh_backward_out;
constexpr auto prelu_kernel = &at::native::_prelu_kernel;
constexpr auto prelu_kernel_backward = &at::native::_prelu_kernel_backward;
constexpr auto smooth_l1_loss_backward_out = &at::native::smooth_l1_loss_backward_out;
constexpr auto huber_loss = &at::native::huber_loss;
constexpr auto huber_loss_out = &at::native::huber_loss_out;
constexpr auto huber_loss_backward_out = &at::native::huber_loss_backward_out;
constexpr auto nan_to_num_out = &at::native::nan_to_num_out;

// CUDA's log_sigmoid has no stub of its own, and needs no buffer.
std::tuple<at::Tensor&, at::Tensor&> log_sigmoid_out(const at::Tensor& input, at::Tensor& result, at::Tensor& buffer) {
  auto iter = at::TensorIteratorConfig().add_output(result).add_const_input(input).build();
  run_map(iter, "log_sigmoid");
  return {result, buffer};
}
std::tuple<at::Tensor, at::Tensor> log_sigmoid_new(const at::Tensor& input) {
  at::Tensor result = at::empty_like(input), buffer = at::empty({0}, input.options());
  log_sigmoid_out(input, result, buffer);
  return {result, buffer};
}
at::Tensor& log_sigmoid_backward_out(const at::Tensor& grad, const at::Tensor& input, const at::Tensor&,
                                     at::Tensor& grad_input) {
  auto iter = at::TensorIteratorConfig().add_output(grad_input).add_const_input(input).add_const_input(grad).build();
  run_map(iter, "log_sigmoid_backward");
  return grad_input;
}
at::Tensor log_sigmoid_backward_new(const at::Tensor& grad, const at::Tensor& input, const at::Tensor& buffer) {
  at::Tensor grad_input = at::empty_like(grad);
  return log_sigmoid_backward_out(grad, input, buffer, grad_input);
}

at::Tensor& glu_backward_out(const at::Tensor& grad, const at::Tensor& self, int64_t dim, at::Tensor& grad_input) {
  TORCH_CHECK(self.dim() > 0, "glu does not support 0-dimensional tensors");
  dim = at::maybe_wrap_dim(dim, self.dim());
  const int64_t size = self.size(dim);
  TORCH_CHECK(size % 2 == 0, "Halving dimension must be even, but dimension ", dim, " is size ", size);
  at::native::resize_output(grad_input, self.sizes());
  if (grad_input.numel() == 0) return grad_input;
  const at::Tensor first = self.narrow(dim, 0, size / 2), gate = self.narrow(dim, size / 2, size / 2);
  auto to_first = at::TensorIteratorConfig()
                      .add_owned_output(grad_input.narrow(dim, 0, size / 2))
                      .add_const_input(gate)
                      .add_const_input(grad)
                      .resize_outputs(false)
                      .build();
  run_map(to_first, "glu_backward_first");
  auto to_gate = at::TensorIteratorConfig()
                     .add_owned_output(grad_input.narrow(dim, size / 2, size / 2))
                     .add_const_input(gate)
                     .add_const_input(grad)
                     .add_const_input(first)
                     .resize_outputs(false)
                     .build();
  run_map(to_gate, "glu_backward_gate");
  return grad_input;
}
at::Tensor glu_backward_new(const at::Tensor& grad, const at::Tensor& self, int64_t dim) {
  at::Tensor grad_input = at::empty({0}, self.options());
  return glu_backward_out(grad, self, dim, grad_input);
}

// ---- binary cross entropy ----
at::Tensor& bce_out(const at::Tensor& input, const at::Tensor& target, const std::optional<at::Tensor>& weight,
                    int64_t reduction, at::Tensor& loss) {
  auto iter = at::TensorIteratorConfig()
                  .add_owned_output(at::squeeze(loss))
                  .add_owned_const_input(at::squeeze(input))
                  .add_owned_const_input(at::squeeze(target))
                  .build();
  run_map(iter, "bce");
  if (weight && weight->defined()) loss.mul_(*weight);
  if (reduction != 0) {
    const at::Tensor reduced = reduction == 1 ? loss.mean() : loss.sum();
    loss.resize_as_(reduced).copy_(reduced);
  }
  return loss;
}
at::Tensor bce_new(const at::Tensor& input, const at::Tensor& target, const std::optional<at::Tensor>& weight,
                   int64_t reduction) {
  at::Tensor loss = at::empty_like(input);
  return bce_out(input, target, weight, reduction, loss);
}
at::Tensor& bce_backward_out(const at::Tensor& grad, const at::Tensor& input, const at::Tensor& target,
                             const std::optional<at::Tensor>& weight, int64_t reduction, at::Tensor& grad_input) {
  auto iter = at::TensorIteratorConfig()
                  .add_output(grad_input)
                  .add_owned_const_input(grad.expand_as(input))
                  .add_const_input(input)
                  .add_const_input(target)
                  .build();
  run_map(iter, "bce_backward");
  if (weight && weight->defined()) grad_input.mul_(*weight);
  if (reduction == 1) grad_input.div_(input.numel());
  return grad_input;
}
at::Tensor bce_backward_new(const at::Tensor& grad, const at::Tensor& input, const at::Tensor& target,
                            const std::optional<at::Tensor>& weight, int64_t reduction) {
  at::Tensor grad_input = at::empty_like(input);
  return bce_backward_out(grad, input, target, weight, reduction, grad_input);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
#define SO_OP(name, fn, klass) m.impl(name, SO_ADAPTER(fn));
#include "csrc/oracle/ops/activations.inc"
#undef SO_OP
}

}  // namespace step_oracle::aten

// ---- the kernels behind torch's own host code ----
namespace at::native {
namespace {
using step_oracle::DType;
using step_oracle::aten::common_dtype_of;
using step_oracle::aten::CpuNumbers;
using step_oracle::aten::rounded_scalars;
using step_oracle::aten::run_map;
using step_oracle::aten::run_map_with_number;
using step_oracle::aten::scalars_of;

#define SO_STUB(Iterator, name, map)                         \
  void name##_oracle(Iterator& iter) { run_map(iter, map); } \
  REGISTER_PRIVATEUSE1_DISPATCH(name##_stub, &name##_oracle)
SO_STUB(TensorIteratorBase, mish, "mish")
SO_STUB(TensorIterator, mish_backward, "mish_backward")
SO_STUB(TensorIterator, hardswish, "hardswish")
SO_STUB(TensorIterator, hardswish_backward, "hardswish_backward")
SO_STUB(TensorIteratorBase, hardsigmoid, "hardsigmoid")
SO_STUB(TensorIteratorBase, hardsigmoid_backward, "hardsigmoid_backward")
SO_STUB(TensorIterator, prelu, "prelu")
SO_STUB(TensorIteratorBase, glu, "glu")
SO_STUB(TensorIteratorBase, xlogy, "xlogy")
SO_STUB(TensorIteratorBase, logaddexp, "logaddexp")
SO_STUB(TensorIteratorBase, fmax, "fmax")
SO_STUB(TensorIteratorBase, fmin, "fmin")
SO_STUB(TensorIteratorBase, copysign, "copysign")
void signbit_oracle(TensorIteratorBase& iter) {
  run_map(iter, iter.dtype(1) == at::kHalf ? "signbit_half" : "signbit");
}
REGISTER_PRIVATEUSE1_DISPATCH(signbit_stub, &signbit_oracle)
SO_STUB(TensorIteratorBase, heaviside, "heaviside")

// alpha * scale and scale, in the type computed in; the input's scale is an operand.
step_oracle::pointwise::Scalars elu_scalars(const Scalar& alpha, const Scalar& scale) {
  const float s = scale.to<float>();
  return scalars_of(static_cast<double>(alpha.to<float>() * s), static_cast<double>(s));
}
void elu_oracle(TensorIteratorBase& iter, const Scalar& alpha, const Scalar& scale, const Scalar& input_scale) {
  run_map_with_number(iter, "elu", input_scale, elu_scalars(alpha, scale));
}
REGISTER_PRIVATEUSE1_DISPATCH(elu_stub, &elu_oracle)
void elu_backward_oracle(TensorIteratorBase& iter, const Scalar& alpha, const Scalar& scale, const Scalar& input_scale,
                         bool is_result) {
  run_map_with_number(iter, is_result ? "elu_backward_result" : "elu_backward", input_scale, elu_scalars(alpha, scale));
}
REGISTER_PRIVATEUSE1_DISPATCH(elu_backward_stub, &elu_backward_oracle)

void softplus_oracle(TensorIteratorBase& iter, const Scalar& beta, const Scalar& threshold) {
  run_map(iter, "softplus", scalars_of(beta, threshold));
}
REGISTER_PRIVATEUSE1_DISPATCH(softplus_stub, &softplus_oracle)
void softplus_backward_oracle(TensorIteratorBase& iter, const Scalar& beta, const Scalar& threshold) {
  run_map(iter, "softplus_backward", scalars_of(beta, threshold));
}
REGISTER_PRIVATEUSE1_DISPATCH(softplus_backward_stub, &softplus_backward_oracle)

void hardtanh_backward_oracle(TensorIterator& iter, const Scalar& min, const Scalar& max) {
  run_map(iter, "hardtanh_backward", scalars_of(min, max));
}
REGISTER_PRIVATEUSE1_DISPATCH(hardtanh_backward_stub, &hardtanh_backward_oracle)

// The number is rounded to the tensor's type [src ActivationHardshrinkKernel.cu lambd = value.to<scalar_t>()].
#define SO_SHRINK(name, map)                                                 \
  void name##_oracle(TensorIteratorBase& iter, const Scalar& lambda) {       \
    run_map(iter, map, rounded_scalars(common_dtype_of(iter, map), lambda)); \
  }                                                                          \
  REGISTER_PRIVATEUSE1_DISPATCH(name##_stub, &name##_oracle)
SO_SHRINK(hardshrink, "hardshrink")
SO_SHRINK(softshrink, "softshrink")
SO_SHRINK(shrink_backward, "shrink_backward")

// Operands: grad_input, grad_weight, input, weight, dy.
void prelu_backward_oracle(TensorIterator& iter) {
  if (iter.numel() == 0) return;
  const step_oracle::Loop all = step_oracle::aten::loop_of(iter, "_prelu_kernel_backward");
  for (const int output : {0, 1}) {
    step_oracle::pointwise::Params p;
    p.common = all.operand[output].dtype;
    p.row = &step_oracle::pointwise::row(output == 0 ? "prelu_backward_input" : "prelu_backward_weight", p.common);
    p.loop = all;
    p.loop.operands = 4;
    p.loop.operand[0] = all.operand[output];
    for (int k = 0; k < 3; ++k) p.loop.operand[1 + k] = all.operand[2 + k];
    p.bf16_nan = step_oracle::aten::bf16_nan_of_current_card();
    step_oracle::pointwise::map(p);
  }
}
REGISTER_PRIVATEUSE1_DISPATCH(prelu_backward_stub, &prelu_backward_oracle)

// The losses' numbers are rounded to the tensor's type.
void smooth_l1_oracle(TensorIteratorBase& iter, double beta) {
  run_map(iter, "smooth_l1", rounded_scalars(common_dtype_of(iter, "smooth_l1_loss"), beta));
}
REGISTER_PRIVATEUSE1_DISPATCH(smooth_l1_stub, &smooth_l1_oracle)
void smooth_l1_backward_oracle(TensorIterator& iter, const Scalar& norm, double beta) {
  run_map(iter, "smooth_l1_backward", rounded_scalars(common_dtype_of(iter, "smooth_l1_loss_backward"), norm, beta));
}
REGISTER_PRIVATEUSE1_DISPATCH(smooth_l1_backward_stub, &smooth_l1_backward_oracle)
void huber_oracle(TensorIterator& iter, double delta) {
  run_map(iter, "huber", rounded_scalars(common_dtype_of(iter, "huber_loss"), delta));
}
REGISTER_PRIVATEUSE1_DISPATCH(huber_stub, &huber_oracle)
void huber_backward_oracle(TensorIterator& iter, const Scalar& norm, double delta) {
  run_map(iter, "huber_backward", rounded_scalars(common_dtype_of(iter, "huber_loss_backward"), norm, delta));
}
REGISTER_PRIVATEUSE1_DISPATCH(huber_backward_stub, &huber_backward_oracle)

// Without a number, the infinities become the type's largest finite ones.
void nan_to_num_oracle(TensorIteratorBase& iter, std::optional<double> nan, std::optional<double> high,
                       std::optional<double> low) {
  double largest = 0;
  switch (iter.dtype()) {
    case kFloat:
      largest = std::numeric_limits<float>::max();
      break;
    case kHalf:
      largest = std::numeric_limits<Half>::max();
      break;
    case kBFloat16:
      largest = std::numeric_limits<BFloat16>::max();
      break;
    default:
      largest = std::numeric_limits<double>::max();
  }
  const DType type = common_dtype_of(iter, "nan_to_num");
  const Scalar bottom = rounded_scalars(type, low.value_or(-largest)).f[0];
  run_map_with_number(iter, "nan_to_num", iter.dtype() == kDouble ? Scalar(low.value_or(-largest)) : bottom,
                      rounded_scalars(type, nan.value_or(0.0), high.value_or(largest)));
}
REGISTER_PRIVATEUSE1_DISPATCH(nan_to_num_stub, &nan_to_num_oracle)

}  // namespace
}  // namespace at::native
