#include <algorithm>
#include <array>

#include "csrc/kernels/arith/libdevice.h"
#include "csrc/kernels/arith/mufu.h"
#include "csrc/kernels/core/bits.h"
#include "csrc/kernels/random/random.h"

namespace step_oracle::random::ref {
namespace {

// [src curand_philox4x32_x.h of CUDA 13.0], counters as four words.
struct Curand {
  std::array<std::uint32_t, 4> counter{};
  std::array<std::uint32_t, 2> key{};

  Curand(std::uint64_t seed, std::uint64_t subsequence, std::uint64_t offset) {
    key = {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)};
    counter[2] = static_cast<std::uint32_t>(subsequence);
    counter[3] = static_cast<std::uint32_t>(subsequence >> 32);
    const std::uint64_t blocks = offset / 4;
    counter[0] = static_cast<std::uint32_t>(blocks);
    counter[1] = static_cast<std::uint32_t>(blocks >> 32);
  }
  static void round(std::array<std::uint32_t, 4>& c, const std::array<std::uint32_t, 2>& k) {
    const std::uint64_t p = 0xD2511F53ull * c[0], q = 0xCD9E8D57ull * c[2];
    c = {static_cast<std::uint32_t>(q >> 32) ^ c[1] ^ k[0], static_cast<std::uint32_t>(q),
         static_cast<std::uint32_t>(p >> 32) ^ c[3] ^ k[1], static_cast<std::uint32_t>(p)};
  }
  std::array<std::uint32_t, 4> curand4() {
    auto c = counter;
    auto k = key;
    for (int i = 0; i < 9; ++i) {
      round(c, k);
      k[0] += 0x9E3779B9u;
      k[1] += 0xBB67AE85u;
    }
    round(c, k);
    for (auto& word : counter)
      if (++word != 0) break;
    return c;
  }
};

float u01(std::uint32_t word) { return fma(static_cast<float>(word), 0x1p-32f, 0x1p-33f); }
std::array<float, 4> curand_uniform4(Curand& state) {
  const auto w = state.curand4();
  return {u01(w[0]), u01(w[1]), u01(w[2]), u01(w[3])};
}
void box_muller(std::uint32_t x, std::uint32_t y, float* out) {
  const float v = fma(static_cast<float>(y), float_of(0x30c90fdbu), float_of(0x30490fdbu));
  const float s = __builtin_sqrtf(-2.0f * libdevice::logf(u01(x)));
  out[0] = mufu::sin_ftz(v) * s;
  out[1] = mufu::cos_ftz(v) * s;
}
std::array<float, 4> curand_normal4(Curand& state) {
  const auto w = state.curand4();
  std::array<float, 4> r;
  box_muller(w[0], w[1], &r[0]);
  box_muller(w[2], w[3], &r[2]);
  return r;
}

// distribution_elementwise_grid_stride_kernel and its launch.
template <int kUnroll, class Draw, class Put>
std::uint64_t grid_stride(const Stream& s, std::int64_t numel, Draw draw, Put put) {
  if (numel == 0) return 0;
  const std::int64_t block_dim = 256, blocks_per_sm = s.threads_per_sm / block_dim;
  const std::int64_t grid_dim = std::min<std::int64_t>(s.sms * blocks_per_sm, (numel + block_dim - 1) / block_dim);
  const std::int64_t stride = block_dim * grid_dim * kUnroll;
  const std::int64_t rounded_size = ((numel - 1) / stride + 1) * stride;
  for (std::int64_t block = 0; block < grid_dim; ++block)
    for (std::int64_t thread = 0; thread < block_dim; ++thread) {
      const std::int64_t idx = block * block_dim + thread;
      Curand state(s.seed, static_cast<std::uint64_t>(idx), s.offset);
      for (std::int64_t linear = idx; linear < rounded_size; linear += stride) {
        const auto rand = draw(state);
        for (int ii = 0; ii < kUnroll; ++ii) {
          const std::int64_t li = linear + block_dim * grid_dim * ii;
          if (li < numel) put(li, rand[static_cast<std::size_t>(ii)]);
        }
      }
    }
  return static_cast<std::uint64_t>((numel - 1) / stride + 1) * 4;
}

}  // namespace

