#include "csrc/kernels/arith/libdevice.h"
#include "csrc/kernels/arith/typed_element.h"
#include "csrc/kernels/core/lanes.h"
#include "csrc/kernels/norm/batch_body.h"

SO_ISA_BEGIN
namespace {

using norm::BatchBackward;
using norm::BatchBlock;
using norm::BatchForward;
using norm::BatchInput;
using norm::BatchLayout;
using norm::BatchShape;
using norm::BatchStatistics;
using norm::BatchSums;
using norm::BatchUpdate;
using norm::kBatchBlocks;
using norm::kBatchLoads;
using norm::kBatchThreads;

template <class T>
const T* at(const void* data, const BatchLayout& l, std::int64_t sample, std::int64_t channel) {
  return static_cast<const T*>(data) + sample * l.sample + channel * l.channel;
}
template <class T>
T* at(void* data, const BatchLayout& l, std::int64_t sample, std::int64_t channel) {
  return static_cast<T*>(data) + sample * l.sample + channel * l.channel;
}
// A parameter of either type; `other` where there is none.
float parameter(DType type, const void* data, std::int64_t c, float other) {
  return data ? typed::load(type, data, c) : other;
}
void put(DType type, void* data, std::int64_t c, float value) { typed::store(type, data, c, canonical(value)); }
std::int64_t smaller(std::int64_t a, std::int64_t b) { return a < b ? a : b; }

// ---- statistics of planes
struct Welford {
  float mean, m2;
  std::int32_t count;
};

Welford merge(const Welford& a, const Welford& b) {
  const std::int32_t count = a.count + b.count;
  const float na = static_cast<float>(a.count), nb = static_cast<float>(b.count), n = static_cast<float>(count);
  const float factor = 1.0f / (n > 1.0f ? n : 1.0f);
  const float d = a.mean - b.mean;
  return {fma(na, a.mean, nb * b.mean) * factor, a.m2 + fma(((d * d) * na) * nb, factor, b.m2), count};
}

// Lane 0 of an xor tree with offsets 1, 2, 4, ...: own on the left.
Welford fold_neighbours(Welford* v) {
  for (int o = 1; o < kWarp; o *= 2)
    for (int i = 0; i < kWarp; i += 2 * o) v[i] = merge(v[i], v[i + o]);
  return v[0];
}

template <class T>
void statistics_planes_typed(const BatchStatistics& p, BatchBlock block, std::int64_t begin, std::int64_t end) {
  const BatchShape& s = p.shape;
  for (std::int64_t c = begin; c < end; ++c) {
    float mean[kBatchThreads] = {}, m2[kBatchThreads] = {};
    std::int32_t count[kBatchThreads] = {};
    for (int y = 0; y < block.height; ++y) {
      float *const a = mean + y * block.width, *const q = m2 + y * block.width;
      std::int32_t* const n = count + y * block.width;
      for (std::int64_t sample = y; sample < s.n; sample += block.height)
        for (std::int64_t first = 0; first < s.places; first += block.width) {
          const T* const x = at<T>(p.x, p.at, sample, c) + first * p.at.place;
          const std::int64_t m = smaller(block.width, s.places - first), step = p.at.place;
          for (std::int64_t t = 0; t < m; ++t) {
            const float v = widen(x[t * step]), d = v - a[t];
            n[t] += 1;
            a[t] = a[t] + d / static_cast<float>(n[t]);
            q[t] = fma(d, v - a[t], q[t]);
          }
        }
    }
    Welford leaders[kWarp] = {};
    for (int w = 0; w < kBatchThreads / kWarp; ++w) {
      Welford lanes[kWarp];
      for (int l = 0; l < kWarp; ++l) lanes[l] = {mean[w * kWarp + l], m2[w * kWarp + l], count[w * kWarp + l]};
      leaders[w] = fold_neighbours(lanes);
    }
    const Welford all = fold_neighbours(leaders);
    p.mean[c] = canonical(all.mean);
    p.var[c] = canonical(all.m2 / static_cast<float>(static_cast<std::int32_t>(s.count())));
  }
}

// ---- statistics of rows: kBatchStrip channels side by side, whose counts are the same
struct Strip {
  float mean[kBatchStrip], m2[kBatchStrip];
  std::int32_t count;
};

// Which of the mean's two products is fused: another's, between the four accumulators of a thread; own, between threads
// [probe witness batch_norm_last, batch_norm_blocks].
enum class Fused { kOther, kOwn };
template <Fused kFused>
void merge_strips(Strip& a, const Strip& b) {
  const std::int32_t count = a.count + b.count;
  const float na = static_cast<float>(a.count), nb = static_cast<float>(b.count);
  const float factor = 1.0f / static_cast<float>(count > 1 ? count : 1);
  for (int i = 0; i < kBatchStrip; ++i) {
    const float d = a.mean[i] - b.mean[i];
    const float sum = kFused == Fused::kOwn ? fma(a.mean[i], na, b.mean[i] * nb) : fma(b.mean[i], nb, a.mean[i] * na);
    a.mean[i] = sum * factor;
    a.m2[i] = a.m2[i] + fma(((d * d) * nb) * na, factor, b.m2[i]);
  }
  a.count = count;
}
void merge(Strip& a, const Strip& b) { merge_strips<Fused::kOwn>(a, b); }
// The rows' threads by halves.
template <class V>
void fold_rows(V* rows, int height) {
  for (int o = height / 2; o > 0; o /= 2)
    for (int y = 0; y < o; ++y) merge(rows[y], rows[y + o]);
}

// What a kernel over rows has of a strip: the threads' values in their blocks, then the blocks' among the threads of one.
// thread(row, &value) is the thread that starts at that row.
template <class V, class Thread>
V fold_blocks(BatchBlock block, Thread thread) {
  V rows[kBatchThreads], staged[kBatchBlocks];
  for (int b = 0; b < block.blocks; ++b) {
    for (int y = 0; y < block.height; ++y) thread(std::int64_t{b} * block.height + y, &rows[y]);
    fold_rows(rows, block.height);
    staged[b] = rows[0];
  }
  if (block.blocks == 1) return rows[0];
  for (int y = 0; y < block.height; ++y) {
    rows[y] = {};
    for (int b = y; b < block.blocks; b += block.height) merge(rows[y], staged[b]);
  }
  fold_rows(rows, block.height);
  return rows[0];
}

template <class T>
void statistics_of_thread(const BatchStatistics& p, BatchBlock block, std::int64_t first, std::int64_t channel,
                          int width, Strip* out) {
  const std::int64_t rows = p.shape.count(), stride = std::int64_t{block.height} * block.blocks;
  Strip own[kBatchLoads] = {};
  std::int64_t row = first;
  for (std::int64_t i = 0; i < 1 + (rows - 1) / (stride * kBatchLoads); ++i)
    for (int j = 0; j < kBatchLoads; ++j, row += stride) {
      Strip& o = own[j];
      float x[kBatchStrip] = {}, inverse = 0.0f, valid = 0.0f;
      if (row < rows) {
        const T* const from = static_cast<const T*>(p.x) + row * p.shape.channels + channel;
        for (int t = 0; t < width; ++t) x[t] = widen(from[t]);
        o.count += 1;
        inverse = 1.0f / static_cast<float>(o.count);
        valid = 1.0f;
      }
      for (int t = 0; t < kBatchStrip; ++t) {
        const float d = x[t] - o.mean[t];
        o.mean[t] = fma(d, inverse, o.mean[t]);
        o.m2[t] = fma(d * (x[t] - o.mean[t]), valid, o.m2[t]);
      }
    }
  for (int j = 1; j < kBatchLoads; ++j) merge_strips<Fused::kOther>(own[0], own[j]);
  *out = own[0];
}

template <class T>
void statistics_rows_typed(const BatchStatistics& p, BatchBlock block, std::int64_t begin, std::int64_t end) {
  for (std::int64_t strip = begin; strip < end; ++strip) {
    const std::int64_t channel = strip * kBatchStrip;
    const int width = static_cast<int>(smaller(kBatchStrip, p.shape.channels - channel));
    const Strip all = fold_blocks<Strip>(block, [&](std::int64_t row, Strip* value) {
      statistics_of_thread<T>(p, block, row, channel, width, value);
    });
    for (int t = 0; t < width; ++t) {
      p.mean[channel + t] = canonical(all.mean[t]);
      p.var[channel + t] = canonical(all.m2[t] / static_cast<float>(all.count));
    }
  }
}

// ---- running statistics
void update(const BatchUpdate& p) {
  const float bessel = static_cast<float>(static_cast<double>(p.count) / static_cast<double>(p.count - 1));
  const float momentum = static_cast<float>(p.momentum), eps = static_cast<float>(p.eps), keep = 1.0f - momentum;
  for (std::int64_t c = 0; c < p.channels; ++c) {
    const float old_mean = parameter(p.parameters, p.running_mean, c, 0.0f);
    const float old_var = parameter(p.parameters, p.running_var, c, 0.0f);
    const float var = p.var[c];
    put(p.parameters, p.running_mean, c, fma(p.mean[c], momentum, keep * old_mean));
    put(p.parameters, p.running_var, c, fma(var * bessel, momentum, keep * old_var));
    if (p.invstd) p.invstd[c] = canonical(libdevice::rsqrtf(var + eps));
  }
}
void invstd(DType type, std::int64_t channels, float eps, const void* var, float* out) {
  for (std::int64_t c = 0; c < channels; ++c)
    out[c] = canonical(libdevice::rsqrtf(parameter(type, var, c, 0.0f) + eps));
}

// ---- element by element. Channels side by side where they lie side by side, else places.
template <class T>
void forward_typed(const BatchForward& p, std::int64_t begin, std::int64_t end) {
  const BatchShape& s = p.shape;
  const bool across = p.x_at.channel == 1 && p.y_at.channel == 1;
  for (std::int64_t sample = begin; sample < end; ++sample)
    for (std::int64_t first = 0; first < s.channels; first += kBatchStrip) {
      const int width = static_cast<int>(smaller(kBatchStrip, s.channels - first));
      float mean[kBatchStrip], invstd[kBatchStrip], gamma[kBatchStrip], beta[kBatchStrip];
      for (int t = 0; t < width; ++t) {
        mean[t] = p.mean[first + t];
        invstd[t] = p.invstd[first + t];
        gamma[t] = parameter(s.parameters, p.weight, first + t, 1.0f);
        beta[t] = parameter(s.parameters, p.bias, first + t, 0.0f);
      }
      const auto one = [&](float x, int t) { return canonical(fma(gamma[t] * (x - mean[t]), invstd[t], beta[t])); };
      if (across) {
        for (std::int64_t i = 0; i < s.places; ++i) {
          const T* const x = at<T>(p.x, p.x_at, sample, first) + i * p.x_at.place;
          T* const y = at<T>(p.y, p.y_at, sample, first) + i * p.y_at.place;
          for (int t = 0; t < width; ++t) y[t] = narrow<T>(one(widen(x[t]), t));
        }
        continue;
      }
      for (int t = 0; t < width; ++t) {
        const T* const x = at<T>(p.x, p.x_at, sample, first + t);
        T* const y = at<T>(p.y, p.y_at, sample, first + t);
        for (std::int64_t i = 0; i < s.places; ++i) y[i * p.y_at.place] = narrow<T>(one(widen(x[i * p.x_at.place]), t));
      }
    }
}

template <class T>
void input_typed(const BatchInput& p, std::int64_t begin, std::int64_t end) {
  const BatchShape& s = p.shape;
  for (std::int64_t sample = begin; sample < end; ++sample)
    for (std::int64_t c = 0; c < s.channels; ++c) {
      const float gamma = parameter(s.parameters, p.weight, c, 1.0f), invstd = p.invstd[c];
      const T* const dy = at<T>(p.dy, p.dy_at, sample, c);
      T* const dx = at<T>(p.dx, p.dx_at, sample, c);
      if (!p.sum_dy) {
        for (std::int64_t i = 0; i < s.places; ++i) {
          const float g = widen(dy[i * p.dy_at.place]);
          dx[i * p.dx_at.place] = narrow<T>(canonical(p.weight ? (g * gamma) * invstd : g * invstd));
        }
        continue;
      }
      const float mean = p.mean[c], dy_sum = p.sum_dy[c];
      const float one = ((invstd * invstd) * p.sum_dy_xmu[c]) * p.scale, two = gamma * invstd;
      const T* const x = at<T>(p.x, p.x_at, sample, c);
      for (std::int64_t i = 0; i < s.places; ++i) {
        const float g = widen(dy[i * p.dy_at.place]), d = widen(x[i * p.x_at.place]) - mean;
        dx[i * p.dx_at.place] = narrow<T>(canonical(fma(-d, one, fma(-dy_sum, p.scale, g)) * two));
      }
    }
}

// ---- sums of dy and of dy (x - mean)
// As the kernel's pair of sums takes a value: through the input's type.
template <class T>
float carried(float v) {
  return widen(narrow<T>(v));
}

struct Sums {
  float dy, xmu;
};

template <class T>
Sums sums_of_plane(const BatchShape& s, BatchBlock block, const BatchLayout& x_at, const void* x_data,
                   const BatchLayout& dy_at, const void* dy_data, std::int64_t c, float mean) {
  float a[kBatchThreads] = {}, b[kBatchThreads] = {};
  for (int y = 0; y < block.height; ++y) {
    float *const v1 = a + y * block.width, *const v2 = b + y * block.width;
    for (std::int64_t sample = y; sample < s.n; sample += block.height)
      for (std::int64_t first = 0; first < s.places; first += block.width) {
        const T* const x = at<T>(x_data, x_at, sample, c) + first * x_at.place;
        const T* const dy = at<T>(dy_data, dy_at, sample, c) + first * dy_at.place;
        const std::int64_t m = smaller(block.width, s.places - first);
        for (std::int64_t t = 0; t < m; ++t) {
          const float g = widen(dy[t * dy_at.place]), d = widen(x[t * x_at.place]) - mean;
          v1[t] = v1[t] + g;
          v2[t] = sizeof(T) == 4 ? fma(g, d, v2[t]) : v2[t] + carried<T>(g * d);
        }
      }
  }
  const auto add = [](float own, float other) { return own + carried<T>(other); };
  const int threads = block.width * block.height;
  return {fold_block(a, threads, 0.0f, add), fold_block(b, threads, 0.0f, add)};
}

void store(const BatchSums& p, std::int64_t c, const Sums& sums) {
  const DType type = p.shape.parameters;
  if (p.sum_dy) p.sum_dy[c] = canonical(sums.dy);
  if (p.sum_dy_xmu) p.sum_dy_xmu[c] = canonical(sums.xmu);
  if (p.dgamma) put(type, p.dgamma, c, sums.xmu * p.invstd[c]);
  if (p.dbeta) put(type, p.dbeta, c, sums.dy);
}

template <class T>
void sums_planes_typed(const BatchSums& p, BatchBlock block, std::int64_t begin, std::int64_t end) {
  for (std::int64_t c = begin; c < end; ++c)
    store(p, c, sums_of_plane<T>(p.shape, block, p.x_at, p.x, p.dy_at, p.dy, c, p.mean[c]));
}

struct SumStrip {
  float dy[kBatchStrip], xmu[kBatchStrip];
};
void merge(SumStrip& a, const SumStrip& b) {
  for (int t = 0; t < kBatchStrip; ++t) {
    a.dy[t] = a.dy[t] + b.dy[t];
    a.xmu[t] = a.xmu[t] + b.xmu[t];
  }
}

template <class T>
void sums_of_thread(const BatchSums& p, BatchBlock block, std::int64_t first, std::int64_t channel, int width,
                    SumStrip* out) {
  const std::int64_t rows = p.shape.count(), stride = std::int64_t{block.height} * block.blocks;
  SumStrip own[kBatchLoads] = {};
  float mean[kBatchStrip] = {};
  for (int t = 0; t < width; ++t) mean[t] = p.mean[channel + t];
  std::int64_t row = first;
  for (std::int64_t i = 0; i < 1 + (rows - 1) / (stride * kBatchLoads); ++i)
    for (int j = 0; j < kBatchLoads; ++j, row += stride) {
      float x[kBatchStrip] = {}, g[kBatchStrip] = {};
      if (row < rows) {
        const std::int64_t index = row * p.shape.channels + channel;
        for (int t = 0; t < width; ++t) {
          x[t] = widen(static_cast<const T*>(p.x)[index + t]);
          g[t] = widen(static_cast<const T*>(p.dy)[index + t]);
        }
      }
      for (int t = 0; t < kBatchStrip; ++t) {
        own[j].dy[t] = own[j].dy[t] + g[t];
        own[j].xmu[t] = fma(g[t], x[t] - mean[t], own[j].xmu[t]);
      }
    }
  for (int j = 1; j < kBatchLoads; ++j) merge(own[0], own[j]);
  *out = own[0];
}

template <class T>
void sums_rows_typed(const BatchSums& p, BatchBlock block, std::int64_t begin, std::int64_t end) {
  for (std::int64_t strip = begin; strip < end; ++strip) {
    const std::int64_t channel = strip * kBatchStrip;
    const int width = static_cast<int>(smaller(kBatchStrip, p.shape.channels - channel));
    const SumStrip all = fold_blocks<SumStrip>(block, [&](std::int64_t row, SumStrip* value) {
      sums_of_thread<T>(p, block, row, channel, width, value);
    });
    for (int t = 0; t < width; ++t) store(p, channel + t, {all.dy[t], all.xmu[t]});
  }
}

// ---- all gradients of a channel in one kernel
template <class T>
void backward_typed(const BatchBackward& p, BatchBlock block, std::int64_t begin, std::int64_t end) {
  const BatchShape& s = p.shape;
  for (std::int64_t c = begin; c < end; ++c) {
    float mean, invstd;
    if (p.train) {
      mean = p.mean[c];
      invstd = p.invstd[c];
    } else {
      mean = parameter(s.parameters, p.running_mean, c, 0.0f);
      invstd = 1.0f / __builtin_sqrtf(parameter(s.parameters, p.running_var, c, 0.0f) + static_cast<float>(p.eps));
    }
    const Sums sums = sums_of_plane<T>(s, block, p.x_at, p.x, p.dy_at, p.dy, c, mean);
    const float scale = 1.0f / static_cast<float>(static_cast<std::int32_t>(s.count()));
    const float mean_dy = sums.dy * scale, projection = ((sums.xmu * scale) * invstd) * invstd;
    const float factor = invstd * parameter(s.parameters, p.weight, c, 1.0f);
    for (std::int64_t sample = 0; sample < s.n; ++sample) {
      const T* const x = at<T>(p.x, p.x_at, sample, c);
      const T* const dy = at<T>(p.dy, p.dy_at, sample, c);
      T* const dx = at<T>(p.dx, p.dx_at, sample, c);
      for (std::int64_t i = 0; i < s.places; ++i) {
        const float g = widen(dy[i * p.dy_at.place]), d = widen(x[i * p.x_at.place]) - mean;
        const float centred = p.train ? fma(-d, projection, g) - mean_dy : g;
        dx[i * p.dx_at.place] = narrow<T>(canonical(centred * factor));
      }
    }
    if (p.dgamma) put(s.parameters, p.dgamma, c, sums.xmu * invstd);
    if (p.dbeta) put(s.parameters, p.dbeta, c, sums.dy);
  }
}

#define SO_BLOCKED(name, Params)                                                 \
  void name(const Params& p, BatchBlock block, std::int64_t b, std::int64_t e) { \
    if (p.shape.type == DType::kF32)                                             \
      name##_typed<float>(p, block, b, e);                                       \
    else if (p.shape.type == DType::kBF16)                                       \
      name##_typed<Bf16>(p, block, b, e);                                        \
    else                                                                         \
      name##_typed<F16>(p, block, b, e);                                         \
  }
#define SO_ELEMENTS(name, Params)                              \
  void name(const Params& p, std::int64_t b, std::int64_t e) { \
    if (p.shape.type == DType::kF32)                           \
      name##_typed<float>(p, b, e);                            \
    else if (p.shape.type == DType::kBF16)                     \
      name##_typed<Bf16>(p, b, e);                             \
    else                                                       \
      name##_typed<F16>(p, b, e);                              \
  }
SO_BLOCKED(statistics_planes, BatchStatistics)
SO_BLOCKED(statistics_rows, BatchStatistics)
SO_BLOCKED(backward, BatchBackward)
SO_BLOCKED(sums_planes, BatchSums)
SO_BLOCKED(sums_rows, BatchSums)
SO_ELEMENTS(forward, BatchForward)
SO_ELEMENTS(input, BatchInput)

}  // namespace

extern const BatchBody batch_body;
const BatchBody batch_body = {&statistics_planes, &statistics_rows, &update,    &invstd, &forward,
                              &backward,          &sums_planes,     &sums_rows, &input};
SO_ISA_END
