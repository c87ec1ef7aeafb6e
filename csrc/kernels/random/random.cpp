#include "csrc/kernels/random/random.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "csrc/kernels/arith/convert.h"
#include "csrc/kernels/arith/philox.h"
#include "csrc/kernels/core/bits.h"
#include "csrc/kernels/core/error.h"
#include "csrc/kernels/core/parallel.h"
#include "csrc/kernels/random/launch.h"
#include "csrc/kernels/random/random_body.h"
#include "csrc/kernels/random/random_rules.h"

namespace step_oracle::random {
namespace {

constexpr int kTile = RandomBody::kTile;

bool is_floating(DType t) { return t == DType::kF32 || t == DType::kF64 || t == DType::kF16 || t == DType::kBF16; }

[[noreturn]] void no_double(const char* op) {
  throw Error(
      ErrorKind::kUnsupported,
      fmt::format("{} in float64 needs CUDA's double-precision functions, which are not modelled; fill a float32 "
                  "tensor and convert it",
                  op));
}

// n floats of any element type at `out`, from `index` on.
void store(const Stream& s, const Fill& f, std::int64_t index, const float* x, int n) {
  const auto& body = SO_BODY(random_body);
  char* out = static_cast<char*>(f.out) + index * static_cast<std::int64_t>(size_of(f.dtype));
  switch (f.dtype) {
    case DType::kF32:
      std::memcpy(out, x, static_cast<std::size_t>(n) * 4);
      return;
    case DType::kBF16:
      body.to_bf16(x, n, convert::bf16_nan(s.compute_capability), reinterpret_cast<std::uint16_t*>(out));
      return;
    case DType::kF16:
      body.to_fp16(x, n, reinterpret_cast<std::uint16_t*>(out));
      return;
    case DType::kF64:
      for (int i = 0; i < n; ++i) reinterpret_cast<double*>(out)[i] = x[i];
      return;
    case DType::kI64:
      for (int i = 0; i < n; ++i) reinterpret_cast<std::int64_t*>(out)[i] = convert::to_int64(x[i]);
      return;
    case DType::kI32:
      for (int i = 0; i < n; ++i) reinterpret_cast<std::int32_t*>(out)[i] = convert::to_int32(x[i]);
      return;
    case DType::kI16:
      for (int i = 0; i < n; ++i)
        reinterpret_cast<std::int16_t*>(out)[i] = static_cast<std::int16_t>(convert::to_int32(x[i]));
      return;
    case DType::kI8:
      for (int i = 0; i < n; ++i)
        reinterpret_cast<std::int8_t*>(out)[i] = static_cast<std::int8_t>(convert::to_int32(x[i]));
      return;
    case DType::kU8:
      for (int i = 0; i < n; ++i) reinterpret_cast<std::uint8_t*>(out)[i] = convert::to_uint8(x[i]);
      return;
    case DType::kBool:
      for (int i = 0; i < n; ++i) reinterpret_cast<std::uint8_t*>(out)[i] = x[i] != 0.0f;
      return;
  }
}

// Calls tile(draw, first thread, threads) over all rounds of a launch; `draw` counts rounds of one block of words each.
template <class Tile>
void for_tiles(const Launch& l, Tile&& tile) {
  const std::int64_t tiles = (l.threads + kTile - 1) / kTile;
  parallel_for(l.rounds * tiles, 8, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t round = i / tiles, thread = i % tiles * kTile;
      tile(round, thread, static_cast<int>(std::min<std::int64_t>(kTile, l.threads - thread)));
    }
  });
}