std::uint64_t uniform(const Stream& s, std::int64_t n, float* out, double from_, double to_) {
  const float from = static_cast<float>(from_), to = static_cast<float>(to_), range = to - from;
  return grid_stride<4>(s, n, curand_uniform4, [&](std::int64_t i, float rand) {
    const float value = fma(rand, range, from);
    out[i] = canonical(value == to ? from : value);
  });
}

std::uint64_t normal(const Stream& s, std::int64_t n, float* out, double mean, double std) {
  return grid_stride<4>(s, n, curand_normal4, [&](std::int64_t i, float rand) {
    out[i] = canonical(fma(rand, static_cast<float>(std), static_cast<float>(mean)));
  });
}

std::uint64_t exponential(const Stream& s, std::int64_t n, float* out, double lambda_) {
  const float lambda = static_cast<float>(lambda_);
  return grid_stride<4>(s, n, curand_uniform4, [&](std::int64_t i, float val) {
    const float log = val >= 1.0f - 0x1p-24f ? -0x1p-24f : mufu::lg2_ftz(val) * libdevice::kLn2;
    out[i] = canonical((-1.0f / lambda) * log);
  });
}

std::uint64_t random_from_to(const Stream& s, std::int64_t n, std::int64_t* out, std::uint64_t range,
                             std::int64_t base) {
  const auto put = [&](std::int64_t i, std::uint64_t val) {
    out[i] = static_cast<std::int64_t>(val % range + static_cast<std::uint64_t>(base));
  };
  if (range < std::uint64_t{1} << 28)
    return grid_stride<4>(
        s, n, [](Curand& state) { return state.curand4(); }, put);
  return grid_stride<2>(
      s, n,
      [](Curand& state) {
        const auto w = state.curand4();
        return std::array<std::uint64_t, 2>{static_cast<std::uint64_t>(w[0]) << 32 | w[1],
                                            static_cast<std::uint64_t>(w[2]) << 32 | w[3]};
      },
      put);
}

// fused_dropout_kernel_vec (vectors of 8, 4 and 2) and fused_dropout_kernel.
std::uint64_t dropout(const Stream& s, const Dropout& d) {
  const float p = static_cast<float>(1.0 - d.p);
  const float scale = static_cast<float>(1.0 / static_cast<double>(p));
  const float* x = static_cast<const float*>(d.x);
  float* y = static_cast<float*>(d.out);
  const auto put = [&](std::int64_t i, float rand) {
    const float keep = rand < p ? 1.0f : 0.0f;
    y[i] = canonical(x[i] * keep * scale);
    d.mask[i] = static_cast<std::uint8_t>(keep);
  };
  if (d.vector == 1) return grid_stride<4>(s, d.n, curand_uniform4, put);
  const std::int64_t block_dim = 256, blocks_per_sm = s.threads_per_sm / block_dim;
  const std::int64_t grid_dim = std::min<std::int64_t>(s.sms * blocks_per_sm, (d.n + block_dim - 1) / block_dim);
  for (std::int64_t idx = 0; idx < grid_dim * block_dim; ++idx) {
    Curand state(s.seed, static_cast<std::uint64_t>(idx), s.offset);
    for (std::int64_t linear = idx * d.vector; linear < d.n; linear += grid_dim * block_dim * d.vector) {
      std::array<float, 4> rand{};
      for (int ii = 0; ii < d.vector; ++ii) {
        if (ii % 4 == 0) rand = curand_uniform4(state);
        put(linear + ii, rand[static_cast<std::size_t>(ii % 4)]);
      }
    }
  }
  return static_cast<std::uint64_t>((d.n - 1) / (block_dim * grid_dim * 4) + 1) * 4;
}

}  // namespace step_oracle::random::ref
