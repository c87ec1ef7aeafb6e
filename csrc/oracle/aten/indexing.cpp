// Moves by index and sums at an index, as CUDA's Embedding.cu, Indexing.cu, IndexKernel.cu and ScatterGatherKernel.cu.
#define AT_PER_OPERATOR_HEADERS
#include "csrc/kernels/indexing/indexing.h"

#include <ATen/ExpandUtils.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/native/IndexingUtils.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gather_meta.h>
#include <ATen/ops/index_add_meta.h>
#include <ATen/ops/index_meta.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/scatter_add_meta.h>
#include <ATen/ops/scatter_meta.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "csrc/oracle/aten/adapter.h"
#include "csrc/oracle/aten/races.h"
#include "csrc/oracle/aten/structured.h"

namespace step_oracle::aten {
namespace {

using indexing::PointsParams;

void require_dims(int64_t dims, std::string_view op) {
  if (dims > indexing::kMaxDims)
    refuse(op, fmt::format("of {} dimensions is not modelled", dims), "Use at most 25 dimensions");
}

int64_t bytes(const at::Tensor& t, int64_t dim) { return t.stride(dim) * static_cast<int64_t>(t.itemsize()); }

// ---- one dimension at a time: index_select, gather, scatter ----

// Points of `index`'s shape; data's dimension `dim` is decided by the index.
PointsParams along(const at::Tensor& data, int64_t dim, const at::Tensor& index, std::string_view op) {
  require_dims(index.dim(), op);
  PointsParams p{};
  p.dims = static_cast<int>(index.dim());
  for (int d = 0; d < p.dims; ++d) {
    p.shape[d] = index.size(d);
    p.data_stride[d] = d == dim ? 0 : bytes(data, d);
    p.index_stride[0][d] = bytes(index, d);
  }
  p.itemsize = static_cast<int>(data.itemsize());
  p.data = data.data_ptr();
  p.indices = 1;
  p.index[0] = index.const_data_ptr<int64_t>();
  p.indexed_size[0] = data.size(dim);
  p.indexed_stride[0] = bytes(data, dim);
  return p;
}
void set_values(PointsParams& p, const at::Tensor& values) {
  p.values = values.data_ptr();
  for (int d = 0; d < p.dims; ++d) p.values_stride[d] = bytes(values, d);
}
// CUDA's kernels see a 0-dimensional tensor as a vector of one.
at::Tensor at_least_1d(const at::Tensor& t) { return t.dim() == 0 ? t.view({1}) : t; }

at::Tensor& index_select_into(const at::Tensor& self_, int64_t dim, const at::Tensor& index_, at::Tensor& out) {
  TORCH_CHECK(index_.dim() <= 1, "Index is supposed to be an empty tensor or a vector");
  TORCH_CHECK(index_.scalar_type() == at::kLong || index_.scalar_type() == at::kInt,
              "index_select(): Expected dtype int32 or int64 for index, but got: ", index_.scalar_type());
  TORCH_CHECK(self_.scalar_type() == out.scalar_type(),
              "index_select(): Source and result must have the same scalar type");
  dim = at::maybe_wrap_dim(dim, self_.dim());
  TORCH_CHECK(self_.dim() > 0 || index_.numel() == 1, "index_select(): Index to scalar can have only 1 value, got ",
              index_.numel(), " value(s)");
  std::vector<int64_t> shape = self_.sizes().vec();
  if (self_.dim() > 0) shape[static_cast<std::size_t>(dim)] = index_.numel();
  at::native::resize_output(out, shape);
  if (out.numel() == 0) return out;
  const at::Tensor self = at_least_1d(self_), index = at_least_1d(index_), result = at_least_1d(out);
  const bool rows = dim == 0 && result.is_contiguous() && self.dim() > 0 && self.select(0, 0).is_contiguous();
  if (rows && self.size(0) > 0) {
    const int64_t row_bytes = result.numel() / index.numel() * static_cast<int64_t>(self.itemsize());
    indexing::gather_rows({index.numel(), row_bytes, self.const_data_ptr(), self.size(0), bytes(self, 0),
                           dtype_of(index, "index_select"), index.const_data_ptr(), index.stride(0),
                           result.mutable_data_ptr()});
    return out;
  }
  std::vector<int64_t> ones(static_cast<std::size_t>(self.dim()), 1);
  ones[static_cast<std::size_t>(dim)] = index.numel();
  const at::Tensor points = index.to(at::kLong).view(ones).expand(result.sizes());
  PointsParams p = along(self, dim, points, "index_select");
  set_values(p, result);
  indexing::points(p);
  return out;
}
at::Tensor& index_select_out(const at::Tensor& self, int64_t dim, const at::Tensor& index, at::Tensor& out) {
  return index_select_into(self, dim, index, out);
}
at::Tensor index_select_new(const at::Tensor& self, int64_t dim, const at::Tensor& index) {
  at::Tensor out = at::empty({0}, self.options());
  index_select_into(self, dim, index, out);
  return out;
}

at::Tensor& gather_out(const at::Tensor& self, int64_t dim, const at::Tensor& index, bool sparse_grad,
                       at::Tensor& out) {
  Structured<at::meta::structured_gather> op(out);
  op.meta(self, dim, index, sparse_grad);
  if (index.numel() > 0) {
    const at::Tensor data = at_least_1d(self), at_index = at_least_1d(index).to(at::kLong);
    PointsParams p = along(data, at::maybe_wrap_dim(dim, data.dim()), at_index, "gather");
    set_values(p, at_least_1d(op.output(0)));
    indexing::points(p);
  }
  op.finish();
  return out;
}

// Writes at equal points with different values are a race on the card; here the last one stays.
void scatter_into(const at::Tensor& result, int64_t dim, const at::Tensor& index, const at::Tensor& src) {
  if (index.numel() == 0) return;
  const at::Tensor data = at_least_1d(result), at_index = at_least_1d(index).to(at::kLong);
  PointsParams p = along(data, at::maybe_wrap_dim(dim, data.dim()), at_index, "scatter");
  set_values(p, at_least_1d(src));
  p.put = true;
  indexing::points(p);
}
at::Tensor& scatter_src_out(const at::Tensor& self, int64_t dim, const at::Tensor& index, const at::Tensor& src,
                            at::Tensor& out) {
  Structured<at::meta::structured_scatter_src> op(out);
  op.meta(self, dim, index, src);
  if (!self.is_same(op.output(0))) op.output(0).copy_(self);
  scatter_into(op.output(0), dim, index, src);
  op.finish();
  return out;
}
at::Tensor& scatter_value_out(const at::Tensor& self, int64_t dim, const at::Tensor& index, const at::Scalar& value,
                              at::Tensor& out) {
  Structured<at::meta::structured_scatter_value> op(out);
  op.meta(self, dim, index, value);
  if (!self.is_same(op.output(0))) op.output(0).copy_(self);
  const at::Tensor one = at::scalar_tensor(value, self.options());
  scatter_into(op.output(0), dim, index, one.expand(index.sizes()));
  op.finish();
  return out;
}

// ---- sums at an index ----

// dest, contiguous, as rows x width; equal indices are summed in their order.
void accumulate(const at::Tensor& dest, int64_t width, const std::vector<int64_t>& index, const at::Tensor& values,
                bool one_by_one, std::string_view op) {
  if (index.empty() || width == 0) return;
  indexing::accumulate({dtype_of(dest, op), static_cast<int64_t>(index.size()), width, dest.numel() / width,
                        index.data(), values.const_data_ptr(), dest.mutable_data_ptr(), one_by_one});
}

bool all_different(std::vector<int64_t> index) {
  std::sort(index.begin(), index.end());
  return std::adjacent_find(index.begin(), index.end()) == index.end();
}

// Atomic additions to different places have one order; else only the deterministic form has.
bool atomics_in_order(const std::vector<int64_t>& index, at::ScalarType type, std::string_view op) {
  if (numeric_switches().deterministic) return false;
  if (all_different(index) || at::isIntegralType(type, true)) return true;
  on_race(op, "adds to one element several times by atomic additions, whose order is not defined",
          "Call torch.use_deterministic_algorithms(True)");
  return false;
}

std::vector<int64_t> checked(const at::Tensor& index_, int64_t size, std::string_view op) {
  const at::Tensor index = index_.to(at::kLong).contiguous();
  const int64_t* at = index.const_data_ptr<int64_t>();
  std::vector<int64_t> out(at, at + index.numel());
  for (const int64_t i : out)
    if (i < 0 || i >= size)
      throw Error(ErrorKind::kBadInput, fmt::format("{}: index {} is out of bounds for a dimension of size {} (a card "
                                                    "stops here with a device-side assertion)",
                                                    op, i, size));
  return out;
}

at::Tensor& scatter_add_out(const at::Tensor& self, int64_t dim, const at::Tensor& index, const at::Tensor& src,
                            at::Tensor& out) {
  Structured<at::meta::structured_scatter_add> op(out);
  op.meta(self, dim, index, src);
  const at::Tensor& result = op.output(0);
  if (!self.is_same(result)) result.copy_(self);
  if (index.numel() > 0) {
    const at::Tensor data = at_least_1d(result).contiguous(), at_index = at_least_1d(index);
    dim = at::maybe_wrap_dim(dim, data.dim());
    std::vector<int64_t> where = checked(at_index, data.size(dim), "scatter_add");
    std::vector<int64_t> point(static_cast<std::size_t>(at_index.dim()), 0);
    for (int64_t& w : where) {
      int64_t offset = w * data.stride(dim);
      for (int64_t d = 0; d < at_index.dim(); ++d)
        offset += d == dim ? 0 : point[static_cast<std::size_t>(d)] * data.stride(d);
      w = offset;
      for (int64_t d = at_index.dim() - 1; d >= 0; --d) {
        if (++point[static_cast<std::size_t>(d)] < at_index.size(d)) break;
        point[static_cast<std::size_t>(d)] = 0;
      }
    }
    at::Tensor values = at_least_1d(src);
    for (int64_t d = 0; d < at_index.dim(); ++d) values = values.narrow(d, 0, at_index.size(d));
    accumulate(data, 1, where, values.contiguous(), atomics_in_order(where, self.scalar_type(), "scatter_add"),
               "scatter_add");
    if (data.data_ptr() != result.data_ptr()) result.copy_(data.view(result.sizes()));
  }
  op.finish();
  return out;
}

at::Tensor& index_add_out(const at::Tensor& self, int64_t dim, const at::Tensor& index, const at::Tensor& source,
                          const at::Scalar& alpha, at::Tensor& out) {
  Structured<at::meta::structured_index_add> op(out);
  op.meta(self, dim, index, source, alpha);
  const at::Tensor& result = op.output(0);
  if (!self.is_same(result)) result.copy_(self);
  if (source.numel() > 0) {
    const at::Tensor target = at_least_1d(result),
                     values = at_least_1d(alpha.equal(1) ? source : at::mul(source, alpha));
    dim = at::maybe_wrap_dim(dim, target.dim());
    const at::Tensor front = target.movedim(dim, 0).contiguous();
    const std::vector<int64_t> where = checked(at_least_1d(index), front.size(0), "index_add");
    accumulate(front, front.numel() / front.size(0), where, values.movedim(dim, 0).contiguous(),
               atomics_in_order(where, self.scalar_type(), "index_add"), "index_add");
    if (front.data_ptr() != target.data_ptr()) target.copy_(front.movedim(0, dim));
  }
  op.finish();
  return out;
}

at::Tensor embedding_dense_backward(const at::Tensor& grad_, const at::Tensor& indices_, int64_t num_weights,
                                    int64_t padding_idx, bool scale_grad_by_freq) {
  TORCH_CHECK(indices_.scalar_type() == at::kLong || indices_.scalar_type() == at::kInt,
              "expected indices of int64 or int32, got ", indices_.scalar_type());
  const at::Tensor indices = indices_.contiguous(), grad = grad_.contiguous();
  const int64_t width = grad.size(-1);
  if (indices.numel() == 0) return at::zeros({num_weights, width}, grad.options());
  const at::Tensor out = at::empty({num_weights, width}, grad.options());
  const indexing::EmbeddingParams p{dtype_of(grad, "embedding_dense_backward"),
                                    dtype_of(indices, "embedding_dense_backward"),
                                    indices.numel(),
                                    width,
                                    num_weights,
                                    padding_idx,
                                    scale_grad_by_freq,
                                    grad.const_data_ptr(),
                                    indices.const_data_ptr(),
                                    out.mutable_data_ptr()};
  if (indexing::embedding_atomic_is_chosen(p, card_of(grad).sms))
    on_race("embedding_dense_backward",
            fmt::format("of {} indices into {} rows of {} adds partial sums by atomic additions on this card, whose "
                        "order is not defined",
                        p.n, num_weights, width),
            "Call torch.use_deterministic_algorithms(True)");
  indexing::embedding_backward(p);
  return out;
}

// ---- tensors as indices ----

at::Tensor& index_out(const at::Tensor& self, const c10::List<std::optional<at::Tensor>>& indices, at::Tensor& out) {
  Structured<at::meta::structured_index_Tensor> op(out);
  const auto pre = op.meta(self, at::IOptTensorListRef(indices));
  if (op.numel() > 0) {
    require_dims(op.ndim(), "index");
    PointsParams p{};
    p.dims = op.ndim();
    p.itemsize = static_cast<int>(self.itemsize());
    p.values = op.data_ptr(0);
    p.data = op.data_ptr(1);
    p.indices = op.ntensors() - 2;
    p.wrap = true;
    for (int d = 0; d < p.dims; ++d) {  // the iterator's first dimension is the fastest
      const int from = p.dims - 1 - d;
      p.shape[d] = op.shape()[from];
      p.values_stride[d] = op.strides(0)[from];
      p.data_stride[d] = op.strides(1)[from];
      for (int k = 0; k < p.indices; ++k) p.index_stride[k][d] = op.strides(k + 2)[from];
    }
    for (int k = 0; k < p.indices; ++k) {
      TORCH_INTERNAL_ASSERT(op.dtype(k + 2) == at::kLong);
      p.index[k] = static_cast<const int64_t*>(op.data_ptr(k + 2));
      p.indexed_size[k] = pre.sizes[static_cast<std::size_t>(k)];
      p.indexed_stride[k] = pre.strides[static_cast<std::size_t>(k)];
    }
    indexing::points(p);
  }
  op.finish();
  return out;
}

// self with the indexed dimensions side by side, and the indices of one shape for them.
struct Indexed {
  at::Tensor self;                  // a view, its dimensions perhaps permuted
  std::vector<at::Tensor> indices;  // of the dimensions [before, before + indices.size()), int64
  int64_t before = 0;
  std::vector<int64_t> shape;  // of the result
};

Indexed indexed(const at::Tensor& self, const c10::List<std::optional<at::Tensor>>& indices) {
  TORCH_CHECK_INDEX(indices.size() <= static_cast<std::size_t>(self.dim()), "too many indices for tensor of dimension ",
                    self.dim(), " (got ", indices.size(), ")");
  at::native::checkIndexTensorTypes(indices, true);
  std::vector<at::Tensor> list = at::expand_outplace(at::native::expandTensors(self, indices, true));
  list.resize(static_cast<std::size_t>(self.dim()));
  Indexed r;
  r.self = self;
  if (!at::native::hasContiguousSubspace(list)) std::tie(r.self, list) = at::native::transposeToFront(self, list);
  while (r.before < self.dim() && !list[static_cast<std::size_t>(r.before)].defined()) ++r.before;
  for (const at::Tensor& t : list)
    if (t.defined()) r.indices.push_back(t.to(at::kLong));
  TORCH_CHECK_INDEX(!r.indices.empty(), "index_put_ without an index tensor");
  r.shape.assign(r.self.sizes().begin(), r.self.sizes().begin() + r.before);
  for (const int64_t n : r.indices[0].sizes()) r.shape.push_back(n);
  for (int64_t d = r.before + static_cast<int64_t>(r.indices.size()); d < self.dim(); ++d)
    r.shape.push_back(r.self.size(d));
  return r;
}

void put_points(const Indexed& x, const at::Tensor& values) {
  require_dims(static_cast<int64_t>(x.shape.size()), "index_put_");
  PointsParams p{};
  p.dims = static_cast<int>(x.shape.size());
  const int64_t inside = x.indices[0].dim(), indices = static_cast<int64_t>(x.indices.size());
  p.itemsize = static_cast<int>(x.self.itemsize());
  p.data = x.self.data_ptr();
  p.put = p.wrap = true;
  p.indices = static_cast<int>(indices);
  for (int64_t d = 0; d < p.dims; ++d) {
    p.shape[d] = x.shape[static_cast<std::size_t>(d)];
    const bool by_index = d >= x.before && d < x.before + inside;
    p.data_stride[d] = by_index ? 0 : bytes(x.self, d < x.before ? d : d - inside + indices);
    for (int64_t k = 0; k < indices; ++k)
      p.index_stride[k][d] = by_index ? bytes(x.indices[static_cast<std::size_t>(k)], d - x.before) : 0;
  }
  set_values(p, values);
  for (int64_t k = 0; k < indices; ++k) {
    p.index[k] = x.indices[static_cast<std::size_t>(k)].const_data_ptr<int64_t>();
    p.indexed_size[k] = x.self.size(x.before + k);
    p.indexed_stride[k] = bytes(x.self, x.before + k);
  }
  indexing::points(p);
}

// index_put_with_sort: self contiguous as before x (indexed dimensions) x slice; the slice's width chooses the order.
void put_sorted(const Indexed& x, const at::Tensor& values_) {
  const at::Tensor dest = x.self.contiguous(), values = values_.contiguous();
  const int64_t indices = static_cast<int64_t>(x.indices.size()), n = x.indices[0].numel();
  int64_t outer = 1, rows = 1, width = 1;
  for (int64_t d = 0; d < dest.dim(); ++d)
    (d < x.before ? outer : d < x.before + indices ? rows : width) *= dest.size(d);
  std::vector<int64_t> where(static_cast<std::size_t>(n), 0);
  for (int64_t k = 0; k < indices; ++k) {
    const at::Tensor index = x.indices[static_cast<std::size_t>(k)].contiguous();
    const int64_t* at = index.const_data_ptr<int64_t>();
    const int64_t size = dest.size(x.before + k);
    for (int64_t i = 0; i < n; ++i) {
      if (at[i] < -size || at[i] >= size)
        throw Error(ErrorKind::kBadInput, fmt::format("index_put_: index {} is out of bounds for a dimension of size "
                                                      "{} (a card stops here with a device-side assertion)",
                                                      at[i], size));
      where[static_cast<std::size_t>(i)] =
          where[static_cast<std::size_t>(i)] * size + (at[i] < 0 ? at[i] + size : at[i]);
    }
  }
  const auto item = static_cast<int64_t>(dest.itemsize());
  for (int64_t z = 0; z < outer && n > 0 && width > 0; ++z)
    indexing::accumulate({dtype_of(dest, "index_put_"), n, width, rows, where.data(),
                          static_cast<const char*>(values.const_data_ptr()) + z * n * width * item,
                          static_cast<char*>(dest.mutable_data_ptr()) + z * rows * width * item, false});
  if (!dest.is_same(x.self)) x.self.copy_(dest);
}

at::Tensor& index_put_impl(at::Tensor& self, const c10::List<std::optional<at::Tensor>>& indices,
                           const at::Tensor& value, bool accumulate, bool) {
  TORCH_CHECK_INDEX(self.scalar_type() == value.scalar_type(),
                    "Index put requires the source and destination dtypes match, got ", self.scalar_type(),
                    " for the destination and ", value.scalar_type(), " for the source.");
  const Indexed x = indexed(self, indices);
  const at::Tensor values = (value.device() == self.device() ? value : value.to(self.device())).expand(x.shape);
  if (values.numel() == 0) return self;
  accumulate ? put_sorted(x, values) : put_points(x, values);
  return self;
}

// ---- positions and selections by a mask ----
indexing::NonzeroParams nonzero_params(const at::Tensor& t) {
  require_dims(t.dim(), "nonzero");
  indexing::NonzeroParams p{};
  p.dims = static_cast<int>(t.dim());
  for (int d = 0; d < p.dims; ++d) {
    p.shape[d] = t.size(d);
    p.stride[d] = bytes(t, d);
  }
  p.type = dtype_of(t, "nonzero");
  p.data = t.const_data_ptr();
  return p;
}

at::Tensor& nonzero_out(const at::Tensor& self, at::Tensor& out) {
  TORCH_CHECK(out.scalar_type() == at::kLong, "Expected object of scalar type Long as out, but got ",
              out.scalar_type());
  const auto p = nonzero_params(self);
  const int64_t count = self.numel() ? indexing::count_nonzero(p) : 0;
  // CUDA makes a dims x count buffer and returns its transpose where it may choose the strides.
  const bool resized = out.sizes() != at::IntArrayRef({count, self.dim()});
  at::native::resize_output(out, {count, self.dim()});
  if (resized && count > 0 && self.dim() > 0) out.as_strided_({count, self.dim()}, {1, count});
  if (count > 0)
    indexing::list_nonzero(p, out.mutable_data_ptr<int64_t>(), out.dim() > 0 ? out.stride(0) : 1,
                           out.dim() > 1 ? out.stride(1) : 1);
  return out;
}
at::Tensor nonzero_new(const at::Tensor& self) {
  at::Tensor out = at::empty({0}, self.options().dtype(at::kLong));
  return nonzero_out(self, out);
}

at::Tensor masked_select_new(const at::Tensor& self, const at::Tensor& mask) {
  TORCH_CHECK(mask.scalar_type() == at::kBool, "masked_select: expected BoolTensor for mask");
  const auto [m, s] = at::expand_outplace(mask, self);
  const at::Tensor where = nonzero_new(m->dim() == 0 ? m->view({1}) : *m), data = at_least_1d(*s);
  const at::Tensor out = at::empty({where.size(0)}, self.options());
  if (out.numel() == 0) return out;
  PointsParams p{};
  p.dims = 1;
  p.shape[0] = out.numel();
  p.itemsize = static_cast<int>(self.itemsize());
  p.data = data.data_ptr();
  set_values(p, out);
  p.indices = static_cast<int>(data.dim());
  for (int k = 0; k < p.indices; ++k) {
    p.index[k] = where.const_data_ptr<int64_t>() + k * where.stride(1);
    p.index_stride[k][0] = bytes(where, 0);
    p.indexed_size[k] = data.size(k);
    p.indexed_stride[k] = bytes(data, k);
  }
  indexing::points(p);
  return out;
}
at::Tensor& masked_select_out(const at::Tensor& self, const at::Tensor& mask, at::Tensor& out) {
  const at::Tensor result = masked_select_new(self, mask);
  TORCH_CHECK(out.scalar_type() == self.scalar_type(),
              "masked_select(): self and result must have the same scalar type");
  at::native::resize_output(out, result.sizes());
  out.copy_(result);
  return out;
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
#define SO_OP(name, fn, klass) m.impl(name, SO_ADAPTER(fn));
#include "csrc/oracle/ops/indexing.inc"
#undef SO_OP
}

}  // namespace step_oracle::aten