// The grid-stride kernel over float distributions: make(words, rows, threads, r) fills the rows of kTile floats that the
// output still has room for; a tensor smaller than four waves leaves words of its last round unused.
template <class Make>
std::uint64_t fill_floats(const Stream& s, const Fill& f, Make&& make) {
  if (f.n == 0) return 0;
  const auto& body = SO_BODY(random_body);
  const Launch l = launch(s, f.n, 4);
  for_tiles(l, [&](std::int64_t round, std::int64_t thread, int count) {
    std::uint32_t w[4 * kTile];
    float r[4 * kTile];
    body.words(s.seed, s.offset / 4 + static_cast<std::uint64_t>(round), static_cast<std::uint64_t>(thread), count, w);
    int rows = 0;
    while (rows < 4 && (round * 4 + rows) * l.threads + thread < f.n) ++rows;
    make(w, rows, count, r);
    for (int i = 0; i < rows; ++i) {
      const std::int64_t first = (round * 4 + i) * l.threads + thread;
      store(s, f, first, r + kTile * i, static_cast<int>(std::min<std::int64_t>(count, f.n - first)));
    }
  });
  return l.advance;
}
template <class Transform>
std::uint64_t fill_uniforms(const Stream& s, const Fill& f, Transform&& transform) {
  const auto& body = SO_BODY(random_body);
  return fill_floats(s, f, [&](const std::uint32_t* w, int rows, int count, float* r) {
    for (int i = 0; i < rows; ++i) {
      body.uniforms(w + kTile * i, count, r + kTile * i);
      transform(body, r + kTile * i, count);
    }
  });
}
template <class Transform>
std::uint64_t fill_normals(const Stream& s, const Fill& f, Transform&& transform) {
  const auto& body = SO_BODY(random_body);
  return fill_floats(s, f, [&](const std::uint32_t* w, int rows, int count, float* r) {
    for (int i = 0; i < rows; i += 2) {
      body.normals(w + kTile * i, w + kTile * (i + 1), count, r + kTile * i, r + kTile * (i + 1));
      transform(body, r + kTile * i, count);
      if (i + 1 < rows) transform(body, r + kTile * (i + 1), count);
    }
  });
}
// Draws of kWords words each, 4 / kWords a block: put(index, words), where a draw's words are kTile apart.
template <int kWords, class Put>
std::uint64_t fill_draws(const Stream& s, std::int64_t n, Put&& put) {
  constexpr int kDraws = 4 / kWords;
  if (n == 0) return 0;
  const auto& body = SO_BODY(random_body);
  const Launch l = launch(s, n, kDraws);
  for_tiles(l, [&](std::int64_t round, std::int64_t thread, int count) {
    std::uint32_t w[4 * kTile];
    body.words(s.seed, s.offset / 4 + static_cast<std::uint64_t>(round), static_cast<std::uint64_t>(thread), count, w);
    for (int i = 0; i < kDraws; ++i) {
      const std::int64_t first = (round * kDraws + i) * l.threads + thread;
      for (int t = 0; t < count && first + t < n; ++t) put(first + t, w + kTile * kWords * i + t);
    }
  });
  return l.advance;
}
// Doubles and wide integers.
template <class Put>
std::uint64_t fill_pairs(const Stream& s, std::int64_t n, Put&& put) {
  return fill_draws<2>(s, n, [&](std::int64_t i, const std::uint32_t* w) { put(i, w[0], w[kTile]); });
}
template <class Put>
std::uint64_t fill_words(const Stream& s, std::int64_t n, Put&& put) {
  return fill_draws<1>(s, n, [&](std::int64_t i, const std::uint32_t* w) { put(i, *w); });
}

void check(const Stream& s, std::int64_t n) {
  if (n < 0) throw Error(ErrorKind::kBadInput, fmt::format("random: n is {}; it must not be negative", n));
  if (s.offset % 4 != 0)
    throw Error(ErrorKind::kBadInput,
                fmt::format("random: the generator's offset is {}; it must be a multiple of 4", s.offset));
}
void check_floating(const char* op, const Fill& f) {
  if (!is_floating(f.dtype))
    throw Error(ErrorKind::kBadInput, fmt::format("{}: {} is not a floating-point type", op, name_of(f.dtype)));
}

}  // namespace

