#include "csrc/kernels/reduce/reduce.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>

#include "csrc/kernels/core/error.h"
#include "csrc/kernels/core/parallel.h"
#include "csrc/kernels/reduce/reduce_body.h"

namespace step_oracle::reduce {
namespace {

std::int64_t up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// The largest power of two that is not above n; n above `most` counts as `most`.
int power_below(std::int64_t n, int most) {
  if (n >= most) return most;
  int p = 1;
  while (2 * p <= n) p *= 2;
  return p;
}

bool is_moments(Op op) { return op == Op::kVar || op == Op::kStd || op == Op::kVarMean || op == Op::kStdMean; }

// Elements of an input vector [src ReduceSumProdKernel.cu, ReduceMomentKernel.cu: sums and means of 16-bit inputs 8,
// moments 2, everything else 4].
int input_vector(const Params& p) {
  if (is_moments(p.op)) return 2;
  return size_of(p.in) == 2 && (p.op == Op::kSum || p.op == Op::kMean) ? 8 : 4;
}

// [src Reduce.cuh@v2.13.0 get_output_vec_size]
int output_vector(const Params& p) {
  const auto size = static_cast<std::int64_t>(size_of(p.in));
  int vector = 4;
  const auto divides = [&](std::uint64_t n) {
    while (n % static_cast<std::uint64_t>(vector)) vector /= 2;
  };
  divides(p.address / static_cast<std::uint64_t>(size));
  divides(static_cast<std::uint64_t>(p.iter.shape[p.iter.reduced]));
  for (int d = 0; d < p.iter.dims; ++d)
    if (d != p.iter.reduced) divides(static_cast<std::uint64_t>(p.iter.in_stride[d] / size));
  return vector;
}

std::string described(const Params& p) {
  std::string shape;
  for (int d = 0; d < p.iter.dims; ++d) shape += (d ? " x " : "") + std::to_string(p.iter.shape[d]);
  return fmt::format("reduction {} of {} to {} over {} of [{}]", static_cast<int>(p.op), name_of(p.in), name_of(p.out),
                     p.iter.reduced, shape);
}

void validate(const Params& p) {
  const Iterator& it = p.iter;
  if (it.dims < 0 || it.dims > kMaxDims || it.reduced < 0 || it.reduced > it.dims)
    throw Error(ErrorKind::kBadInput,
                fmt::format("{}: {} dimensions; at most {} are allowed", described(p), it.dims, kMaxDims));
  std::int64_t elements = 1, span = 0;
  for (int d = 0; d < it.dims; ++d) {
    if (it.shape[d] < 1)
      throw Error(ErrorKind::kBadInput, described(p) + ": an empty reduction; fill its result instead");
    elements *= it.shape[d];
    span += (it.shape[d] - 1) * std::max(it.in_stride[d], it.out_stride[d]);
    if (elements > INT32_MAX || span > INT32_MAX)  // [src TensorIterator.cpp can_use_32bit_indexing]
      throw Error(ErrorKind::kUnsupported, described(p) +
                                               ": more than 2^31 - 1 elements or bytes; CUDA splits such a "
                                               "reduction, which is not modelled: reduce parts of the tensor");
  }
  if (p.sms < 1 || p.threads_per_sm < 1)
    throw Error(ErrorKind::kBadInput,
                fmt::format("{}: a card of {} multiprocessors of {} threads", described(p), p.sms, p.threads_per_sm));
}

}  // namespace

Plan plan(const Params& p) {
  const Iterator& it = p.iter;
  Plan g{};
  g.outputs = g.inputs = 1;
  for (int d = 0; d < it.dims; ++d) (d < it.reduced ? g.inputs : g.outputs) *= it.shape[d];
  g.turns = is_moments(p.op) ? 2 : 4;  // [src Reduce.cuh@v2.13.0 vt0]
  g.vector = 1;
  g.out_vector = 1;
  g.fast = it.reduced == it.dims || it.in_stride[0] < it.in_stride[it.reduced];
  const auto size = static_cast<std::int64_t>(size_of(p.in));
  std::int64_t dim0 = g.fast ? g.inputs : g.outputs, dim1 = g.fast ? g.outputs : g.inputs;
  if (it.dims == 0) dim0 = dim1 = 1;
  const std::int64_t fastest = it.dims == 0 ? size : it.in_stride[g.fast ? 0 : it.reduced];
  if (fastest == size) {
    if (g.fast && dim0 >= 128 && it.reduced == 1) {
      g.vectorize = true;
      g.vector = input_vector(p);
      dim0 /= g.vector;
    } else if (!g.fast) {
      g.out_vector = output_vector(p);
      dim0 /= g.out_vector;
    }
  }
  const int most = 512 / g.out_vector;  // [src Reduce.cuh@v2.13.0 MAX_NUM_THREADS]
  const int p0 = power_below(dim0, most), p1 = power_below(dim1, most);
  g.width = std::min(p0, 32);
  g.height = std::min(p1, most / g.width);
  g.width = std::min(p0, most / g.height);
  g.step = g.fast ? g.width : 1;
  std::int64_t step_output = g.fast ? 1 : g.width;
  // 16 and 256 elements a thread at least and at most [src Reduce.cuh@v2.13.0 setReduceConfig].
  g.y_reduces = up(g.inputs, g.step) >= std::min(g.height * 16, 256);
  (g.y_reduces ? g.step : step_output) *= g.height;
  g.ctas = 1;
  const std::int64_t target = std::int64_t{p.sms} * (p.threads_per_sm / (g.width * g.height));
  const std::int64_t grid = up(g.outputs / g.out_vector, step_output), each = up(g.inputs, g.step);
  if (g.y_reduces && each >= 256 && grid <= target) {
    g.ctas = static_cast<int>(std::max(std::min(up(target, grid), up(each, 16)), up(each, 256)));
    if (g.ctas > 1) g.step *= g.ctas;
  }
  return g;
}

void run(const Params& p) {
  validate(p);
  const auto& body = SO_BODY(reduce_body);
  const Plan g = plan(p);
  const std::int64_t bytes = body.value_size(p);
  if (bytes == 0) {
    std::atomic<bool> known{true};
    const std::int64_t grain = std::max<std::int64_t>(1, 16384 / g.inputs);
    parallel_for(g.outputs, grain, [&](std::int64_t b, std::int64_t e) {
      if (!body.exact(p, b, e)) known = false;
    });
    if (!known) throw Error(ErrorKind::kUnsupported, described(p) + ": not modelled for these types");
    return;
  }
  const std::unique_ptr<char[]> staging(new char[static_cast<std::size_t>(g.outputs * g.ctas * bytes)]);
  const std::int64_t tasks = body.tasks(p, g), work = std::max<std::int64_t>(1, g.outputs * g.inputs / tasks);
  parallel_for(tasks, std::max<std::int64_t>(1, 16384 / work),
               [&](std::int64_t b, std::int64_t e) { body.values(p, g, b, e, staging.get()); });
  parallel_for(g.outputs, std::max<std::int64_t>(1, 16384 / g.ctas),
               [&](std::int64_t b, std::int64_t e) { body.finish(p, g, b, e, staging.get()); });
}

void scan(const ScanParams& p) {
  const char* name = p.product ? "cumprod" : "cumsum";
  if (p.outer < 0 || p.n < 0 || p.inner < 0)
    throw Error(ErrorKind::kBadInput,
                fmt::format("{}: sizes {} x {} x {}; none may be negative", name, p.outer, p.n, p.inner));
  const bool floats = p.in == DType::kF32 || p.in == DType::kF64 || p.in == DType::kBF16 || p.in == DType::kF16;
  if (floats ? p.out != p.in : p.out != DType::kI64)
    throw Error(ErrorKind::kUnsupported,
                fmt::format("{} of {} to {} is not modelled", name, name_of(p.in), name_of(p.out)));
  if (p.outer * p.n * p.inner == 0) return;
  if (floats && p.outer * p.inner == 1 && p.n > 1)
    throw Error(ErrorKind::kUnsupported,
                fmt::format("{} over a whole {} tensor of {} elements: CUDA runs CUB's look-back "
                            "scan, whose order of operations is not defined; add a dimension of size 2 or more",
                            name, name_of(p.in), p.n));
  parallel_for(p.outer, 1, [&](std::int64_t b, std::int64_t e) { SO_BODY(reduce_body).scan(p, b, e); });
}

}  // namespace step_oracle::reduce
