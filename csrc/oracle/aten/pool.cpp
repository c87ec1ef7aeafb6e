// Pooling over two dimensions, as CUDA's host code prepares it: the input's memory format decides the kernel.
#define AT_PER_OPERATOR_HEADERS
#include "csrc/kernels/pool/pool.h"

#include <ATen/Context.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/avg_pool2d_backward_meta.h>
#include <ATen/ops/avg_pool2d_meta.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/max_pool2d_with_indices_backward_meta.h>
#include <ATen/ops/max_pool2d_with_indices_meta.h>

#include "csrc/oracle/aten/adapter.h"
#include "csrc/oracle/aten/races.h"
#include "csrc/oracle/aten/structured.h"

namespace step_oracle::aten {
namespace {

using pool::Shape;
using pool::Window;

Window window_of(at::IntArrayRef kernel, at::IntArrayRef stride, at::IntArrayRef pad, at::IntArrayRef dilation) {
  Window w;
  for (std::size_t k = 0; k < 2; ++k) {
    const auto of = [k](at::IntArrayRef pair) { return pair.size() == 1 ? pair[0] : pair[k]; };
    w.kernel[k] = of(kernel);
    w.stride[k] = of(stride.empty() ? kernel : stride);
    w.pad[k] = of(pad);
    w.dilation[k] = of(dilation);
  }
  return w;
}
Shape shape_of(const at::Tensor& x, const at::Tensor& y, std::string_view op) {
  const bool last = x.suggest_memory_format() == at::MemoryFormat::ChannelsLast;
  return {dtype_of(x, op), last,      x.dim() == 4 ? x.size(-4) : 1, x.size(-3), x.size(-2), x.size(-1),
          y.size(-2),      y.size(-1)};
}
// `to` itself where it lies in the format, else a tensor that does: finish copies it.
at::Tensor in_format(const at::Tensor& to, at::MemoryFormat format) {
  return to.is_contiguous(format) ? to : at::empty(to.sizes(), to.options(), format);
}
void finish(const at::Tensor& computed, const at::Tensor& to) {
  if (!computed.is_same(to)) to.copy_(computed);
}

std::tuple<at::Tensor&, at::Tensor&> max_pool_out(const at::Tensor& self, at::IntArrayRef kernel,
                                                  at::IntArrayRef stride, at::IntArrayRef padding,
                                                  at::IntArrayRef dilation, bool ceil_mode, at::Tensor& out,
                                                  at::Tensor& indices) {
  Structured<at::meta::structured_max_pool2d_with_indices, 2> op(out, indices);
  op.meta(self, kernel, stride, padding, dilation, ceil_mode);
  const at::Tensor &y = op.output(0), &places = op.output(1);
  if (y.numel() > 0) {
    const at::MemoryFormat format = self.suggest_memory_format();
    const at::Tensor x = self.contiguous(format), to = in_format(y, format), at = in_format(places, format);
    pool::max_forward({shape_of(self, y, "max_pool2d_with_indices"), window_of(kernel, stride, padding, dilation),
                       x.const_data_ptr(), to.mutable_data_ptr(), at.mutable_data_ptr<std::int64_t>()});
    finish(to, y);
    finish(at, places);
  }
  op.finish();
  return {out, indices};
}

at::Tensor& max_pool_backward_out(const at::Tensor& grad_output, const at::Tensor& self, at::IntArrayRef kernel,
                                  at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation,
                                  bool ceil_mode, const at::Tensor& indices, at::Tensor& grad_input) {
  Structured<at::meta::structured_max_pool2d_with_indices_backward> op(grad_input);
  op.meta(grad_output, self, kernel, stride, padding, dilation, ceil_mode, indices);
  const at::Tensor& dx = op.output(0);
  constexpr const char* kName = "max_pool2d_with_indices_backward";
  require_dtype(grad_output, self.scalar_type(), kName, "grad_output");
  if (grad_output.numel() == 0) {
    dx.zero_();
  } else {
    const at::MemoryFormat format = self.suggest_memory_format();
    const at::Tensor dy = grad_output.contiguous(format), places = indices.contiguous(format),
                     to = in_format(dx, format);
    pool::max_backward({shape_of(self, grad_output, kName), window_of(kernel, stride, padding, dilation),
                        dy.const_data_ptr(), places.const_data_ptr<std::int64_t>(), to.mutable_data_ptr()});
    finish(to, dx);
  }
  op.finish();
  return grad_input;
}

at::Tensor& avg_pool_out(const at::Tensor& self, at::IntArrayRef kernel, at::IntArrayRef stride,
                         at::IntArrayRef padding, bool ceil_mode, bool count_include_pad,
                         std::optional<std::int64_t> divisor, at::Tensor& out) {
  Structured<at::meta::structured_avg_pool2d> op(out);
  op.meta(self, kernel, stride, padding, ceil_mode, count_include_pad, divisor);
  const at::Tensor& y = op.output(0);
  if (y.numel() > 0) {
    const at::MemoryFormat format = self.suggest_memory_format();
    const at::Tensor x = self.contiguous(format), to = in_format(y, format);
    pool::average_forward({shape_of(self, y, "avg_pool2d"), window_of(kernel, stride, padding, {1}), count_include_pad,
                           divisor.value_or(0), x.const_data_ptr(), to.mutable_data_ptr()});
    finish(to, y);
  }
  op.finish();
  return out;
}

at::Tensor& avg_pool_backward_out(const at::Tensor& grad_output, const at::Tensor& self, at::IntArrayRef kernel,
                                  at::IntArrayRef stride, at::IntArrayRef padding, bool ceil_mode,
                                  bool count_include_pad, std::optional<std::int64_t> divisor, at::Tensor& grad_input) {
  Structured<at::meta::structured_avg_pool2d_backward> op(grad_input);
  op.meta(grad_output, self, kernel, stride, padding, ceil_mode, count_include_pad, divisor);
  const at::Tensor& dx = op.output(0);
  require_dtype(grad_output, self.scalar_type(), "avg_pool2d_backward", "grad_output");
  if (dx.numel() > 0) {
    const at::MemoryFormat format = self.suggest_memory_format();
    const at::Tensor dy = grad_output.contiguous(format), to = in_format(dx, format);
    pool::average_backward({shape_of(self, grad_output, "avg_pool2d_backward"), window_of(kernel, stride, padding, {1}),
                            count_include_pad, divisor.value_or(0), dy.const_data_ptr(), to.mutable_data_ptr()});
    finish(to, dx);
  }
  op.finish();
  return grad_input;
}

at::Tensor& adaptive_pool_out(const at::Tensor& self, at::IntArrayRef size, at::Tensor& out) {
  constexpr const char* kName = "_adaptive_avg_pool2d";
  TORCH_CHECK(size.size() == 2, "adaptive_avg_pool2d: output_size must be 2");
  TORCH_CHECK(self.dim() == 3 || self.dim() == 4, "adaptive_avg_pool2d(): Expected 3D or 4D tensor, but got ",
              self.sizes());
  for (const std::int64_t i : {-2, -1})
    TORCH_CHECK(self.size(i) > 0,
                "adaptive_avg_pool2d(): Expected input to have non-zero size for non-batch dimensions, but "
                "input has sizes ",
                self.sizes(), " with dimension ", i + self.dim(), " being empty");
  const at::MemoryFormat format = self.suggest_memory_format();
  at::DimVector sizes(self.sizes());
  sizes[sizes.size() - 2] = size[0];
  sizes[sizes.size() - 1] = size[1];
  if (at::native::resize_output_check(out, sizes)) out.resize_(sizes, format);
  if (out.numel() == 0) return out;
  const at::Tensor x = self.contiguous(format), to = in_format(out, format);
  pool::adaptive_forward({shape_of(self, out, kName), x.const_data_ptr(), to.mutable_data_ptr()});
  finish(to, out);
  return out;
}
at::Tensor adaptive_pool(const at::Tensor& self, at::IntArrayRef size) {
  at::Tensor out = at::empty({0}, self.options());
  return adaptive_pool_out(self, size, out);
}

at::Tensor adaptive_pool_backward(const at::Tensor& grad_output, const at::Tensor& self) {
  constexpr const char* kName = "_adaptive_avg_pool2d_backward";
  at::globalContext().alertNotDeterministic("adaptive_avg_pool2d_backward_cuda");
  require_dtype(grad_output, self.scalar_type(), kName, "grad_output");
  const at::MemoryFormat format = self.suggest_memory_format();
  const at::Tensor dx = at::empty(self.sizes(), self.options(), format);
  if (dx.numel() == 0) return dx;
  const Shape s = shape_of(self, grad_output, kName);
  if (pool::adaptive_races(s))
    on_race(kName, "adds the gradients of three and more windows that meet in an element as they arrive",
            "choose output sizes that divide the input's, or make the input channels-last", {});
  const at::Tensor dy = grad_output.contiguous(format);
  pool::adaptive_backward({s, dy.const_data_ptr(), dx.mutable_data_ptr()});
  return dx;
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
#define SO_OP(name, fn, klass) m.impl(name, SO_ADAPTER(fn));
#include "csrc/oracle/ops/pool.inc"
#undef SO_OP
}

}  // namespace step_oracle::aten
