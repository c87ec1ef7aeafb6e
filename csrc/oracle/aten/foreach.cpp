// Lists of tensors. Where CUDA's multi-tensor kernels would run (can_use_fast_route), the map runs over each tensor's
// memory; elsewhere torch's own slow path calls the operators one by one, as it does on CUDA. The two part in bytes: a
// division by one number is a product with its reciprocal in the slow path.
#include <ATen/TensorIterator.h>
#include <ATen/native/ForeachUtils.h>
#include <ATen/ops/_foreach_abs_native.h>
#include <ATen/ops/_foreach_acos_native.h>
#include <ATen/ops/_foreach_add_native.h>
#include <ATen/ops/_foreach_addcdiv_native.h>
#include <ATen/ops/_foreach_addcmul_native.h>
#include <ATen/ops/_foreach_asin_native.h>
#include <ATen/ops/_foreach_atan_native.h>
#include <ATen/ops/_foreach_ceil_native.h>
#include <ATen/ops/_foreach_clamp_max_native.h>
#include <ATen/ops/_foreach_clamp_min_native.h>
#include <ATen/ops/_foreach_clone_native.h>
#include <ATen/ops/_foreach_copy_native.h>
#include <ATen/ops/_foreach_cos_native.h>
#include <ATen/ops/_foreach_cosh_native.h>
#include <ATen/ops/_foreach_div_native.h>
#include <ATen/ops/_foreach_erf_native.h>
#include <ATen/ops/_foreach_erfc_native.h>
#include <ATen/ops/_foreach_exp_native.h>
#include <ATen/ops/_foreach_expm1_native.h>
#include <ATen/ops/_foreach_floor_native.h>
#include <ATen/ops/_foreach_frac_native.h>
#include <ATen/ops/_foreach_lerp_native.h>
#include <ATen/ops/_foreach_log10_native.h>
#include <ATen/ops/_foreach_log1p_native.h>
#include <ATen/ops/_foreach_log2_native.h>
#include <ATen/ops/_foreach_log_native.h>
#include <ATen/ops/_foreach_max_native.h>
#include <ATen/ops/_foreach_maximum_native.h>
#include <ATen/ops/_foreach_minimum_native.h>
#include <ATen/ops/_foreach_mul_native.h>
#include <ATen/ops/_foreach_neg_native.h>
#include <ATen/ops/_foreach_norm_native.h>
#include <ATen/ops/_foreach_pow_native.h>
#include <ATen/ops/_foreach_powsum_native.h>
#include <ATen/ops/_foreach_reciprocal_native.h>
#include <ATen/ops/_foreach_round_native.h>
#include <ATen/ops/_foreach_rsqrt_native.h>
#include <ATen/ops/_foreach_sigmoid_native.h>
#include <ATen/ops/_foreach_sign_native.h>
#include <ATen/ops/_foreach_sin_native.h>
#include <ATen/ops/_foreach_sinh_native.h>
#include <ATen/ops/_foreach_sqrt_native.h>
#include <ATen/ops/_foreach_sub_native.h>
#include <ATen/ops/_foreach_tan_native.h>
#include <ATen/ops/_foreach_tanh_native.h>
#include <ATen/ops/_foreach_trunc_native.h>
#include <ATen/ops/_foreach_zero_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <cmath>

#include "csrc/kernels/optimizer/optimizer.h"
#include "csrc/oracle/aten/adapter.h"
#include "csrc/oracle/aten/maps.h"

