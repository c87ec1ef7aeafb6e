#include "csrc/kernels/arith/convert.h"
#include "csrc/kernels/arith/libdevice.h"
#include "csrc/kernels/core/bits.h"
#include "csrc/kernels/core/lanes.h"
#include "csrc/kernels/optimizer/optimizer_body.h"

SO_ISA_BEGIN
namespace {
using namespace optimizer;

// float32 as it is, bfloat16 as its pattern.
inline float load(float x) { return x; }
inline float load(std::uint16_t x) { return convert::from_bf16(x); }
inline void store(float x, float& out, std::uint16_t) { out = canonical(x); }
inline void store(float x, std::uint16_t& out, std::uint16_t nan) { out = convert::to_bf16(x, nan); }

void bias_corrections(float beta1, float beta2, float step, float* bc1, float* root2) {
  *bc1 = 1.0f - libdevice::powf(beta1, step);
  *root2 = __builtin_sqrtf(1.0f - libdevice::powf(beta2, step));
}

template <Apart apart>
inline float decayed(float g, float p, float wd, std::int64_t i) {
  const float fused = fma(p, wd, g), two = g + p * wd;
  switch (apart) {
    case Apart::kNone:
      return fused;
    case Apart::kAll:
      return two;
    case Apart::kFirstOf4:
      return (i & (kIlp - 1)) == 0 ? two : fused;
    case Apart::kFirst512:
      return (i & (kIlp * kThreads - 1)) < kThreads ? two : fused;
  }
  return fused;
}

// What the optimizer sees of a piece of g: divided by the gradient scale, and then stored back too.
constexpr std::int64_t kPiece = 256;
template <class T>
void load_gradient(T* g, std::int64_t n, bool scaled, float scale, bool maximize, std::uint16_t nan, float* wide) {
  if (scaled) {
    for (std::int64_t i = 0; i < n; ++i) wide[i] = load(g[i]) / scale;
    for (std::int64_t i = 0; i < n; ++i) store(wide[i], g[i], nan);
  } else {
    for (std::int64_t i = 0; i < n; ++i) wide[i] = load(g[i]);
  }
  if (maximize)
    for (std::int64_t i = 0; i < n; ++i) wide[i] = -wide[i];
}

// [contractions.md 7]
template <class T, class S, Apart apart, bool coupled, bool decoupled, bool amsgrad>
void adam_range(const AdamParams& a, const AdamNumbers& k, std::int64_t begin, std::int64_t end) {
  float wide[kPiece];
  for (std::int64_t at = begin; at < end; at += kPiece) {
    const std::int64_t n = end - at < kPiece ? end - at : kPiece;
    T* p = static_cast<T*>(a.p) + at;
    S* m = static_cast<S*>(a.m) + at;
    S* v = static_cast<S*>(a.v) + at;
    S* top = amsgrad ? static_cast<S*>(a.max_v) + at : v;
    load_gradient(static_cast<T*>(a.g) + at, n, k.scaled, k.scale, k.maximize, a.bf16_nan, wide);
    _Pragma("GCC ivdep") for (std::int64_t i = 0; i < n; ++i) {
      float w = load(p[i]), d = wide[i];
      if (decoupled) w = fma(w, k.decay, w);
      if (coupled) d = decayed<apart>(d, w, k.weight_decay, at + i);
      const float m1 = fma(load(m[i]), k.beta1, fma(d, -k.beta1, d));
      const float q = d * d;
      const float v1 = fma(load(v[i]), k.beta2, fma(q, -k.beta2, q));
      float root_of = v1;
      if (amsgrad) {
        const float old = load(top[i]);
        root_of = old < v1 ? v1 : old;
        store(root_of, top[i], a.bf16_nan);
      }
      const float denominator = __builtin_sqrtf(root_of) / k.root2 + k.eps;
      store(w - (k.step_size * m1) / denominator, p[i], a.bf16_nan);
      store(m1, m[i], a.bf16_nan);
      store(v1, v[i], a.bf16_nan);
    }
  }
}

template <class T, class S, bool amsgrad>
void adam_as(const AdamParams& a, const AdamNumbers& k, std::int64_t begin, std::int64_t end) {
  if (k.decoupled) return adam_range<T, S, Apart::kNone, false, true, amsgrad>(a, k, begin, end);
  if (!k.coupled) return adam_range<T, S, Apart::kNone, false, false, amsgrad>(a, k, begin, end);
  switch (k.apart) {
    case Apart::kNone:
      return adam_range<T, S, Apart::kNone, true, false, amsgrad>(a, k, begin, end);
    case Apart::kAll:
      return adam_range<T, S, Apart::kAll, true, false, amsgrad>(a, k, begin, end);
    case Apart::kFirstOf4:
      return adam_range<T, S, Apart::kFirstOf4, true, false, amsgrad>(a, k, begin, end);
    case Apart::kFirst512:
      return adam_range<T, S, Apart::kFirst512, true, false, amsgrad>(a, k, begin, end);
  }
}

void adam(const AdamParams& a, const AdamNumbers& k, std::int64_t begin, std::int64_t end) {
  const bool wide = a.dtype == DType::kF32, wide_state = a.state_dtype == DType::kF32, top = a.max_v != nullptr;
  if (wide && wide_state)
    return top ? adam_as<float, float, true>(a, k, begin, end) : adam_as<float, float, false>(a, k, begin, end);
  if (wide)
    return top ? adam_as<float, std::uint16_t, true>(a, k, begin, end)
               : adam_as<float, std::uint16_t, false>(a, k, begin, end);
  return top ? adam_as<std::uint16_t, std::uint16_t, true>(a, k, begin, end)
             : adam_as<std::uint16_t, std::uint16_t, false>(a, k, begin, end);
}

// [contractions.md 7]
template <class T>
void sgd_range(const SgdParams& a, const SgdNumbers& k, std::int64_t begin, std::int64_t end) {
  float wide[kPiece];
  for (std::int64_t at = begin; at < end; at += kPiece) {
    const std::int64_t n = end - at < kPiece ? end - at : kPiece;
    T* p = static_cast<T*>(a.p) + at;
    load_gradient(static_cast<T*>(a.g) + at, n, k.scaled, k.scale, k.maximize, a.bf16_nan, wide);
    if (k.weight_decay != 0.0f)
      for (std::int64_t i = 0; i < n; ++i) wide[i] = fma(load(p[i]), k.weight_decay, wide[i]);
    if (a.buf) {
      T* buf = static_cast<T*>(a.buf) + at;
      for (std::int64_t i = 0; i < n; ++i) {
        const float b = k.first_step ? wide[i] : fma(wide[i], k.one_minus_dampening, k.momentum * load(buf[i]));
        store(b, buf[i], a.bf16_nan);
        wide[i] = k.nesterov ? fma(b, k.momentum, wide[i]) : b;
      }
    }
    for (std::int64_t i = 0; i < n; ++i) store(fma(wide[i], -k.lr, load(p[i])), p[i], a.bf16_nan);
  }
}

void sgd(const SgdParams& a, const SgdNumbers& k, std::int64_t begin, std::int64_t end) {
  if (a.dtype == DType::kF32)
    sgd_range<float>(a, k, begin, end);
  else
    sgd_range<std::uint16_t>(a, k, begin, end);
}

// ---- norms. Accumulator j of the chunk takes elements j, j + 2048, ...: a thread's four of a vector, or its four
// turns.
constexpr int kLanes = kThreads * kIlp;

struct Add {
  static float of(float a, float b) { return a + b; }
};
// A NaN on either side stays.
struct Max {
  static float of(float a, float b) { return a != a || a > b ? a : b; }
};

template <NormKind kind>
inline float taken(float x, float acc) {
  if (kind == NormKind::kL2) return fma(x, x, acc);
  if (kind == NormKind::kL1) return acc + __builtin_fabsf(x);
  const float magnitude = __builtin_fabsf(x);
  return acc != acc || acc > magnitude ? acc : magnitude;
}

template <NormKind kind, class T>
float norm_chunk_as(const NormParams& p, std::int64_t chunk) {
  alignas(64) float acc[kLanes] = {};
  const T* x = static_cast<const T*>(p.x) + chunk * kChunk;
  const std::int64_t n = p.n - chunk * kChunk < kChunk ? p.n - chunk * kChunk : kChunk;
  for (std::int64_t at = 0; at < n; at += kLanes) {
    const std::int64_t m = n - at < kLanes ? n - at : kLanes;
    for (std::int64_t i = 0; i < m; ++i) acc[i] = taken<kind>(load(x[at + i]), acc[i]);
  }
  const auto join = [](float a, float b) { return kind == NormKind::kInf ? Max::of(a, b) : a + b; };
  float sums[kThreads];
  for (int t = 0; t < kThreads; ++t) {
    float s = 0.0f;
    for (int i = 0; i < kIlp; ++i) s = join(s, p.vectorised ? acc[t * kIlp + i] : acc[i * kThreads + t]);
    sums[t] = s;
  }
  return fold_block(sums, kThreads, 0.0f, join);
}

template <class T>
float norm_chunk_of(const NormParams& p, std::int64_t chunk) {
  switch (p.kind) {
    case NormKind::kL1:
      return norm_chunk_as<NormKind::kL1, T>(p, chunk);
    case NormKind::kL2:
      return norm_chunk_as<NormKind::kL2, T>(p, chunk);
    case NormKind::kInf:
      return norm_chunk_as<NormKind::kInf, T>(p, chunk);
  }
  return 0.0f;
}
float norm_chunk(const NormParams& p, std::int64_t chunk) {
  return p.dtype == DType::kF32 ? norm_chunk_of<float>(p, chunk) : norm_chunk_of<std::uint16_t>(p, chunk);
}

float norm_fold(const float* partials, std::int64_t n, NormKind kind) {
  const bool inf = kind == NormKind::kInf;
  const auto join = [inf](float a, float b) { return inf ? Max::of(a, b) : a + b; };
  float sums[kThreads] = {};
  for (std::int64_t i = 0; i < n; ++i) sums[i % kThreads] = join(sums[i % kThreads], partials[i]);
  return fold_block(sums, kThreads, 0.0f, join);
}

// ---- amp
template <class T>
bool unscale_as(T* g, std::int64_t n, float inv_scale, std::uint16_t nan) {
  std::uint32_t strange = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const float x = load(g[i]);
    strange |= (bits_of(x) & 0x7f800000u) == 0x7f800000u ? 1u : 0u;
  }
  if (inv_scale == 1.0f) return strange != 0;
  for (std::int64_t i = 0; i < n; ++i) store(load(g[i]) * inv_scale, g[i], nan);
  return strange != 0;
}
bool unscale(void* g, DType dtype, std::int64_t n, float inv_scale, std::uint16_t nan) {
  if (dtype == DType::kF32) return unscale_as(static_cast<float*>(g), n, inv_scale, nan);
  return unscale_as(static_cast<std::uint16_t*>(g), n, inv_scale, nan);
}

}  // namespace

extern const OptimizerBody optimizer_body;
const OptimizerBody optimizer_body = {&bias_corrections, &adam, &sgd, &norm_chunk, &norm_fold, &unscale};
SO_ISA_END
