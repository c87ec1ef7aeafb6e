// Reductions and running sums: the iterator that CUDA's ReduceOps build, handed to the generic reduction.
#define AT_PER_OPERATOR_HEADERS
#include "csrc/kernels/reduce/reduce.h"

#include <ATen/WrapDimUtils.h>
#include <ATen/native/ReduceOpsUtils.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/all_meta.h>
#include <ATen/ops/amax_meta.h>
#include <ATen/ops/amin_meta.h>
#include <ATen/ops/aminmax_meta.h>
#include <ATen/ops/any_meta.h>
#include <ATen/ops/argmax_meta.h>
#include <ATen/ops/argmin_meta.h>
#include <ATen/ops/cumprod_meta.h>
#include <ATen/ops/cumsum_meta.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_vector_norm_meta.h>
#include <ATen/ops/max_meta.h>
#include <ATen/ops/mean_meta.h>
#include <ATen/ops/min_meta.h>
#include <ATen/ops/ne.h>
#include <ATen/ops/norm_native.h>
#include <ATen/ops/prod_meta.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/sum_meta.h>
#include <fmt/format.h>

#include <limits>
#include <numeric>
#include <tuple>
#include <vector>

#include "csrc/oracle/aten/adapter.h"
#include "csrc/oracle/aten/card_address.h"
#include "csrc/oracle/aten/structured.h"

