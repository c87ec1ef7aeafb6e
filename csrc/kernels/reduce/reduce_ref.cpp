// The definition: blocks, threads, shared memory and shuffles as Reduce.cuh and ScanUtils.cuh of torch 2.13.0 have
// them.
#include <map>
#include <vector>

#include "csrc/kernels/arith/libdevice.h"
#include "csrc/kernels/reduce/reduce.h"
#include "csrc/kernels/reduce/reduce_exact.h"
#include "csrc/kernels/reduce/reduce_ops.h"
#include "csrc/kernels/reduce/scan.h"

namespace step_oracle::reduce::ref {
namespace {

std::int64_t offset_at(int dims, const std::int64_t* shape, const std::int64_t* stride, std::int64_t index) {
  std::int64_t offset = 0;
  for (int d = 0; d < dims; ++d) {
    offset += index % shape[d] * stride[d];
    index /= shape[d];
  }
  return offset;
}

template <class T, class Op>
struct Kernel {
  using A = typename Op::Acc;
  using Block = std::vector<A>;  // a value a thread: y * width + x
  const Params& p;
  const Plan& g;
  std::int64_t step_y, step_cta, out_y, step_output;

  Kernel(const Params& params, const Plan& plan) : p(params), g(plan) {
    const std::int64_t x = g.fast ? g.width : 1;
    step_y = g.y_reduces ? x : 0;
    step_cta = g.ctas > 1 ? x * (g.y_reduces ? g.height : 1) : 0;
    const std::int64_t across = g.fast ? 1 : g.width;
    out_y = g.y_reduces ? 0 : across;
    step_output = across * (g.y_reduces ? 1 : g.height);
  }
  std::int64_t input_index(int x, int y, int cta) const { return (g.fast ? x : 0) + y * step_y + cta * step_cta; }
  std::int64_t output_index(int x, int y, std::int64_t block) const {
    return (g.fast ? 0 : x) + y * out_y + block * step_output;
  }

  A load_step(A a, const char* at) const { return Op::step(a, widen(*reinterpret_cast<const T*>(at))); }

  A vectorised(const char* data, std::uint64_t address, int x, int y, int cta) const {
    const std::int64_t size = sizeof(T), vector = g.vector;
    const bool tail_team = (!g.y_reduces || y == 0) && cta == 0;
    std::int64_t end = g.inputs;
    A first = Op::start();
    const auto shift = static_cast<std::int64_t>(address % static_cast<std::uint64_t>(vector * size)) / size;
    if (shift > 0) {
      data -= shift * size;
      end += shift;
      if (x >= shift && x < vector && tail_team) first = load_step(first, data + x * size);
      end -= vector;
      data += vector * size;
    }
    std::vector<A> list(static_cast<std::size_t>(vector), Op::start());
    list[0] = first;
    for (std::int64_t idx = input_index(x, y, cta); idx * vector + vector - 1 < end; idx += g.step)
      for (std::int64_t i = 0; i < vector; ++i)
        list[static_cast<std::size_t>(i)] =
            load_step(list[static_cast<std::size_t>(i)], data + (idx * vector + i) * size);
    const std::int64_t at = end - end % vector + x;
    if (tail_team && at < end) list[0] = load_step(list[0], data + at * size);
    for (std::size_t i = 1; i < list.size(); ++i) list[0] = Op::merge(list[0], list[i]);
    return list[0];
  }

  A in_turns(const char* data, int x, int y, int cta) const {
    std::vector<A> list(static_cast<std::size_t>(g.turns), Op::start());
    std::int64_t idx = input_index(x, y, cta);
    const auto at = [&](std::int64_t i) { return data + offset_at(p.iter.reduced, p.iter.shape, p.iter.in_stride, i); };
    while (idx + (g.turns - 1) * g.step < g.inputs) {
      for (int i = 0; i < g.turns; ++i)
        list[static_cast<std::size_t>(i)] = load_step(list[static_cast<std::size_t>(i)], at(idx + i * g.step));
      idx += g.step * g.turns;
    }
    for (int i = 0; i < g.turns && idx < g.inputs; ++i, idx += g.step)
      list[static_cast<std::size_t>(i)] = load_step(list[static_cast<std::size_t>(i)], at(idx));
    for (std::size_t i = 1; i < list.size(); ++i) list[0] = Op::merge(list[0], list[i]);
    return list[0];
  }

  A thread_value(std::int64_t output, int x, int y, int cta) const {
    const Iterator& it = p.iter;
    const std::int64_t base = offset_at(it.dims - it.reduced, it.shape + it.reduced, it.in_stride + it.reduced, output);
    const char* data = static_cast<const char*>(p.x) + base;
    return g.vectorize ? vectorised(data, p.address + static_cast<std::uint64_t>(base), x, y, cta)
                       : in_turns(data, x, y, cta);
  }

