// Searches, running extremes, repeats, writes under a mask and counts, as CUDA's Bucketization.cu, CumminmaxKernel.cu,
// Repeat.cu, IndexKernel.cu and SummaryOps.cu call their kernels.
#define AT_PER_OPERATOR_HEADERS
#include <ATen/ExpandUtils.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/native/BucketizationUtils.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/all.h>
#include <ATen/ops/cumsum.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/ge.h>
#include <ATen/ops/max.h>
#include <ATen/ops/min.h>
#include <ATen/ops/nonzero.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>

#include "csrc/kernels/indexing/counts.h"
#include "csrc/kernels/indexing/indexing.h"
#include "csrc/kernels/indexing/search.h"
#include "csrc/oracle/aten/adapter.h"

namespace step_oracle::aten {
namespace {

using OptString = std::optional<c10::string_view>;
using OptTensor = std::optional<at::Tensor>;

at::Tensor& searchsorted_out(const at::Tensor& sequence, const at::Tensor& self, bool out_int32, bool right,
                             OptString side, const OptTensor& sorter_opt, at::Tensor& out) {
  const at::Tensor sorter = sorter_opt ? *sorter_opt : at::Tensor();
  at::native::searchsorted_pre_check(sequence, self, out, out_int32, right, side, sorter);
  at::native::resize_output(out, self.sizes());
  if (self.numel() == 0) return out;
  at::Tensor values = self.contiguous(), rows = sequence.contiguous();
  if (self.scalar_type() != sequence.scalar_type()) {
    at::native::ResultTypeState state = {};
    state = at::native::update_result_type_state(sequence, state);
    state = at::native::update_result_type_state(self, state);
    const at::ScalarType type = at::native::result_type(state);
    values = values.to(type);
    rows = rows.to(type);
  }
  const at::Tensor order = sorter.defined() ? sorter.contiguous() : at::Tensor(), places = out.contiguous();
  indexing::search({dtype_of(rows, "searchsorted"), values.numel(), values.dim() == 0 ? 1 : values.size(-1),
                    rows.size(-1), rows.dim() == 1, side ? *side == "right" : right, rows.const_data_ptr(),
                    values.const_data_ptr(), order.defined() ? order.const_data_ptr<int64_t>() : nullptr,
                    dtype_of(places, "searchsorted"), places.mutable_data_ptr()});
  if (!places.is_same(out)) out.copy_(places);
  return out;
}
at::Tensor place_like(const at::Tensor& self, bool out_int32) {
  return at::empty({0}, self.options().dtype(out_int32 ? at::kInt : at::kLong));
}
at::Tensor searchsorted_new(const at::Tensor& sequence, const at::Tensor& self, bool out_int32, bool right,
                            OptString side, const OptTensor& sorter) {
  at::Tensor out = place_like(self, out_int32);
  return searchsorted_out(sequence, self, out_int32, right, side, sorter, out);
}
at::Tensor& searchsorted_scalar_out(const at::Tensor& sequence, const at::Scalar& self, bool out_int32, bool right,
                                    OptString side, const OptTensor& sorter, at::Tensor& out) {
  return searchsorted_out(sequence, at::native::searchsorted_scalar_tensor(self, sequence.device()), out_int32, right,
                          side, sorter, out);
}
at::Tensor searchsorted_scalar_new(const at::Tensor& sequence, const at::Scalar& self, bool out_int32, bool right,
                                   OptString side, const OptTensor& sorter) {
  return searchsorted_new(sequence, at::native::searchsorted_scalar_tensor(self, sequence.device()), out_int32, right,
                          side, sorter);
}
at::Tensor& bucketize_out(const at::Tensor& self, const at::Tensor& boundaries, bool out_int32, bool right,
                          at::Tensor& out) {
  TORCH_CHECK(boundaries.dim() == 1, "boundaries tensor must be 1 dimension, but got dim(", boundaries.dim(), ")");
  return searchsorted_out(boundaries, self, out_int32, right, std::nullopt, std::nullopt, out);
}
at::Tensor bucketize_new(const at::Tensor& self, const at::Tensor& boundaries, bool out_int32, bool right) {
  at::Tensor out = place_like(self, out_int32);
  return bucketize_out(self, boundaries, out_int32, right, out);
}
at::Tensor bucketize_scalar_new(const at::Scalar& self, const at::Tensor& boundaries, bool out_int32, bool right) {
  return bucketize_new(at::native::searchsorted_scalar_tensor(self, boundaries.device()), boundaries, out_int32, right);
}

// ---- running extremes ----
void extremes(const at::Tensor& self, at::Tensor& values, at::Tensor& indices, int64_t dim, bool max) {
  if (self.numel() == 0) return;
  dim = at::maybe_wrap_dim(dim, self.dim());
  const at::Tensor x = self.contiguous(), v = values.contiguous(), i = indices.contiguous();
  indexing::ExtremesParams p{
      dtype_of(x, max ? "cummax" : "cummin"), max, 1, x.size(dim), 1, x.const_data_ptr(), v.mutable_data_ptr(),
      i.mutable_data_ptr<int64_t>()};
  for (int64_t d = 0; d < x.dim(); ++d) (d < dim ? p.outer : p.inner) *= d == dim ? 1 : x.size(d);
  indexing::running_extremes(p);
  if (!v.is_same(values)) values.copy_(v);
  if (!i.is_same(indices)) indices.copy_(i);
}
void cummax_helper(const at::Tensor& self, at::Tensor& values, at::Tensor& indices, int64_t dim) {
  extremes(self, values, indices, dim, true);
}
void cummin_helper(const at::Tensor& self, at::Tensor& values, at::Tensor& indices, int64_t dim) {
  extremes(self, values, indices, dim, false);
}

// ---- repeats: index i, repeats[i] times ----
template <class T>
void write_repeats(const at::Tensor& ends, at::Tensor& out) {
  const int64_t* end = ends.const_data_ptr<int64_t>();
  T* to = out.mutable_data_ptr<T>();
  for (int64_t i = 0, at = 0; i < ends.numel(); ++i)
    for (; at < std::min(end[i], out.numel()); ++at) to[at] = static_cast<T>(i);
}
at::Tensor repeat_interleave(const at::Tensor& repeats, std::optional<int64_t> output_size) {
  TORCH_CHECK(repeats.dim() == 1, "repeat_interleave only accept 1D vector as repeat");
  TORCH_CHECK(repeats.scalar_type() == at::kLong || repeats.scalar_type() == at::kInt,
              "repeats has to be Long or Int tensor");
  if (repeats.size(0) == 0) return at::empty_like(repeats, at::MemoryFormat::Contiguous);
  const at::Tensor ends = at::cumsum(repeats, 0).contiguous();
  int64_t total = 0;
  if (output_size) {
    total = *output_size;
  } else {
    total = ends[-1].item<int64_t>();
    TORCH_CHECK(at::all(at::ge(repeats, 0)).item<bool>(), "repeats can not be negative");
  }
  at::Tensor out = at::empty({total}, repeats.options());
  if (total > ends[-1].item<int64_t>())
    throw Error(ErrorKind::kBadInput, fmt::format("repeat_interleave: output_size {} is larger than the sum of the "
                                                  "repeats (a card leaves the rest unwritten)",
                                                  total));
  repeats.scalar_type() == at::kLong ? write_repeats<int64_t>(ends, out) : write_repeats<int32_t>(ends, out);
  return out;
}

// ---- the source's elements, in order, where the mask holds ----
at::Tensor& masked_scatter(at::Tensor& self, const at::Tensor& mask, const at::Tensor& source) {
  TORCH_CHECK(self.scalar_type() == source.scalar_type(),
              "masked_scatter_: expected self and source to have same dtypes but got ", self.scalar_type(), " and ",
              source.scalar_type());
  TORCH_CHECK(mask.scalar_type() == at::kBool, "masked_scatter_ only supports boolean masks, but got mask with dtype ",
              mask.scalar_type());
  const c10::MaybeOwned<at::Tensor> expanded = at::expand_inplace(self, mask, "masked_scatter_");
  if (self.numel() == 0) return self;
  const at::Tensor result = self.contiguous().view(-1), from = source.contiguous().view(-1);
  const at::Tensor where = at::nonzero(expanded->contiguous().view(-1)).view(-1);
  if (where.numel() > from.numel())
    throw Error(ErrorKind::kBadInput, fmt::format("masked_scatter_: the mask has {} elements and the source {} (a card "
                                                  "stops here with a device-side assertion)",
                                                  where.numel(), from.numel()));
  indexing::PointsParams p{};
  p.dims = 1;
  p.shape[0] = where.numel();
  p.itemsize = static_cast<int>(self.itemsize());
  p.put = true;
  p.data = result.data_ptr();
  p.values = from.data_ptr();
  p.values_stride[0] = static_cast<int64_t>(self.itemsize());
  p.indices = 1;
  p.index[0] = where.const_data_ptr<int64_t>();
  p.index_stride[0][0] = where.stride(0) * static_cast<int64_t>(sizeof(int64_t));
  p.indexed_size[0] = result.numel();
  p.indexed_stride[0] = static_cast<int64_t>(self.itemsize());
  indexing::points(p);
  if (result.data_ptr() != self.data_ptr()) self.copy_(result.view(self.sizes()));
  return self;
}

// ---- counts ----
// [src SummaryOps.cu _bincount_cuda_template]
at::Tensor bincount(const at::Tensor& self, const OptTensor& weights, int64_t minlength) {
  TORCH_CHECK(at::isIntegralType(self.scalar_type(), false), "bincount: not implemented for ", self.scalar_type());
  TORCH_CHECK(minlength >= 0, "minlength should be >= 0");
  const at::TensorOptions as_counts = self.options().dtype(at::kLong);
  if (self.dim() == 1 && self.numel() == 0) return at::zeros({minlength}, as_counts);
  TORCH_CHECK(self.dim() == 1 && at::min(self).item<int64_t>() >= 0,
              "bincount only supports 1-d non-negative integral inputs.");
  if (weights && weights->defined())
    refuse("bincount", "with weights adds them with atomics, in no order", "Count without weights");
  const int64_t most = at::max(self).item<int64_t>();
  if (most >= INT32_MAX) refuse("bincount", fmt::format("of {} is not modelled", most), "Count numbers below 2^31 - 1");
  at::Tensor counts = at::empty({std::max(most + 1, minlength)}, as_counts);
  const at::Tensor x = self.contiguous();
  indexing::count({dtype_of(x, "bincount"), x.numel(), counts.numel(), x.const_data_ptr(),
                   counts.mutable_data_ptr<int64_t>()});
  return counts;
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
#define SO_OP(name, fn, klass) m.impl(name, SO_ADAPTER(fn));
#include "csrc/oracle/ops/searches.inc"
#undef SO_OP
}

}  // namespace step_oracle::aten