namespace step_oracle::aten {
namespace {
using at::ArrayRef;
using at::Scalar;
using at::Tensor;
using at::TensorList;
using at::native::check_foreach_api_restrictions;
using pointwise::Scalars;
using Tensors = std::vector<Tensor>;

// torch's function under one spelling: its overloads take a list of one list for a list of tensors.
bool fast_route(std::initializer_list<TensorList> lists, ArrayRef<Scalar> numbers = {}, bool divides = false) {
  return at::native::can_use_fast_route(ArrayRef<TensorList>(lists.begin(), lists.size()), numbers, divides);
}

// A number as one more input of a map; in float for 16-bit types.
struct Number {
  double real = 0;
  std::int64_t whole = 0;
  bool is_real = true;
  explicit Number(const Scalar& s) : is_real(s.isFloatingPoint()) {
    if (is_real)
      real = s.toDouble();
    else
      whole = s.toLong();
  }
  Operand operand() const {
    Operand o;
    o.dtype = is_real ? DType::kF64 : DType::kI64;
    o.data = is_real ? static_cast<void*>(const_cast<double*>(&real))
                     : static_cast<void*>(const_cast<std::int64_t*>(&whole));
    return o;
  }
};

Operand operand_of(const Tensor& t, std::string_view op) {
  Operand o;
  o.data = const_cast<void*>(t.const_data_ptr());
  o.dtype = dtype_of(t, op);
  return o;
}

// One tensor of a fast route: all operands are dense, alike in type, sizes and strides; single values have stride 0.
void apply(std::string_view map, const Tensor& out, std::initializer_list<const Tensor*> inputs,
           const Scalars& scalars = {}, const Operand* number = nullptr) {
  if (out.numel() == 0) return;
  Operand operands[kMaxOperands] = {operand_of(out, map)};
  int count = 1;
  for (const Tensor* t : inputs) operands[count++] = operand_of(*t, map);
  pointwise::Params p;
  if (number) {
    p.opmath_operands = 1u << count;
    operands[count++] = *number;
  }
  p.common = operands[0].dtype;
  p.row = &pointwise::row(map, p.common);
  p.loop = contiguous_loop(out.numel(), operands, count, p.opmath_operands);
  p.scalars = scalars;
  p.bf16_nan = bf16_nan_of_current_card();
  pointwise::map(p);
}

Tensors empty_like_all(TensorList list) {
  Tensors out;
  out.reserve(list.size());
  for (const Tensor& t : list) out.push_back(at::empty_like(t));
  return out;
}
void bump(TensorList self) {
  for (const Tensor& t : self) t.unsafeGetTensorImpl()->bump_version();
}
// Both forms of an operator. `fast`, which begins with torch's checks, says whether the multi-tensor kernel runs; `into`
// then writes to the list `out`. Else torch's own slow path.
#define SO_FOREACH(name, parameters, arguments, fast, slow, into) \
  Tensors name parameters {                                       \
    if (!fast) return at::native::slow arguments;                 \
    Tensors made = empty_like_all(self);                          \
    const TensorList out(made);                                   \
    into;                                                         \
    return made;                                                  \
  }                                                               \
  void name##_ parameters {                                       \
    if (!fast) return at::native::slow##_ arguments;              \
    const TensorList out = self;                                  \
    into;                                                         \
    bump(self);                                                   \
  }
bool all_floating(TensorList list) {
  for (const Tensor& t : list)
    if (!at::isFloatingType(t.scalar_type())) return false;
  return true;
}
const Scalar& nth(ArrayRef<Scalar> list, std::size_t i) { return list.size() == 1 ? list[0] : list[i]; }

// ---- one list
bool fast_unary(TensorList self) {
  check_foreach_api_restrictions(self);
  return fast_route({self}, {}, true) && all_floating(self);
}
void unary_into(TensorList out, TensorList self, const char* map) {
  for (std::size_t i = 0; i < self.size(); ++i) apply(map, out[i], {&self[i]});
}
#define SO_FOREACH_UNARY(op)                                                                      \
  SO_FOREACH(op##_lists, (TensorList self), (self), fast_unary(self), foreach_tensor_##op##_slow, \
             unary_into(out, self, #op))
SO_FOREACH_UNARY(abs)
SO_FOREACH_UNARY(acos)
SO_FOREACH_UNARY(asin)
SO_FOREACH_UNARY(atan)
SO_FOREACH_UNARY(ceil)
SO_FOREACH_UNARY(cos)
SO_FOREACH_UNARY(cosh)
SO_FOREACH_UNARY(erf)
SO_FOREACH_UNARY(erfc)
SO_FOREACH_UNARY(exp)
SO_FOREACH_UNARY(expm1)
SO_FOREACH_UNARY(floor)
SO_FOREACH_UNARY(frac)
SO_FOREACH_UNARY(log)
SO_FOREACH_UNARY(log10)
SO_FOREACH_UNARY(log1p)
SO_FOREACH_UNARY(log2)
SO_FOREACH_UNARY(neg)
SO_FOREACH_UNARY(reciprocal)
SO_FOREACH_UNARY(round)
SO_FOREACH_UNARY(rsqrt)
SO_FOREACH_UNARY(sigmoid)
SO_FOREACH_UNARY(sign)
SO_FOREACH_UNARY(sin)
SO_FOREACH_UNARY(sinh)
SO_FOREACH_UNARY(sqrt)
SO_FOREACH_UNARY(tan)
SO_FOREACH_UNARY(tanh)
SO_FOREACH_UNARY(trunc)

// ---- a list and a number for each tensor, or one for all
void number_into(TensorList out, TensorList self, const char* map, ArrayRef<Scalar> numbers) {
  for (std::size_t i = 0; i < self.size(); ++i) {
    const Number number(nth(numbers, i));
    const Operand operand = number.operand();
    apply(map, out[i], {&self[i]}, {}, &operand);
  }
}
// x - s is x + (-s) in the float and in the integer maps.
std::vector<Scalar> negated(ArrayRef<Scalar> numbers) {
  std::vector<Scalar> out;
  for (const Scalar& s : numbers) out.push_back(-s);
  return out;
}
void subtract_number_into(TensorList out, TensorList self, const char*, ArrayRef<Scalar> numbers) {
  number_into(out, self, "add", negated(numbers));
}

// `divides`: integers do not take the fast route [src ForeachBinaryOpScalar.cu, division_op].
bool fast_number(TensorList self, const Scalar& number, bool divides) {
  check_foreach_api_restrictions(self);
  return fast_route({self}, number, divides);
}
bool fast_numbers(TensorList self, ArrayRef<Scalar> numbers, bool divides) {
  check_foreach_api_restrictions(self, numbers);
  return fast_route({self}, numbers, divides);
}
#define SO_FOREACH_NUMBER(op, into, map, divides)                                          \
  SO_FOREACH(op##_number, (TensorList self, const Scalar& number), (self, number),         \
             fast_number(self, number, divides), foreach_tensor_##op##_scalar_kernel_slow, \
             into(out, self, map, number))
#define SO_FOREACH_NUMBERS(op, into, map, divides)                                               \
  SO_FOREACH(op##_numbers, (TensorList self, ArrayRef<Scalar> numbers), (self, numbers),         \
             fast_numbers(self, numbers, divides), foreach_tensor_##op##_scalarlist_kernel_slow, \
             into(out, self, map, numbers))
SO_FOREACH_NUMBER(add, number_into, "add", false)
SO_FOREACH_NUMBERS(add, number_into, "add", false)
SO_FOREACH_NUMBER(sub, subtract_number_into, "", false)
SO_FOREACH_NUMBERS(sub, subtract_number_into, "", false)
SO_FOREACH_NUMBER(mul, number_into, "mul", false)
SO_FOREACH_NUMBERS(mul, number_into, "mul", false)
SO_FOREACH_NUMBERS(div, number_into, "div", true)
SO_FOREACH_NUMBER(clamp_max, number_into, "foreach_minimum", false)
SO_FOREACH_NUMBERS(clamp_max, number_into, "foreach_minimum", false)
SO_FOREACH_NUMBER(clamp_min, number_into, "foreach_maximum", false)
SO_FOREACH_NUMBERS(clamp_min, number_into, "foreach_maximum", false)
SO_FOREACH_NUMBER(pow, number_into, "pow", true)
SO_FOREACH_NUMBERS(pow, number_into, "pow", true)

// No multi-tensor kernel divides by one number [contractions.md 6]: such a call goes tensor by tensor, which multiplies
// by the reciprocal.
Tensors div_number(TensorList self, const Scalar& number) {
  return at::native::foreach_tensor_div_scalar_kernel_slow(self, number);
}
void div_number_(TensorList self, const Scalar& number) {
  at::native::foreach_tensor_div_scalar_kernel_slow_(self, number);
}

// ---- two lists
void pair_into(TensorList out, TensorList self, TensorList other, const char* map) {
  for (std::size_t i = 0; i < self.size(); ++i) apply(map, out[i], {&self[i], &other[i]});
}
bool fast_pair(TensorList self, TensorList other, bool divides) {
  check_foreach_api_restrictions(self, other);
  return fast_route({self, other}, {}, divides);
}
#define SO_FOREACH_PAIR(op, map, divides)                                                                    \
  SO_FOREACH(op##_pair, (TensorList self, TensorList other), (self, other), fast_pair(self, other, divides), \
             foreach_tensor_##op##_list_kernel_slow, pair_into(out, self, other, map))
SO_FOREACH_PAIR(mul, "mul", false)
SO_FOREACH_PAIR(div, "div", true)
SO_FOREACH_PAIR(clamp_max, "foreach_minimum_list", false)
SO_FOREACH_PAIR(clamp_min, "foreach_maximum_list", false)
SO_FOREACH_PAIR(pow, "pow", true)

void alpha_into(TensorList out, TensorList self, TensorList other, const Scalar& alpha) {
  const bool one = alpha.toDouble() == 1.0;
  for (std::size_t i = 0; i < self.size(); ++i)
    apply(one ? "add" : "add_alpha", out[i], {&self[i], &other[i]}, scalars_of(alpha));
}
bool fast_alpha(TensorList self, TensorList other, const Scalar& alpha) {
  check_foreach_api_restrictions(self, other);
  return fast_route({self, other}, alpha);
}
#define SO_FOREACH_ALPHA(op, alpha_of)                                                                  \
  SO_FOREACH(op##_pair, (TensorList self, TensorList other, const Scalar& alpha), (self, other, alpha), \
             fast_alpha(self, other, alpha), foreach_tensor_##op##_list_kernel_slow,                    \
             alpha_into(out, self, other, alpha_of))
SO_FOREACH_ALPHA(add, alpha)
SO_FOREACH_ALPHA(sub, -alpha)

// ---- a list and one tensor of a single value, read from the card's memory
void single_into(TensorList out, TensorList self, const Tensor& single, const char* map) {
  const Operand operand = operand_of(single, map);
  for (std::size_t i = 0; i < self.size(); ++i) apply(map, out[i], {&self[i]}, {}, &operand);
}
void check_single(TensorList self, const Tensor& single) {
  check_foreach_api_restrictions(self);
  TORCH_CHECK(single.dim() == 0 && single.numel() == 1, "scalar tensor expected to be 0 dim but it has ", single.dim(),
              " dimensions and ", single.numel(), " elements.");
}
bool fast_single(TensorList self, const Tensor& single, bool divides) {
  check_single(self, single);
  return fast_route({self}, {}, divides) && self[0].scalar_type() == single.scalar_type();
}
#define SO_FOREACH_SINGLE(op, divides)                                                               \
  SO_FOREACH(op##_on_card, (TensorList self, const Tensor& single), (self, single),                  \
             fast_single(self, single, divides), foreach_tensor_##op##_tensor_kernel_slow,           \
             single_into(out, self, single, #op))                                                    \
  Tensors op##_single(TensorList self, const Tensor& single) {                                       \
    return single.device().is_cpu() ? op##_number(self, single.item()) : op##_on_card(self, single); \
  }                                                                                                  \
  void op##_single_(TensorList self, const Tensor& single) {                                         \
    single.device().is_cpu() ? op##_number_(self, single.item()) : op##_on_card_(self, single);      \
  }
SO_FOREACH_SINGLE(mul, false)
SO_FOREACH_SINGLE(div, true)

bool fast_add_single(TensorList self, const Tensor& single, const Scalar& alpha) {
  return fast_single(self, single, false) && alpha.toDouble() == 1.0 && !single.device().is_cpu();
}
SO_FOREACH(add_single, (TensorList self, const Tensor& single, const Scalar& alpha), (self, single, alpha),
           fast_add_single(self, single, alpha), foreach_tensor_add_tensor_kernel_slow,
           single_into(out, self, single, "add"))

Tensors pow_base(const Scalar& base, TensorList exponent) {
  check_foreach_api_restrictions(exponent);
  if (!fast_route({exponent}, base, true)) return at::native::foreach_scalar_pow_list_kernel_slow(base, exponent);
  Tensors out = empty_like_all(exponent);
  number_into(out, exponent, "pow_of", base);
  return out;
}

// ---- three lists
// `map` with value, `map_one` where value is 1.
void triple_into(TensorList out, TensorList self, TensorList a, TensorList b, const char* map, const char* map_one,
                 ArrayRef<Scalar> values) {
  for (std::size_t i = 0; i < self.size(); ++i) {
    const Scalar& value = nth(values, i);
    apply(value.toDouble() == 1.0 ? map_one : map, out[i], {&self[i], &a[i], &b[i]}, scalars_of(value));
  }
}
bool fast_triple(TensorList self, TensorList a, TensorList b) {
  check_foreach_api_restrictions(self, a, b);
  return fast_route({self, a, b}) && all_floating(self);
}
bool fast_triples(TensorList self, TensorList a, TensorList b, ArrayRef<Scalar> values) {
  check_foreach_api_restrictions(self, a, b, values);
  return fast_route({self, a, b}) && all_floating(self);
}
#define SO_FOREACH_TRIPLE(op)                                                                                        \
  SO_FOREACH(op##_number, (TensorList self, TensorList a, TensorList b, const Scalar& value), (self, a, b, value),   \
             fast_triple(self, a, b), foreach_tensor_##op##_scalar_slow,                                             \
             triple_into(out, self, a, b, #op, #op "_one", value))                                                   \
  SO_FOREACH(op##_numbers, (TensorList self, TensorList a, TensorList b, ArrayRef<Scalar> values),                   \
             (self, a, b, values), fast_triples(self, a, b, values), foreach_tensor_##op##_scalarlist_slow,          \
             triple_into(out, self, a, b, #op, #op "_one", values))                                                  \
  Tensors op##_packed(TensorList self, TensorList a, TensorList b, const Tensor& values) {                           \
    return op##_numbers(self, a, b,                                                                                  \
                        at::native::convert_tensor_to_scalar_list(values, static_cast<int64_t>(self.size())));       \
  }                                                                                                                  \
  void op##_packed_(TensorList self, TensorList a, TensorList b, const Tensor& values) {                             \
    op##_numbers_(self, a, b, at::native::convert_tensor_to_scalar_list(values, static_cast<int64_t>(self.size()))); \
  }
SO_FOREACH_TRIPLE(addcmul)
SO_FOREACH_TRIPLE(addcdiv)

void lerp_into(TensorList out, TensorList self, TensorList end, ArrayRef<Scalar> weights) {
  for (std::size_t i = 0; i < self.size(); ++i) apply("lerp", out[i], {&self[i], &end[i]}, scalars_of(nth(weights, i)));
}
bool fast_lerp(TensorList self, TensorList end) {
  check_foreach_api_restrictions(self, end);
  return fast_route({self, end}, {}, true) && all_floating(self);
}
bool fast_lerps(TensorList self, TensorList end, ArrayRef<Scalar> weights) {
  check_foreach_api_restrictions(self, end, weights);
  return fast_route({self, end}, {}, true) && all_floating(self);
}
SO_FOREACH(lerp_number, (TensorList self, TensorList end, const Scalar& weight), (self, end, weight),
           fast_lerp(self, end), foreach_tensor_lerp_list_kernel_slow, lerp_into(out, self, end, weight))
SO_FOREACH(lerp_numbers, (TensorList self, TensorList end, ArrayRef<Scalar> weights), (self, end, weights),
           fast_lerps(self, end, weights), foreach_tensor_lerp_scalarlist_kernel_slow,
           lerp_into(out, self, end, weights))
void lerp_triple_into(TensorList out, TensorList self, TensorList end, TensorList weights) {
  for (std::size_t i = 0; i < self.size(); ++i) apply("lerp_tensor", out[i], {&self[i], &end[i], &weights[i]});
}
SO_FOREACH(lerp_triple, (TensorList self, TensorList end, TensorList weights), (self, end, weights),
           fast_triple(self, end, weights), foreach_tensor_ternary_lerp_slow,
           lerp_triple_into(out, self, end, weights))

// ---- copies: the fast route moves the same bits
constexpr auto zero_lists_ = &at::native::foreach_tensor_zero_slow_;
constexpr auto copy_lists_ = &at::native::foreach_tensor_copy_list_kernel_slow_;
constexpr auto clone_lists = &at::native::foreach_tensor_clone_slow;

// ---- norms
bool is_vectorised(const Tensor& t) {
  const auto address = reinterpret_cast<std::uintptr_t>(t.const_data_ptr());
  return t.numel() % 4 == 0 && address % (4 * t.element_size()) == 0;
}
std::optional<optimizer::NormKind> kind_of(double p) {
  if (p == 1.0) return optimizer::NormKind::kL1;
  if (p == 2.0) return optimizer::NormKind::kL2;
  if (std::isinf(p) && p > 0) return optimizer::NormKind::kInf;
  return std::nullopt;
}
bool fast_norm(TensorList self, const Scalar& ord) {
  check_foreach_api_restrictions(self);
  return fast_route({self}) && all_floating(self) && kind_of(ord.toDouble());
}
Tensors norms(TensorList self, const Scalar& ord, std::optional<at::ScalarType> dtype, bool power_sum) {
  constexpr int64_t kChunk = 65536;  // [src MultiTensorApply.cuh@v2.13.0 kChunkSize]
  int64_t most = 0;
  for (const Tensor& t : self) most = std::max(most, (t.numel() + kChunk - 1) / kChunk);
  Tensors out;
  for (const Tensor& t : self) {
    const optimizer::NormParams p{
        t.const_data_ptr(), dtype_of(t, "_foreach_norm"), t.numel(), most, *kind_of(ord.toDouble()), is_vectorised(t),
        power_sum};
    const Tensor result = at::empty({}, t.options().dtype(dtype.value_or(t.scalar_type())));
    float value = t.numel() == 0 ? 0.0f : optimizer::norm(p);
    const Operand operands[2] = {operand_of(result, "_foreach_norm"), {&value, DType::kF32, {}}};
    pointwise::copy(contiguous_loop(1, operands, 2), bf16_nan_of_current_card());
    out.push_back(result);
  }
  return out;
}
Tensors norm_lists(TensorList self, const Scalar& ord, std::optional<at::ScalarType> dtype) {
  if (!fast_norm(self, ord)) return at::native::foreach_tensor_norm_slow(self, ord, dtype);
  return norms(self, ord, dtype, false);
}
Tensors powsum_lists(TensorList self, const Scalar& ord, std::optional<at::ScalarType> dtype) {
  if (!fast_norm(self, ord) || std::isinf(ord.toDouble()))
    return at::native::foreach_tensor_powsum_slow(self, ord, dtype);
  return norms(self, ord, dtype, true);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
#define SO_OP(name, fn, klass) m.impl(name, SO_ADAPTER(fn));
#include "csrc/oracle/ops/foreach.inc"
#undef SO_OP
}

}  // namespace
}  // namespace step_oracle::aten
