// Layer norm and RMS norm, as CUDA's layer_norm_kernel.cu calls its kernels.
#define AT_PER_OPERATOR_HEADERS
#include "csrc/kernels/norm/norm.h"

#include <ATen/native/layer_norm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros_like.h>

#include <limits>
#include <tuple>

#include "csrc/oracle/aten/adapter.h"
#include "csrc/oracle/aten/card_address.h"

namespace step_oracle::aten {
namespace {

at::Tensor contiguous_or_none(const std::optional<at::Tensor>& t) {
  return t && t->defined() ? t->contiguous() : at::Tensor();
}
const void* data_of(const at::Tensor& t) { return t.defined() ? t.const_data_ptr() : nullptr; }
std::uint64_t address_of(const at::Tensor& t) { return t.defined() ? card_address(t) : 0; }

// CUDA's kernels read gamma, beta and dy in the input's type.
void require_type(const at::Tensor& t, const at::Tensor& x, std::string_view op, std::string_view argument) {
  if (t.defined()) require_dtype(t, x.scalar_type(), op, argument);
}

at::Tensor like(const at::Tensor& x) { return at::empty_like(x, at::MemoryFormat::Contiguous); }

// The statistics' shape: the leading dimensions, then ones.
at::Tensor shaped(const at::Tensor& stat, const at::Tensor& x, at::IntArrayRef normalized) {
  std::vector<int64_t> shape(x.sizes().begin(), x.sizes().end() - static_cast<std::ptrdiff_t>(normalized.size()));
  shape.resize(static_cast<std::size_t>(x.dim()), 1);
  return stat.view(shape);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> layer_norm(const at::Tensor& input, at::IntArrayRef normalized_shape,
                                                          const std::optional<at::Tensor>& weight,
                                                          const std::optional<at::Tensor>& bias, double eps) {
  const at::Tensor gamma = contiguous_or_none(weight), beta = contiguous_or_none(bias);
  const auto [rows, width] = at::native::_check_layer_norm_inputs(input, normalized_shape, gamma, beta);
  const at::Tensor x = input.contiguous();
  require_type(gamma, x, "native_layer_norm", "weight");
  require_type(beta, x, "native_layer_norm", "bias");
  const DType type = dtype_of(x, "native_layer_norm");
  const at::Tensor y = like(x), mean = at::empty({rows}, x.options().dtype(at::kFloat)),
                   rstd = at::empty({rows}, x.options().dtype(at::kFloat));
  if (rows > 0)
    norm::forward({false, type, rows, width, eps, x.const_data_ptr(), data_of(gamma), data_of(beta),
                   y.mutable_data_ptr(), mean.mutable_data_ptr<float>(), rstd.mutable_data_ptr<float>(),
                   card_address(x), address_of(gamma), address_of(beta), card_address(y)});
  return {y, shaped(mean, x, normalized_shape), shaped(rstd, x, normalized_shape)};
}

std::tuple<at::Tensor, at::Tensor> fused_rms_norm(const at::Tensor& input, at::IntArrayRef normalized_shape,
                                                  const std::optional<at::Tensor>& weight, std::optional<double> eps) {
  const at::Tensor gamma = contiguous_or_none(weight);
  const auto [rows, width] = at::native::_check_layer_norm_inputs(input, normalized_shape, gamma, at::Tensor());
  const at::Tensor x = input.contiguous();
  require_type(gamma, x, "_fused_rms_norm", "weight");
  const DType type = dtype_of(x, "_fused_rms_norm");
  // Without eps: that of the type computed in [src layer_norm_kernel.cu _fused_rms_norm_cuda].
  const double used = eps.value_or(type == DType::kF64 ? std::numeric_limits<double>::epsilon()
                                                       : std::numeric_limits<float>::epsilon());
  const at::Tensor y = like(x), rstd = at::empty({rows}, x.options().dtype(at::kFloat));
  if (rows > 0)
    norm::forward({true, type, rows, width, used, x.const_data_ptr(), data_of(gamma), nullptr, y.mutable_data_ptr(),
                   nullptr, rstd.mutable_data_ptr<float>(), card_address(x), address_of(gamma), 0, card_address(y)});
  return {y, shaped(rstd, x, normalized_shape)};
}

// dgamma and dbeta; with many rows and few columns from partial results, which sum(0) folds as a tensor.
void parameters(norm::ParameterParams p, const at::Tensor& gamma, at::Tensor* dgamma, at::Tensor* dbeta) {
  const int64_t blocks = norm::parameter_blocks(p);
  const auto room = [&] { return blocks == 1 ? like(gamma) : at::empty({blocks, p.width}, gamma.options()); };
  at::Tensor g = dgamma ? room() : at::Tensor(), b = dbeta ? room() : at::Tensor();
  p.dgamma = g.defined() ? g.mutable_data_ptr() : nullptr;
  p.dbeta = b.defined() ? b.mutable_data_ptr() : nullptr;
  norm::backward_parameters(p);
  const auto folded = [&](const at::Tensor& t) {
    return blocks == 1 ? t : at::sum(t, at::IntArrayRef{0}).view(gamma.sizes());
  };
  if (dgamma) *dgamma = folded(g);
  if (dbeta) *dbeta = folded(b);
}

struct Gradients {
  at::Tensor dx, dgamma, dbeta;
};

Gradients backward(bool rms, const at::Tensor& grad_out, const at::Tensor& input, at::IntArrayRef normalized_shape,
                   const at::Tensor& mean, const at::Tensor& rstd, const std::optional<at::Tensor>& weight,
                   const std::optional<at::Tensor>& bias, bool want_x, bool want_gamma, bool want_beta,
                   std::string_view name) {
  const at::Tensor gamma = contiguous_or_none(weight), beta = contiguous_or_none(bias);
  const auto [rows, width] = at::native::_check_layer_norm_inputs(input, normalized_shape, gamma, beta);
  const at::Tensor x = input.contiguous(), dy = grad_out.contiguous();
  require_type(gamma, x, name, "weight");
  require_type(dy, x, name, "grad_out");
  const DType type = dtype_of(x, name);
  const at::Tensor m = rms ? at::Tensor() : mean.contiguous(), r = rstd.contiguous();
  const float* means = rms ? nullptr : m.const_data_ptr<float>();
  Gradients out;
  if (want_x) {
    out.dx = like(x);
    norm::backward_input({rms, type, rows, width, dy.const_data_ptr(), x.const_data_ptr(), means,
                          r.const_data_ptr<float>(), data_of(gamma), out.dx.mutable_data_ptr(), card_address(dy),
                          card_address(x), address_of(gamma), card_address(out.dx)});
  }
  want_gamma = want_gamma && gamma.defined();
  want_beta = want_beta && (beta.defined() || gamma.defined());
  const at::Tensor& model = gamma.defined() ? gamma : beta;
  if (rows == 0) {
    if (want_gamma) out.dgamma = at::zeros_like(model);
    if (want_beta) out.dbeta = at::zeros_like(model);
  } else if (want_gamma || want_beta) {
    parameters({rms, type, rows, width, dy.const_data_ptr(), x.const_data_ptr(), means, r.const_data_ptr<float>(),
                nullptr, nullptr, card_of(x).sms},
               model, want_gamma ? &out.dgamma : nullptr, want_beta ? &out.dbeta : nullptr);
  }
  return out;
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> layer_norm_backward(const at::Tensor& grad_out, const at::Tensor& input,
                                                                   at::IntArrayRef normalized_shape,
                                                                   const at::Tensor& mean, const at::Tensor& rstd,
                                                                   const std::optional<at::Tensor>& weight,
                                                                   const std::optional<at::Tensor>& bias,
                                                                   std::array<bool, 3> mask) {
  Gradients g = backward(false, grad_out, input, normalized_shape, mean, rstd, weight, bias, mask[0], mask[1], mask[2],
                         "native_layer_norm_backward");
  return {g.dx, g.dgamma, g.dbeta};
}

std::tuple<at::Tensor, at::Tensor> fused_rms_norm_backward(const at::Tensor& grad_out, const at::Tensor& input,
                                                           at::IntArrayRef normalized_shape, const at::Tensor& rstd,
                                                           const std::optional<at::Tensor>& weight,
                                                           std::array<bool, 2> mask) {
  Gradients g = backward(true, grad_out, input, normalized_shape, rstd, rstd, weight, std::nullopt, mask[0], mask[1],
                         false, "_fused_rms_norm_backward");
  return {g.dx, g.dgamma};
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
#define SO_OP(name, fn, klass) m.impl(name, SO_ADAPTER(fn));
#include "csrc/oracle/ops/norm.inc"
#undef SO_OP
}

}  // namespace step_oracle::aten
