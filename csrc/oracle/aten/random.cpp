// Random numbers: torch's own argument checks (ATen/native/DistributionTemplates.h), our kernels.
//
// CUDA numbers the elements of an output by the order of its TensorIterator, that is by memory, not by index: a fill of
// a tensor that is dense in memory is a fill of its storage, and other outputs are scattered in the iterator's order.
#ifndef AT_PER_OPERATOR_HEADERS
#define AT_PER_OPERATOR_HEADERS
#endif
#include "csrc/kernels/random/random.h"

#include <ATen/ExpandUtils.h>
#include <ATen/TensorIterator.h>
#include <ATen/native/DistributionTemplates.h>
#include <ATen/native/UnaryOps.h>
#include <ATen/ops/cumsum.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/multinomial_native.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>

#include <cstring>
#include <mutex>
#include <vector>

#include "csrc/kernels/random/multinomial.h"
#include "csrc/oracle/aten/adapter.h"

namespace step_oracle::aten {
namespace {

using OptGenerator = std::optional<at::Generator>;
namespace templates = at::native::templates;

// Runs run(stream) -> advance from the generator's present state, and moves the generator on.
template <class Run>
void with_stream(const OptGenerator& generator, Run&& run) {
  static std::mutex& mutex = *new std::mutex;
  std::lock_guard lock(mutex);
  const device::Philox start = take_philox(generator, 0);
  const Card& card = current_card();
  const std::uint64_t advance =
      run(random::Stream{start.seed, start.offset, card.sms, card.threads_per_sm, card.compute_capability()});
  take_philox(generator, advance);
}

// CUDA cuts larger iterators into several launches.
void require_one_launch(const at::TensorIteratorBase& iter, std::string_view op) {
  if (!iter.can_use_32bit_indexing())
    refuse(op, fmt::format("of {} elements takes several launches, which are not modelled", iter.numel()),
           "Fill the tensor in parts below 2 GiB, here and on the card");
}

// kernel(stream, fill) -> advance over an iterator with one output.
template <class Kernel>
void fill(at::TensorIteratorBase& iter, std::string_view op, const OptGenerator& generator, Kernel&& kernel) {
  require_one_launch(iter, op);
  const DType dtype = dtype_of(iter.dtype(0), op);
  const std::int64_t n = iter.numel(), size = static_cast<std::int64_t>(size_of(dtype));
  if (n == 0) return;
  if (iter.is_contiguous()) {
    with_stream(generator, [&](const random::Stream& s) {
      return kernel(s, random::Fill{n, dtype, iter.data_ptr(0)});
    });
    return;
  }
  std::vector<char> dense(static_cast<std::size_t>(n * size));
  with_stream(generator, [&](const random::Stream& s) { return kernel(s, random::Fill{n, dtype, dense.data()}); });
  const char* from = dense.data();
  iter.serial_for_each(
      [&](char** data, const std::int64_t* stride, std::int64_t count) {
        for (std::int64_t i = 0; i < count; ++i, from += size)
          std::memcpy(data[0] + i * stride[0], from, static_cast<std::size_t>(size));
      },
      {0, n});
}

// What torch's templates call: one struct a distribution.
template <class Rng>
struct Uniform {
  void operator()(at::TensorIteratorBase& iter, double from, double to, OptGenerator g) {
    fill(iter, "uniform_", g, [&](const auto& s, const auto& f) { return random::uniform(s, f, from, to); });
  }
};
template <class Rng>
struct Normal {
  void operator()(const at::TensorBase& self, double mean, double std, OptGenerator g) {
    at::TensorIterator iter = at::TensorIterator::borrowing_nullary_op(self);
    fill(iter, "normal_", g, [&](const auto& s, const auto& f) { return random::normal(s, f, mean, std); });
  }
};
template <class Rng>
struct LogNormal {
  void operator()(at::TensorIteratorBase& iter, double mean, double std, OptGenerator g) {
    fill(iter, "log_normal_", g, [&](const auto& s, const auto& f) { return random::log_normal(s, f, mean, std); });
  }
};
template <class Rng>
struct Exponential {
  void operator()(at::TensorIteratorBase& iter, double lambda, OptGenerator g) {
    fill(iter, "exponential_", g, [&](const auto& s, const auto& f) { return random::exponential(s, f, lambda); });
  }
};
template <class Rng>
struct Geometric {
  void operator()(at::TensorIteratorBase& iter, double p, OptGenerator g) {
    fill(iter, "geometric_", g, [&](const auto& s, const auto& f) { return random::geometric(s, f, p); });
  }
};
template <class Rng>
struct Cauchy {
  void operator()(at::TensorIteratorBase& iter, double median, double sigma, OptGenerator g) {
    fill(iter, "cauchy_", g, [&](const auto& s, const auto& f) { return random::cauchy(s, f, median, sigma); });
  }
};
template <class Rng>
struct RandomFromTo {
  void operator()(at::TensorIteratorBase& iter, std::uint64_t range, std::int64_t base, OptGenerator g) {
    fill(iter, "random_", g, [&](const auto& s, const auto& f) { return random::random_from_to(s, f, range, base); });
  }
  void operator()(at::TensorIteratorBase& iter, OptGenerator g) {  // all 64-bit integers
    fill(iter, "random_", g, [&](const auto& s, const auto& f) { return random::random_from_to(s, f, 0, 0); });
  }
};
template <class Rng>
struct RandomFull {
  void operator()(at::TensorIteratorBase& iter, OptGenerator g) {
    fill(iter, "random_", g, [&](const auto& s, const auto& f) { return random::random_full(s, f); });
  }
};
template <class Rng>
struct Bernoulli {
  void operator()(const at::TensorBase& self, double p, OptGenerator g) {
    at::TensorIterator iter = at::TensorIterator::borrowing_nullary_op(self);
    fill(iter, "bernoulli_", g, [&](const auto& s, const auto& f) { return random::bernoulli(s, f, p); });
  }
  // The kernel of a tensor of probabilities walks both tensors in an order of its own: both dense and alike are
  // modelled.
  void operator()(const at::Tensor& self, const at::Tensor& p_, OptGenerator g) {
    TORCH_CHECK(at::isFloatingType(p_.scalar_type()), "expected probabilities tensor to have floating type, got ",
                p_.scalar_type());
    const at::Tensor typed = p_.to(self.options().dtype(self.scalar_type() == at::kDouble ? at::kDouble : at::kFloat));
    const at::Tensor p = at::expand_inplace(self, typed)->contiguous();
    if (!self.is_contiguous())
      refuse("bernoulli_", "with a tensor of probabilities into a tensor that is not contiguous is not modelled",
             "Fill a contiguous tensor and copy it");
    const DType dtype = dtype_of(self, "bernoulli_");
    with_stream(g, [&](const random::Stream& s) {
      return random::bernoulli_tensor(s, {self.numel(), dtype, self.mutable_data_ptr()}, dtype_of(p, "bernoulli_"),
                                      p.const_data_ptr());
    });
  }
};

at::Tensor& uniform_(at::Tensor& self, double from, double to, OptGenerator g) {
  return templates::uniform_impl_<Uniform, void>(self, from, to, std::move(g));
}
at::Tensor& normal_(at::Tensor& self, double mean, double std, OptGenerator g) {
  return templates::normal_impl_<Normal, void>(self, mean, std, std::move(g));
}
at::Tensor normal_tensor_float(const at::Tensor& mean, double std, OptGenerator g) {
  return templates::normal_impl<Normal, void>(mean, std, std::move(g));
}
at::Tensor& normal_tensor_float_out(const at::Tensor& mean, double std, OptGenerator g, at::Tensor& out) {
  return templates::normal_out_impl<Normal, void>(out, mean, std, std::move(g));
}
at::Tensor normal_float_tensor(double mean, const at::Tensor& std, OptGenerator g) {
  return templates::normal_impl<Normal, void>(mean, std, std::move(g));
}
at::Tensor& normal_float_tensor_out(double mean, const at::Tensor& std, OptGenerator g, at::Tensor& out) {
  return templates::normal_out_impl<Normal, void>(out, mean, std, std::move(g));
}
at::Tensor normal_tensor_tensor(const at::Tensor& mean, const at::Tensor& std, OptGenerator g) {
  return templates::normal_impl<Normal, void>(mean, std, std::move(g));
}
at::Tensor& normal_tensor_tensor_out(const at::Tensor& mean, const at::Tensor& std, OptGenerator g, at::Tensor& out) {
  return templates::normal_out_impl<Normal, void>(out, mean, std, std::move(g));
}
at::Tensor& log_normal_(at::Tensor& self, double mean, double std, OptGenerator g) {
  return templates::log_normal_impl_<LogNormal, void>(self, mean, std, std::move(g));
}
at::Tensor& exponential_(at::Tensor& self, double lambda, OptGenerator g) {
  return templates::exponential_impl_<Exponential, void>(self, lambda, std::move(g));
}
at::Tensor& geometric_(at::Tensor& self, double p, OptGenerator g) {
  return templates::geometric_impl_<Geometric, void>(self, p, std::move(g));
}
at::Tensor& cauchy_(at::Tensor& self, double median, double sigma, OptGenerator g) {
  return templates::cauchy_impl_<Cauchy, void>(self, median, sigma, std::move(g));
}
at::Tensor& bernoulli_float(at::Tensor& self, double p, OptGenerator g) {
  return templates::bernoulli_impl_<Bernoulli, void>(self, p, std::move(g));
}
at::Tensor& bernoulli_tensor(at::Tensor& self, const at::Tensor& p, OptGenerator g) {
  return templates::bernoulli_impl_<Bernoulli, void>(self, p, std::move(g));
}
at::Tensor& bernoulli_out(const at::Tensor& self, OptGenerator g, at::Tensor& out) {
  return templates::bernoulli_out_impl<Bernoulli, void>(out, self, std::move(g));
}
at::Tensor& random_(at::Tensor& self, OptGenerator g) {
  return templates::random_impl<RandomFull, void>(self, std::move(g));
}
at::Tensor& random_from(at::Tensor& self, std::int64_t from, std::optional<std::int64_t> to, OptGenerator g) {
  return templates::random_from_to_impl<RandomFromTo, void>(self, from, to, std::move(g));
}
at::Tensor& random_to(at::Tensor& self, std::int64_t to, OptGenerator g) {
  return random_from(self, 0, to, std::move(g));
}

at::Tensor& randperm_out(std::int64_t n, OptGenerator g, at::Tensor& out) {
  TORCH_CHECK(n >= 0, "n must be non-negative, got", n);
  const DType dtype = dtype_of(out, "randperm");
  out.resize_({n});
  const at::Tensor dense = out.is_contiguous() ? out : at::empty({n}, out.options());
  with_stream(g, [&](const random::Stream& s) { return random::randperm(s, {n, dtype, dense.mutable_data_ptr()}); });
  if (!dense.is_same(out)) out.copy_(dense);
  return out;
}

// [src MultinomialKernel.cu multinomial_with_replacement_kernel_impl @2.13]: of several samples; one sample and those
// without replacement are torch's composition of exponential_ and argmax or topk.
void multinomial_with_replacement(at::Tensor& result, const at::Tensor& self, const std::int64_t samples,
                                  OptGenerator g) {
  const std::int64_t rows = self.dim() == 1 ? 1 : self.size(0), cols = self.size(-1);
  const DType dtype = dtype_of(self, "multinomial");
  if (rows == 1 && cols > 1)
    refuse("multinomial",
           fmt::format("of {} samples with replacement from one row: CUDA sums it with CUB's look-back scan, whose "
                       "order of operations is not defined", samples),
           "Give two rows or more, draw one sample at a time, or without replacement");
  result.resize_({rows, samples});
  if (!result.is_contiguous()) refuse("multinomial", "into a tensor that is not contiguous", "Give a contiguous one");
  at::Tensor dist = at::empty({rows, cols}, self.options());
  dist.copy_(self.view({rows, cols}));
  random::normalise({dtype, rows, cols, dist.mutable_data_ptr()});
  const at::Tensor sums = at::cumsum(dist, 1);
  with_stream(g, [&](const random::Stream& s) {
    return random::multinomial(s, {dtype, rows, cols, samples, dist.const_data_ptr(), sums.const_data_ptr(),
                                   result.mutable_data_ptr<std::int64_t>()});
  });
  if (self.dim() == 1) result.resize_({samples});
}

at::Tensor& multinomial_out(const at::Tensor& self, std::int64_t samples, bool replacement, OptGenerator g,
                            at::Tensor& out) {
  return at::native::multinomial_out(self, samples, replacement, std::move(g), out);
}
at::Tensor multinomial(const at::Tensor& self, std::int64_t samples, bool replacement, OptGenerator g) {
  at::Tensor out = at::empty({0}, self.options().dtype(at::kLong));
  multinomial_out(self, samples, replacement, std::move(g), out);
  return out;
}

bool aligned(const at::Tensor& t, std::int64_t bytes) {
  return reinterpret_cast<std::uintptr_t>(t.const_data_ptr()) % static_cast<std::uintptr_t>(bytes) == 0;
}

// [src Dropout.cu get_vector_size @2.13]: the widest that all alignments allow, halved until nothing is left over.
int vector_size(const at::Tensor& x, const at::Tensor& y, const at::Tensor& mask, DType dtype) {
  if (!x.is_non_overlapping_and_dense() || !y.is_non_overlapping_and_dense() || !mask.is_non_overlapping_and_dense())
    return 1;
  const std::int64_t size = static_cast<std::int64_t>(size_of(dtype));
  int v = static_cast<int>(16 / size);
  while (v > 1 && !(aligned(x, v * size) && aligned(y, v * size) && aligned(mask, v))) v /= 2;
  while (v > 1 && x.numel() % v != 0) v /= 2;
  return v;
}

std::tuple<at::Tensor, at::Tensor> native_dropout(const at::Tensor& self, double p, std::optional<bool> train) {
  const at::TensorOptions as_mask = self.options().dtype(at::kBool);
  if (train.has_value() && !*train) return {self.clone(), at::ones_like(self, as_mask)};
  if (p == 1) return {at::zeros_like(self), at::zeros_like(self, as_mask)};
  at::Tensor mask = at::empty_like(self, as_mask);
  if (self.numel() == 0) return {self.clone(), mask};
  const DType dtype = dtype_of(self, "native_dropout");
  at::Tensor out = at::empty_like(self);
  const int vector = vector_size(self, out, mask, dtype);
  // The vector kernels walk memory, the scalar one the logical order.
  const bool by_memory = vector > 1 || self.is_contiguous();
  const at::Tensor x = by_memory ? self : self.contiguous();
  const at::Tensor y = by_memory ? out : at::empty(self.sizes(), self.options());
  const at::Tensor m = by_memory ? mask : at::empty(self.sizes(), as_mask);
  with_stream(std::nullopt, [&](const random::Stream& s) {
    random::Dropout d{
        x.numel(), dtype, x.const_data_ptr(), y.mutable_data_ptr(), static_cast<std::uint8_t*>(m.mutable_data_ptr()),
        p,         vector};
    return random::dropout(s, d);
  });
  if (!by_memory) {
    out.copy_(y);
    mask.copy_(m);
  }
  return {out, mask};
}

at::Tensor native_dropout_backward(const at::Tensor& grad, const at::Tensor& mask, double scale) {
  TORCH_CHECK(mask.scalar_type() == at::kBool, "Mask should be Bool Scalar Type", mask.scalar_type());
  at::Tensor out = at::empty_like(grad, grad.suggest_memory_format());
  const bool alike =
      grad.is_non_overlapping_and_dense() && grad.strides() == mask.strides() && grad.strides() == out.strides();
  const at::Tensor g = alike ? grad : grad.contiguous(), m = alike ? mask : mask.contiguous();
  const at::Tensor y = alike ? out : at::empty(grad.sizes(), grad.options());
  random::dropout_backward({grad.numel(), dtype_of(grad, "native_dropout_backward"), g.const_data_ptr(),
                            static_cast<const std::uint8_t*>(m.const_data_ptr()), y.mutable_data_ptr(), scale},
                           current_card().compute_capability());
  if (!alike) out.copy_(y);
  return out;
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
#define SO_OP(name, fn, klass) m.impl(name, SO_ADAPTER(fn));
#include "csrc/oracle/ops/random.inc"
#undef SO_OP
}

}  // namespace step_oracle::aten

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(multinomial_with_replacement_stub, &step_oracle::aten::multinomial_with_replacement)
}  // namespace at::native
