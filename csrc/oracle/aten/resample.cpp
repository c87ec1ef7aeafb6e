// Upsampling by nearest neighbours, padding by reflection and replication: CUDA's host code around copies of planes.
#define AT_PER_OPERATOR_HEADERS
#include <ATen/Context.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_upsample_nearest_exact1d_backward_meta.h>
#include <ATen/ops/_upsample_nearest_exact1d_meta.h>
#include <ATen/ops/_upsample_nearest_exact2d_backward_meta.h>
#include <ATen/ops/_upsample_nearest_exact2d_meta.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/reflection_pad1d_backward_meta.h>
#include <ATen/ops/reflection_pad1d_meta.h>
#include <ATen/ops/replication_pad1d_backward_meta.h>
#include <ATen/ops/replication_pad1d_meta.h>
#include <ATen/ops/replication_pad2d_meta.h>
#include <ATen/ops/upsample_nearest1d_backward_meta.h>
#include <ATen/ops/upsample_nearest1d_meta.h>
#include <ATen/ops/upsample_nearest2d_backward_meta.h>
#include <ATen/ops/upsample_nearest2d_meta.h>

#include "csrc/kernels/pool/planes.h"
#include "csrc/oracle/aten/adapter.h"
#include "csrc/oracle/aten/races.h"
#include "csrc/oracle/aten/structured.h"

namespace step_oracle::aten {
namespace {

using pool::Copies;
using pool::Sources;
using Scale = std::optional<double>;

// The last `axes` dimensions are a plane; before them channels, and perhaps samples.
pool::Planes planes_of(const at::Tensor& in, const at::Tensor& out, int axes) {
  const std::int64_t leading = in.dim() - axes;
  pool::Planes p{leading == 2 ? in.size(0) : 1, in.size(leading - 1), {}, {}};
  const auto strides = [&](const at::Tensor& t, std::int64_t (&s)[4]) {
    s[0] = leading == 2 ? t.stride(0) : 0;
    s[1] = t.stride(leading - 1);
    s[2] = axes == 2 ? t.stride(-2) : 0;
    s[3] = t.stride(-1);
  };
  strides(in, p.in);
  strides(out, p.out);
  return p;
}
void copy_into(const at::Tensor& self, const at::Tensor& out, int axes, const Copies& rows, const Copies& columns) {
  if (out.numel() == 0) return;
  pool::copy_planes({static_cast<std::size_t>(self.element_size()), planes_of(self, out, axes), rows, columns,
                     self.const_data_ptr(), out.mutable_data_ptr()});
}
void sum_into(const at::Tensor& grad, const at::Tensor& dx, int axes, const Sources& rows, const Sources& columns,
              bool rounds_each, std::string_view op) {
  require_dtype(grad, dx.scalar_type(), op, "grad_output");
  if (dx.numel() == 0) return;
  pool::copy_planes_backward({dtype_of(dx, op), planes_of(dx, grad, axes), rows, columns, rounds_each,
                              grad.const_data_ptr(), dx.mutable_data_ptr()});
}

// ---- nearest neighbours [src UpSample.h compute_scales_value, compute_scales_value_backwards]
float ratio(std::int64_t from, std::int64_t to) { return static_cast<float>(from) / static_cast<float>(to); }
Copies nearest(std::int64_t in, std::int64_t out, const Scale& scale, bool exact) {
  const bool given = scale && *scale > 0;
  return pool::nearest(in, out, given ? static_cast<float>(1.0 / *scale) : ratio(in, out), exact);
}
Sources nearest_sources(std::int64_t in, std::int64_t out, const Scale& scale, bool exact) {
  const bool given = scale && *scale > 0;
  return pool::nearest_sources(in, out, given ? static_cast<float>(*scale) : ratio(out, in), exact);
}
// An axis that keeps its size is copied: torch's own shortcut where all do, and what the places come to where one does.
constexpr bool kExact = true;

template <class Meta>
at::Tensor& nearest1d(const at::Tensor& self, at::IntArrayRef size, const Scale& scale, bool exact, at::Tensor& out) {
  Structured<Meta> op(out);
  op.meta(self, size, scale);
  const at::Tensor& y = op.output(0);
  copy_into(self, y, 1, {0}, nearest(self.size(-1), y.size(-1), scale, exact));
  op.finish();
  return out;
}
template <class Meta>
at::Tensor& nearest2d(const at::Tensor& self, at::IntArrayRef size, const Scale& high, const Scale& wide, bool exact,
                      at::Tensor& out) {
  Structured<Meta> op(out);
  op.meta(self, size, high, wide);
  const at::Tensor& y = op.output(0);
  const bool same = y.size(-2) == self.size(-2) && y.size(-1) == self.size(-1);  // copied, whatever the scales say
  copy_into(self, y, 2, nearest(self.size(-2), y.size(-2), same ? Scale() : high, exact),
            nearest(self.size(-1), y.size(-1), same ? Scale() : wide, exact));
  op.finish();
  return out;
}
template <class Meta>
at::Tensor& nearest1d_backward(const at::Tensor& grad, at::IntArrayRef size, at::IntArrayRef input, const Scale& scale,
                               bool exact, at::Tensor& grad_input) {
  Structured<Meta> op(grad_input);
  op.meta(grad, size, input, scale);
  const at::Tensor& dx = op.output(0);
  sum_into(grad, dx, 1, {{0}}, nearest_sources(dx.size(-1), grad.size(-1), scale, exact), false,
           "upsample_nearest1d_backward");
  op.finish();
  return grad_input;
}
template <class Meta>
at::Tensor& nearest2d_backward(const at::Tensor& grad, at::IntArrayRef size, at::IntArrayRef input, const Scale& high,
                               const Scale& wide, bool exact, at::Tensor& grad_input) {
  Structured<Meta> op(grad_input);
  op.meta(grad, size, input, high, wide);
  const at::Tensor& dx = op.output(0);
  sum_into(grad, dx, 2, nearest_sources(dx.size(-2), grad.size(-2), high, exact),
           nearest_sources(dx.size(-1), grad.size(-1), wide, exact), false, "upsample_nearest2d_backward");
  op.finish();
  return grad_input;
}

#define SO_NEAREST(name, op, exact)                                                                                   \
  at::Tensor& name##1d_out(const at::Tensor& self, at::IntArrayRef size, Scale scale, at::Tensor& out) {              \
    return nearest1d<at::meta::structured_##op##1d>(self, size, scale, exact, out);                                   \
  }                                                                                                                   \
  at::Tensor& name##2d_out(const at::Tensor& self, at::IntArrayRef size, Scale high, Scale wide, at::Tensor& out) {   \
    return nearest2d<at::meta::structured_##op##2d>(self, size, high, wide, exact, out);                              \
  }                                                                                                                   \
  at::Tensor& name##1d_backward_out(const at::Tensor& grad, at::IntArrayRef size, at::IntArrayRef input, Scale scale, \
                                    at::Tensor& out) {                                                                \
    return nearest1d_backward<at::meta::structured_##op##1d_backward>(grad, size, input, scale, exact, out);          \
  }                                                                                                                   \
  at::Tensor& name##2d_backward_out(const at::Tensor& grad, at::IntArrayRef size, at::IntArrayRef input, Scale high,  \
                                    Scale wide, at::Tensor& out) {                                                    \
    return nearest2d_backward<at::meta::structured_##op##2d_backward>(grad, size, input, high, wide, exact, out);     \
  }