std::uint64_t uniform(const Stream& s, const Fill& f, double from_, double to_) {
  check(s, f.n);
  check_floating("uniform_", f);
  if (f.dtype == DType::kF64) {
    const double from = from_, to = to_, range = to - from;
    double* out = static_cast<double*>(f.out);
    return fill_pairs(s, f.n, [&](std::int64_t i, std::uint32_t x, std::uint32_t y) {
      const double v = fma(philox::uniform_double(x, y), range, from);
      out[i] = v == to ? from : v;
    });
  }
  const float from = rounded(f.dtype, static_cast<float>(from_)), to = rounded(f.dtype, static_cast<float>(to_));
  const float range = rounded(f.dtype, to - from);
  if (f.dtype == DType::kF32)
    return fill_uniforms(s, f, [&](const auto& body, float* u, int n) { body.uniform_range(u, n, range, from, to); });
  return fill_uniforms(s, f, [&](const auto& body, float* u, int n) {
    body.affine(u, n, range, from);
    for (int i = 0; i < n; ++i) u[i] = rounded(f.dtype, u[i]) == to ? from : u[i];  // rounded before it is compared
  });
}

std::uint64_t normal(const Stream& s, const Fill& f, double mean, double std) {
  check(s, f.n);
  check_floating("normal_", f);
  if (f.dtype == DType::kF64) no_double("normal_");
  return fill_normals(s, f, [&](const auto& body, float* r, int n) {
    body.affine(r, n, static_cast<float>(std), static_cast<float>(mean));
  });
}

std::uint64_t log_normal(const Stream& s, const Fill& f, double mean, double std) {
  check(s, f.n);
  check_floating("log_normal_", f);
  if (f.dtype == DType::kF64) no_double("log_normal_");
  return fill_normals(s, f, [&](const auto& body, float* r, int n) {
    body.affine(r, n, static_cast<float>(std), static_cast<float>(mean));
    body.fast_exps(r, n);
  });
}

std::uint64_t exponential(const Stream& s, const Fill& f, double lambda) {
  check(s, f.n);
  check_floating("exponential_", f);
  if (f.dtype == DType::kF64) no_double("exponential_");
  const float factor = -1.0f / static_cast<float>(lambda);
  return fill_uniforms(s, f, [&](const auto& body, float* u, int n) { body.exponentials(u, n, factor); });
}

std::uint64_t geometric(const Stream& s, const Fill& f, double p) {
  check(s, f.n);
  if (f.dtype == DType::kF64) no_double("geometric_");
  const float log_miss = draw::fast_log(1.0f + -static_cast<float>(p));
  return fill_uniforms(s, f, [&](const auto& body, float* u, int n) { body.geometrics(u, n, log_miss); });
}

std::uint64_t cauchy(const Stream& s, const Fill& f, double median, double sigma) {
  check(s, f.n);
  check_floating("cauchy_", f);
  if (f.dtype == DType::kF64) no_double("cauchy_");
  return fill_uniforms(s, f, [&](const auto& body, float* u, int n) {
    body.cauchys(u, n, static_cast<float>(median), static_cast<float>(sigma));
  });
}

std::uint64_t bernoulli(const Stream& s, const Fill& f, double p) {
  check(s, f.n);
  if (f.dtype == DType::kF64) {
    double* out = static_cast<double*>(f.out);
    return fill_pairs(s, f.n, [&](std::int64_t i, std::uint32_t x, std::uint32_t y) {
      out[i] = philox::uniform_double(x, y) < p ? 1.0 : 0.0;
    });
  }
  return fill_uniforms(s, f, [&](const auto& body, float* u, int n) { body.below(u, n, static_cast<float>(p)); });
}

std::uint64_t bernoulli_tensor(const Stream& s, const Fill& f, DType p_dtype, const void* p) {
  check(s, f.n);
  if (p_dtype != (f.dtype == DType::kF64 ? DType::kF64 : DType::kF32))
    throw Error(ErrorKind::kBadInput,
                fmt::format("bernoulli_: probabilities are {}; the kernel takes float64 for a float64 "
                            "output and float32 for all others",
                            name_of(p_dtype)));
  if (f.n > 0) {
    const auto& body = SO_BODY(random_body);
    const std::int64_t threads = (f.n + 3) / 4;  // one thread, one block of words, four elements side by side
    parallel_for((threads + kTile - 1) / kTile, 8, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t tile = begin; tile < end; ++tile) {
        std::uint32_t w[4 * kTile];
        float u[4 * kTile];
        const int count = static_cast<int>(std::min<std::int64_t>(kTile, threads - tile * kTile));
        body.words(s.seed, s.offset / 4, static_cast<std::uint64_t>(tile * kTile), count, w);
        body.uniforms_by_thread(w, count, 4, u);
        const std::int64_t first = tile * kTile * 4;
        const int n = static_cast<int>(std::min<std::int64_t>(count * 4, f.n - first));
        for (int i = 0; i < n; ++i)
          u[i] = (p_dtype == DType::kF64 ? static_cast<double>(u[i]) <= static_cast<const double*>(p)[first + i]
                                         : u[i] <= static_cast<const float*>(p)[first + i])
                     ? 1.0f
                     : 0.0f;
        store(s, f, first, u, n);
      }
    });
  }
  return f.n > 0 ? 12 : 0;  // philox_cuda_state(10)
}

