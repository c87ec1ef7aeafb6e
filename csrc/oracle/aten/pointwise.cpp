// Elementwise operators. The structured ones run torch's own structured class, whose kernel is a stub of stubs.cpp: the
// rules for shapes, types and special cases are ATen's. The others are ATen's host code over the same stubs.
#include <ATen/TensorIterator.h>
#include <ATen/ops/abs_native.h>
#include <ATen/ops/add_native.h>
#include <ATen/ops/addcdiv_native.h>
#include <ATen/ops/addcmul_native.h>
#include <ATen/ops/bitwise_and_native.h>
#include <ATen/ops/bitwise_not_native.h>
#include <ATen/ops/bitwise_or_native.h>
#include <ATen/ops/bitwise_xor_native.h>
#include <ATen/ops/ceil_native.h>
#include <ATen/ops/clamp_max_native.h>
#include <ATen/ops/clamp_min_native.h>
#include <ATen/ops/clamp_native.h>
#include <ATen/ops/cos_native.h>
#include <ATen/ops/div_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/eq_native.h>
#include <ATen/ops/erf_native.h>
#include <ATen/ops/erfc_native.h>
#include <ATen/ops/exp2_native.h>
#include <ATen/ops/exp_native.h>
#include <ATen/ops/expm1_native.h>
#include <ATen/ops/floor_divide_native.h>
#include <ATen/ops/floor_native.h>
#include <ATen/ops/fmod_native.h>
#include <ATen/ops/frac_native.h>
#include <ATen/ops/ge_native.h>
#include <ATen/ops/gelu_backward_meta.h>
#include <ATen/ops/gelu_meta.h>
#include <ATen/ops/gt_native.h>
#include <ATen/ops/hardtanh_native.h>
#include <ATen/ops/isnan_native.h>
#include <ATen/ops/isneginf_native.h>
#include <ATen/ops/isposinf_native.h>
#include <ATen/ops/le_native.h>
#include <ATen/ops/leaky_relu_backward_native.h>
#include <ATen/ops/leaky_relu_native.h>
#include <ATen/ops/lerp_native.h>
#include <ATen/ops/log10_native.h>
#include <ATen/ops/log1p_native.h>
#include <ATen/ops/log2_native.h>
#include <ATen/ops/log_native.h>
#include <ATen/ops/logical_and_native.h>
#include <ATen/ops/logical_not_native.h>
#include <ATen/ops/logical_or_native.h>
#include <ATen/ops/logical_xor_native.h>
#include <ATen/ops/lt_native.h>
#include <ATen/ops/maximum_native.h>
#include <ATen/ops/minimum_native.h>
#include <ATen/ops/mse_loss_backward_native.h>
#include <ATen/ops/mse_loss_native.h>
#include <ATen/ops/mul_native.h>
#include <ATen/ops/ne_native.h>
#include <ATen/ops/neg_native.h>
#include <ATen/ops/pow_native.h>
#include <ATen/ops/reciprocal_native.h>
#include <ATen/ops/relu_native.h>
#include <ATen/ops/remainder_native.h>
#include <ATen/ops/result_type.h>
#include <ATen/ops/round_native.h>
#include <ATen/ops/rsqrt_native.h>
#include <ATen/ops/rsub_native.h>
#include <ATen/ops/sgn_native.h>
#include <ATen/ops/sigmoid_backward_native.h>
#include <ATen/ops/sigmoid_native.h>
#include <ATen/ops/sign_native.h>
#include <ATen/ops/silu_backward_native.h>
#include <ATen/ops/silu_native.h>
#include <ATen/ops/sin_native.h>
#include <ATen/ops/sqrt_native.h>
#include <ATen/ops/sub_native.h>
#include <ATen/ops/tanh_backward_native.h>
#include <ATen/ops/tanh_native.h>
#include <ATen/ops/threshold_backward_native.h>
#include <ATen/ops/threshold_native.h>
#include <ATen/ops/trunc_native.h>
#include <ATen/ops/where_native.h>

#include "csrc/oracle/aten/adapter.h"
#include "csrc/oracle/aten/maps.h"
#include "csrc/oracle/aten/structured_call.h"

