// Batch norm: the host code of CUDA's Normalization.cu around PyTorch's own kernels; cuDNN's are refused.
#define AT_PER_OPERATOR_HEADERS
#include <ATen/Context.h>
#include <ATen/TensorUtils.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_batch_norm_impl_index_native.h>
#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/var_mean.h>
#include <fmt/format.h>

#include <array>
#include <limits>
#include <tuple>

#include "csrc/kernels/norm/batch.h"
#include "csrc/oracle/aten/adapter.h"

namespace step_oracle::aten {
namespace {

using norm::BatchLayout;
using norm::BatchShape;
using Optional = std::optional<at::Tensor>;
using Three = std::tuple<at::Tensor, at::Tensor, at::Tensor>;
using ThreeOut = std::tuple<at::Tensor&, at::Tensor&, at::Tensor&>;

const void* data_of(const at::Tensor& t) { return t.defined() ? t.const_data_ptr() : nullptr; }
const float* floats_of(const at::Tensor& t) { return t.const_data_ptr<float>(); }
at::Tensor given(const Optional& t) { return t.value_or(at::Tensor()); }
at::Tensor contiguous(const at::Tensor& t) { return t.defined() ? t.contiguous() : t; }

// _select_batch_norm_backend [src Normalization.cpp; the wheel's machine code has the same conditions and numbers].
// cuDNN's own minimum of eps is 0.
void refuse_cudnn(std::string_view op, const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias,
                  const at::Tensor& mean, const at::Tensor& var, bool training) {
  constexpr std::int64_t kMostTraining = 880801, kMostEvaluation = 65535;
  if (!at::globalContext().userEnabledCuDNN() || !weight.defined() || !bias.defined() || input.dim() < 3) return;
  if (input.scalar_type() == at::kBFloat16 || weight.scalar_type() == at::kBFloat16) return;
  if (input.scalar_type() == at::kHalf && weight.scalar_type() != at::kFloat) return;
  if (mean.defined() != var.defined() || (!mean.defined() && !training)) return;
  if (input.size(0) > (training ? kMostTraining : kMostEvaluation)) return;
  if (input.numel() >= std::numeric_limits<std::int32_t>::max()) return;
  refuse(op,
         fmt::format("of {} with {} dimensions, weight and bias takes cuDNN's kernel on a card, which is closed",
                     c10::toString(input.scalar_type()), input.dim()),
         "Set torch.backends.cudnn.enabled = False, here and on the card: PyTorch's own kernels are computed");
}

enum class Impl { kPlanes, kRows, kGeneral };
Impl impl_of(const at::Tensor& t) {  // batch_norm_choose_impl
  if (t.is_contiguous()) return t.stride(1) == 1 ? Impl::kRows : Impl::kPlanes;
  return t.is_contiguous(at::MemoryFormat::ChannelsLast) ? Impl::kRows : Impl::kGeneral;
}
bool in_rows(const at::Tensor& t) {  // batch_norm_use_channels_last_kernels
  return t.is_contiguous(at::MemoryFormat::ChannelsLast) || t.is_contiguous(at::MemoryFormat::ChannelsLast3d) ||
         (t.is_contiguous() && t.stride(1) == 1);
}

// A tensor as samples, channels, places; a copy where no strides say that.
at::Tensor as_planes(const at::Tensor& t) { return t.reshape({t.size(0), t.size(1), -1}); }
BatchLayout layout_of(const at::Tensor& planes) { return {planes.stride(0), planes.stride(1), planes.stride(2)}; }
bool is_planes_by_strides(const at::Tensor& t) {
  const std::int64_t places = t.numel() / std::max<std::int64_t>(1, t.size(0) * t.size(1));
  return at::detail::computeStride(t.sizes(), t.strides(), at::IntArrayRef{t.size(0), t.size(1), places}).has_value();
}

// The parameters' one type: the first given one's; without any, the input's.
BatchShape shape_of(const at::Tensor& input, std::string_view op, std::initializer_list<at::Tensor> parameters) {
  TORCH_CHECK(input.dim() >= 2, op, ": a batch norm needs samples and channels, got a tensor of ", input.dim(),
              " dimensions");
  at::ScalarType type = at::ScalarType::Undefined;
  for (const at::Tensor& t : parameters) {
    if (!t.defined()) continue;
    if (type == at::ScalarType::Undefined) type = t.scalar_type();
    require_dtype(t, type, op, "weight, bias, running_mean and running_var, which have one type");
    TORCH_CHECK(t.dim() == 1 && t.size(0) == input.size(1), op, ": a parameter of shape ", t.sizes(),
                " for an input of ", input.size(1), " channels");
  }
  if (type == at::ScalarType::Undefined) type = input.scalar_type();
  const std::int64_t n = input.size(0), c = input.size(1);
  return {dtype_of(input, op), dtype_of(type, op), n, c, input.numel() / std::max<std::int64_t>(1, n * c)};
}
at::TensorOptions float_options(const at::Tensor& t) { return t.options().dtype(at::kFloat); }

// Those that a caller gives.
void require_statistics(const at::Tensor& input, const at::Tensor& mean, const at::Tensor& invstd,
                        std::string_view op) {
  for (const at::Tensor& t : {mean, invstd}) {
    require_dtype(t, at::kFloat, op, "mean and invstd");
    TORCH_CHECK(input.dim() >= 2 && t.dim() == 1 && t.size(0) == input.size(1), op, ": mean or invstd of shape ",
                t.sizes(), " for an input of shape ", input.sizes(), ": give one number a channel");
  }
}

// Mean and variance, divided by the count.
std::tuple<at::Tensor, at::Tensor> mean_var(const at::Tensor& input, std::string_view op) {
  if (impl_of(input) == Impl::kGeneral) {
    if (input.scalar_type() == at::kHalf)
      refuse(op,
             "of float16 in training, of a tensor that is neither contiguous nor channels-last in four dimensions, is "
             "not modelled",
             "Make the input contiguous first");
    std::vector<std::int64_t> dims(static_cast<std::size_t>(input.dim()) - 1, 0);
    for (std::size_t i = 1; i < dims.size(); ++i) dims[i] = static_cast<std::int64_t>(i) + 1;
    const auto [var, mean] = at::var_mean(input.to(at::kFloat), at::OptionalIntArrayRef(dims), at::Scalar(0), false);
    return {mean, var};
  }
  const BatchShape s = shape_of(input, op, {});
  const at::Tensor mean = at::empty({s.channels}, float_options(input)), var = at::empty_like(mean);
  const at::Tensor x = as_planes(input);
  norm::batch_statistics({s, impl_of(input) == Impl::kRows, layout_of(x), x.const_data_ptr(),
                          mean.mutable_data_ptr<float>(), var.mutable_data_ptr<float>()});
  return {mean, var};
}

// Running statistics in place, and invstd unless it is undefined.
void update(const at::Tensor& input, const at::Tensor& mean, const at::Tensor& var, const at::Tensor& running_mean,
            const at::Tensor& running_var, double momentum, double eps, const at::Tensor& invstd, std::string_view op) {
  require_dtype(running_var, running_mean.scalar_type(), op, "running_var");
  const at::Tensor m = running_mean.contiguous(), v = running_var.contiguous();
  norm::batch_update({dtype_of(m, op), m.numel(), input.numel() / mean.numel(), momentum, eps, floats_of(mean),
                      floats_of(var), m.mutable_data_ptr(), v.mutable_data_ptr(),
                      invstd.defined() ? invstd.mutable_data_ptr<float>() : nullptr});
  if (!m.is_same(running_mean)) running_mean.copy_(m);
  if (!v.is_same(running_var)) running_var.copy_(v);
}
at::Tensor inverse_deviation(const at::Tensor& var, double eps, std::string_view op) {
  const at::Tensor v = var.contiguous(), out = at::empty({v.numel()}, float_options(v));
  norm::batch_invstd(dtype_of(v, op), v.numel(), eps, v.const_data_ptr(), out.mutable_data_ptr<float>());
  return out;
}

void elementwise(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias, const at::Tensor& mean,
                 const at::Tensor& invstd, const at::Tensor& out, std::string_view op) {
  const BatchShape s = shape_of(input, op, {weight, bias});
  require_dtype(out, input.scalar_type(), op, "out");
  at::native::resize_output(out, input.sizes());
  const at::Tensor w = contiguous(weight), b = contiguous(bias), x = as_planes(input);
  const at::Tensor to = is_planes_by_strides(out) ? out : at::empty(out.sizes(), out.options()), y = as_planes(to);
  norm::batch_forward({s, layout_of(x), layout_of(y), x.const_data_ptr(), floats_of(mean), floats_of(invstd),
                       data_of(w), data_of(b), y.mutable_data_ptr()});
  if (!to.is_same(out)) out.copy_(to);
}

// batch_norm_cuda_out, into fresh statistics.
Three forward(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias, const at::Tensor& running_mean,
              const at::Tensor& running_var, bool train, double momentum, double eps, const at::Tensor& out,
              std::string_view op) {
  TORCH_CHECK_VALUE(running_mean.defined() == running_var.defined(),
                    "running_mean and running_var must either both be None or neither be None");
  (void)shape_of(input, op, {weight, bias});
  at::Tensor mean, invstd;
  if (train) {
    at::Tensor var;
    std::tie(mean, var) = mean_var(input, op);
    if (running_mean.defined()) {
      invstd = at::empty_like(var);
      update(input, mean, var, running_mean, running_var, momentum, eps, invstd, op);
    } else {
      invstd = inverse_deviation(var, eps, op);
    }
  } else {
    TORCH_CHECK(running_mean.defined(), op, ": evaluation needs running_mean and running_var");
    mean = at::empty(running_mean.sizes(), float_options(input));
    mean.copy_(running_mean);
    invstd = inverse_deviation(running_var, eps, op);
  }
  elementwise(input, weight, bias, mean, invstd, out, op);
  return {out, mean, invstd};
}

constexpr const char* kForward = "native_batch_norm";
Three batch_norm(const at::Tensor& input, const Optional& weight, const Optional& bias, const Optional& running_mean,
                 const Optional& running_var, bool train, double momentum, double eps) {
  return forward(input, given(weight), given(bias), given(running_mean), given(running_var), train, momentum, eps,
                 at::empty_like(input), kForward);
}
ThreeOut batch_norm_out(const at::Tensor& input, const Optional& weight, const Optional& bias,
                        const Optional& running_mean, const Optional& running_var, bool train, double momentum,
                        double eps, at::Tensor& out, at::Tensor& save_mean, at::Tensor& save_invstd) {
  const auto [y, mean, invstd] = forward(input, given(weight), given(bias), given(running_mean), given(running_var),
                                         train, momentum, eps, out, kForward);
  for (const auto& [to, from] : {std::pair{&save_mean, &mean}, std::pair{&save_invstd, &invstd}}) {
    at::native::resize_output(*to, from->sizes());
    to->copy_(*from);
  }
  return {out, save_mean, save_invstd};
}
Three batch_norm_legit(const at::Tensor& input, const Optional& weight, const Optional& bias, at::Tensor& running_mean,
                       at::Tensor& running_var, bool train, double momentum, double eps) {
  return batch_norm(input, weight, bias, running_mean, running_var, train, momentum, eps);
}
ThreeOut batch_norm_legit_out(const at::Tensor& input, const Optional& weight, const Optional& bias,
                              at::Tensor& running_mean, at::Tensor& running_var, bool train, double momentum,
                              double eps, at::Tensor& out, at::Tensor& save_mean, at::Tensor& save_invstd) {
  return batch_norm_out(input, weight, bias, running_mean, running_var, train, momentum, eps, out, save_mean,
                        save_invstd);
}
Three batch_norm_no_stats(const at::Tensor& input, const Optional& weight, const Optional& bias, bool train,
                          double momentum, double eps) {
  return batch_norm(input, weight, bias, {}, {}, train, momentum, eps);
}
ThreeOut batch_norm_no_stats_out(const at::Tensor& input, const Optional& weight, const Optional& bias, bool train,
                                 double momentum, double eps, at::Tensor& out, at::Tensor& save_mean,
                                 at::Tensor& save_invstd) {
  return batch_norm_out(input, weight, bias, {}, {}, train, momentum, eps, out, save_mean, save_invstd);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> batch_norm_with_update(
    const at::Tensor& input, const Optional& weight, const Optional& bias, at::Tensor& running_mean,
    at::Tensor& running_var, double momentum, double eps) {
  refuse_cudnn("_batch_norm_with_update", input, given(weight), given(bias), running_mean, running_var, true);
  const auto [out, mean, invstd] = batch_norm(input, weight, bias, running_mean, running_var, true, momentum, eps);
  return {out, mean, invstd, at::empty({0}, input.options().dtype(at::kByte))};
}
std::tuple<at::Tensor&, at::Tensor&, at::Tensor&, at::Tensor&> batch_norm_with_update_out(
    const at::Tensor& input, const Optional& weight, const Optional& bias, at::Tensor& running_mean,
    at::Tensor& running_var, double momentum, double eps, at::Tensor& out, at::Tensor& save_mean,
    at::Tensor& save_invstd, at::Tensor& reserve) {
  refuse_cudnn("_batch_norm_with_update", input, given(weight), given(bias), running_mean, running_var, true);
  batch_norm_out(input, weight, bias, running_mean, running_var, true, momentum, eps, out, save_mean, save_invstd);
  return {out, save_mean, save_invstd, reserve};
}

std::tuple<at::Tensor, at::Tensor> batch_norm_update_stats(const at::Tensor& input, const Optional& running_mean,
                                                           const Optional& running_var, double momentum) {
  constexpr const char* kName = "batch_norm_update_stats";
  const auto [mean, var] = mean_var(input, kName);
  const at::Tensor m = given(running_mean), v = given(running_var);
  TORCH_CHECK(m.defined() == v.defined(), kName, ": running_mean and running_var come together");
  if (m.defined()) update(input, mean, var, m, v, momentum, 0.0, at::Tensor(), kName);
  return {mean, var};
}

// SyncBatchNorm's map, with statistics of all processes. CUDA does not read eps.
constexpr const char* kElement = "batch_norm_elemt";
at::Tensor& batch_norm_elemt_out(const at::Tensor& input, const Optional& weight, const Optional& bias,
                                 const at::Tensor& mean, const at::Tensor& invstd, double /*eps*/, at::Tensor& out) {
  require_statistics(input, mean, invstd, kElement);
  elementwise(input, given(weight), given(bias), mean.contiguous(), invstd.contiguous(), out, kElement);
  return out;
}
at::Tensor batch_norm_elemt(const at::Tensor& input, const Optional& weight, const Optional& bias,
                            const at::Tensor& mean, const at::Tensor& invstd, double eps) {
  at::Tensor out = at::empty_like(input, input.suggest_memory_format());
  return batch_norm_elemt_out(input, weight, bias, mean, invstd, eps, out);
}

// ---- backward
constexpr const char* kBackward = "native_batch_norm_backward";

struct Backward {
  at::Tensor dy, x, weight, running_mean, running_var, mean, invstd;
  bool train;
  double eps;
  std::array<bool, 3> mask;
};

// One kernel computes all: batch_norm_backward_cuda_template.
Three fused(const Backward& g) {
  const BatchShape s = shape_of(g.x, kBackward, {g.weight, g.running_mean, g.running_var});
  const at::Tensor x = as_planes(g.x), dy = as_planes(g.dy), w = contiguous(g.weight), rm = contiguous(g.running_mean),
                   rv = contiguous(g.running_var);
  TORCH_CHECK(g.train || rm.defined(), kBackward, ": evaluation needs running_mean and running_var");
  const at::Tensor dx = at::empty_like(g.x, at::MemoryFormat::Contiguous), planes = as_planes(dx);
  const auto like_weight = [&](bool wanted) {
    return wanted ? at::empty_like(w, at::MemoryFormat::Contiguous) : at::Tensor();
  };
  const at::Tensor dgamma = like_weight(g.mask[1]), dbeta = like_weight(g.mask[2]);
  norm::batch_backward({s, layout_of(x), layout_of(dy), layout_of(planes), g.train, g.eps, x.const_data_ptr(),
                        dy.const_data_ptr(), g.train ? floats_of(g.mean) : nullptr,
                        g.train ? floats_of(g.invstd) : nullptr, data_of(rm), data_of(rv), data_of(w),
                        planes.mutable_data_ptr(), dgamma.defined() ? dgamma.mutable_data_ptr() : nullptr,
                        dbeta.defined() ? dbeta.mutable_data_ptr() : nullptr});
  return {dx, dgamma, dbeta};
}

struct Sums {
  at::Tensor dy, dy_xmu, dgamma, dbeta;
};
// batch_norm_backward_reduce_cuda
Sums sums_of(const Backward& g, std::string_view op) {
  const BatchShape s = shape_of(g.x, op, {g.weight});
  const bool rows = in_rows(g.dy) && in_rows(g.x) && (!g.weight.defined() || g.weight.is_contiguous()) &&
                    g.mean.is_contiguous() && g.invstd.is_contiguous();
  const at::Tensor x = as_planes(g.x), dy = as_planes(g.dy);
  const auto room = [&](bool wanted, const at::TensorOptions& options) {
    return wanted ? at::empty({s.channels}, options) : at::Tensor();
  };
  const auto data = [](const at::Tensor& t) { return t.defined() ? t.mutable_data_ptr() : nullptr; };
  const at::TensorOptions options = float_options(g.x);
  // The kernel of rows gives the gradients of both parameters, wanted or not.
  const bool has_weight = g.weight.defined();
  Sums out{room(rows || g.mask[0], options), room(rows || g.mask[0], options),
           room(has_weight && (rows || g.mask[1]), has_weight ? g.weight.options() : options),
           room(has_weight && (rows || g.mask[2]), has_weight ? g.weight.options() : options)};
  const at::Tensor mean = g.mean.contiguous(), invstd = g.invstd.contiguous();
  norm::batch_sums({s, rows, layout_of(x), layout_of(dy), x.const_data_ptr(), dy.const_data_ptr(), floats_of(mean),
                    floats_of(invstd), static_cast<float*>(data(out.dy)), static_cast<float*>(data(out.dy_xmu)),
                    data(out.dgamma), data(out.dbeta)});
  return out;
}

// batch_norm_elementwise_backward_train, or _eval without sums
at::Tensor input_gradient(const Backward& g, const Sums* sums) {
  const BatchShape s = shape_of(g.x, kBackward, {g.weight});
  const at::Tensor x = as_planes(g.x), dy = as_planes(g.dy), w = contiguous(g.weight);
  const bool rows = sums && impl_of(g.x) == Impl::kRows && impl_of(g.dy) == Impl::kRows;
  const at::Tensor dx = rows   ? at::empty_like(g.x)
                        : sums ? at::empty(g.x.sizes(), g.dy.options(), g.x.suggest_memory_format())
                               : at::empty(g.x.sizes(), g.dy.options());
  const at::Tensor planes = as_planes(dx);
  const auto scale = static_cast<float>(1.0 / static_cast<double>(s.count()));
  norm::batch_input({s, layout_of(x), layout_of(dy), layout_of(planes), scale, x.const_data_ptr(), dy.const_data_ptr(),
                     sums ? floats_of(g.mean) : nullptr, floats_of(g.invstd), data_of(w),
                     sums ? floats_of(sums->dy) : nullptr, sums ? floats_of(sums->dy_xmu) : nullptr,
                     planes.mutable_data_ptr()});
  return dx;
}

Three batch_norm_backward(const at::Tensor& grad_out, const at::Tensor& input, const Optional& weight,
                          const Optional& running_mean, const Optional& running_var, const Optional& save_mean,
                          const Optional& save_invstd, bool train, double eps, std::array<bool, 3> mask) {
  Backward g{
      grad_out, input, given(weight), given(running_mean), given(running_var), given(save_mean), given(save_invstd),
      train,    eps,   mask};
  require_dtype(grad_out, input.scalar_type(), kBackward, "grad_out");
  const bool reduces = train || mask[1] || mask[2];
  if (reduces && mask[0] && !in_rows(input)) return fused(g);
  TORCH_CHECK(g.mean.defined() && g.invstd.defined(), kBackward, ": save_mean and save_invstd must be given");
  if (g.mean.numel() == 0 && reduces) {
    TORCH_CHECK(!train && g.running_mean.defined(), kBackward, ": no mean is given");
    g.mean = g.running_mean.to(at::kFloat);
  }
  if (g.invstd.numel() == 0) {
    TORCH_CHECK(!train && g.running_var.defined(), kBackward, ": no variance is given");
    g.invstd = inverse_deviation(g.running_var, eps, kBackward);
  }
  g.mean = g.mean.contiguous();
  g.invstd = g.invstd.contiguous();
  Sums sums;
  if (reduces) sums = sums_of(g, kBackward);
  at::Tensor dx;
  if (mask[0]) dx = input_gradient(g, train ? &sums : nullptr);
  return {dx, sums.dgamma, sums.dbeta};
}
// SyncBatchNorm's: the sums of this process.
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> batch_norm_backward_reduce(
    const at::Tensor& grad_out, const at::Tensor& input, const at::Tensor& mean, const at::Tensor& invstd,
    const Optional& weight, bool input_g, bool weight_g, bool bias_g) {
  constexpr const char* kName = "batch_norm_backward_reduce";
  require_dtype(grad_out, input.scalar_type(), kName, "grad_out");
  TORCH_CHECK(grad_out.sizes() == input.sizes(), kName, ": grad_out of shape ", grad_out.sizes(),
              " for an input of shape ", input.sizes());
  require_statistics(input, mean, invstd, kName);
  const Backward g{grad_out, input, given(weight), {}, {}, mean, invstd, true, 0.0, {input_g, weight_g, bias_g}};
  Sums s = sums_of(g, kName);
  return {s.dy, s.dy_xmu, s.dgamma, s.dbeta};
}
Three batch_norm_backward_chosen(const at::Tensor& grad_out, const at::Tensor& input, const at::Tensor& weight,
                                 const Optional& running_mean, const Optional& running_var, const Optional& save_mean,
                                 const Optional& save_var, bool update, double eps, std::array<bool, 3> mask,
                                 const at::Tensor& reserve) {
  // CUDA asks with a bias of its own making.
  refuse_cudnn("batch_norm_backward", input, weight, reserve, given(running_mean), given(running_var), true);
  return batch_norm_backward(grad_out, input, weight, running_mean, running_var, save_mean, save_var, update, eps,
                             mask);
}

// The composite behind batch_norm, as a card's: cuDNN where CUDA would take it; without elements, float32 statistics.
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, int64_t> batch_norm_impl_index(
    const at::Tensor& input, const Optional& weight, const Optional& bias, const Optional& running_mean,
    const Optional& running_var, bool train, double momentum, double eps, bool cudnn) {
  const at::Tensor w = given(weight), b = given(bias);
  if (input.numel() > 0) {
    refuse_cudnn("batch_norm", input, w, b, given(running_mean), given(running_var), train);
    return at::native::_batch_norm_impl_index(input, weight, bias, running_mean, running_var, train, momentum, eps,
                                              cudnn);
  }
  const std::int64_t channels = input.dim() < 2 ? 0 : input.size(1);
  const at::Tensor reserve = at::empty({0}, input.options().dtype(at::kByte));
  const at::Tensor mean = at::empty({channels}, float_options(input)), invstd = at::empty({channels}, mean.options());
  at::Tensor out = input.clone();
  if (w.defined()) out = at::mul(out, w[0]);
  if (b.defined()) out = at::add(out, b[0]);
  return {out, mean, invstd, reserve, 0};
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
#define SO_OP(name, fn, klass) m.impl(name, SO_ADAPTER(fn));
#include "csrc/oracle/ops/batch_norm.inc"
#undef SO_OP
}
TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, m) {
  m.impl("_batch_norm_impl_index", SO_ADAPTER(batch_norm_impl_index));
}

}  // namespace step_oracle::aten
