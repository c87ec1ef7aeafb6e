// The kernels behind torch's own structured operators and composites: one registration a stub, so that ATen's shape,
// type and special-case rules stay ATen's. Each function here says what CUDA's file of the same name does around the
// map.
#include <ATen/native/Activation.h>
#include <ATen/native/BinaryOps.h>
#include <ATen/native/Lerp.h>
#include <ATen/native/PointwiseOps.h>
#include <ATen/native/Pow.h>
#include <ATen/native/TensorCompare.h>
#include <ATen/native/UnaryOps.h>

#include "csrc/oracle/aten/adapter.h"
#include "csrc/oracle/aten/iterator.h"
#include "csrc/oracle/aten/maps.h"

namespace at::native {
namespace {
using step_oracle::DType;
using step_oracle::aten::common_dtype_of;
using step_oracle::aten::CpuNumbers;
using step_oracle::aten::loop_of;
using step_oracle::aten::refuse;
using step_oracle::aten::rounded_scalars;
using step_oracle::aten::run_map;
using step_oracle::aten::run_map_with_number;
using step_oracle::aten::run_map_without;
using step_oracle::aten::scalars_of;
using step_oracle::pointwise::Scalars;

bool one(const Scalar& s) { return s.toDouble() == 1.0; }

// Maps that take nothing but their operands.
#define SO_STUB(name, map)                                             \
  void name##_oracle(TensorIteratorBase& iter) { run_map(iter, map); } \
  REGISTER_PRIVATEUSE1_DISPATCH(name##_stub, &name##_oracle)
#define SO_STUB_ITERATOR(name, map)                                \
  void name##_oracle(TensorIterator& iter) { run_map(iter, map); } \
  REGISTER_PRIVATEUSE1_DISPATCH(name##_stub, &name##_oracle)

SO_STUB(neg, "neg")
SO_STUB(abs, "abs")
SO_STUB(sqrt, "sqrt")
SO_STUB(rsqrt, "rsqrt")
SO_STUB(reciprocal, "reciprocal")
SO_STUB(exp, "exp")
SO_STUB(exp2, "exp2")
SO_STUB(expm1, "expm1")
SO_STUB(log, "log")
SO_STUB(log2, "log2")
SO_STUB(log10, "log10")
SO_STUB(log1p, "log1p")
SO_STUB(sin, "sin")
SO_STUB(cos, "cos")
SO_STUB(tanh, "tanh")
SO_STUB(sigmoid, "sigmoid")
SO_STUB(erf, "erf")
SO_STUB(erfc, "erfc")
SO_STUB(sign, "sign")
SO_STUB(floor, "floor")
SO_STUB(ceil, "ceil")
SO_STUB(trunc, "trunc")
SO_STUB(round, "round")
SO_STUB(frac, "frac")
SO_STUB(isposinf, "isposinf")
SO_STUB(isneginf, "isneginf")
SO_STUB(logical_not, "logical_not")
SO_STUB(silu, "silu")
SO_STUB(silu_backward, "silu_backward")
SO_STUB(tanh_backward, "tanh_backward")
SO_STUB(sigmoid_backward, "sigmoid_backward")
SO_STUB(mse, "mse")
SO_STUB(maximum, "maximum")
SO_STUB(minimum, "minimum")
SO_STUB(fmod, "fmod")
SO_STUB(remainder, "remainder")
SO_STUB(bitwise_and, "bitwise_and")
SO_STUB(bitwise_or, "bitwise_or")
SO_STUB(bitwise_xor, "bitwise_xor")
SO_STUB(eq, "eq")
SO_STUB(ne, "ne")
SO_STUB(lt, "lt")
SO_STUB(le, "le")
SO_STUB(gt, "gt")
SO_STUB(ge, "ge")
SO_STUB(pow_tensor_tensor, "pow")
SO_STUB_ITERATOR(logical_and, "logical_and")
SO_STUB_ITERATOR(logical_or, "logical_or")
SO_STUB_ITERATOR(logical_xor, "logical_xor")

void bitwise_not_oracle(TensorIteratorBase& iter) {
  run_map(iter, iter.dtype() == kBool ? "logical_not" : "bitwise_not");
}
REGISTER_PRIVATEUSE1_DISPATCH(bitwise_not_stub, &bitwise_not_oracle)

// A number as `other` is multiplied by alpha once, for all elements: rounded, then added [src UfuncCUDA_add.cu: the
// product has many uses]. sub is add with -alpha.
void add_oracle(TensorIteratorBase& iter, const Scalar& alpha) {
  const DType common = common_dtype_of(iter, "add");
  if (one(alpha)) return run_map(iter, "add", {}, CpuNumbers::kInOpmath);
  const bool real = common == DType::kF32 || common == DType::kF16 || common == DType::kBF16;
  if (!iter.is_cpu_scalar(2) || !real) return run_map(iter, "add_alpha", scalars_of(alpha), CpuNumbers::kInOpmath);
  const float other = iter.scalar_value<float>(2) * alpha.to<float>();
  iter.remove_operand(2);
  run_map_with_number(iter, "add", static_cast<double>(other));
}
REGISTER_PRIVATEUSE1_DISPATCH(add_stub, &add_oracle)

void mul_oracle(TensorIteratorBase& iter) { run_map(iter, "mul", {}, CpuNumbers::kInOpmath); }
REGISTER_PRIVATEUSE1_DISPATCH(mul_stub, &mul_oracle)

// A number as the divisor: its reciprocal is formed in double, rounded once to float, and multiplied
// [src BinaryDivTrueKernel.cu].
void div_true_oracle(TensorIteratorBase& iter) {
  if (!iter.is_cpu_scalar(2)) return run_map(iter, "div");
  const double inverse = 1.0 / iter.scalar_value<double>(2);
  run_map_without(iter, 2, "mul_scalar", Scalars::of(inverse));
}
REGISTER_PRIVATEUSE1_DISPATCH(div_true_stub, &div_true_oracle)

// With a number as the divisor CUDA multiplies by a reciprocal; which operations it fuses is not known.
void require_exact_quotient(TensorIteratorBase& iter, const char* op) {
  if (iter.is_cpu_scalar(2) && isFloatingType(iter.common_dtype()))
    refuse(op, "of a floating-point tensor by a Python number is not modelled",
           "Make the divisor a tensor on the device");
}
void div_floor_oracle(TensorIteratorBase& iter) {
  require_exact_quotient(iter, "div(rounding_mode='floor')");
  run_map(iter, "div_floor");
}
REGISTER_PRIVATEUSE1_DISPATCH(div_floor_stub, &div_floor_oracle)
void div_trunc_oracle(TensorIteratorBase& iter) {
  require_exact_quotient(iter, "div(rounding_mode='trunc')");
  run_map(iter, "div_trunc");
}
REGISTER_PRIVATEUSE1_DISPATCH(div_trunc_stub, &div_trunc_oracle)

void addcmul_oracle(TensorIteratorBase& iter, const Scalar& value) {
  if (one(value)) return run_map(iter, "addcmul_one", {}, CpuNumbers::kInOpmath);
  run_map(iter, "addcmul", scalars_of(value), CpuNumbers::kInOpmath);
}
REGISTER_PRIVATEUSE1_DISPATCH(addcmul_stub, &addcmul_oracle)

void addcdiv_oracle(TensorIteratorBase& iter, const Scalar& value) {
  if (one(value)) return run_map(iter, "addcdiv_one");
  run_map(iter, "addcdiv", scalars_of(value));
}
REGISTER_PRIVATEUSE1_DISPATCH(addcdiv_stub, &addcdiv_oracle)

void lerp_scalar_oracle(TensorIteratorBase& iter, const Scalar& weight) { run_map(iter, "lerp", scalars_of(weight)); }
REGISTER_PRIVATEUSE1_DISPATCH(lerp_kernel_scalar_weight, &lerp_scalar_oracle)
void lerp_tensor_oracle(TensorIteratorBase& iter) { run_map(iter, "lerp_tensor"); }
REGISTER_PRIVATEUSE1_DISPATCH(lerp_kernel_tensor_weight, &lerp_tensor_oracle)

void clamp_oracle(TensorIteratorBase& iter) { run_map(iter, "clamp_tensor"); }
REGISTER_PRIVATEUSE1_DISPATCH(clamp_stub, &clamp_oracle)
void clamp_scalar_oracle(TensorIteratorBase& iter, const Scalar& min, const Scalar& max) {
  run_map(iter, "clamp", scalars_of(min, max));
}
REGISTER_PRIVATEUSE1_DISPATCH(clamp_scalar_stub, &clamp_scalar_oracle)
void clamp_min_oracle(TensorIteratorBase& iter, Scalar min) { run_map(iter, "clamp_min", scalars_of(min)); }
REGISTER_PRIVATEUSE1_DISPATCH(clamp_min_scalar_stub, &clamp_min_oracle)
void clamp_max_oracle(TensorIteratorBase& iter, Scalar max) { run_map(iter, "clamp_max", scalars_of(max)); }
REGISTER_PRIVATEUSE1_DISPATCH(clamp_max_scalar_stub, &clamp_max_oracle)

void threshold_oracle(TensorIteratorBase& iter, const Scalar& threshold, const Scalar& value) {
  run_map(iter, "threshold", rounded_scalars(common_dtype_of(iter, "threshold"), threshold, value));
}
REGISTER_PRIVATEUSE1_DISPATCH(threshold_stub, &threshold_oracle)
void leaky_relu_oracle(TensorIteratorBase& iter, const Scalar& slope) {
  run_map(iter, "leaky_relu", scalars_of(slope));
}
REGISTER_PRIVATEUSE1_DISPATCH(leaky_relu_stub, &leaky_relu_oracle)
void leaky_relu_backward_oracle(TensorIteratorBase& iter, const Scalar& slope) {
  run_map(iter, "leaky_relu_backward", scalars_of(slope));
}
REGISTER_PRIVATEUSE1_DISPATCH(leaky_relu_backward_stub, &leaky_relu_backward_oracle)

void mse_backward_oracle(TensorIterator& iter, const Scalar& value) {
  run_map(iter, "mse_backward", rounded_scalars(common_dtype_of(iter, "mse_loss_backward"), value));
}
REGISTER_PRIVATEUSE1_DISPATCH(mse_backward_stub, &mse_backward_oracle)

// 0.5 and -0.5 are roots, 2, 3 and -2 products, the rest is pow [src PowKernel.cu]. 0 and 1 never get here.
void pow_scalar_oracle(TensorIteratorBase& iter, const Scalar& exponent) {
  const double e = exponent.toDouble();
  if (e == 0.5) return run_map(iter, "sqrt");
  if (e == -0.5) return run_map(iter, "rsqrt");
  const bool real = isFloatingType(iter.common_dtype());
  if (e == 2.0) return real ? run_map(iter, "pow2") : run_map_with_number(iter, "pow", exponent);
  if (e == 3.0 && real) return run_map(iter, "pow3");
  if (e == -2.0 && real) return run_map(iter, "pow_minus2");
  if (!real) return run_map_with_number(iter, "pow", exponent);
  const float rounded = rounded_scalars(common_dtype_of(iter, "pow"), exponent).f[0];  // exponent.to<scalar_t>()
  run_map_with_number(iter, "pow", static_cast<double>(rounded));
}
REGISTER_PRIVATEUSE1_DISPATCH(pow_tensor_scalar_stub, &pow_scalar_oracle)

// Operands out, condition, self, other; the types of the last two were made one before.
void where_oracle(TensorIterator& iter) {
  if (iter.numel() != 0) step_oracle::pointwise::select(loop_of(iter, "where"));
}
REGISTER_PRIVATEUSE1_DISPATCH(where_kernel, &where_oracle)

}  // namespace
}  // namespace at::native
