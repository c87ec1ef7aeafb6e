// softmax and log_softmax over one dimension, as CUDA's SoftMax.cu calls its kernels.
#include "csrc/kernels/softmax/softmax.h"

#include <limits>

#include <ATen/WrapDimUtils.h>
#include <ATen/ops/_log_softmax_backward_data_meta.h>
#include <ATen/ops/_log_softmax_meta.h>
#include <ATen/ops/_softmax_backward_data_meta.h>
#include <ATen/ops/_softmax_backward_data.h>
#include <ATen/ops/_softmax_meta.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/softmax.h>

#include "csrc/kernels/softmax/masked.h"
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

// [src SoftMax.cu masked_softmax_cuda]
using MaybeInt = std::optional<std::int64_t>;
constexpr std::string_view kMasked = "_masked_softmax";

bool warp_kernel(const at::Tensor& t, int64_t n) {
  return n <= softmax::kMaskedMost && n * static_cast<int64_t>(t.element_size()) <= 4096;
}

void require_mask(const at::Tensor& mask) {
  TORCH_CHECK(mask.scalar_type() == at::kBool, "Mask should be a boolean tensor");
}

at::Tensor masked_softmax(const at::Tensor& self, const at::Tensor& given, MaybeInt given_dim, MaybeInt type) {
  require_mask(given);
  TORCH_CHECK(type.has_value(), "Mask Type should be defined");
  TORCH_CHECK(*type >= 0 && *type <= 2,
              "Mask Type should be 0 (src_mask), 1 (src_key_padding_mask), or 2 (default_mask)");
  const bool squares = self.dim() == 4 && given.dim() == 2 && self.size(3) == given.size(1);
  const bool by_sample =
      *type == 1 && squares && self.size(0) == given.size(0) && self.size(2) == given.size(1);
  const bool by_place = *type == 0 && squares && self.size(2) == given.size(0) && given.size(0) == given.size(1);
  TORCH_CHECK(given.sizes() == self.sizes() || by_sample || by_place,
              "Mask shape should match input. mask: ", given.sizes(), " input: ", self.sizes());
  const at::Tensor input = self.dim() == 0 ? self.view(1) : self;
  at::Tensor mask = given.dim() == 0 ? given.view(1) : given;
  if (by_place) mask = mask.expand(input.sizes());
  const int64_t dim = given_dim.value_or(input.dim() - 1), n = input.size(dim);
  dtype_of(input, kMasked);
  if (!warp_kernel(input, n) || !mask.is_contiguous() || dim < input.dim() - 1) {
    if (by_sample) mask = mask.view({mask.size(0), 1, 1, mask.size(1)}).expand(input.sizes());
    return at::softmax(input.masked_fill(mask, -std::numeric_limits<double>::infinity()), dim);
  }
  if (input.numel() == 0)
    refuse(kMasked, "of no elements divides by zero on the host with CUDA", "Leave the call out.");
  if (!input.is_non_overlapping_and_dense())
    refuse(kMasked, "of a tensor that has gaps: CUDA reads it as if it had none", "Call contiguous() first.");
  TORCH_CHECK(!by_sample || input.size(1) % 2 == 0, "Only support when num_heads is even in transformer");
  at::Tensor output = at::empty_like(self);  // the kernel takes the elements as they lie in memory
  const int64_t rows = input.numel() / n;
  softmax::masked_forward({dtype_of(input, kMasked), rows, n, by_sample ? rows / input.size(0) : 1,
                           input.const_data_ptr(), mask.const_data_ptr<bool>(), output.mutable_data_ptr()});
  return output;
}

at::Tensor masked_softmax_backward(const at::Tensor& grad, const at::Tensor& output, const at::Tensor& mask,
                                   MaybeInt given_dim) {
  at::Tensor dx = at::empty_like(grad);
  if (grad.numel() == 0) return dx;
  const auto rows_of = [](const at::Tensor& t) { return t.dim() == 0 ? t.contiguous().view(1) : t.contiguous(); };
  const at::Tensor g = rows_of(grad), y = rows_of(output), m = rows_of(mask);
  const int64_t dim = given_dim ? at::maybe_wrap_dim(*given_dim, output.dim()) : y.dim() - 1;
  TORCH_CHECK(dim >= 0 && dim < g.dim(), "dim must be non-negative and less than input dimensions");
  TORCH_CHECK(g.sizes() == m.sizes(), "Mask shape should match grad shape");
  require_mask(m);
  TORCH_CHECK(g.sizes() == y.sizes() && g.scalar_type() == y.scalar_type(),
              "the gradient and the output differ in shape or type");
  const int64_t n = y.size(dim);
  if (!warp_kernel(g, n) || dim < g.dim() - 1)
    return at::_softmax_backward_data(g, y.masked_fill(m, 0), dim, g.scalar_type());
  softmax::masked_backward({dtype_of(g, "_masked_softmax_backward"), g.numel() / n, n, g.const_data_ptr(),
                            y.const_data_ptr(), m.const_data_ptr<bool>(), dx.mutable_data_ptr()});
  return dx;
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
#define SO_OP(name, fn, klass) m.impl(name, SO_ADAPTER(fn));
#include "csrc/oracle/ops/softmax.inc"
#undef SO_OP
}

}  // namespace step_oracle::aten
