#include "csrc/kernels/core/lanes.h"
#include "csrc/kernels/reduce/reduce_body.h"
#include "csrc/kernels/reduce/reduce_exact.h"
#include "csrc/kernels/reduce/reduce_ops.h"
#include "csrc/kernels/reduce/scan.h"
#include "csrc/kernels/reduce/walk.h"

SO_ISA_BEGIN
namespace {

using reduce::Params;
using reduce::Plan;
using reduce_ops::Context;

// Accumulators of the threads over one output in one CTA: 512 threads x 8 at most; a tile keeps below it too.
constexpr std::int64_t kAccumulators = 4096;
constexpr std::int64_t kTile = 64;  // neighbouring outputs of a task where they are contiguous

std::int64_t tile_width(const Params& p, const Plan& g) {
  const std::int64_t inner = p.iter.dims > p.iter.reduced ? p.iter.shape[p.iter.reduced] : 1;
  std::int64_t fits = kAccumulators / (g.turns * g.threads());
  if (fits > kTile) fits = kTile;
  if (fits < 1) fits = 1;
  return inner < fits ? inner : fits;
}

std::int64_t tiles_of_row(const Params& p, const Plan& g) {
  const std::int64_t inner = p.iter.dims > p.iter.reduced ? p.iter.shape[p.iter.reduced] : 1;
  const std::int64_t width = tile_width(p, g);
  return (inner + width - 1) / width;
}

std::int64_t tasks(const Params& p, const Plan& g) {
  if (g.fast) return g.outputs * g.ctas;
  const std::int64_t inner = p.iter.dims > p.iter.reduced ? p.iter.shape[p.iter.reduced] : 1;
  return g.outputs / inner * tiles_of_row(p, g) * g.ctas;
}

// The threads' values left to right over their accumulators, then x by halves, then y by halves.
template <class Op, class A>
A fold_threads(const Plan& g, A* value) {
  const int width = g.fast ? g.width : 1, height = g.y_reduces ? g.height : 1;
  A rows[512];
  for (int y = 0; y < height; ++y) rows[y] = fold_halves(value + y * width, width, &Op::merge);
  return fold_halves(rows, height, &Op::merge);
}

// acc[i] takes in a[i], then b[i], c[i], d[i]; and one by one. Apart, so that the compiler sees that nothing overlaps.
template <class Op, class T, class A>
void take_four(A* __restrict acc, const T* __restrict a, const T* __restrict b, const T* __restrict c,
               const T* __restrict d, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) {
    const A first = Op::step(acc[i], widen(a[i])), second = Op::step(first, widen(b[i]));
    const A third = Op::step(second, widen(c[i]));
    acc[i] = Op::step(third, widen(d[i]));
  }
}
template <class Op, class T, class A>
void take(A* __restrict acc, const T* __restrict a, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) acc[i] = Op::step(acc[i], widen(a[i]));
}

// value[t] = the elements of accumulator vector t, left to right.
template <class Op, int kVector, class A>
void merge_elements(const A* __restrict acc, A* __restrict value, int threads) {
  for (int t = 0; t < threads; ++t) {
    A a = acc[t * kVector];
    for (int i = 1; i < kVector; ++i) a = Op::merge(a, acc[t * kVector + i]);
    value[t] = a;
  }
}

// One output in CTA `cta`, the input contiguous and read in vectors: memory order is (vector, element), so the
// accumulators of all threads lie in the order of memory.
template <class T, class Op>
typename Op::Acc vector_value(const Params& p, const Plan& g, const T* data, std::uint64_t address, std::int64_t cta) {
  using A = typename Op::Acc;
  const int vector = g.vector, threads = g.threads();
  A acc[kAccumulators];
  for (int i = 0; i < threads * vector; ++i) acc[i] = Op::start();
  std::int64_t end = g.inputs;
  const std::int64_t shift = static_cast<std::int64_t>(address % (vector * sizeof(T)) / sizeof(T));
  const bool first = cta == 0;  // of the CTAs; its first threads take the head and the tail
  if (shift > 0) {
    data -= shift;
    end += shift;
    if (first)
      for (std::int64_t t = shift; t < vector && t < end; ++t)
        acc[t * vector] = Op::step(acc[t * vector], widen(data[t]));
    data += vector;
    end -= vector;
  }
  const std::int64_t vectors = end > 0 ? end / vector : 0, jump = g.step * vector, all = std::int64_t{threads} * vector;
  std::int64_t v = cta * threads;
  for (; v + 3 * g.step + threads <= vectors; v += 4 * g.step) {  // four of each thread's vectors at a time
    const T *a = data + v * vector, *b = a + jump, *c = b + jump, *d = c + jump;
    take_four<Op>(acc, a, b, c, d, all);
  }
  for (; v < vectors; v += g.step) {
    const std::int64_t n = (vectors - v < threads ? vectors - v : threads) * vector;
    take<Op>(acc, data + v * vector, n);
  }
  if (first && end > 0)
    for (std::int64_t t = 0; t < end % vector; ++t)
      acc[t * vector] = Op::step(acc[t * vector], widen(data[vectors * vector + t]));
  A value[512];
  if (vector == 4)
    merge_elements<Op, 4>(acc, value, threads);
  else if (vector == 8)
    merge_elements<Op, 8>(acc, value, threads);
  else
    merge_elements<Op, 2>(acc, value, threads);
  (void)p;
  return fold_threads<Op>(g, value);
}