namespace step_oracle::aten {
namespace {

using reduce::Op;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

reduce::Params params_of(const at::TensorIteratorBase& iter, std::string_view name) {
  const int in = iter.ntensors() - 1;
  const at::TensorBase& input = iter.tensor_base(in);
  reduce::Params p;
  p.in = dtype_of(iter.dtype(in), name);
  p.out = dtype_of(iter.dtype(0), name);
  if (iter.ndim() > reduce::kMaxDims)
    throw Error(ErrorKind::kUnsupported, fmt::format("{}: {} dimensions after coalescing; at most {} are modelled",
                                                     name, iter.ndim(), reduce::kMaxDims));
  p.iter.dims = iter.ndim();
  p.iter.reduced = iter.num_reduce_dims();
  for (int d = 0; d < p.iter.dims; ++d) {
    p.iter.shape[d] = iter.shape()[d];
    p.iter.in_stride[d] = iter.strides(in)[d];
    p.iter.out_stride[d] = iter.strides(0)[d];
  }
  p.x = iter.data_ptr(in);
  p.y = iter.data_ptr(0);
  p.y2 = iter.noutputs() > 1 ? iter.data_ptr(1) : nullptr;
  p.address = card_address(input);
  const Card& card = card_of(input);
  p.sms = card.sms;
  p.threads_per_sm = card.threads_per_sm;
  return p;
}
void run(const at::TensorIteratorBase& iter, Op op, std::string_view name, double correction = 1.0) {
  reduce::Params p = params_of(iter, name);
  p.op = op;
  p.correction = correction;
  reduce::run(p);
}

bool is_half(at::ScalarType t) { return t == at::kHalf || t == at::kBFloat16; }

// CUDA casts the input beforehand, but not from 16 bits to float32; sums of whole numbers need no cast either.
at::ScalarType input_type(const at::Tensor& self, at::ScalarType out) {
  const bool fused = is_half(self.scalar_type()) && out == at::kFloat;
  const bool whole = at::isIntegralType(self.scalar_type(), true) && out == at::kLong;
  return fused || whole ? self.scalar_type() : out;
}

// The reduction `op` of self into result, whose shape meta has set; `empty` where there is nothing to reduce.
void reduce_into(const at::Tensor& self, const at::Tensor& result, at::OptionalIntArrayRef dim, bool keepdim,
                 at::ScalarType in_type, Op op, std::string_view name, double empty) {
  const auto iter = at::meta::make_reduction(self, result, dim, keepdim, in_type);
  if (iter.numel() == 0)
    result.fill_(empty);
  else
    run(iter, op, name);
}

at::Tensor& sum_out(const at::Tensor& self, at::OptionalIntArrayRef dim, bool keepdim,
                    std::optional<at::ScalarType> dtype, at::Tensor& out) {
  Structured<at::meta::structured_sum_dim_IntList> op(out);
  op.meta(self, dim, keepdim, dtype);
  const at::Tensor& result = op.output(0);
  reduce_into(self, result, dim, keepdim, input_type(self, result.scalar_type()), Op::kSum, "sum", 0.0);
  op.finish();
  return out;
}

at::Tensor& nansum_out(const at::Tensor& self, at::OptionalIntArrayRef dim, bool keepdim,
                       std::optional<at::ScalarType> dtype, at::Tensor& out) {
  if (at::isIntegralType(self.scalar_type(), true)) return at::sum_out(out, self, dim, keepdim, dtype);
  TORCH_CHECK(!dtype || *dtype == out.scalar_type(), "Expected out tensor to have dtype ", dtype.value_or(at::kFloat),
              ", but got ", out.scalar_type(), " instead");
  at::DimVector dims(dim.value_or(at::IntArrayRef{}));
  at::maybe_wrap_dims(dims, self.dim());
  at::native::resize_output(out, at::meta::get_reduction_shape(self, dims, keepdim));
  reduce_into(self, out, dim, keepdim, input_type(self, out.scalar_type()), Op::kNanSum, "nansum", 0.0);
  return out;
}
at::Tensor nansum_new(const at::Tensor& self, at::OptionalIntArrayRef dim, bool keepdim,
                      std::optional<at::ScalarType> dtype) {
  const at::ScalarType type = at::native::get_dtype_from_self(self, dtype, true);
  at::Tensor out = at::empty({0}, self.options().dtype(type));
  return nansum_out(self, dim, keepdim, dtype, out);
}

at::Tensor& mean_out(const at::Tensor& self, at::OptionalIntArrayRef dim, bool keepdim,
                     std::optional<at::ScalarType> dtype, at::Tensor& out) {
  Structured<at::meta::structured_mean_dim> op(out);
  op.meta(self, dim, keepdim, dtype);
  const at::Tensor& result = op.output(0);
  reduce_into(self, result, dim, keepdim, input_type(self, result.scalar_type()), Op::kMean, "mean", kNan);
  op.finish();
  return out;
}

at::Tensor& prod_out(const at::Tensor& self, int64_t dim, bool keepdim, std::optional<at::ScalarType> dtype,
                     at::Tensor& out) {
  Structured<at::meta::structured_prod_dim_int> op(out);
  op.meta(self, dim, keepdim, dtype);
  const at::Tensor& result = op.output(0);
  reduce_into(self, result, at::IntArrayRef(dim), keepdim, input_type(self, result.scalar_type()), Op::kProd, "prod",
              1.0);
  op.finish();
  return out;
}

at::Tensor prod_all(const at::Tensor& self, std::optional<at::ScalarType> dtype) {
  const at::ScalarType type = at::native::get_dtype_from_self(self, dtype, true);
  const at::Tensor result = at::empty({}, self.options().dtype(type));
  reduce_into(self, result, at::IntArrayRef{}, false, input_type(self, type), Op::kProd, "prod", 1.0);
  return result;
}

template <class Meta>
at::Tensor& extreme_values_out(const at::Tensor& self, at::IntArrayRef dim, bool keepdim, Op op_kind,
                               std::string_view name, at::Tensor& out) {
  Structured<Meta> op(out);
  op.meta(self, dim, keepdim);
  const at::Tensor& result = op.output(0);
  const auto iter = at::meta::make_reduction(self, result, dim, keepdim, self.scalar_type());
  if (iter.numel() != 0) run(iter, op_kind, name);
  op.finish();
  return out;
}
at::Tensor& amax_out(const at::Tensor& self, at::IntArrayRef dim, bool keepdim, at::Tensor& out) {
  return extreme_values_out<at::meta::structured_amax>(self, dim, keepdim, Op::kMax, "amax", out);
}
at::Tensor& amin_out(const at::Tensor& self, at::IntArrayRef dim, bool keepdim, at::Tensor& out) {
  return extreme_values_out<at::meta::structured_amin>(self, dim, keepdim, Op::kMin, "amin", out);
}

at::Tensor& extreme_all_out(const at::Tensor& self, Op op, const char* name, at::Tensor& out) {
  TORCH_CHECK(self.numel() > 0, name,
              "(): Expected reduction dim to be specified for input.numel() == 0. Specify the reduction dim with the "
              "'dim' argument.");
  TORCH_CHECK(out.scalar_type() == self.scalar_type(), "Expected out tensor to have dtype ", self.scalar_type(),
              ", but got ", out.scalar_type(), " instead");
  at::native::resize_output(out, {});
  run(at::meta::make_reduction(self.contiguous(), out, at::IntArrayRef{}, false, self.scalar_type()), op, name);
  return out;
}
at::Tensor& max_all_out(const at::Tensor& self, at::Tensor& out) { return extreme_all_out(self, Op::kMax, "max", out); }
at::Tensor& min_all_out(const at::Tensor& self, at::Tensor& out) { return extreme_all_out(self, Op::kMin, "min", out); }
at::Tensor max_all(const at::Tensor& self) {
  at::Tensor out = at::empty({}, self.options());
  return max_all_out(self, out);
}
at::Tensor min_all(const at::Tensor& self) {
  at::Tensor out = at::empty({}, self.options());
  return min_all_out(self, out);
}

template <class Meta>
void extreme_index_out(const at::Tensor& self, int64_t dim, bool keepdim, Op op_kind, std::string_view name,
                       at::Tensor& values, at::Tensor& indices) {
  Structured<Meta, 2> op(values, indices);
  op.meta(self, dim, keepdim);
  dim = at::maybe_wrap_dim(dim, self.dim());
  if (self.numel() == 1 && self.dim() == 0) {
    op.output(0).copy_(self);
    op.output(1).fill_(0);
  } else if (self.numel() > 0) {
    run(at::meta::make_reduction(self, op.output(0), op.output(1), at::IntArrayRef(dim), keepdim, self.scalar_type(),
                                 at::kLong),
        op_kind, name);
  }
  op.finish();
}
std::tuple<at::Tensor&, at::Tensor&> max_dim_out(const at::Tensor& self, int64_t dim, bool keepdim, at::Tensor& values,
                                                 at::Tensor& indices) {
  extreme_index_out<at::meta::structured_max_dim>(self, dim, keepdim, Op::kMaxIndex, "max", values, indices);
  return {values, indices};
}
std::tuple<at::Tensor&, at::Tensor&> min_dim_out(const at::Tensor& self, int64_t dim, bool keepdim, at::Tensor& values,
                                                 at::Tensor& indices) {
  extreme_index_out<at::meta::structured_min_dim>(self, dim, keepdim, Op::kMinIndex, "min", values, indices);
  return {values, indices};
}

template <class Meta>
at::Tensor& arg_out(const at::Tensor& self, std::optional<int64_t> dim, bool keepdim, Op op_kind, std::string_view name,
                    at::Tensor& out) {
  Structured<Meta> op(out);
  op.meta(self, dim, keepdim);
  // Without a dimension CUDA flattens the tensor in row-major order first.
  const at::Tensor input = dim ? self : self.reshape({-1});
  const int64_t axis = dim ? at::maybe_wrap_dim(*dim, self.dim()) : 0;
  const auto iter =
      at::meta::make_reduction(input, op.output(0), at::IntArrayRef(axis), dim ? keepdim : false, self.scalar_type());
  if (iter.numel() != 0) run(iter, op_kind, name);
  op.finish();
  return out;
}
at::Tensor& argmax_out(const at::Tensor& self, std::optional<int64_t> dim, bool keepdim, at::Tensor& out) {
  return arg_out<at::meta::structured_argmax>(self, dim, keepdim, Op::kArgMax, "argmax", out);
}
at::Tensor& argmin_out(const at::Tensor& self, std::optional<int64_t> dim, bool keepdim, at::Tensor& out) {
  return arg_out<at::meta::structured_argmin>(self, dim, keepdim, Op::kArgMin, "argmin", out);
}

// all and any read the input in its own type.
void truth_into(const at::Tensor& self, const at::Tensor& result, at::OptionalIntArrayRef dim, bool keepdim, Op op,
                std::string_view name) {
  const auto iter = at::meta::make_reduction(self, result, dim, keepdim, self.scalar_type());
  if (self.numel() == 0)
    result.fill_(op == Op::kAll);
  else
    run(iter, op, name);
}
template <class Meta, class Dim>
at::Tensor& truth_out(const at::Tensor& self, Dim dim, bool keepdim, Op op_kind, std::string_view name,
                      at::Tensor& out) {
  Structured<Meta> op(out);
  op.meta(self, dim, keepdim);
  truth_into(self, op.output(0), dim, keepdim, op_kind, name);
  op.finish();
  return out;
}
at::Tensor& all_dim_out(const at::Tensor& self, int64_t dim, bool keepdim, at::Tensor& out) {
  return truth_out<at::meta::structured_all_dim>(self, dim, keepdim, Op::kAll, "all", out);
}
at::Tensor& any_dim_out(const at::Tensor& self, int64_t dim, bool keepdim, at::Tensor& out) {
  return truth_out<at::meta::structured_any_dim>(self, dim, keepdim, Op::kAny, "any", out);
}
at::Tensor& all_dims_out(const at::Tensor& self, at::OptionalIntArrayRef dim, bool keepdim, at::Tensor& out) {
  return truth_out<at::meta::structured_all_dims>(self, dim, keepdim, Op::kAll, "all", out);
}
at::Tensor all_dims(const at::Tensor& self, at::OptionalIntArrayRef dim, bool keepdim) {
  at::Tensor out = at::empty({0}, self.options().dtype(self.scalar_type() == at::kByte ? at::kByte : at::kBool));
  all_dims_out(self, dim, keepdim, out);
  return out;
}
at::Tensor& any_dims_out(const at::Tensor& self, at::OptionalIntArrayRef dim, bool keepdim, at::Tensor& out) {
  return truth_out<at::meta::structured_any_dims>(self, dim, keepdim, Op::kAny, "any", out);
}
at::Tensor any_dims(const at::Tensor& self, at::OptionalIntArrayRef dim, bool keepdim) {
  at::Tensor out = at::empty({0}, self.options().dtype(self.scalar_type() == at::kByte ? at::kByte : at::kBool));
  any_dims_out(self, dim, keepdim, out);
  return out;
}
at::Tensor& all_out(const at::Tensor& self, at::Tensor& out) {
  Structured<at::meta::structured_all> op(out);
  op.meta(self);
  truth_into(self, op.output(0), at::IntArrayRef{}, false, Op::kAll, "all");
  op.finish();
  return out;
}
at::Tensor& any_out(const at::Tensor& self, at::Tensor& out) {
  Structured<at::meta::structured_any> op(out);
  op.meta(self);
  truth_into(self, op.output(0), at::IntArrayRef{}, false, Op::kAny, "any");
  op.finish();
  return out;
}

std::optional<Op> norm_op(double ord) {
  if (ord == 0.0) return Op::kNorm0;
  if (ord == 1.0) return Op::kNorm1;
  if (ord == 2.0) return Op::kNorm2;
  if (ord == std::numeric_limits<double>::infinity()) return Op::kNormInf;
  if (ord == -std::numeric_limits<double>::infinity()) return Op::kNormNegInf;
  return std::nullopt;  // NormOps: powf
}

at::Tensor& vector_norm_out(const at::Tensor& self, const at::Scalar& scalar_ord, at::OptionalIntArrayRef opt_dim,
                            bool keepdim, std::optional<at::ScalarType> dtype, at::Tensor& out) {
  const double ord = scalar_ord.toDouble();
  const std::optional<Op> kind = norm_op(ord);
  Structured<at::meta::structured_linalg_vector_norm> op(out);
  op.meta(self, scalar_ord, opt_dim, keepdim, dtype);
  const at::Tensor& result = op.output(0);
  std::vector<int64_t> dims = opt_dim.value_or(at::IntArrayRef{}).vec();
  at::maybe_wrap_dims(dims, self.dim());
  if (self.dim() == 0) dims.clear();  // torch lets a scalar have dimension 0
  if (dims.empty()) {
    dims.resize(static_cast<std::size_t>(self.dim()));
    std::iota(dims.begin(), dims.end(), 0);
  }
  bool single = true;  // a norm of one element each: CUDA calls abs or ne there
  for (const int64_t d : dims) single = single && self.size(d) == 1;
  if (single) {
    at::Tensor input = dtype ? self.to(*dtype) : self;
    if (!keepdim) input = input.squeeze(dims);
    at::Tensor target = result;
    if (ord != 0.0)
      at::abs_out(target, input);
    else
      at::ne_out(target, input, 0);
  } else {
    const auto iter = at::meta::make_reduction(self, result, opt_dim.value_or(at::IntArrayRef{}), keepdim,
                                               input_type(self, result.scalar_type()));
    if (iter.numel() == 0)
      result.fill_(ord < 0 ? std::numeric_limits<double>::infinity() : 0.0);
    else if (kind)
      run(iter, *kind, "linalg_vector_norm");
    else
      reduce::power_norm(params_of(iter, "linalg_vector_norm"), static_cast<float>(ord));
  }
  op.finish();
  return out;
}

// ---- variance and deviation ----
double correction_of(const std::optional<at::Scalar>& correction) {
  return correction.value_or(at::Scalar(1)).toDouble();
}

void require_floats(const at::Tensor& self, std::string_view name) {
  TORCH_CHECK(self.is_floating_point(), name, " only supports floating point dtypes on a virtual card, got ",
              self.scalar_type());
}

at::Tensor& spread_out(const at::Tensor& self, at::OptionalIntArrayRef dim, const std::optional<at::Scalar>& correction,
                       bool keepdim, Op op, const char* name, at::Tensor& out) {
  require_floats(self, name);
  const auto iter = at::native::make_reduction(name, out, self, dim, keepdim, out.scalar_type(), out.scalar_type());
  if (iter.numel() == 0)
    out.fill_(kNan);
  else
    run(iter, op, name, correction_of(correction));
  return out;
}
at::Tensor& std_out(const at::Tensor& self, at::OptionalIntArrayRef dim, const std::optional<at::Scalar>& correction,
                    bool keepdim, at::Tensor& out) {
  return spread_out(self, dim, correction, keepdim, Op::kStd, "std", out);
}
at::Tensor& var_out(const at::Tensor& self, at::OptionalIntArrayRef dim, const std::optional<at::Scalar>& correction,
                    bool keepdim, at::Tensor& out) {
  return spread_out(self, dim, correction, keepdim, Op::kVar, "var", out);
}
at::Tensor std_new(const at::Tensor& self, at::OptionalIntArrayRef dim, const std::optional<at::Scalar>& correction,
                   bool keepdim) {
  at::Tensor out = at::empty({0}, self.options());
  return std_out(self, dim, correction, keepdim, out);
}
at::Tensor var_new(const at::Tensor& self, at::OptionalIntArrayRef dim, const std::optional<at::Scalar>& correction,
                   bool keepdim) {
  at::Tensor out = at::empty({0}, self.options());
  return var_out(self, dim, correction, keepdim, out);
}
std::tuple<at::Tensor, at::Tensor> spread_and_mean(const at::Tensor& self, at::OptionalIntArrayRef dim,
                                                   const std::optional<at::Scalar>& correction, bool keepdim, Op op,
                                                   const char* name) {
  require_floats(self, name);
  at::Tensor spread = at::empty({0}, self.options()), mean = at::empty({0}, self.options());
  const auto iter = at::native::make_reduction(name, spread, mean, self, dim, keepdim, self.scalar_type());
  if (iter.numel() == 0) {
    spread.fill_(kNan);
    mean.fill_(kNan);
  } else {
    run(iter, op, name, correction_of(correction));
  }
  return {spread, mean};
}
std::tuple<at::Tensor, at::Tensor> std_mean_new(const at::Tensor& self, at::OptionalIntArrayRef dim,
                                                const std::optional<at::Scalar>& correction, bool keepdim) {
  return spread_and_mean(self, dim, correction, keepdim, Op::kStdMean, "std_mean");
}
std::tuple<at::Tensor, at::Tensor> var_mean_new(const at::Tensor& self, at::OptionalIntArrayRef dim,
                                                const std::optional<at::Scalar>& correction, bool keepdim) {
  return spread_and_mean(self, dim, correction, keepdim, Op::kVarMean, "var_mean");
}

at::Tensor count_nonzero_dims(const at::Tensor& self, at::IntArrayRef dim) { return at::sum(at::ne(self, 0), dim); }

// ---- running sums ----
void scan_into(const at::Tensor& self, const at::Tensor& result, int64_t dim, bool product, std::string_view name) {
  if (self.numel() <= 1) {
    if (self.numel() == 1) result.copy_(self.view(result.sizes()));
    return;
  }
  dim = at::maybe_wrap_dim(dim, self.dim());
  const bool whole = at::isIntegralType(self.scalar_type(), true) && result.scalar_type() == at::kLong;
  const at::Tensor x = (whole ? self : self.to(result.scalar_type())).contiguous();
  const at::Tensor y = result.contiguous();
  reduce::ScanParams p{dtype_of(x, name),  dtype_of(y, name),    1,      x.size(dim), 1,
                       x.const_data_ptr(), y.mutable_data_ptr(), product};
  for (int64_t d = 0; d < x.dim(); ++d) (d < dim ? p.outer : p.inner) *= d == dim ? 1 : x.size(d);
  reduce::scan(p);
  if (!y.is_same(result)) result.copy_(y);
}
at::Tensor& cumsum_out(const at::Tensor& self, int64_t dim, std::optional<at::ScalarType> dtype, at::Tensor& out) {
  Structured<at::meta::structured_cumsum> op(out);
  op.meta(self, dim, dtype);
  scan_into(self, op.output(0), dim, false, "cumsum");
  op.finish();
  return out;
}
at::Tensor& cumprod_out(const at::Tensor& self, int64_t dim, std::optional<at::ScalarType> dtype, at::Tensor& out) {
  Structured<at::meta::structured_cumprod> op(out);
  op.meta(self, dim, dtype);
  scan_into(self, op.output(0), dim, true, "cumprod");
  op.finish();
  return out;
}

// ---- both extremes, each as its own reduction: CUDA folds the pair with the same two selections ----
std::tuple<at::Tensor&, at::Tensor&> aminmax_out(const at::Tensor& self, std::optional<int64_t> dim, bool keepdim,
                                                 at::Tensor& least, at::Tensor& most) {
  Structured<at::meta::structured_aminmax, 2> op(least, most);
  op.meta(self, dim, keepdim);
  const at::Tensor input = dim ? self : self.contiguous();  // [src ReduceMinMax...Kernel.cu aminmax_allreduce]
  for (const bool max : {false, true}) {
    const at::Tensor& result = op.output(max);
    const auto iter =
        dim && self.dim() > 0
            ? at::meta::make_reduction(input, result, at::IntArrayRef(at::maybe_wrap_dim(*dim, self.dim())), keepdim,
                                       self.scalar_type())
            : at::meta::make_reduction(input, result, at::IntArrayRef{}, keepdim, self.scalar_type());
    if (iter.numel() != 0) run(iter, max ? Op::kMax : Op::kMin, "aminmax");
  }
  op.finish();
  return {least, most};
}

// The older name of linalg_vector_norm; its host code is ATen's.
at::OptionalScalarRef order_of(const std::optional<at::Scalar>& p) {
  return p ? at::OptionalScalarRef(&*p) : at::OptionalScalarRef();
}
at::Tensor& norm_out(const at::Tensor& self, const std::optional<at::Scalar>& p, at::IntArrayRef dim, bool keepdim,
                     at::Tensor& out) {
  Structured<at::native::structured_norm_out> op(out);
  op.meta(self, order_of(p), dim, keepdim);
  op.impl(self, order_of(p), dim, keepdim, op.output(0));
  op.finish();
  return out;
}
at::Tensor& norm_dtype_out(const at::Tensor& self, const std::optional<at::Scalar>& p, at::IntArrayRef dim,
                           bool keepdim, at::ScalarType dtype, at::Tensor& out) {
  Structured<at::native::structured_norm_dtype_out> op(out);
  op.meta(self, order_of(p), dim, keepdim, dtype);
  op.impl(self, order_of(p), dim, keepdim, dtype, op.output(0));
  op.finish();
  return out;
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
#define SO_OP(name, fn, klass) m.impl(name, SO_ADAPTER(fn));
#include "csrc/oracle/ops/reduce.inc"
#undef SO_OP
}

}  // namespace step_oracle::aten