namespace step_oracle::aten {
namespace {

SO_UNARY(neg)
SO_UNARY(sqrt)
SO_UNARY(rsqrt)
SO_UNARY(reciprocal)
SO_UNARY(exp)
SO_UNARY(exp2)
SO_UNARY(expm1)
SO_UNARY(log)
SO_UNARY(log2)
SO_UNARY(log10)
SO_UNARY(log1p)
SO_UNARY(sin)
SO_UNARY(cos)
SO_UNARY(tanh)
SO_UNARY(sigmoid)
SO_UNARY(erf)
SO_UNARY(erfc)
SO_UNARY(sign)
SO_UNARY(sgn)
SO_UNARY(floor)
SO_UNARY(ceil)
SO_UNARY(trunc)
SO_UNARY(round)
SO_UNARY(frac)
SO_UNARY(bitwise_not)
SO_UNARY(isneginf)
SO_UNARY(isposinf)
SO_UNARY(silu)

SO_BINARY(mul)
SO_BINARY(div)
SO_BINARY(remainder)
SO_BINARY(fmod)
SO_BINARY(maximum)
SO_BINARY(minimum)
SO_BINARY(bitwise_and)
SO_BINARY(bitwise_or)
SO_BINARY(bitwise_xor)
SO_BINARY(tanh_backward)
SO_BINARY(sigmoid_backward)
SO_BINARY(silu_backward)

// CUDA's functional form is this kernel; without a row of its own a composite of other roundings takes its place.
at::Tensor silu_backward(const at::Tensor& grad, const at::Tensor& self) {
  at::Tensor out = at::empty({0}, self.options().dtype(at::result_type(grad, self)));
  silu_backward_out(grad, self, out);
  return out;
}

#define SO_COMPARISON(op)                                                                         \
  at::Tensor& op##_tensor_out(const at::Tensor& self, const at::Tensor& other, at::Tensor& out) { \
    return structured<at::native::structured_##op##_Tensor_out>(out, self, other);                \
  }                                                                                               \
  at::Tensor& op##_scalar_out(const at::Tensor& self, const at::Scalar& other, at::Tensor& out) { \
    return structured<at::native::structured_##op##_Scalar_out>(out, self, other);                \
  }
SO_COMPARISON(eq)
SO_COMPARISON(ne)
SO_COMPARISON(lt)
SO_COMPARISON(le)
SO_COMPARISON(gt)
SO_COMPARISON(ge)

at::Tensor& add_out(const at::Tensor& self, const at::Tensor& other, const at::Scalar& alpha, at::Tensor& out) {
  return structured<at::native::structured_ufunc_add_CPU>(out, self, other, alpha);  // its host code is CUDA's too
}
at::Tensor& sub_out(const at::Tensor& self, const at::Tensor& other, const at::Scalar& alpha, at::Tensor& out) {
  return structured<at::native::structured_sub_out>(out, self, other, alpha);
}
at::Tensor& div_mode_out(const at::Tensor& self, const at::Tensor& other, std::optional<c10::string_view> mode,
                         at::Tensor& out) {
  return structured<at::native::structured_div_out_mode>(out, self, other, mode);
}
at::Tensor& addcmul_out(const at::Tensor& self, const at::Tensor& a, const at::Tensor& b, const at::Scalar& value,
                        at::Tensor& out) {
  return structured<at::native::structured_addcmul_out>(out, self, a, b, value);
}
at::Tensor& addcdiv_out(const at::Tensor& self, const at::Tensor& a, const at::Tensor& b, const at::Scalar& value,
                        at::Tensor& out) {
  return structured<at::native::structured_addcdiv_out>(out, self, a, b, value);
}
at::Tensor& lerp_scalar_out(const at::Tensor& self, const at::Tensor& end, const at::Scalar& weight, at::Tensor& out) {
  return structured<at::native::structured_lerp_Scalar>(out, self, end, weight);
}
at::Tensor& lerp_tensor_out(const at::Tensor& self, const at::Tensor& end, const at::Tensor& weight, at::Tensor& out) {
  return structured<at::native::structured_lerp_Tensor>(out, self, end, weight);
}

at::Tensor& pow_scalar_exponent_out(const at::Tensor& self, const at::Scalar& exponent, at::Tensor& out) {
  return structured<at::native::structured_pow_Tensor_Scalar_out>(out, self, exponent);
}
at::Tensor& pow_tensors_out(const at::Tensor& self, const at::Tensor& exponent, at::Tensor& out) {
  return structured<at::native::structured_pow_Tensor_Tensor_out>(out, self, exponent);
}
at::Tensor& pow_scalar_base_out(const at::Scalar& self, const at::Tensor& exponent, at::Tensor& out) {
  return structured<at::native::structured_pow_Scalar_out>(out, self, exponent);
}

at::OptionalScalarRef reference(const std::optional<at::Scalar>& s) {
  return s ? at::OptionalScalarRef(&*s) : at::OptionalScalarRef();
}
at::OptionalTensorRef reference(const std::optional<at::Tensor>& t) {
  return t && t->defined() ? at::OptionalTensorRef(*t) : at::OptionalTensorRef();
}
at::Tensor& clamp_out(const at::Tensor& self, const std::optional<at::Scalar>& min,
                      const std::optional<at::Scalar>& max, at::Tensor& out) {
  return structured<at::native::structured_clamp_out>(out, self, reference(min), reference(max));
}
at::Tensor& clamp_tensor_out(const at::Tensor& self, const std::optional<at::Tensor>& min,
                             const std::optional<at::Tensor>& max, at::Tensor& out) {
  return structured<at::native::structured_clamp_Tensor_out>(out, self, reference(min), reference(max));
}
at::Tensor& clamp_min_out(const at::Tensor& self, const at::Scalar& min, at::Tensor& out) {
  return structured<at::native::structured_clamp_min_out>(out, self, min);
}
at::Tensor& clamp_min_tensor_out(const at::Tensor& self, const at::Tensor& min, at::Tensor& out) {
  return structured<at::native::structured_clamp_min_Tensor_out>(out, self, min);
}
at::Tensor& clamp_max_out(const at::Tensor& self, const at::Scalar& max, at::Tensor& out) {
  return structured<at::native::structured_clamp_max_out>(out, self, max);
}
at::Tensor& clamp_max_tensor_out(const at::Tensor& self, const at::Tensor& max, at::Tensor& out) {
  return structured<at::native::structured_clamp_max_Tensor_out>(out, self, max);
}