// One output in CTA `cta`, element by element, accumulators in turn.
template <class T, class Op>
typename Op::Acc turns_value(const Params& p, const Plan& g, const char* data, std::int64_t cta) {
  using A = typename Op::Acc;
  const int threads = g.threads();
  const bool contiguous = p.iter.reduced == 1 && p.iter.in_stride[0] == static_cast<std::int64_t>(sizeof(T));
  A acc[4 * 512];
  for (int i = 0; i < g.turns * threads; ++i) acc[i] = Op::start();
  int turn = 0;
  for (std::int64_t e = cta * threads; e < g.inputs; e += g.step) {
    const std::int64_t n = g.inputs - e < threads ? g.inputs - e : threads;
    A* a = acc + turn * threads;
    if (contiguous) {
      take<Op>(a, reinterpret_cast<const T*>(data) + e, n);
    } else {
      Walk walk(p.iter.reduced, p.iter.shape, p.iter.in_stride, e);
      for (std::int64_t i = 0; i < n; ++i, walk.next())
        a[i] = Op::step(a[i], widen(*reinterpret_cast<const T*>(data + walk.offset)));
    }
    turn = turn + 1 == g.turns ? 0 : turn + 1;
  }
  for (int k = 1; k < g.turns; ++k)
    for (int t = 0; t < threads; ++t) acc[t] = Op::merge(acc[t], acc[k * threads + t]);
  return fold_threads<Op>(g, acc);
}

template <class T, class Op>
void fast_values(const Params& p, const Plan& g, std::int64_t begin, std::int64_t end, typename Op::Acc* staging) {
  const int kept = p.iter.dims - p.iter.reduced;
  for (std::int64_t task = begin; task < end; ++task) {
    const std::int64_t output = task / g.ctas, cta = task % g.ctas;
    const std::int64_t offset =
        offset_of(kept, p.iter.shape + p.iter.reduced, p.iter.in_stride + p.iter.reduced, output);
    const char* data = static_cast<const char*>(p.x) + offset;
    staging[task] = g.vectorize ? vector_value<T, Op>(p, g, reinterpret_cast<const T*>(data),
                                                      p.address + static_cast<std::uint64_t>(offset), cta)
                                : turns_value<T, Op>(p, g, data, cta);
  }
}

// A tile of outputs along the fastest kept dimension: the input is read row after row, as it lies in memory.
template <class T, class Op>
void tile_values(const Params& p, const Plan& g, std::int64_t row, std::int64_t column, std::int64_t width,
                 std::int64_t cta, typename Op::Acc* staging) {
  using A = typename Op::Acc;
  const reduce::Iterator& it = p.iter;
  const int threads = g.threads(), kept = it.dims - it.reduced;
  const std::int64_t inner = kept ? it.shape[it.reduced] : 1;
  const std::int64_t pitch = kept ? it.in_stride[it.reduced] : 0;
  std::int64_t base = column * pitch;
  if (kept > 1) base += offset_of(kept - 1, it.shape + it.reduced + 1, it.in_stride + it.reduced + 1, row);
  const char* data = static_cast<const char*>(p.x) + base;
  A acc[kAccumulators];
  for (std::int64_t i = 0; i < g.turns * threads * width; ++i) acc[i] = Op::start();
  int turn = 0;
  std::int64_t first = cta * threads;
  if (it.reduced == 1 && pitch == static_cast<std::int64_t>(sizeof(T))) {  // four rounds of turns at a time
    const std::int64_t row_pitch = it.in_stride[0], jump = g.turns * g.step;
    for (; first + 4 * jump - g.step + threads <= g.inputs; first += 4 * jump)
      for (int k = 0; k < g.turns; ++k)
        for (int t = 0; t < threads; ++t) {
          A* acc_t = acc + (k * threads + t) * width;
          const char* from = data + (first + k * g.step + t) * row_pitch;
          const T *a = reinterpret_cast<const T*>(from), *b = reinterpret_cast<const T*>(from + jump * row_pitch);
          const T *c = reinterpret_cast<const T*>(from + 2 * jump * row_pitch),
                  *d = reinterpret_cast<const T*>(from + 3 * jump * row_pitch);
          take_four<Op>(acc_t, a, b, c, d, width);
        }
  }
  for (std::int64_t e = first; e < g.inputs; e += g.step) {
    const std::int64_t n = g.inputs - e < threads ? g.inputs - e : threads;
    Walk walk(it.reduced, it.shape, it.in_stride, e);
    for (std::int64_t t = 0; t < n; ++t, walk.next()) {
      A* a = acc + (turn * threads + t) * width;
      const char* from = data + walk.offset;
      if (pitch == static_cast<std::int64_t>(sizeof(T))) {
        take<Op>(a, reinterpret_cast<const T*>(from), width);
      } else {
        for (std::int64_t j = 0; j < width; ++j)
          a[j] = Op::step(a[j], widen(*reinterpret_cast<const T*>(from + j * pitch)));
      }
    }
    turn = turn + 1 == g.turns ? 0 : turn + 1;
  }
  for (int k = 1; k < g.turns; ++k)
    for (std::int64_t i = 0; i < threads * width; ++i) acc[i] = Op::merge(acc[i], acc[k * threads * width + i]);
  for (int o = threads / 2; o > 0; o /= 2)
    for (std::int64_t i = 0; i < o * width; ++i) acc[i] = Op::merge(acc[i], acc[o * width + i]);
  for (std::int64_t j = 0; j < width; ++j) staging[(row * inner + column + j) * g.ctas + cta] = acc[j];
}

