#include "csrc/kernels/arith/element.h"
#include "csrc/kernels/arith/libdevice_lanes.h"
#include "csrc/kernels/core/lanes.h"
#include "csrc/kernels/softmax/softmax_body.h"

SO_ISA_BEGIN
namespace {

using softmax::BackwardParams;
using softmax::Kernel;
using softmax::Params;
using softmax::Plan;

constexpr std::int64_t kChunk = 8192;  // a block's vectors: 1024 threads of 8 elements
constexpr std::int64_t kTile = 64;     // neighbouring columns of the spatial kernel

float add(float a, float b) { return a + b; }

// What of elements [begin, begin + n) enters the row's sum; `buffer` is room for them, if there is no other.
template <class T>
struct Exponentials {
  const T* x;
  float max;
  bool close;   // no element is further than 86 from another
  float* keep;  // all of them, for the quotients; or null
  const float* values(std::int64_t begin, std::int64_t n, float* buffer) const {
    const T* at = x + begin;
    float* out = keep ? keep + begin : buffer;
    if constexpr (sizeof(T) == sizeof(float))
      if (close) {
        libdevice::exp_of_differences(at, max, out, n);
        return out;
      }
#pragma GCC ivdep  // in place, at equal indices
    for (std::int64_t i = 0; i < n; ++i) out[i] = widen(at[i]) - max;
    libdevice::exp_in_place(out, n);
    return out;
  }
};
// What the backward kernel adds up: the gradient, or its product with the result, rounded as it is stored.
template <class T>
struct Gradients {
  const T* grad;
  const float* values(std::int64_t begin, std::int64_t n, float* buffer) const {
    const T* at = grad + begin;
    if constexpr (sizeof(T) == sizeof(float)) return at;
    for (std::int64_t i = 0; i < n; ++i) buffer[i] = widen(at[i]);
    return buffer;
  }
  float operator[](std::int64_t i) const { return widen(grad[i]); }
};
template <class T>
struct Products {
  const T *grad, *y;
  const float* values(std::int64_t begin, std::int64_t n, float* buffer) const {
    for (std::int64_t i = 0; i < n; ++i) buffer[i] = (*this)[begin + i];
    return buffer;
  }
  float operator[](std::int64_t i) const { return widen(narrow<T>(widen(grad[i]) * widen(y[i]))); }
};

// sum[t] += elements t, t + threads, ... of [begin, end), in order.
template <class Source>
void add_strided(const Source& source, std::int64_t begin, std::int64_t end, int threads, float* sum, float* buffer) {
  const std::int64_t most = threads < 1024 ? 1024 / threads * threads : threads;
  for (std::int64_t at = begin; at < end; at += most) {
    const std::int64_t n = end - at < most ? end - at : most;
    const float* v = source.values(at, n, buffer);
    std::int64_t base = 0;
    if (threads == kWarp) {
      float lane[kWarp];
      for (int t = 0; t < kWarp; ++t) lane[t] = sum[t];
      for (; base + kWarp <= n; base += kWarp)
        for (int t = 0; t < kWarp; ++t) lane[t] = lane[t] + v[base + t];
      for (int t = 0; t < kWarp; ++t) sum[t] = lane[t];
    }
    for (; base < n; base += threads) {
      const std::int64_t m = n - base < threads ? n - base : threads;
      for (std::int64_t t = 0; t < m; ++t) sum[t] = sum[t] + v[base + t];
    }
  }
}

// sum[t] += the elements of vectors t, t + threads, ..., from element `begin` on; `vectors` of them.
template <int kVector, class Source>
void add_vectors(const Source& source, std::int64_t begin, std::int64_t vectors, int threads, float* sum,
                 float* buffer) {
  for (std::int64_t v = 0; v < vectors; v += threads) {
    const std::int64_t n = vectors - v < threads ? vectors - v : threads;
    const float* value = source.values(begin + v * kVector, n * kVector, buffer);
    for (std::int64_t t = 0; t < n; ++t) {
      float s = sum[t];
      for (int j = 0; j < kVector; ++j) s = s + value[t * kVector + j];
      sum[t] = s;
    }
  }
}

template <class Source>
void add_vectors(const Source& source, const Plan& plan, std::int64_t begin, std::int64_t vectors, float* sum,
                 float* buffer) {
  plan.vector == 4 ? add_vectors<4>(source, begin, vectors, plan.threads, sum, buffer)
                   : add_vectors<8>(source, begin, vectors, plan.threads, sum, buffer);
}

// The threads' sums of a row. shift: elements by which the row's start misses 16 bytes (general kernel).
template <class Source>
void thread_sums(const Source& source, const Plan& plan, std::int64_t n, std::int64_t shift, float* sum) {
  float buffer[kChunk];
  for (int t = 0; t < plan.threads; ++t) sum[t] = 0.0f;
  if (plan.kernel == Kernel::kWarp || plan.kernel == Kernel::kRegister) {
    add_strided(source, 0, n, plan.threads, sum, buffer);
  } else if (plan.kernel == Kernel::kShared) {
    add_vectors(source, plan, 0, n / plan.vector, sum, buffer);
  } else {
    std::int64_t at = 0;
    if (shift > 0) {
      at = plan.threads - shift < n ? plan.threads - shift : n;
      const float* v = source.values(0, at, buffer);
      for (std::int64_t i = 0; i < at; ++i) sum[shift + i] = sum[shift + i] + v[i];
    }
    const std::int64_t block = std::int64_t{plan.vector} * plan.threads, whole = (n - at) / block * block;
    add_vectors(source, plan, at, whole / plan.vector, sum, buffer);
    add_strided(source, at + whole, n, plan.threads, sum, buffer);
  }
}

// The general backward kernel: each warp's values in order from 0, then the warps' in order from 0.
float fold_serially(const float* sum, int threads) {
  float total = 0.0f;
  for (int w = 0; w < threads / kWarp; ++w) {
    float warp = 0.0f;
    for (int i = 0; i < kWarp; ++i) warp = warp + sum[w * kWarp + i];
    total = total + warp;
  }
  return total;
}

// A row's largest element; as words, its largest magnitude (NaN is beyond all).
struct Extremes {
  float max;
  std::uint32_t magnitude;
};
template <class T>
Extremes extremes(const T* x, std::int64_t n) {
  constexpr int kWide = 64;
  float lanes[kWide];
  std::uint32_t words[kWide];
  for (int i = 0; i < kWide; ++i) lanes[i] = -__builtin_inff(), words[i] = 0;
  const auto take = [&](float v, std::int64_t i) {
    lanes[i] = lanes[i] < v ? v : lanes[i];
    const std::uint32_t word = bits_of(v) & 0x7fffffffu;
    words[i] = words[i] < word ? word : words[i];
  };
  std::int64_t at = 0;
  for (; at + kWide <= n; at += kWide)
    for (int i = 0; i < kWide; ++i) take(widen(x[at + i]), i);
  for (; at < n; ++at) take(widen(x[at]), at % kWide);
  const float max = fold_halves(lanes, kWide, [](float a, float b) { return a < b ? b : a; });
  return {max, fold_halves(words, kWide, [](std::uint32_t a, std::uint32_t b) { return a < b ? b : a; })};
}

// v[i] / sum, in double where that rounds alike: the double product is off by 2^-52 of itself at most, a quotient of
// floats that is normal lies no nearer than 2^-49 to the middle of two floats. Zeros are exact.
template <class Out>
void divide(const float* v, float sum, Out* y, std::int64_t n) {
  std::uint32_t least = ~0u;  // as words, zero last
  for (std::int64_t i = 0; i < n; ++i) {
    const std::uint32_t word = bits_of(v[i]) - 1;
    least = word < least ? word : least;
  }
  // The sum has fewer than 2^31 terms of at most 1: quotients of 2^-90 and more are above 2^-121.
  if (sum == sum && least >= bits_of(0x1p-90f) - 1) {
    const double inverse = 1.0 / static_cast<double>(sum);
#pragma GCC ivdep
    for (std::int64_t i = 0; i < n; ++i) y[i] = narrow<Out>(static_cast<float>(static_cast<double>(v[i]) * inverse));
  } else {
#pragma GCC ivdep
    for (std::int64_t i = 0; i < n; ++i) y[i] = narrow<Out>(canonical(v[i] / sum));
  }
}

template <class In, class Out, bool kLog>
void forward_row(const Plan& plan, const In* x, Out* y, std::int64_t n, std::int64_t shift) {
  // A NaN needs no care in the maximum: its own exponential makes the sum NaN, and so every result.
  const auto [max, magnitude] = extremes(x, n);
  const bool close = magnitude <= bits_of(43.0f);
  float kept[kChunk];  // the exponentials of a row that fits, where the output cannot hold them
  float* keep = nullptr;
  if constexpr (!kLog && sizeof(Out) == sizeof(float))
    keep = reinterpret_cast<float*>(y);
  else if (!kLog && n <= kChunk)
    keep = kept;
  const Exponentials<In> source{x, max, close, keep};
  float sums[1024];
  thread_sums(source, plan, n, shift, sums);
  const float sum =
      plan.kernel == Kernel::kWarp ? fold_halves(sums, plan.threads, &add) : fold_block(sums, plan.threads, 0.0f, &add);
  if constexpr (kLog) {
    const float log = libdevice::logf(sum);
    for (std::int64_t i = 0; i < n; ++i) y[i] = narrow<Out>(canonical((widen(x[i]) - max) - log));
  } else if (keep != nullptr) {
    divide(keep, sum, y, n);
  } else {
    for (std::int64_t at = 0; at < n; at += kChunk) {
      const std::int64_t m = n - at < kChunk ? n - at : kChunk;
      divide(Exponentials<In>{x, max, close, nullptr}.values(at, m, kept), sum, y + at, m);
    }
  }
}

template <class Out, bool kLog, class In, class Source>
void backward_row(const Plan& plan, const Source& source, const In* y, Out* dx, std::int64_t n, std::int64_t shift) {
  float sums[1024];
  thread_sums(source, plan, n, shift, sums);
  const float sum = plan.kernel == Kernel::kWarp      ? fold_halves(sums, plan.threads, &add)
                    : plan.kernel == Kernel::kGeneral ? fold_serially(sums, plan.threads)
                                                      : fold_block(sums, plan.threads, 0.0f, &add);
  for (std::int64_t i = 0; i < n; ++i) {
    const float g = source[i], o = widen(y[i]);
    dx[i] = narrow<Out>(canonical(kLog ? fma(-libdevice::expf(o), sum, g) : fma(-sum, o, g)));
  }
}

// Columns [column, column + width) of one outer index: thread d of the dimension folds rows d, d + threads, ...;
// halves.
template <class Value>
void spatial_sum(const Plan& plan, std::int64_t n, std::int64_t width, float* sum, Value value) {
  float sums[1024];
  const int threads = plan.threads;
  for (std::int64_t i = 0; i < threads * width; ++i) sums[i] = 0.0f;
  for (std::int64_t d = 0; d < n; ++d) {
    float* s = sums + d % threads * width;
    for (std::int64_t j = 0; j < width; ++j) s[j] = s[j] + value(d, j);
  }
  for (int o = threads / 2; o > 0; o /= 2)
    for (std::int64_t i = 0; i < o * width; ++i) sums[i] = sums[i] + sums[o * width + i];
  for (std::int64_t j = 0; j < width; ++j) sum[j] = sums[j];
}

template <class In, class Out, bool kLog>
void forward_columns(const Plan& plan, const In* x, Out* y, std::int64_t n, std::int64_t inner, std::int64_t width) {
  float max[kTile], sum[kTile];
  for (std::int64_t j = 0; j < width; ++j) max[j] = -__builtin_inff();
  for (std::int64_t d = 0; d < n; ++d)
    for (std::int64_t j = 0; j < width; ++j) {
      const float v = widen(x[d * inner + j]);
      max[j] = max[j] < v ? v : max[j];
    }
  spatial_sum(plan, n, width, sum,
              [&](std::int64_t d, std::int64_t j) { return libdevice::expf(widen(x[d * inner + j]) - max[j]); });
  if (kLog)
    for (std::int64_t j = 0; j < width; ++j) sum[j] = libdevice::logf(sum[j]);
  for (std::int64_t d = 0; d < n; ++d)
    for (std::int64_t j = 0; j < width; ++j) {
      const float v = widen(x[d * inner + j]) - max[j];
      y[d * inner + j] = narrow<Out>(canonical(kLog ? v - sum[j] : libdevice::expf(v) / sum[j]));
    }
}

template <class Out, bool kLog, class In, class Source>
void backward_columns(const Plan& plan, const Source& source, const In* y, Out* dx, std::int64_t n, std::int64_t inner,
                      std::int64_t width) {
  float sum[kTile];
  spatial_sum(plan, n, width, sum, [&](std::int64_t d, std::int64_t j) { return source[d * inner + j]; });
  for (std::int64_t d = 0; d < n; ++d)
    for (std::int64_t j = 0; j < width; ++j) {
      const float g = source[d * inner + j], o = widen(y[d * inner + j]);
      dx[d * inner + j] = narrow<Out>(canonical(kLog ? fma(-libdevice::expf(o), sum[j], g) : fma(-sum[j], o, g)));
    }
}

std::int64_t shift_of(std::uint64_t address, std::int64_t row, std::int64_t n, std::size_t size) {
  return static_cast<std::int64_t>((address + static_cast<std::uint64_t>(row * n) * size) % 16 / size);
}

template <class In, class Out, bool kLog>
void forward_typed(const Params& p, const Plan& plan, std::int64_t begin, std::int64_t end) {
  for (std::int64_t row = begin; row < end; ++row) {
    const In* x = static_cast<const In*>(p.x) + row * p.n * p.inner;
    Out* y = static_cast<Out*>(p.y) + row * p.n * p.inner;
    if (plan.kernel != Kernel::kSpatial) {
      forward_row<In, Out, kLog>(plan, x, y, p.n, shift_of(p.x_address, row, p.n, sizeof(In)));
      continue;
    }
    for (std::int64_t j = 0; j < p.inner; j += kTile)
      forward_columns<In, Out, kLog>(plan, x + j, y + j, p.n, p.inner, p.inner - j < kTile ? p.inner - j : kTile);
  }
}

template <class Out, bool kLog, class In, class Make>
void backward_rows(const BackwardParams& p, const Plan& plan, std::int64_t begin, std::int64_t end, Make source_of) {
  for (std::int64_t row = begin; row < end; ++row) {
    const std::int64_t at = row * p.n * p.inner;
    const In *grad = static_cast<const In*>(p.grad) + at, *y = static_cast<const In*>(p.y) + at;
    Out* dx = static_cast<Out*>(p.dx) + at;
    if (plan.kernel != Kernel::kSpatial) {
      backward_row<Out, kLog>(plan, source_of(grad, y), y, dx, p.n, shift_of(p.grad_address, row, p.n, sizeof(In)));
      continue;
    }
    for (std::int64_t j = 0; j < p.inner; j += kTile)
      backward_columns<Out, kLog>(plan, source_of(grad + j, y + j), y + j, dx + j, p.n, p.inner,
                                  p.inner - j < kTile ? p.inner - j : kTile);
  }
}
template <class In, class Out, bool kLog>
void backward_typed(const BackwardParams& p, const Plan& plan, std::int64_t begin, std::int64_t end) {
  if (!kLog && p.multiplies)
    backward_rows<Out, kLog, In>(p, plan, begin, end, [](const In* g, const In* y) { return Products<In>{g, y}; });
  else
    backward_rows<Out, kLog, In>(p, plan, begin, end, [](const In* g, const In*) { return Gradients<In>{g}; });
}

template <class In, class Out>
void forward_either(const Params& p, const Plan& plan, std::int64_t begin, std::int64_t end) {
  p.log ? forward_typed<In, Out, true>(p, plan, begin, end) : forward_typed<In, Out, false>(p, plan, begin, end);
}
template <class In, class Out>
void backward_either(const BackwardParams& p, const Plan& plan, std::int64_t begin, std::int64_t end) {
  p.log ? backward_typed<In, Out, true>(p, plan, begin, end) : backward_typed<In, Out, false>(p, plan, begin, end);
}

void forward(const Params& p, const Plan& plan, std::int64_t begin, std::int64_t end) {
  if (p.in == DType::kF32)
    forward_either<float, float>(p, plan, begin, end);
  else if (p.in == DType::kBF16 && p.out == DType::kF32)
    forward_either<Bf16, float>(p, plan, begin, end);
  else if (p.in == DType::kBF16)
    forward_either<Bf16, Bf16>(p, plan, begin, end);
  else if (p.out == DType::kF32)
    forward_either<F16, float>(p, plan, begin, end);
  else
    forward_either<F16, F16>(p, plan, begin, end);
}

void backward(const BackwardParams& p, const Plan& plan, std::int64_t begin, std::int64_t end) {
  if (p.in == DType::kBF16)
    backward_either<Bf16, Bf16>(p, plan, begin, end);
  else if (p.in == DType::kF16)
    backward_either<F16, F16>(p, plan, begin, end);
  else if (p.out == DType::kBF16)
    backward_either<float, Bf16>(p, plan, begin, end);
  else if (p.out == DType::kF16)
    backward_either<float, F16>(p, plan, begin, end);
  else
    backward_either<float, float>(p, plan, begin, end);
}

}  // namespace

extern const SoftmaxBody softmax_body;
const SoftmaxBody softmax_body = {&forward, &backward};
SO_ISA_END