SO_NEAREST(nearest, upsample_nearest, !kExact)
SO_NEAREST(nearest_exact, _upsample_nearest_exact, kExact)

// ---- padding: left, right, top, bottom
enum class Pad { kReflect, kReplicate };
Copies axis(const at::Tensor& self, int dim, at::IntArrayRef padding, Pad kind) {
  const auto k = static_cast<std::size_t>(dim == -1 ? 0 : 2);
  return pool::padded(self.size(dim), padding[k], padding[k + 1], kind == Pad::kReflect);
}
void pad_into(const at::Tensor& self, at::IntArrayRef padding, int axes, Pad kind, const at::Tensor& out) {
  copy_into(self, out, axes, axes == 2 ? axis(self, -2, padding, kind) : Copies{0}, axis(self, -1, padding, kind));
}
void pad_backward_into(const at::Tensor& grad, at::IntArrayRef padding, int axes, Pad kind, const at::Tensor& dx,
                       std::string_view op) {
  const Sources rows = axes == 2 ? pool::sources_of(axis(dx, -2, padding, kind), dx.size(-2)) : Sources{{0}};
  const Sources columns = pool::sources_of(axis(dx, -1, padding, kind), dx.size(-1));
  if (pool::sums_race(rows, columns))
    on_race(op, "adds the gradients of three and more copies of an element as they arrive",
            "pad by a constant, or circularly; or take the part of the script on the CPU", {});
  sum_into(grad, dx, axes, rows, columns, true, op);
}