template <class T, class Op>
void column_values(const Params& p, const Plan& g, std::int64_t begin, std::int64_t end, typename Op::Acc* staging) {
  const std::int64_t inner = p.iter.dims > p.iter.reduced ? p.iter.shape[p.iter.reduced] : 1;
  const std::int64_t width = tile_width(p, g), tiles = tiles_of_row(p, g);
  for (std::int64_t task = begin; task < end; ++task) {
    const std::int64_t cta = task % g.ctas, tile = task / g.ctas % tiles, row = task / g.ctas / tiles;
    const std::int64_t column = tile * width, left = inner - column;
    tile_values<T, Op>(p, g, row, column, left < width ? left : width, cta, staging);
  }
}

struct Values {
  const Params& p;
  const Plan& g;
  std::int64_t begin, end;
  void* staging;
  template <class T, class Op>
  void call() {
    auto* out = static_cast<typename Op::Acc*>(staging);
    g.fast ? fast_values<T, Op>(p, g, begin, end, out) : column_values<T, Op>(p, g, begin, end, out);
  }
};

// The last CTA: a thread folds the CTAs t, t + threads, ... from the start value, then y by halves, x by halves.
template <class Op, class A>
A fold_ctas(const Plan& g, const A* values) {
  if (g.ctas == 1) return values[0];
  const int width = g.fast ? g.width : 1, threads = width * g.height;
  A value[512];
  for (int t = 0; t < threads; ++t) {
    value[t] = Op::start();
    for (std::int64_t c = t; c < g.ctas; c += threads) value[t] = Op::merge(value[t], values[c]);
  }
  for (int o = g.height / 2; o > 0; o /= 2)
    for (int i = 0; i < o * width; ++i) value[i] = Op::merge(value[i], value[o * width + i]);
  return fold_halves(value, width, &Op::merge);
}

template <class T, class Op, class A>
void store_mean(const Params&, std::int64_t, const A&) {}
template <class T, class Op, class A>
void store_mean(const Params& p, std::int64_t offset, const Moments<A>& value) {
  if (p.op == reduce::Op::kVarMean || p.op == reduce::Op::kStdMean)
    *reinterpret_cast<T*>(static_cast<char*>(p.y2) + offset) = reduce_ops::store<T, Op>(value.mean);
}

struct Finish {
  const Params& p;
  const Plan& g;
  std::int64_t begin, end;
  const void* staging;
  template <class T, class Op>
  void call() {
    using A = typename Op::Acc;
    const auto* values = static_cast<const A*>(staging);
    const Context context = {
        static_cast<double>(static_cast<float>(g.outputs) / static_cast<float>(g.outputs * g.inputs)), p.correction};
    const Context wide = {static_cast<double>(g.outputs) / static_cast<double>(g.outputs * g.inputs), p.correction};
    const int kept = p.iter.dims - p.iter.reduced;
    Walk walk(kept, p.iter.shape + p.iter.reduced, p.iter.out_stride + p.iter.reduced, begin);
    for (std::int64_t o = begin; o < end; ++o, walk.next()) {
      const A value = fold_ctas<Op>(g, values + o * g.ctas);
      *reinterpret_cast<T*>(static_cast<char*>(p.y) + walk.offset) =
          reduce_ops::store<T, Op>(Op::result(value, sizeof(T) == 8 ? wide : context));
      store_mean<T, Op>(p, walk.offset, value);
    }
  }
};

void values(const Params& p, const Plan& g, std::int64_t begin, std::int64_t end, void* staging) {
  Values fn{p, g, begin, end, staging};
  reduce_ops::with_type(p, p.in, fn);
}

void finish(const Params& p, const Plan& g, std::int64_t begin, std::int64_t end, const void* staging) {
  Finish fn{p, g, begin, end, staging};
  reduce_ops::with_type(p, p.out, fn);
}

struct Size {
  std::int64_t bytes = 0;
  template <class T, class Op>
  void call() {
    bytes = sizeof(typename Op::Acc);
  }
};

std::int64_t value_size(const Params& p) {
  Size in, out;
  return reduce_ops::with_type(p, p.in, in) && reduce_ops::with_type(p, p.out, out) ? in.bytes : 0;
}

}  // namespace

extern const ReduceBody reduce_body;
const ReduceBody reduce_body = {&value_size, &tasks, &values, &finish, &reduce_exact::run, &scan_rows};
SO_ISA_END
