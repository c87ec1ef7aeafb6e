#include "csrc/kernels/arith/element.h"
#include "csrc/kernels/arith/libdevice.h"
#include "csrc/kernels/core/lanes.h"
#include "csrc/kernels/norm/norm_body.h"

SO_ISA_BEGIN
namespace {

using norm::BackwardParams;
using norm::ForwardParams;
using norm::ParameterParams;

constexpr int kThreads = 128;     // [src layer_norm_kernel.cu num_threads()]
constexpr int kRowThreads = 512;  // [src block_reduce.cuh kCUDABlockReduceNumThreads]
constexpr int kColumns = 64;      // of a tile of dgamma and dbeta

float add(float a, float b) { return a + b; }

// Running moments of many threads, an array for each part.
struct Parts {
  float* mean;
  float* m2;
  float* count;
};

// Thread i takes in what thread i + o has, i < n; reciprocal form (see moments_row.h for one pair of threads).
void merge_reciprocal(const Parts& v, int o, int n) {
#pragma GCC ivdep  // n <= o: what is written is not read
  for (int i = 0; i < n; ++i) {
    const float nw = v.count[i], no = v.count[i + o], count = nw + no;
    const float c = 1.0f / count, d = v.mean[i] - v.mean[i + o];
    const float mean = fma(v.mean[i + o], no * c, (nw * c) * v.mean[i]);
    const float m2 = fma(nw * c, no * (d * d), v.m2[i + o] + v.m2[i]);
    v.mean[i] = count > 0.0f ? mean : 0.0f;
    v.m2[i] = count > 0.0f ? m2 : 0.0f;
    v.count[i] = count;
  }
}

// The same with a division, an empty side skipped (arith/moments.h).
void merge_division(const Parts& v, int o, int n) {
#pragma GCC ivdep  // n <= o: what is written is not read
  for (int i = 0; i < n; ++i) {
    const float na = v.count[i], nb = v.count[i + o], count = na + nb;
    const float ma = v.mean[i], mb = v.mean[i + o], sa = v.m2[i], sb = v.m2[i + o];
    const float d = mb - ma, q = nb / count;
    const float mean = fma(d, q, ma), m2 = fma((d * d) * na, q, sa + sb);
    v.mean[i] = na == 0.0f ? mb : nb == 0.0f ? ma : mean;
    v.m2[i] = na == 0.0f ? sb : nb == 0.0f ? sa : m2;
    v.count[i] = na == 0.0f ? nb : nb == 0.0f ? na : count;
  }
}

template <class T>
void row_moments(const T* x, std::int64_t width, float* mean_out, float* variance) {
  float mean[kThreads], m2[kThreads], count[kThreads];
  for (int t = 0; t < kThreads; ++t) mean[t] = m2[t] = count[t] = 0.0f;
  const std::int64_t groups = width / 4;
  float n = 0.0f;  // elements that every thread of this turn has seen
  for (std::int64_t g = 0; g < groups; g += kThreads, n += 4.0f) {
    const int active = static_cast<int>(groups - g < kThreads ? groups - g : kThreads);
    const float r1 = 1.0f / (n + 1.0f), r2 = 1.0f / (n + 2.0f), r3 = 1.0f / (n + 3.0f), r4 = 1.0f / (n + 4.0f);
    const T* at = x + g * 4;
    for (int t = 0; t < active; ++t) {
      float m = mean[t], s = m2[t];
      const auto step = [&](float v, float reciprocal) {
        const float d = v - m;
        m = fma(d, reciprocal, m);
        s = fma(d, v - m, s);
      };
      step(widen(at[4 * t]), r1);
      step(widen(at[4 * t + 1]), r2);
      step(widen(at[4 * t + 2]), r3);
      step(widen(at[4 * t + 3]), r4);
      mean[t] = m;
      m2[t] = s;
      count[t] = n + 4.0f;
    }
  }
  for (int o = 16; o > 0; o /= 2)
    for (int w = 0; w < kThreads; w += kWarp) merge_reciprocal({mean + w, m2 + w, count + w}, o, o);
  for (int o = 2 * kWarp; o >= kWarp; o /= 2)
    for (int w = 0; w < o; w += kWarp) merge_reciprocal({mean + w, m2 + w, count + w}, o, 1);
  *mean_out = mean[0];
  *variance = m2[0] / static_cast<float>(width);
}

template <class T>
float mean_square(const T* x, std::int64_t width) {
  float sum[kThreads];
  for (int t = 0; t < kThreads; ++t) sum[t] = 0.0f;
  const std::int64_t groups = width / 4;
  for (std::int64_t g = 0; g < groups; g += kThreads) {
    const int active = static_cast<int>(groups - g < kThreads ? groups - g : kThreads);
    const T* at = x + g * 4;
    for (int t = 0; t < active; ++t) {
      const float a = widen(at[4 * t]), b = widen(at[4 * t + 1]), c = widen(at[4 * t + 2]), d = widen(at[4 * t + 3]);
      sum[t] = fma(d, d, fma(c, c, fma(b, b, fma(a, a, sum[t]))));
    }
  }
  for (int w = 0; w < kThreads / kWarp; ++w) sum[w] = fold_halves(sum + w * kWarp, kWarp, &add);
  return fold_halves(sum, kThreads / kWarp, &add) / static_cast<float>(width);
}

template <class T>
void strided_moments(const T* x, std::int64_t width, float* mean_out, float* variance) {
  float mean[kRowThreads], m2[kRowThreads], count[kRowThreads];
  for (int t = 0; t < kRowThreads; ++t) mean[t] = m2[t] = count[t] = 0.0f;
  float n = 0.0f;
  for (std::int64_t base = 0; base < width; base += kRowThreads) {
    const int active = static_cast<int>(width - base < kRowThreads ? width - base : kRowThreads);
    n += 1.0f;
    for (int t = 0; t < active; ++t) {
      const float v = widen(x[base + t]), d = v - mean[t];
      const float m = mean[t] + d / n;
      m2[t] = fma(d, v - m, m2[t]);
      mean[t] = m;
      count[t] = n;
    }
  }
  constexpr int kWarps = kRowThreads / kWarp;
  for (int w = 0; w < kRowThreads; w += kWarp)
    for (int o = 16; o > 0; o /= 2) merge_division({mean + w, m2 + w, count + w}, o, o);
  float leader_mean[kWarp], leader_m2[kWarp], leader_count[kWarp];
  for (int w = 0; w < kWarp; ++w) {
    leader_mean[w] = w < kWarps ? mean[w * kWarp] : 0.0f;
    leader_m2[w] = w < kWarps ? m2[w * kWarp] : 0.0f;
    leader_count[w] = w < kWarps ? count[w * kWarp] : 0.0f;
  }
  for (int o = 16; o > 0; o /= 2) merge_division({leader_mean, leader_m2, leader_count}, o, o);
  *mean_out = leader_mean[0];
  *variance = leader_m2[0] / leader_count[0];
}

template <class T>
void scale_vectorised(const ForwardParams& p, const T* x, T* y, float mean, float rstd) {
  const T *gamma = static_cast<const T*>(p.gamma), *beta = static_cast<const T*>(p.beta);
  const auto put = [](T* at, float v) { *at = narrow<T>(canonical(v)); };
  if (p.rms) {
    for (std::int64_t i = 0; i < p.width; ++i)
      put(y + i, gamma ? widen(gamma[i]) * (rstd * widen(x[i])) : rstd * widen(x[i]));
  } else if (gamma && beta) {
    for (std::int64_t i = 0; i < p.width; ++i)
      put(y + i, fma(widen(gamma[i]), rstd * (widen(x[i]) - mean), widen(beta[i])));
  } else if (beta) {
    for (std::int64_t i = 0; i < p.width; ++i) {
      const float d = widen(x[i]) - mean, b = widen(beta[i]);
      put(y + i, i % 4 == 0 ? rstd * d + b : fma(rstd, d, b));  // of a group of four the first is not fused
    }
  } else {
    for (std::int64_t i = 0; i < p.width; ++i)
      put(y + i, gamma ? widen(gamma[i]) * (rstd * (widen(x[i]) - mean)) : rstd * (widen(x[i]) - mean));
  }
}

template <class T>
void scale_rowwise(const ForwardParams& p, const T* x, T* y, float mean, float rstd) {
  const T *gamma = static_cast<const T*>(p.gamma), *beta = static_cast<const T*>(p.beta);
  for (std::int64_t i = 0; i < p.width; ++i) {
    const float g = gamma ? widen(gamma[i]) : 1.0f;
    const float v =
        p.rms ? (widen(x[i]) * rstd) * g
        : gamma ? fma((widen(x[i]) - mean) * rstd, g, beta ? widen(beta[i]) : 0.0f)
                : fma(widen(x[i]) - mean, rstd, beta ? widen(beta[i]) : 0.0f);
    y[i] = narrow<T>(canonical(v));
  }
}

template <class T>
void forward_typed(const ForwardParams& p, bool vectorised, std::int64_t begin, std::int64_t end) {
  const float eps = static_cast<float>(p.eps);
  for (std::int64_t row = begin; row < end; ++row) {
    const T* x = static_cast<const T*>(p.x) + row * p.width;
    T* y = static_cast<T*>(p.y) + row * p.width;
    float mean = 0.0f, variance = 0.0f;
    if (vectorised && p.rms)
      variance = mean_square(x, p.width);
    else if (vectorised)
      row_moments(x, p.width, &mean, &variance);
    else
      strided_moments(x, p.width, &mean, &variance);
    if (!vectorised && p.rms) variance = fma(mean, mean, variance);
    const float rstd = libdevice::rsqrtf(variance + eps);
    p.rstd[row] = rstd;
    if (p.mean) p.mean[row] = canonical(mean);
    vectorised ? scale_vectorised(p, x, y, mean, rstd) : scale_rowwise(p, x, y, mean, rstd);
  }
}

// s1, s2: thread t's sums over its groups of four; the last, short group belongs to the thread in turn.
template <class T, bool kRms, bool kGamma>
void input_sums(const T* dy, const T* x, const T* gamma, std::int64_t width, float mean, float rstd, float* s1,
                float* s2) {
  for (int t = 0; t < kThreads; ++t) s1[t] = s2[t] = 0.0f;
  const std::int64_t groups = width / 4;
  const auto step = [&](std::int64_t i, float& a, float& b) {
    const float p = kGamma ? widen(dy[i]) * widen(gamma[i]) : widen(dy[i]);
    a = a + p;
    b = fma(p * (kRms ? widen(x[i]) : widen(x[i]) - mean), rstd, b);
  };
  for (std::int64_t g = 0; g < groups; g += kThreads) {
    const int active = static_cast<int>(groups - g < kThreads ? groups - g : kThreads);
    for (int t = 0; t < active; ++t) {
      float a = s1[t], b = s2[t];
      const std::int64_t at = (g + t) * 4;
      step(at, a, b);
      step(at + 1, a, b);
      step(at + 2, a, b);
      step(at + 3, a, b);
      s1[t] = a;
      s2[t] = b;
    }
  }
  for (std::int64_t i = groups * 4; i < width; ++i) step(i, s1[groups % kThreads], s2[groups % kThreads]);
}

template <class T, bool kRms, bool kGamma>
void input_row(const T* dy, const T* x, const T* gamma, T* dx, std::int64_t width, float mean, float rstd) {
  float a[kThreads], b[kThreads];
  input_sums<T, kRms, kGamma>(dy, x, gamma, width, mean, rstd, a, b);
  const float s1 = fold_block(a, kThreads, 0.0f, &add), s2 = fold_block(b, kThreads, 0.0f, &add);
  const float n = static_cast<float>(width), term = (1.0f / n) * rstd;
  for (std::int64_t i = 0; i < width; ++i) {
    const float centred = kRms ? widen(x[i]) : widen(x[i]) - mean;
    const float scale = kGamma ? n * widen(gamma[i]) : n;
    const float f = fma(widen(dy[i]), scale, -((centred * rstd) * s2));
    dx[i] = narrow<T>(canonical((kRms ? f : f - s1) * term));
  }
}

template <class T, bool kRms, bool kGamma>
void input_rows(const BackwardParams& p, std::int64_t begin, std::int64_t end) {
  for (std::int64_t row = begin; row < end; ++row)
    input_row<T, kRms, kGamma>(static_cast<const T*>(p.dy) + row * p.width, static_cast<const T*>(p.x) + row * p.width,
                               static_cast<const T*>(p.gamma), static_cast<T*>(p.dx) + row * p.width, p.width,
                               kRms ? 0.0f : p.mean[row], p.rstd[row]);
}

template <class T>
void input_typed(const BackwardParams& p, std::int64_t begin, std::int64_t end) {
  if (p.rms)
    p.gamma ? input_rows<T, true, true>(p, begin, end) : input_rows<T, true, false>(p, begin, end);
  else
    p.gamma ? input_rows<T, false, true>(p, begin, end) : input_rows<T, false, false>(p, begin, end);
}

template <class T, bool kRms>
void parameters_typed(const ParameterParams& p, const ParameterTile& tile, std::int64_t block, std::int64_t begin,
                      std::int64_t end) {
  float dg[32 * kColumns], db[32 * kColumns];
  const std::int64_t width = end - begin, rows = tile.threads * tile.each;
  for (std::int64_t i = 0; i < tile.threads * width; ++i) dg[i] = db[i] = 0.0f;
  for (std::int64_t base = block * rows; base < p.rows; base += rows * tile.blocks)
    for (std::int64_t r = base; r < base + rows && r < p.rows; ++r) {
      const std::int64_t thread = (r - base) / tile.each;
      const T *dy = static_cast<const T*>(p.dy) + r * p.width + begin,
              *x = static_cast<const T*>(p.x) + r * p.width + begin;
      const float mean = kRms ? 0.0f : p.mean[r], rstd = p.rstd[r];
      float *g = dg + thread * width, *b = db + thread * width;
      for (std::int64_t j = 0; j < width; ++j) {
        const float d = widen(dy[j]);
        g[j] = fma(d * (kRms ? widen(x[j]) : widen(x[j]) - mean), rstd, g[j]);
        b[j] = b[j] + d;
      }
    }
  for (int o = tile.threads / 2; o > 0; o /= 2)
    for (std::int64_t i = 0; i < o * width; ++i) {
      dg[i] = dg[i] + dg[o * width + i];
      db[i] = db[i] + db[o * width + i];
    }
  T *gamma = static_cast<T*>(p.dgamma) + block * p.width + begin,
    *beta = static_cast<T*>(p.dbeta) + block * p.width + begin;
  for (std::int64_t j = 0; j < width; ++j) {
    if (p.dgamma) gamma[j] = narrow<T>(canonical(dg[j]));
    if (p.dbeta) beta[j] = narrow<T>(canonical(db[j]));
  }
}

template <class T>
void parameters_either(const ParameterParams& p, const ParameterTile& tile, std::int64_t block, std::int64_t begin,
                       std::int64_t end) {
  p.rms ? parameters_typed<T, true>(p, tile, block, begin, end)
        : parameters_typed<T, false>(p, tile, block, begin, end);
}

void forward(const ForwardParams& p, bool vectorised, std::int64_t begin, std::int64_t end) {
  if (p.type == DType::kF32)
    forward_typed<float>(p, vectorised, begin, end);
  else if (p.type == DType::kBF16)
    forward_typed<Bf16>(p, vectorised, begin, end);
  else
    forward_typed<F16>(p, vectorised, begin, end);
}

void backward_input(const BackwardParams& p, std::int64_t begin, std::int64_t end) {
  if (p.type == DType::kF32)
    input_typed<float>(p, begin, end);
  else if (p.type == DType::kBF16)
    input_typed<Bf16>(p, begin, end);
  else
    input_typed<F16>(p, begin, end);
}

void parameters(const ParameterParams& p, const ParameterTile& tile, std::int64_t block, std::int64_t begin,
                std::int64_t end) {
  if (p.type == DType::kF32)
    parameters_either<float>(p, tile, block, begin, end);
  else if (p.type == DType::kBF16)
    parameters_either<Bf16>(p, tile, block, begin, end);
  else
    parameters_either<F16>(p, tile, block, begin, end);
}

}  // namespace

extern const NormBody norm_body;
const NormBody norm_body = {&forward, &backward_input, &parameters};
SO_ISA_END