namespace {

// Keeps an integer as the element type would: modulo its width, floats rounded.
void put_integer(const Stream& s, const Fill& f, std::int64_t i, std::int64_t v) {
  switch (f.dtype) {
    case DType::kI64:
      static_cast<std::int64_t*>(f.out)[i] = v;
      return;
    case DType::kI32:
      static_cast<std::int32_t*>(f.out)[i] = static_cast<std::int32_t>(v);
      return;
    case DType::kI16:
      static_cast<std::int16_t*>(f.out)[i] = static_cast<std::int16_t>(v);
      return;
    case DType::kI8:
    case DType::kU8:
      static_cast<std::uint8_t*>(f.out)[i] = static_cast<std::uint8_t>(v);
      return;
    case DType::kBool:
      static_cast<std::uint8_t*>(f.out)[i] = v != 0;
      return;
    case DType::kF64:
      static_cast<double*>(f.out)[i] = static_cast<double>(v);
      return;
    default: {
      const float x = static_cast<float>(v);
      store(s, f, i, &x, 1);
    }
  }
}

}  // namespace

std::uint64_t random_from_to(const Stream& s, const Fill& f, std::uint64_t range, std::int64_t base) {
  check(s, f.n);
  const auto value = [&](std::uint64_t word) {
    return static_cast<std::int64_t>((range == 0 ? word : word % range) + static_cast<std::uint64_t>(base));
  };
  // [src DistributionTemplates.h random_from_to_kernel @2.13: at 2^28 the skew of % is about 5 %]
  if (range == 0 || range >= (std::uint64_t{1} << 28))
    return fill_pairs(s, f.n, [&](std::int64_t i, std::uint32_t x, std::uint32_t y) {
      put_integer(s, f, i, value(static_cast<std::uint64_t>(x) << 32 | y));
    });
  return fill_words(s, f.n, [&](std::int64_t i, std::uint32_t w) { put_integer(s, f, i, value(w)); });
}

std::uint64_t random_full(const Stream& s, const Fill& f) {
  check(s, f.n);
  const auto digits = [](int bits) { return (std::uint64_t{1} << bits) + 1; };
  std::uint64_t range = 0;
  switch (f.dtype) {
    case DType::kI64:
      range = std::uint64_t{1} << 63;
      break;
    case DType::kF64:
      range = digits(53);
      break;
    case DType::kI32:
      range = std::uint64_t{1} << 31;
      break;
    case DType::kI16:
      range = std::uint64_t{1} << 15;
      break;
    case DType::kI8:
      range = 128;
      break;
    case DType::kU8:
      range = 256;
      break;
    case DType::kBool:
      range = 2;
      break;
    case DType::kF32:
      range = digits(24);
      break;
    case DType::kF16:
      range = digits(11);
      break;
    case DType::kBF16:
      range = digits(8);
      break;
  }
  if (f.dtype == DType::kI64 || f.dtype == DType::kF64)
    return fill_pairs(s, f.n, [&](std::int64_t i, std::uint32_t x, std::uint32_t y) {
      put_integer(s, f, i, static_cast<std::int64_t>((static_cast<std::uint64_t>(x) << 32 | y) % range));
    });
  return fill_words(
      s, f.n, [&](std::int64_t i, std::uint32_t w) { put_integer(s, f, i, static_cast<std::int64_t>(w % range)); });
}

}  // namespace step_oracle::random