  void block_x(Block& v) const {
    const int w = g.width;
    int dim = w;
    if (dim > 32) {
      for (int offset = dim / 2; offset >= 32; offset >>= 1)
        for (int y = 0; y < g.height; ++y)
          for (int x = 0; x < offset; ++x) {
            A& own = v[static_cast<std::size_t>(y * w + x)];
            own = Op::merge(own, v[static_cast<std::size_t>(y * w + x + offset)]);
          }
      dim = 32;
    }
    for (int offset = dim >> 1; offset > 0; offset >>= 1) {  // shuffle-down within the 32 threads of a warp
      const Block before = v;
      for (int t = 0; t < w * g.height; ++t) {
        const int other = t % 32 + offset < 32 && t + offset < w * g.height ? t + offset : t;
        v[static_cast<std::size_t>(t)] =
            Op::merge(before[static_cast<std::size_t>(t)], before[static_cast<std::size_t>(other)]);
      }
    }
  }

  void block_y(Block& v) const {
    const int w = g.width;
    for (int offset = g.height / 2; offset > 0; offset >>= 1)
      for (int y = 0; y < offset; ++y)
        for (int x = 0; x < w; ++x) {
          A& own = v[static_cast<std::size_t>(y * w + x)];
          own = Op::merge(own, v[static_cast<std::size_t>((y + offset) * w + x)]);
        }
  }

  Block run_block(std::int64_t block, int cta, int lane) const {
    Block v(static_cast<std::size_t>(g.width * g.height), Op::start());
    for (int y = 0; y < g.height; ++y)
      for (int x = 0; x < g.width; ++x) {
        const std::int64_t output = output_index(x, y, block) * g.out_vector;
        if (output < g.outputs && input_index(x, y, cta) < g.inputs)
          v[static_cast<std::size_t>(y * g.width + x)] = thread_value(output + lane, x, y, cta);
      }
    if (g.fast) block_x(v);
    if (g.y_reduces) block_y(v);
    return v;
  }

  // The last CTA's fold of what all CTAs of an output left.
  Block fold_ctas(const std::vector<Block>& stage) const {
    Block v(static_cast<std::size_t>(g.width * g.height), Op::start());
    for (int y = 0; y < g.height; ++y)
      for (int x = 0; x < g.width; ++x) {
        A& own = v[static_cast<std::size_t>(y * g.width + x)];
        const int from = g.fast ? x + y * g.width : y, step = g.fast ? g.width * g.height : g.height;
        for (int c = from; c < g.ctas; c += step)
          own = Op::merge(own, stage[static_cast<std::size_t>(c)][static_cast<std::size_t>(g.fast ? 0 : x)]);
      }
    block_y(v);
    if (g.fast) block_x(v);
    return v;
  }