at::Tensor& threshold_out(const at::Tensor& self, const at::Scalar& threshold, const at::Scalar& value,
                          at::Tensor& out) {
  return structured<at::native::structured_threshold_out>(out, self, threshold, value);
}
at::Tensor& threshold_backward_out(const at::Tensor& grad, const at::Tensor& self, const at::Scalar& threshold,
                                   at::Tensor& grad_input) {
  return structured<at::native::structured_threshold_backward_out>(grad_input, grad, self, threshold);
}
at::Tensor& leaky_relu_out(const at::Tensor& self, const at::Scalar& slope, at::Tensor& out) {
  return structured<at::native::structured_leaky_relu_out>(out, self, slope);
}
at::Tensor& leaky_relu_backward_out(const at::Tensor& grad, const at::Tensor& self, const at::Scalar& slope,
                                    bool self_is_result, at::Tensor& grad_input) {
  return structured<at::native::structured_leaky_relu_backward_out>(grad_input, grad, self, slope, self_is_result);
}
at::Tensor& mse_loss_out(const at::Tensor& self, const at::Tensor& target, int64_t reduction, at::Tensor& out) {
  return structured<at::native::structured_mse_loss_out>(out, self, target, reduction);
}

// CUDA's gelu has no stub of its own.
bool is_tanh(c10::string_view approximate) {
  TORCH_CHECK(approximate == "none" || approximate == "tanh", "approximate argument must be either none or tanh.");
  return approximate == "tanh";
}
at::Tensor& gelu_out(const at::Tensor& self, c10::string_view approximate, at::Tensor& out) {
  Structured<at::meta::structured_gelu> op(out);
  op.meta(self, approximate);
  run_map(op, is_tanh(approximate) ? "gelu_tanh" : "gelu_erf");
  op.finish();
  return out;
}
at::Tensor& gelu_backward_out(const at::Tensor& grad, const at::Tensor& self, c10::string_view approximate,
                              at::Tensor& grad_input) {
  Structured<at::meta::structured_gelu_backward> op(grad_input);
  op.meta(grad, self, approximate);
  run_map(op, is_tanh(approximate) ? "gelu_tanh_backward" : "gelu_erf_backward");
  op.finish();
  return grad_input;
}

// Overloads of at::native that are registered as they stand.
constexpr auto abs_out = &at::native::abs_out;
constexpr auto logical_not_out = &at::native::logical_not_out;
constexpr auto logical_and_out = &at::native::logical_and_out;
constexpr auto logical_or_out = &at::native::logical_or_out;
constexpr auto logical_xor_out = &at::native::logical_xor_out;
constexpr auto where_self_out = &at::native::where_self_out;
constexpr at::Tensor (*where_self)(const at::Tensor&, const at::Tensor&, const at::Tensor&) = &at::native::where;
constexpr at::Tensor (*rsub_tensor)(const at::Tensor&, const at::Tensor&, const at::Scalar&) = &at::native::rsub;
constexpr at::Tensor (*floor_divide)(const at::Tensor&, const at::Tensor&) = &at::native::floor_divide;
constexpr at::Tensor& (*floor_divide_in_place)(at::Tensor&, const at::Tensor&) = &at::native::floor_divide_;
constexpr auto floor_divide_out = &at::native::floor_divide_out;
constexpr at::Tensor (*remainder_scalar_tensor)(const at::Scalar&, const at::Tensor&) = &at::native::remainder;
constexpr auto isnan_tensor = &at::native::isnan;
constexpr auto relu_tensor = &at::native::relu;
constexpr auto relu_in_place = &at::native::relu_;
constexpr auto hardtanh_tensor = &at::native::hardtanh;
constexpr auto hardtanh_in_place = &at::native::hardtanh_;
constexpr auto hardtanh_out = &at::native::hardtanh_out;
constexpr auto mse_loss_backward = &at::native::mse_loss_backward;
constexpr auto mse_loss_backward_out = &at::native::mse_loss_backward_out;

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
#define SO_OP(name, fn, klass) m.impl(name, SO_ADAPTER(fn));
#include "csrc/oracle/ops/pointwise.inc"
#undef SO_OP
}

}  // namespace
}  // namespace step_oracle::aten
