// Rearrangements, as CUDA's TensorTransformations.cu, Im2Col.cu, Col2Im.cu, Sort.cpp, TensorTopK.cpp and IndexKernel.cu
// call their kernels.
#define AT_PER_OPERATOR_HEADERS
#include <ATen/TensorIterator.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/native/IndexKernel.h>
#include <ATen/native/Sorting.h>
#include <ATen/native/im2col_shape_check.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/flip_native.h>
#include <ATen/ops/index_copy_meta.h>
#include <ATen/ops/index_fill_native.h>
#include <ATen/ops/put_native.h>
#include <ATen/ops/roll.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/sort_native.h>
#include <ATen/ops/take_native.h>
#include <ATen/ops/topk_meta.h>
#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <vector>

#include "csrc/kernels/indexing/indexing.h"
#include "csrc/kernels/indexing/sort.h"
#include "csrc/kernels/indexing/windows.h"
#include "csrc/kernels/pointwise/pointwise.h"
#include "csrc/oracle/aten/adapter.h"
#include "csrc/oracle/aten/iterator.h"
#include "csrc/oracle/aten/races.h"
#include "csrc/oracle/aten/structured.h"

namespace step_oracle::aten {
namespace {

// ---- roll ----
at::Tensor roll(const at::Tensor& self, at::IntArrayRef shifts, at::IntArrayRef dims) {
  TORCH_CHECK(!shifts.empty(), "`shifts` required");
  if (dims.empty() && shifts.size() == 1)
    return at::roll(self.contiguous().view(self.numel()), shifts[0], 0).view(self.sizes());
  TORCH_CHECK(shifts.size() == dims.size(), "shifts and dimensions must align. shifts: ", shifts.size(),
              ", dims:", dims.size());
  at::Tensor from = self.contiguous();
  if (from.numel() == 0) return from.is_same(self) ? self.clone() : from;
  for (std::size_t i = 0; i < dims.size(); ++i) {
    const int64_t dim = at::maybe_wrap_dim(dims[i], self.dim()), size = from.size(dim);
    const int64_t start = ((size - shifts[i]) % size + size) % size;  // the element that comes first
    const at::Tensor to = at::empty_like(from, at::MemoryFormat::Contiguous);
    to.narrow(dim, 0, size - start).copy_(from.narrow(dim, start, size - start));
    if (start > 0) to.narrow(dim, size - start, start).copy_(from.narrow(dim, 0, start));
    from = to;
  }
  return from;
}

constexpr at::Tensor (*flip)(const at::Tensor&, at::IntArrayRef) = &at::native::flip;

// ---- linspace: from both ends [src RangeFactories.cu linspace_cuda_out], one fused product an element ----
at::Tensor& linspace_out(const at::Scalar& start, const at::Scalar& end, int64_t steps, at::Tensor& out) {
  TORCH_CHECK(steps >= 0, "number of steps must be non-negative");
  if (out.numel() != steps) out.resize_({steps});
  if (steps == 0) return out;
  if (steps == 1) {
    out.fill_(start);
    return out;
  }
  if (out.scalar_type() != at::kFloat && out.scalar_type() != at::kDouble)
    unsupported_dtype("linspace", out.scalar_type());
  const DType type = dtype_of(out, "linspace");
  const bool wide = type == DType::kF64;
  const double from = wide ? start.toDouble() : start.to<float>(), to = wide ? end.toDouble() : end.to<float>();
  const double step = wide ? (to - from) / static_cast<double>(steps - 1)
                           : (static_cast<float>(to) - static_cast<float>(from)) / static_cast<float>(steps - 1);
  const int64_t half = steps / 2;
  const at::Tensor first = at::empty({half}, out.options()), last = at::empty({steps - half}, out.options());
  pointwise::arange(first.mutable_data_ptr(), type, half, pointwise::Scalars::of(from, step));
  pointwise::arange(last.mutable_data_ptr(), type, steps - half, pointwise::Scalars::of(to, -step));
  out.narrow(0, 0, half).copy_(first);
  out.narrow(0, half, steps - half).copy_(at::native::flip(last, {0}));
  return out;
}

// ---- windows ----
void require_pairs(std::initializer_list<std::pair<const char*, at::IntArrayRef>> lists) {
  for (const auto& [name, list] : lists)
    TORCH_CHECK(list.size() == 2, "It is expected ", name, " equals to 2, but got size ", list.size());
}
indexing::Windows windows_of(int64_t planes, at::IntArrayRef image, at::IntArrayRef kernel, at::IntArrayRef dilation,
                             at::IntArrayRef padding, at::IntArrayRef stride) {
  return {planes,     image[0],  image[1],  kernel[0],   kernel[1],  padding[0],
          padding[1], stride[0], stride[1], dilation[0], dilation[1]};
}

at::Tensor& im2col_out(const at::Tensor& input_, at::IntArrayRef kernel, at::IntArrayRef dilation,
                       at::IntArrayRef padding, at::IntArrayRef stride, at::Tensor& out) {
  require_pairs({{"kernel_size", kernel}, {"dilation", dilation}, {"padding", padding}, {"stride", stride}});
  at::native::im2col_shape_check(input_, at::Tensor(), kernel[0], kernel[1], dilation[0], dilation[1], padding[0],
                                 padding[1], stride[0], stride[1]);
  at::Tensor input = input_.contiguous();
  const bool batched = input.dim() == 4;
  if (!batched) input = input.unsqueeze(0);
  const int64_t image[2] = {input.size(2), input.size(3)};
  const indexing::Windows w = windows_of(input.size(0) * input.size(1), image, kernel, dilation, padding, stride);
  out.resize_({input.size(0), input.size(1) * kernel[0] * kernel[1], w.down() * w.across()});
  const at::Tensor columns = out.contiguous();
  if (columns.numel() > 0)
    indexing::im2col(w, static_cast<int64_t>(input.itemsize()), input.const_data_ptr(), columns.mutable_data_ptr());
  if (!columns.is_same(out)) out.copy_(columns);
  if (!batched) out.resize_({out.size(1), out.size(2)});
  return out;
}
at::Tensor im2col_new(const at::Tensor& input, at::IntArrayRef kernel, at::IntArrayRef dilation,
                      at::IntArrayRef padding, at::IntArrayRef stride) {
  at::Tensor out = at::empty({0}, input.options());
  return im2col_out(input, kernel, dilation, padding, stride, out);
}

at::Tensor& col2im_out(const at::Tensor& input_, at::IntArrayRef output_size, at::IntArrayRef kernel,
                       at::IntArrayRef dilation, at::IntArrayRef padding, at::IntArrayRef stride, at::Tensor& out) {
  require_pairs({{"output_size", output_size},
                 {"kernel_size", kernel},
                 {"dilation", dilation},
                 {"padding", padding},
                 {"stride", stride}});
  at::native::col2im_shape_check(input_, at::Tensor(), output_size[0], output_size[1], kernel[0], kernel[1],
                                 dilation[0], dilation[1], padding[0], padding[1], stride[0], stride[1]);
  at::Tensor input = input_.contiguous();
  const bool batched = input.dim() == 3;
  if (!batched) input = input.unsqueeze(0);
  const int64_t planes = input.size(1) / (kernel[0] * kernel[1]);
  const indexing::Windows w = windows_of(input.size(0) * planes, output_size, kernel, dilation, padding, stride);
  out.resize_({input.size(0), planes, output_size[0], output_size[1]});
  const at::Tensor image = out.contiguous();
  if (image.numel() > 0)
    indexing::col2im(w, dtype_of(input, "col2im"), input.const_data_ptr(), image.mutable_data_ptr());
  if (!image.is_same(out)) out.copy_(image);
  if (!batched) out.resize_({planes, output_size[0], output_size[1]});
  return out;
}
at::Tensor col2im_new(const at::Tensor& input, at::IntArrayRef output_size, at::IntArrayRef kernel,
                      at::IntArrayRef dilation, at::IntArrayRef padding, at::IntArrayRef stride) {
  at::Tensor out = at::empty({0}, input.options());
  return col2im_out(input, output_size, kernel, dilation, padding, stride, out);
}

// ---- sorts: the sorted dimension last and contiguous ----
std::tuple<at::Tensor&, at::Tensor&> sort_out(const at::Tensor& self, std::optional<bool> stable, int64_t dim,
                                              bool descending, at::Tensor& values, at::Tensor& indices) {
  Structured<at::native::structured_sort_stable_out, 2> op(values, indices);
  op.meta(self, stable, dim, descending);
  op.impl(self, stable, dim, descending, op.output(0), op.output(1));
  op.finish();
  return {values, indices};
}

std::tuple<at::Tensor&, at::Tensor&> topk_out(const at::Tensor& self, int64_t k, int64_t dim, bool largest, bool sorted,
                                              at::Tensor& values, at::Tensor& indices) {
  Structured<at::meta::structured_topk, 2> op(values, indices);
  op.meta(self, k, dim, largest, sorted);
  dim = at::maybe_wrap_dim(dim, self.dim());
  if (k > 0 && self.numel() > 0) {
    const at::Tensor x = (self.dim() == 0 ? self.view({1}) : self.movedim(dim, -1)).contiguous();
    std::vector<int64_t> shape = x.sizes().vec();
    shape.back() = k;
    const at::Tensor v = at::empty(shape, x.options()), i = at::empty(shape, x.options().dtype(at::kLong));
    const int64_t n = x.size(-1);
    indexing::top({dtype_of(x, "topk"), x.numel() / n, n, k, largest, sorted, x.const_data_ptr(), v.mutable_data_ptr(),
                   i.mutable_data_ptr<int64_t>()});
    const auto back = [&](const at::Tensor& t) {
      return self.dim() == 0 ? t.view(at::IntArrayRef{}) : t.movedim(-1, dim);
    };
    op.output(0).copy_(back(v));
    op.output(1).copy_(back(i));
  }
  op.finish();
  return {values, indices};
}

// ---- writes along an index ----
void put_along(const at::Tensor& result, int64_t dim, const at::Tensor& index, const at::Tensor& source) {
  if (source.numel() == 0) return;
  const auto vector = [](const at::Tensor& t) { return t.dim() == 0 ? t.view({1}) : t; };
  const at::Tensor data = vector(result), values = vector(source), at_index = vector(index).to(at::kLong).contiguous();
  TORCH_CHECK(values.dim() <= indexing::kMaxDims, "index_copy(): at most 25 dimensions");
  indexing::PointsParams p{};
  p.dims = static_cast<int>(values.dim());
  for (int d = 0; d < p.dims; ++d) {
    p.shape[d] = values.size(d);
    p.data_stride[d] = d == dim ? 0 : data.stride(d) * static_cast<int64_t>(data.itemsize());
    p.values_stride[d] = values.stride(d) * static_cast<int64_t>(values.itemsize());
    p.index_stride[0][d] = d == dim ? static_cast<int64_t>(sizeof(int64_t)) : 0;
  }
  p.itemsize = static_cast<int>(data.itemsize());
  p.put = true;
  p.data = data.data_ptr();
  p.values = values.data_ptr();
  p.indices = 1;
  p.index[0] = at_index.const_data_ptr<int64_t>();
  p.indexed_size[0] = data.size(dim);
  p.indexed_stride[0] = data.stride(dim) * static_cast<int64_t>(data.itemsize());
  indexing::points(p);
}
at::Tensor& index_copy_out(const at::Tensor& self, int64_t dim, const at::Tensor& index, const at::Tensor& source,
                           at::Tensor& out) {
  Structured<at::meta::structured_index_copy> op(out);
  op.meta(self, dim, index, source);
  const at::Tensor& result = op.output(0);
  if (!self.is_same(result)) result.copy_(self);
  put_along(result, at::maybe_wrap_dim(dim, result.dim()), index, source);
  op.finish();
  return out;
}
constexpr at::Tensor& (*index_fill_scalar)(at::Tensor&, int64_t, const at::Tensor&,
                                           const at::Scalar&) = &at::native::index_fill_;
constexpr at::Tensor& (*index_fill_tensor)(at::Tensor&, int64_t, const at::Tensor&,
                                           const at::Tensor&) = &at::native::index_fill_;

constexpr at::Tensor (*take)(const at::Tensor&, const at::Tensor&) = &at::native::take;
constexpr at::Tensor& (*take_out)(const at::Tensor&, const at::Tensor&, at::Tensor&) = &at::native::take_out;

// Accumulating put goes through a flat index_put_, as CUDA does with deterministic algorithms.
at::Tensor& put_in_place(at::Tensor& self, const at::Tensor& index, const at::Tensor& source, bool accumulate) {
  if (accumulate && !numeric_switches().deterministic)
    on_race("put_", "with accumulate adds by atomic additions, whose order is not defined",
            "Call torch.use_deterministic_algorithms(True)");
  TORCH_CHECK_INDEX(index.scalar_type() == at::kLong, "put_(): Expected a long tensor for index, but got ",
                    index.scalar_type());
  TORCH_CHECK(self.scalar_type() == source.scalar_type(),
              "put_(): self and source expected to have the same dtype, but got self.dtype = ", self.scalar_type(),
              " and source.dtype = ", source.scalar_type());
  TORCH_CHECK(index.numel() == source.numel(),
              "put_(): Expected source and index to have the same number of elements, "
              "but got source.numel() = ",
              source.numel(), ", index.numel() = ", index.numel());
  if (index.numel() == 0) return self;
  const at::Tensor flat = self.contiguous().view(-1);
  if (accumulate)
    flat.index_put_({index.reshape(-1)}, source.reshape(-1), true);
  else
    flat.index_put_({index.reshape(-1)}, source.reshape(-1));
  if (flat.data_ptr() != self.data_ptr()) self.copy_(flat.view(self.sizes()));
  return self;
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
#define SO_OP(name, fn, klass) m.impl(name, SO_ADAPTER(fn));
#include "csrc/oracle/ops/moves.inc"
#undef SO_OP
}

}  // namespace step_oracle::aten

// ---- the kernels behind torch's own host code ----
namespace at::native {
namespace {
namespace indexing = step_oracle::indexing;

void flip_oracle(TensorIterator& iter, bool) {
  if (iter.numel() == 0) return;
  step_oracle::Loop loop = step_oracle::aten::loop_of(iter, "flip");
  loop.operands = 2;
  step_oracle::pointwise::copy(loop);
}
REGISTER_PRIVATEUSE1_DISPATCH(flip_stub, &flip_oracle)

void sort_oracle(const TensorBase& self_, const TensorBase& values_, const TensorBase& indices_, int64_t dim,
                 bool descending, bool stable) {
  const Tensor self(self_), values(values_), indices(indices_);
  if (self.numel() == 0) return;
  const Tensor x = self.movedim(dim, -1).contiguous(), v = empty_like(x), i = empty_like(x, x.options().dtype(kLong));
  const int64_t n = x.size(-1);
  indexing::sort({step_oracle::aten::dtype_of(x, "sort"), x.numel() / n, n, descending, stable, x.const_data_ptr(),
                  v.mutable_data_ptr(), i.mutable_data_ptr<int64_t>()});
  values.copy_(v.movedim(-1, dim));
  indices.copy_(i.movedim(-1, dim));
}
REGISTER_PRIVATEUSE1_DISPATCH(sort_stub, &sort_oracle)

// Points of an iterator: operand `values` holds elements, operand `index` decides where in `data` they are.
indexing::PointsParams points_of(TensorIterator& iter, int values, int index) {
  indexing::PointsParams p{};
  TORCH_CHECK(iter.ndim() <= indexing::kMaxDims, "at most 25 dimensions");
  p.dims = iter.ndim();
  for (int d = 0; d < p.dims; ++d) {  // the iterator's first dimension is the fastest
    const int from = p.dims - 1 - d;
    p.shape[d] = iter.shape()[from];
    p.values_stride[d] = values < 0 ? 0 : iter.strides(values)[from];
    p.index_stride[0][d] = iter.strides(index)[from];
  }
  p.indices = 1;
  p.index[0] = static_cast<const int64_t*>(iter.data_ptr(index));
  p.wrap = true;
  return p;
}

// Operands: self with the filled dimension restrided to 0, index.
void index_fill_oracle(TensorIterator& iter, int64_t, int64_t size, int64_t stride, const Scalar& source) {
  if (iter.numel() == 0) return;
  const Tensor value = scalar_tensor(source, TensorOptions(iter.device(0)).dtype(iter.dtype(0)));
  indexing::PointsParams p = points_of(iter, -1, 1);
  p.itemsize = static_cast<int>(value.itemsize());
  for (int d = 0; d < p.dims; ++d) p.data_stride[d] = iter.strides(0)[p.dims - 1 - d];
  p.put = true;
  p.data = iter.data_ptr(0);
  p.values = value.data_ptr();
  p.indexed_size[0] = size;
  p.indexed_stride[0] = stride * static_cast<int64_t>(value.itemsize());
  indexing::points(p);
}
REGISTER_PRIVATEUSE1_DISPATCH(index_fill_stub, &index_fill_oracle)

// Operands: out, index into input in its row-major order.
void take_oracle(TensorIterator& iter, const TensorBase& input_) {
  if (iter.numel() == 0) return;
  const Tensor input = Tensor(input_).contiguous();
  indexing::PointsParams p = points_of(iter, 0, 1);
  p.itemsize = static_cast<int>(input.itemsize());
  p.data = input.data_ptr();
  p.values = iter.data_ptr(0);
  p.indexed_size[0] = input.numel();
  p.indexed_stride[0] = static_cast<int64_t>(input.itemsize());
  indexing::points(p);
}
REGISTER_PRIVATEUSE1_DISPATCH(take_stub, &take_oracle)

}  // namespace
}  // namespace at::native