  template <class Store>
  void run(Store store) const {
    const std::int64_t grid = (g.outputs / g.out_vector + step_output - 1) / step_output;
    for (std::int64_t block = 0; block < grid; ++block)
      for (int lane = 0; lane < g.out_vector; ++lane) {
        std::vector<Block> stage;
        for (int c = 0; c < g.ctas; ++c) stage.push_back(run_block(block, c, lane));
        const Block v = g.ctas > 1 ? fold_ctas(stage) : stage[0];
        for (int y = 0; y < g.height; ++y)
          for (int x = 0; x < g.width; ++x) {
            const std::int64_t output = output_index(x, y, block) * g.out_vector + lane;
            if (output < g.outputs && (!g.fast || x == 0) && (!g.y_reduces || y == 0))
              store(output, v[static_cast<std::size_t>(y * g.width + x)]);
          }
      }
  }
};

template <class A>
A first_of(const A& value) {
  return value;
}
template <class A>
A first_of(const Moments<A>& value) {
  return value.mean;
}

struct Run {
  const Params& p;
  const Plan& g;
  std::map<std::int64_t, std::vector<char>> values;  // output -> accumulator's bytes
  template <class T, class Op>
  void call() {
    Kernel<T, Op>(p, g).run([&](std::int64_t output, const typename Op::Acc& v) {
      const char* bytes = reinterpret_cast<const char*>(&v);
      values[output].assign(bytes, bytes + sizeof v);
    });
  }
};

// NormOps: the order is a member of the functor on the card.
thread_local float norm_order = 0.0f;
template <class A>
struct PowerNorm : reduce_ops::Plus<A> {
  static A step(A a, A x) { return a + libdevice::powf(libdevice::absolute(x), norm_order); }
  static A result(A a, const reduce_ops::Context&) { return libdevice::powf(a, 1.0f / norm_order); }
};

struct Store {
  const Params& p;
  const Plan& g;
  std::map<std::int64_t, std::vector<char>>& values;
  template <class T, class Op>
  void call() {
    const auto n = g.outputs, all = g.outputs * g.inputs;
    const double factor = sizeof(T) == 8 ? static_cast<double>(n) / static_cast<double>(all)
                                         : static_cast<double>(static_cast<float>(n) / static_cast<float>(all));
    const int kept = p.iter.dims - p.iter.reduced;
    for (auto& [output, bytes] : values) {
      typename Op::Acc v;
      std::memcpy(&v, bytes.data(), sizeof v);
      const auto at = offset_at(kept, p.iter.shape + p.iter.reduced, p.iter.out_stride + p.iter.reduced, output);
      *reinterpret_cast<T*>(static_cast<char*>(p.y) + at) =
          reduce_ops::store<T, Op>(Op::result(v, reduce_ops::Context{factor, p.correction}));
      if (p.op == reduce::Op::kVarMean || p.op == reduce::Op::kStdMean)
        *reinterpret_cast<T*>(static_cast<char*>(p.y2) + at) = reduce_ops::store<T, Op>(first_of(v));
    }
  }
};

template <class T, class Op>
void scan_block(const ScanParams& p) {
  const int log = scan_log_threads(p.outer, p.n), threads = 1 << log;
  for (std::int64_t row = 0; row < p.outer; ++row) {
    std::vector<T> buffer(static_cast<std::size_t>(2 * threads));
    T total = Op::template start<T>();
    for (std::int64_t block = 0; block < p.n; block += 2 * threads) {
      for (int t = 0; t < 2 * threads; ++t)
        buffer[static_cast<std::size_t>(t)] =
            block + t < p.n ? static_cast<const T*>(p.x)[row * p.n + block + t] : Op::template start<T>();
      buffer[0] = Op::of(buffer[0], total);
      for (int m = 0; m <= log; ++m)
        for (int t = 0; t < threads; ++t) {
          const int s = 1 << m, a = (t >> m << (m + 1)) | s, ti = a + t % s, si = a - 1;
          buffer[static_cast<std::size_t>(ti)] =
              Op::of(buffer[static_cast<std::size_t>(ti)], buffer[static_cast<std::size_t>(si)]);
        }
      for (int t = 0; t < 2 * threads && block + t < p.n; ++t)
        static_cast<T*>(p.y)[row * p.n + block + t] = scan_result(buffer[static_cast<std::size_t>(t)]);
      total = buffer[static_cast<std::size_t>(2 * threads - 1)];
    }
  }
}

template <class T, class Op>
void scan_serial(const ScanParams& p) {
  for (std::int64_t row = 0; row < p.outer; ++row)
    for (std::int64_t column = 0; column < p.inner; ++column) {
      T acc = Op::template start<T>();
      for (std::int64_t i = 0; i < p.n; ++i) {
        const std::int64_t at = (row * p.n + i) * p.inner + column;
        acc = Op::of(acc, static_cast<const T*>(p.x)[at]);
        static_cast<T*>(p.y)[at] = scan_result(acc);
      }
    }
}

}  // namespace

void run(const Params& p) {
  const Plan g = plan(p);
  Run run{p, g, {}};
  if (!reduce_ops::with_type(p, p.in, run)) {
    reduce_exact::run(p, 0, g.outputs);
    return;
  }
  Store store{p, g, run.values};
  reduce_ops::with_type(p, p.out, store);
}

void power_norm(const Params& params, float order) {
  Params p = params;
  p.op = Op::kNorm1;  // whose launch is the same
  norm_order = order;
  const Plan g = plan(p);
  Run run{p, g, {}};
  Store store{p, g, run.values};
  const auto with = [&](DType type, auto& call) {
    if (type == DType::kF32)
      call.template call<float, PowerNorm<float>>();
    else if (type == DType::kBF16)
      call.template call<Bf16, PowerNorm<float>>();
    else
      call.template call<F16, PowerNorm<float>>();
  };
  with(p.in, run);
  with(p.out, store);
}

void scan(const ScanParams& p) {
  const auto with = [&](auto zero) {
    using T = decltype(zero);
    if (p.product)
      p.inner == 1 ? scan_block<T, ScanProduct>(p) : scan_serial<T, ScanProduct>(p);
    else
      p.inner == 1 ? scan_block<T, ScanSum>(p) : scan_serial<T, ScanSum>(p);
  };
  if (p.in == DType::kF32)
    with(float{});
  else if (p.in == DType::kF64)
    with(double{});
  else if (p.in == DType::kBF16)
    with(Bf16{});
  else if (p.in == DType::kF16)
    with(F16{});
  else
    scan_rows(p, 0, p.outer);
}

}  // namespace step_oracle::reduce::ref
