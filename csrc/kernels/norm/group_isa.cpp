#include "csrc/kernels/arith/element.h"
#include "csrc/kernels/arith/libdevice.h"
#include "csrc/kernels/arith/moments.h"
#include "csrc/kernels/core/lanes.h"
#include "csrc/kernels/norm/group_body.h"

SO_ISA_BEGIN
namespace {

using norm::GroupBackward;
using norm::GroupForward;
using norm::GroupShape;

constexpr int kThreads = 512;  // [src block_reduce.cuh kCUDABlockReduceNumThreads]

float add(float a, float b) { return a + b; }

template <class T>
T at(const void* data, std::int64_t i) {
  return static_cast<const T*>(data)[i];
}
template <class T>
void put(void* data, std::int64_t i, float value) {
  static_cast<T*>(data)[i] = narrow<T>(canonical(value));
}

int threads_for(std::int64_t n) { return n < kThreads ? kWarp : kThreads; }
float folded(float* v, int threads) {
  return threads == kWarp ? fold_halves(v, kWarp, add) : fold_block(v, threads, 0.0f, add);
}

template <class T>
void moments_of(const T* x, std::int64_t n, float eps, float* mean, float* rstd) {
  Moments<float> own[kThreads];
  const int threads = threads_for(n);
  for (int t = 0; t < threads; ++t) own[t] = {0.0f, 0.0f, 0.0f};
  for (std::int64_t first = 0; first < n; first += threads) {
    const std::int64_t m = n - first < threads ? n - first : threads;
    for (std::int64_t t = 0; t < m; ++t) own[t] = moments_step(own[t], widen(x[first + t]));
  }
  const auto merge = [](const Moments<float>& a, const Moments<float>& b) { return moments_merge(a, b); };
  const Moments<float> all =
      threads == kWarp ? fold_halves(own, kWarp, merge) : fold_block(own, threads, Moments<float>{0, 0, 0}, merge);
  *mean = all.mean;
  *rstd = libdevice::rsqrtf(all.m2 / all.count + eps);
}

template <class T>
void normalised(const GroupForward& p, std::int64_t channel, const T* x, T* y, float mean, float rstd) {
  const std::int64_t n = p.shape.places;
  const float gamma = p.gamma ? widen(at<T>(p.gamma, channel)) : 1.0f;
  const float beta = p.beta ? widen(at<T>(p.beta, channel)) : 0.0f;
  if (!p.gamma && !p.beta) {
    for (std::int64_t i = 0; i < n; ++i) y[i] = narrow<T>(canonical((widen(x[i]) - mean) * rstd));
  } else if (n == 1) {
    const float d = widen(x[0]) - mean;
    y[0] = narrow<T>(canonical(p.gamma && p.beta ? fma(d * rstd, gamma, beta)
                               : p.gamma         ? (d * rstd) * gamma
                                                 : fma(d, rstd, beta)));
  } else {
    const float a = p.gamma ? rstd * gamma : rstd, b = -(a * mean) + beta;  // not fused
    for (std::int64_t i = 0; i < n; ++i) y[i] = narrow<T>(canonical(fma(a, widen(x[i]), b)));
  }
}

template <class T>
void forward_typed(const GroupForward& p, std::int64_t begin, std::int64_t end) {
  const std::int64_t channels = p.shape.per_group(), size = channels * p.shape.places;
  const float eps = widen(narrow<T>(static_cast<float>(p.eps)));
  for (std::int64_t group = begin; group < end; ++group) {
    const T* x = static_cast<const T*>(p.x) + group * size;
    float mean, rstd;
    moments_of<T>(x, size, eps, &mean, &rstd);
    put<T>(p.mean, group, mean);
    put<T>(p.rstd, group, rstd);
    for (std::int64_t c = 0; c < channels; ++c)
      normalised<T>(p, group % p.shape.groups * channels + c, x + c * p.shape.places,
                    static_cast<T*>(p.y) + group * size + c * p.shape.places, mean, rstd);
  }
}

// ---- backward
template <class T>
void sums_typed(const GroupBackward& p, const GroupSums& s, std::int64_t begin, std::int64_t end) {
  const std::int64_t n = p.shape.places;
  const int threads = threads_for(n);
  for (std::int64_t channel = begin; channel < end; ++channel) {
    const T* dy = static_cast<const T*>(p.dy) + channel * n;
    const T* x = static_cast<const T*>(p.x) + channel * n;
    float ds[kThreads], db[kThreads];
    for (int t = 0; t < threads; ++t) ds[t] = db[t] = 0.0f;
    for (std::int64_t first = 0; first < n; first += threads) {
      const std::int64_t m = n - first < threads ? n - first : threads;
      for (std::int64_t t = 0; t < m; ++t) {
        ds[t] = fma(widen(dy[first + t]), widen(x[first + t]), ds[t]);
        db[t] = db[t] + widen(dy[first + t]);
      }
    }
    s.ds[channel] = folded(ds, threads);
    s.db[channel] = folded(db, threads);
  }
}

// c2 and c3 of a group: from its channels' sums, or with one place from its elements.
template <class T>
void group_terms(const GroupBackward& p, const GroupSums& s, std::int64_t group) {
  const std::int64_t channels = p.shape.per_group(), first_channel = group % p.shape.groups * channels;
  const int threads = threads_for(channels);
  float one[kThreads], two[kThreads];
  for (int t = 0; t < threads; ++t) one[t] = two[t] = 0.0f;
  for (std::int64_t i = 0; i < channels; ++i) {
    const std::int64_t t = i % threads, index = group * channels + i;
    const float gamma = p.gamma ? widen(at<T>(p.gamma, first_channel + i)) : 1.0f;
    if (p.shape.places == 1) {
      const float dy = widen(at<T>(p.dy, index));
      one[t] = fma(widen(narrow<T>(dy * widen(at<T>(p.x, index)))), gamma, one[t]);  // rounded to T
      two[t] = fma(dy, gamma, two[t]);
    } else {
      one[t] = fma(s.ds[index], gamma, one[t]);
      two[t] = fma(s.db[index], gamma, two[t]);
    }
  }
  const float sum1 = folded(one, threads), sum2 = folded(two, threads);
  const float mean = widen(at<T>(p.mean, group)), rstd = widen(at<T>(p.rstd, group));
  const float scale = 1.0f / static_cast<float>(channels * p.shape.places);
  const float c2 = (((fma(sum2, mean, -sum1) * rstd) * rstd) * rstd) * scale;
  s.c2[group] = c2;
  s.c3[group] = fma(-c2, mean, -((sum2 * rstd) * scale));
}

template <class T>
void input_typed(const GroupBackward& p, const GroupSums& s, std::int64_t begin, std::int64_t end) {
  const std::int64_t channels = p.shape.per_group(), places = p.shape.places;
  for (std::int64_t group = begin; group < end; ++group) {
    group_terms<T>(p, s, group);
    const float c2 = s.c2[group], c3 = s.c3[group], rstd = widen(at<T>(p.rstd, group));
    for (std::int64_t c = 0; c < channels; ++c) {
      const std::int64_t first = (group * channels + c) * places;
      const float gamma = p.gamma ? widen(at<T>(p.gamma, group % p.shape.groups * channels + c)) : 1.0f;
      const float c1 = p.gamma ? rstd * gamma : rstd;
      const T* dy = static_cast<const T*>(p.dy) + first;
      const T* x = static_cast<const T*>(p.x) + first;
      T* dx = static_cast<T*>(p.dx) + first;
      for (std::int64_t i = 0; i < places; ++i)
        dx[i] = narrow<T>(canonical(fma(c1, widen(dy[i]), c2 * widen(x[i])) + c3));
    }
  }
}

template <class T>
void parameters_typed(const GroupBackward& p, const GroupSums& s, std::int64_t begin, std::int64_t end) {
  constexpr std::int64_t kSerial = 128;  // [src group_norm_kernel.cu]
  const GroupShape& g = p.shape;
  const int lanes = g.n <= kSerial ? 1 : kWarp;
  for (std::int64_t c = begin; c < end; ++c) {
    float dgamma[kWarp] = {}, dbeta[kWarp] = {};
    for (std::int64_t n = 0; n < g.n; ++n) {
      const std::int64_t index = n * g.channels + c, group = n * g.groups + c / g.per_group();
      const float mean = widen(at<T>(p.mean, group)), rstd = widen(at<T>(p.rstd, group));
      float& dg = dgamma[n % lanes];
      float& db = dbeta[n % lanes];
      if (g.places == 1) {
        const float dy = widen(at<T>(p.dy, index));
        dg = fma(fma(dy, widen(at<T>(p.x, index)), -(dy * mean)), rstd, dg);
        db = db + dy;
      } else {
        dg = fma(fma(-s.db[index], mean, s.ds[index]), rstd, dg);
        db = db + s.db[index];
      }
    }
    if (p.dgamma) put<T>(p.dgamma, c, lanes == 1 ? dgamma[0] : fold_halves(dgamma, kWarp, add));
    if (p.dbeta) put<T>(p.dbeta, c, lanes == 1 ? dbeta[0] : fold_halves(dbeta, kWarp, add));
  }
}

#define SO_BY_TYPE(name, Params)                                                   \
  void name(const Params& p, const GroupSums& s, std::int64_t b, std::int64_t e) { \
    if (p.shape.type == DType::kF32)                                               \
      name##_typed<float>(p, s, b, e);                                             \
    else if (p.shape.type == DType::kBF16)                                         \
      name##_typed<Bf16>(p, s, b, e);                                              \
    else                                                                           \
      name##_typed<F16>(p, s, b, e);                                               \
  }
SO_BY_TYPE(sums, GroupBackward)
SO_BY_TYPE(input, GroupBackward)
SO_BY_TYPE(parameters, GroupBackward)
void forward(const GroupForward& p, std::int64_t b, std::int64_t e) {
  if (p.shape.type == DType::kF32)
    forward_typed<float>(p, b, e);
  else if (p.shape.type == DType::kBF16)
    forward_typed<Bf16>(p, b, e);
  else
    forward_typed<F16>(p, b, e);
}

}  // namespace

extern const GroupBody group_body;
const GroupBody group_body = {&forward, &sums, &input, &parameters};
SO_ISA_END