template <class Meta>
at::Tensor& pad_out(const at::Tensor& self, at::IntArrayRef padding, int axes, Pad kind, at::Tensor& out) {
  Structured<Meta> op(out);
  op.meta(self, padding);
  pad_into(self, padding, axes, kind, op.output(0));
  op.finish();
  return out;
}
template <class Meta>
at::Tensor& pad_backward_out(const at::Tensor& grad, const at::Tensor& self, at::IntArrayRef padding, int axes,
                             Pad kind, at::Tensor& grad_input, const char* alert, std::string_view name) {
  at::globalContext().alertNotDeterministic(alert);
  Structured<Meta> op(grad_input);
  op.meta(grad, self, padding);
  pad_backward_into(grad, padding, axes, kind, op.output(0), name);
  op.finish();
  return grad_input;
}
at::Tensor& reflection_pad1d_out(const at::Tensor& self, at::IntArrayRef padding, at::Tensor& out) {
  return pad_out<at::meta::structured_reflection_pad1d>(self, padding, 1, Pad::kReflect, out);
}
at::Tensor& replication_pad1d_out(const at::Tensor& self, at::IntArrayRef padding, at::Tensor& out) {
  return pad_out<at::meta::structured_replication_pad1d>(self, padding, 1, Pad::kReplicate, out);
}
at::Tensor& replication_pad2d_out(const at::Tensor& self, at::IntArrayRef padding, at::Tensor& out) {
  return pad_out<at::meta::structured_replication_pad2d>(self, padding, 2, Pad::kReplicate, out);
}
at::Tensor& reflection_pad1d_backward_out(const at::Tensor& grad, const at::Tensor& self, at::IntArrayRef padding,
                                          at::Tensor& out) {
  return pad_backward_out<at::meta::structured_reflection_pad1d_backward>(
      grad, self, padding, 1, Pad::kReflect, out, "reflection_pad1d_backward_out_cuda", "reflection_pad1d_backward");
}
at::Tensor& replication_pad1d_backward_out(const at::Tensor& grad, const at::Tensor& self, at::IntArrayRef padding,
                                           at::Tensor& out) {
  return pad_backward_out<at::meta::structured_replication_pad1d_backward>(
      grad, self, padding, 1, Pad::kReplicate, out, "replication_pad1d_backward_cuda", "replication_pad1d_backward");
}

// [src ReflectionPad.cu reflection_pad2d_out_template]
at::Tensor& reflection_pad2d_out(const at::Tensor& self, at::IntArrayRef padding, at::Tensor& out) {
  TORCH_CHECK(padding.size() == 4 && (self.dim() == 3 || self.dim() == 4),
              "reflection_pad2d: expects 4 paddings and 3 or 4 dimensions, got ", padding, " and ", self.sizes());
  for (const int dim : {-1, -2}) {
    const std::size_t k = dim == -1 ? 0 : 2;
    TORCH_CHECK(padding[k] < self.size(dim) && padding[k + 1] < self.size(dim),
                "Padding size should be less than the corresponding input dimension, but got: padding (", padding[k],
                ", ", padding[k + 1], ") at dimension ", self.dim() + dim, " of input ", self.sizes());
  }
  at::DimVector sizes(self.sizes());
  sizes[sizes.size() - 2] += padding[2] + padding[3];
  sizes[sizes.size() - 1] += padding[0] + padding[1];
  TORCH_CHECK(sizes[sizes.size() - 1] >= 1 || sizes[sizes.size() - 2] >= 1, "input (H: ", self.size(-2),
              ", W: ", self.size(-1), ") is too small. Calculated output H: ", sizes[sizes.size() - 2],
              " W: ", sizes[sizes.size() - 1]);
  at::native::resize_output(out, sizes);
  pad_into(self, padding, 2, Pad::kReflect, out);
  return out;
}
at::Tensor reflection_pad2d(const at::Tensor& self, at::IntArrayRef padding) {
  at::Tensor out = at::empty({0}, self.options());
  return reflection_pad2d_out(self, padding, out);
}

at::Tensor& pad2d_backward_out(const at::Tensor& grad, const at::Tensor& self, at::IntArrayRef padding, Pad kind,
                               at::Tensor& out, const char* alert, std::string_view name) {
  at::globalContext().alertNotDeterministic(alert);
  TORCH_CHECK(padding.size() == 4 && grad.dim() == self.dim() &&
                  grad.size(-1) == self.size(-1) + padding[0] + padding[1] &&
                  grad.size(-2) == self.size(-2) + padding[2] + padding[3],
              name, ": gradient of shape ", grad.sizes(), " for an input ", self.sizes(), " padded by ", padding);
  at::native::resize_output(out, self.sizes());
  pad_backward_into(grad, padding, 2, kind, out, name);
  return out;
}
#define SO_PAD2D(name, kind)                                                                                  \
  at::Tensor& name##_backward_out(const at::Tensor& grad, const at::Tensor& self, at::IntArrayRef padding,    \
                                  at::Tensor& out) {                                                          \
    return pad2d_backward_out(grad, self, padding, kind, out, #name "_backward_out_cuda", #name "_backward"); \
  }                                                                                                           \
  at::Tensor name##_backward(const at::Tensor& grad, const at::Tensor& self, at::IntArrayRef padding) {       \
    at::Tensor out = at::empty_like(self, at::MemoryFormat::Contiguous);                                      \
    return pad2d_backward_out(grad, self, padding, kind, out, #name "_backward_cuda", #name "_backward");     \
  }
SO_PAD2D(reflection_pad2d, Pad::kReflect)
SO_PAD2D(replication_pad2d, Pad::kReplicate)

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
#define SO_OP(name, fn, klass) m.impl(name, SO_ADAPTER(fn));
#include "csrc/oracle/ops/resample.inc"
#undef SO_OP
}

}  // namespace step_oracle::aten
