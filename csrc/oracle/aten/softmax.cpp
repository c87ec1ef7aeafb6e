// softmax and log_softmax over one dimension, as CUDA's SoftMax.cu calls its kernels.
#include "csrc/kernels/softmax/softmax.h"

#include <ATen/WrapDimUtils.h>
#include <ATen/ops/_log_softmax_backward_data_meta.h>
#include <ATen/ops/_log_softmax_meta.h>
#include <ATen/ops/_softmax_backward_data_meta.h>
#include <ATen/ops/_softmax_meta.h>
#include <ATen/ops/mul.h>

#include "csrc/oracle/aten/adapter.h"
#include "csrc/oracle/aten/card_address.h"
#include "csrc/oracle/aten/structured.h"

namespace step_oracle::aten {
namespace {

struct Sizes {
  int64_t outer = 1, n = 1, inner = 1;
};
Sizes sizes_of(const at::Tensor& t, int64_t dim) {
  Sizes s;
  if (t.dim() == 0) return s;
  dim = at::maybe_wrap_dim(dim, t.dim());
  for (int64_t d = 0; d < t.dim(); ++d) (d < dim ? s.outer : d > dim ? s.inner : s.n) *= t.size(d);
  return s;
}

template <class Meta>
at::Tensor& forward_out(const at::Tensor& self, int64_t dim, bool half_to_float, bool log, std::string_view name,
                        at::Tensor& out) {
  if (half_to_float) TORCH_CHECK(self.scalar_type() == at::kHalf, "conversion is supported for Half type only");
  Structured<Meta> op(out);
  op.meta(self, dim, half_to_float);
  const at::Tensor& y = op.output(0);
  if (self.numel() > 0) {
    const at::Tensor x = self.contiguous();
    const at::Tensor result = y.contiguous();
    const Sizes s = sizes_of(x, dim);
    softmax::forward({log, dtype_of(x, name), dtype_of(result, name), s.outer, s.n, s.inner, x.const_data_ptr(),
                      result.mutable_data_ptr(), card_address(x), card_address(result)});
    if (!result.is_same(y)) y.copy_(result);
  }
  op.finish();
  return out;
}
at::Tensor& softmax_out(const at::Tensor& self, int64_t dim, bool half_to_float, at::Tensor& out) {
  return forward_out<at::meta::structured__softmax>(self, dim, half_to_float, false, "_softmax", out);
}
at::Tensor& log_softmax_out(const at::Tensor& self, int64_t dim, bool half_to_float, at::Tensor& out) {
  return forward_out<at::meta::structured__log_softmax>(self, dim, half_to_float, true, "_log_softmax", out);
}

template <class Meta>
at::Tensor& backward_out(const at::Tensor& grad, const at::Tensor& output, int64_t dim, at::ScalarType input_dtype,
                         bool log, std::string_view name, at::Tensor& out) {
  if (grad.scalar_type() != input_dtype)
    TORCH_CHECK(grad.scalar_type() == at::kFloat && input_dtype == at::kHalf,
                "expected input and grad types to match, or input to be at::Half and grad to be at::Float");
  Structured<Meta> op(out);
  op.meta(grad, output, dim, input_dtype);
  const at::Tensor& dx = op.output(0);
  if (grad.numel() > 0) {
    // softmax multiplies in a kernel of its own, rounded to the gradient's type, into memory of its own; where the types
    // agree the product is not stored here.
    const bool multiplies = !log && grad.scalar_type() == output.scalar_type() && grad.sizes() == output.sizes();
    const at::Tensor g = (log || multiplies ? grad : at::mul(grad, output)).contiguous(), y = output.contiguous(),
                     result = dx.contiguous();
    const Sizes s = sizes_of(g, dim);
    softmax::backward({log, dtype_of(g, name), dtype_of(result, name), s.outer, s.n, s.inner, g.const_data_ptr(),
                       y.const_data_ptr(), result.mutable_data_ptr(), multiplies ? 0 : card_address(g),
                       card_address(y), card_address(result), multiplies});
    if (!result.is_same(dx)) dx.copy_(result);
  }
  op.finish();
  return out;
}
at::Tensor& softmax_backward_out(const at::Tensor& grad, const at::Tensor& output, int64_t dim,
                                 at::ScalarType input_dtype, at::Tensor& out) {
  return backward_out<at::meta::structured__softmax_backward_data>(grad, output, dim, input_dtype, false,
                                                                   "_softmax_backward_data", out);
}
at::Tensor& log_softmax_backward_out(const at::Tensor& grad, const at::Tensor& output, int64_t dim,
                                     at::ScalarType input_dtype, at::Tensor& out) {
  return backward_out<at::meta::structured__log_softmax_backward_data>(grad, output, dim, input_dtype, true,
                                                                       "_log_softmax_backward_data", out);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
#define SO_OP(name, fn, klass) m.impl(name, SO_ADAPTER(fn));
#include "csrc/oracle/ops/softmax.inc"
#undef SO_OP
}

}  // namespace step_oracle::aten
