// Copies on one card, and the operators that are copies: cat, masked_fill, tril, triu, arange, eye.
#include <ATen/ExpandUtils.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/TensorIterator.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/cat_meta.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/tril_meta.h>
#include <ATen/ops/triu_meta.h>

#include <cmath>

#include "csrc/oracle/aten/adapter.h"
#include "csrc/oracle/aten/iterator.h"
#include "csrc/oracle/aten/maps.h"
#include "csrc/oracle/aten/structured.h"
#include "csrc/oracle/aten/transfer.h"

namespace step_oracle::aten {

void copy_on_card(const at::Tensor& src, const at::Tensor& dst) {
  if (dst.numel() == 0) return;
  at::TensorIterator iter = at::TensorIteratorConfig()
                                .set_check_mem_overlap(true)
                                .check_all_same_dtype(false)
                                .check_all_same_device(false)
                                .resize_outputs(false)
                                .add_output(dst)
                                .add_const_input(src)
                                .build();
  pointwise::copy(loop_of(iter, "copy_"), bf16_nan_of_current_card());
}

namespace {

at::Tensor& cat_out(const at::ITensorListRef& tensors, int64_t dim, at::Tensor& out) {
  Structured<at::meta::structured_cat> op(out);
  const auto plan = op.meta(tensors, dim);
  const at::Tensor& result = op.output(0);
  int64_t offset = 0;
  for (const at::Tensor& t : tensors) {
    if (t.dim() == 1 && t.size(0) == 0) continue;  // torch skips the legacy empty tensor
    const int64_t size = t.size(plan.dim);
    copy_on_card(t, result.narrow(plan.dim, offset, size));
    offset += size;
  }
  op.finish();
  return out;
}

// self where the mask is false, in place; a mask of uint8 is refused as CUDA refuses it.
at::Tensor& masked_fill_scalar(at::Tensor& self, const at::Tensor& mask, const at::Scalar& value) {
  TORCH_CHECK(self.device() == mask.device(), "expected self and mask to be on the same device, but got mask on ",
              mask.device(), " and self on ", self.device());
  TORCH_CHECK(mask.scalar_type() == at::kBool, "masked_fill only supports boolean masks, but got dtype ",
              mask.scalar_type());
  at::assert_no_internal_overlap(self);
  if (self.numel() == 0) return self;
  const at::Tensor choice = *at::expand_inplace(self, mask, "masked_fill_");
  at::TensorIterator iter = at::TensorIteratorConfig()
                                .set_check_mem_overlap(false)
                                .check_all_same_dtype(false)
                                .resize_outputs(false)
                                .add_output(self)
                                .add_const_input(choice)
                                .add_const_input(self)
                                .build();
  const at::Tensor number = at::empty({}, self.options().device(at::kCPU));
  number.fill_(value);
  Loop loop = loop_of(iter, "masked_fill_");  // out, mask, self; the choices of select are number, self
  loop.operands = 4;
  loop.operand[3] = loop.operand[2];
  loop.operand[2] = {};
  loop.operand[2].dtype = loop.operand[0].dtype;
  loop.operand[2].data = number.data_ptr();
  pointwise::select(loop);
  return self;
}
at::Tensor& masked_fill_tensor(at::Tensor& self, const at::Tensor& mask, const at::Tensor& value) {
  TORCH_CHECK(value.dim() == 0, "masked_fill only supports a 0-dimensional value tensor, but got tensor with ",
              value.dim(), " dimension(s).");
  return masked_fill_scalar(self, mask, value.item());
}

void fill_triangle(const at::Tensor& self, int64_t diagonal, bool upper, const at::Tensor& result) {
  if (self.numel() == 0) return;
  const bool flat_in = self.dim() <= 3 || self.is_contiguous(), flat_out = result.dim() <= 3 || result.is_contiguous();
  const at::Tensor in = flat_in ? self : self.contiguous();
  const at::Tensor out = flat_out ? result : at::empty_like(result, at::MemoryFormat::Contiguous);
  const int64_t rows = in.size(-2), cols = in.size(-1), element = static_cast<int64_t>(in.element_size());
  const auto batch_stride = [&](const at::Tensor& t) {
    return t.dim() == 3 ? t.stride(0) * element : t.dim() > 3 ? rows * cols * element : 0;
  };
  pointwise::triangle({in.numel() / (rows * cols), rows, cols, diagonal, upper, element, in.const_data_ptr(),
                       batch_stride(in), in.stride(-2) * element, in.stride(-1) * element, out.mutable_data_ptr(),
                       batch_stride(out), out.stride(-2) * element, out.stride(-1) * element});
  if (!flat_out) copy_on_card(out, result);
}
at::Tensor& tril_out(const at::Tensor& self, int64_t diagonal, at::Tensor& out) {
  Structured<at::meta::structured_tril> op(out);
  op.meta(self, diagonal);
  fill_triangle(self, diagonal, false, op.output(0));
  op.finish();
  return out;
}
at::Tensor& triu_out(const at::Tensor& self, int64_t diagonal, at::Tensor& out) {
  Structured<at::meta::structured_triu> op(out);
  op.meta(self, diagonal);
  fill_triangle(self, diagonal, true, op.output(0));
  op.finish();
  return out;
}

// How many elements [src RangeUtils.h, arange_check_bounds and compute_arange_size]: in double, but exactly for int64.
int64_t arange_size(const at::Scalar& start, const at::Scalar& end, const at::Scalar& step, at::ScalarType type) {
  const double first = start.toDouble(), last = end.toDouble(), by = step.toDouble();
  TORCH_CHECK(by > 0 || by < 0, "step must be nonzero");
  TORCH_CHECK(std::isfinite(first) && std::isfinite(last), "unsupported range: ", first, " -> ", last);
  TORCH_CHECK((by > 0 && last >= first) || (by < 0 && last <= first),
              "upper bound and lower bound inconsistent with step sign");
  double size;
  if (type == at::kLong) {
    const int64_t a = start.toLong(), b = end.toLong(), s = step.toLong(), sign = (s > 0) - (s < 0);
    size = std::ceil(static_cast<double>((b - a + s - sign) / s));
  } else {
    size = std::ceil((last - first) / by);
  }
  TORCH_CHECK(size >= 0 && size <= 0x1p62, "invalid size, possible overflow?");
  return static_cast<int64_t>(size);
}
at::Tensor& arange_out(const at::Scalar& start, const at::Scalar& end, const at::Scalar& step, at::Tensor& out) {
  const DType type = dtype_of(out, "arange");
  const int64_t n = arange_size(start, end, step, out.scalar_type());
  if (out.numel() != n) {
    if (out.numel() != 0)
      TORCH_WARN("The number of elements in the out tensor of shape ", out.sizes(), " is ", out.numel(),
                 " which does not match the computed number of elements ", n,
                 ". The out tensor is resized to a tensor of shape (", n, ",).");
    out.resize_({n});
  }
  if (n == 0) return out;
  const at::Tensor line = out.is_contiguous() ? out : at::empty_like(out, at::MemoryFormat::Contiguous);
  pointwise::arange(line.mutable_data_ptr(), type, n, scalars_of(start, step));
  if (!line.is_same(out)) copy_on_card(line, out);
  return out;
}

at::Tensor& eye_m_out(int64_t n, int64_t m, at::Tensor& out) {
  TORCH_CHECK(n >= 0, "n must be greater or equal to 0, got ", n);
  TORCH_CHECK(m >= 0, "m must be greater or equal to 0, got ", m);
  out.resize_({n, m});
  out.zero_();
  out.diagonal().fill_(1);
  return out;
}
at::Tensor& eye_out(int64_t n, at::Tensor& out) { return eye_m_out(n, n, out); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
#define SO_OP(name, fn, klass) m.impl(name, SO_ADAPTER(fn));
#include "csrc/oracle/ops/copy.inc"
#undef SO_OP
}

}  // namespace
}  // namespace step_oracle::aten
