// Normalization.cuh and the maps of Normalization.cu, thread by thread.
#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "csrc/kernels/arith/libdevice.h"
#include "csrc/kernels/arith/typed_element.h"
#include "csrc/kernels/norm/batch.h"
#include "csrc/kernels/norm/batch_launch.h"

namespace step_oracle::norm::ref {
namespace {

using std::size_t;
size_t z(std::int64_t i) { return static_cast<size_t>(i); }

using typed::load;
using typed::rounded;

float load_or(DType type, const void* data, std::int64_t i, float other) { return data ? load(type, data, i) : other; }
void store(DType type, void* data, std::int64_t i, float value) { typed::store(type, data, i, canonical(value)); }
std::int64_t index(const BatchLayout& l, std::int64_t batch, std::int64_t plane, std::int64_t x) {
  return batch * l.sample + plane * l.channel + x * l.place;
}

// ---- batch_norm_collect_statistics_kernel<Var>
struct Thread {
  float avg = 0, var_n = 0;
  int n = 0;
};
// Five exchanges with the lane whose number differs in one bit, the lowest first.
void exchange(std::vector<Thread>& lanes) {
  for (int i = 0; i < 5; ++i) {
    const std::vector<Thread> old = lanes;
    for (size_t lane = 0; lane < 32; ++lane) {
      const Thread &own = old[lane], &other = old[lane ^ (size_t{1} << i)];
      const auto factor =
          static_cast<float>(1.0 / static_cast<double>(std::fmax(1.0f, static_cast<float>(own.n + other.n))));
      const float d = own.avg - other.avg, n = static_cast<float>(own.n), o_n = static_cast<float>(other.n);
      lanes[lane].var_n = own.var_n + fma(d * d * n * o_n, factor, other.var_n);
      lanes[lane].avg = fma(n, own.avg, o_n * other.avg) * factor;
      lanes[lane].n = own.n + other.n;
    }
  }
}
void planes(const BatchStatistics& p) {
  const BatchShape& s = p.shape;
  const BatchBlock block = batch_plane(s.places);
  for (std::int64_t plane = 0; plane < s.channels; ++plane) {
    std::vector<Thread> threads(kBatchThreads);
    for (int y = 0; y < block.height; ++y)
      for (int x0 = 0; x0 < block.width; ++x0) {
        Thread& t = threads[z(x0 + y * block.width)];
        for (std::int64_t batch = y; batch < s.n; batch += block.height)
          for (std::int64_t x = x0; x < s.places; x += block.width) {
            const float v = load(s.type, p.x, index(p.at, batch, plane, x)), d1 = v - t.avg;
            t.n++;
            t.avg = t.avg + d1 / static_cast<float>(t.n);
            t.var_n = fma(d1, v - t.avg, t.var_n);
          }
      }
    std::vector<Thread> first(32);
    for (size_t w = 0; w < kBatchThreads / 32; ++w) {
      std::vector<Thread> warp(threads.begin() + static_cast<std::ptrdiff_t>(32 * w),
                               threads.begin() + static_cast<std::ptrdiff_t>(32 * w + 32));
      exchange(warp);
      first[w] = warp[0];
    }
    exchange(first);
    p.mean[plane] = canonical(first[0].avg);
    p.var[plane] = canonical(first[0].var_n / static_cast<float>(static_cast<int>(s.count())));
  }
}

// ---- batch_norm_collect_statistics_channels_last_kernel<Var>
struct Element {
  int count = 0;
  float mean = 0, m2n = 0;
};
// The compiler fuses another product of the mean where a thread merges its own four [probe witness batch_norm_last].
void merge_element(Element& own, const Element& other, bool within_thread) {
  const float factor = 1.0f / static_cast<float>(std::max(1, own.count + other.count));
  const float delta0 = own.mean - other.mean;
  const float n = static_cast<float>(own.count), o_n = static_cast<float>(other.count);
  own.mean = (within_thread ? fma(other.mean, o_n, own.mean * n) : fma(own.mean, n, other.mean * o_n)) * factor;
  own.m2n = own.m2n + fma(delta0 * delta0 * o_n * n, factor, other.m2n);
  own.count += other.count;
}
void add_pair(std::array<float, 2>& own, const std::array<float, 2>& other) {
  own[0] = own[0] + other[0];
  own[1] = own[1] + other[1];
}
// A column of a block through shared memory: the upper half joins the lower.
template <class V, class Join>
V vertical(std::vector<V> column, Join join) {
  for (size_t offset = column.size() / 2; offset > 0; offset /= 2) {
    const std::vector<V> shared = column;
    for (size_t y = 0; y < offset; ++y) join(column[y], shared[y + offset]);
  }
  return column[0];
}
// What a channel's threads make: own(block, y) each, a block's column, and with more blocks the last one's column.
template <class V, class Own, class Join>
V reduce_rows(const BatchBlock& launch, Own own, Join join) {
  std::vector<V> staged(z(launch.blocks));
  for (int b = 0; b < launch.blocks; ++b) {
    std::vector<V> column(z(launch.height));
    for (int y = 0; y < launch.height; ++y) column[z(y)] = own(std::int64_t{b} * launch.height + y);
    staged[z(b)] = vertical(column, join);
  }
  if (launch.blocks == 1) return staged[0];
  std::vector<V> column(z(launch.height), V{});
  for (int y = 0; y < launch.height; ++y)
    for (int b = y; b < launch.blocks; b += launch.height) join(column[z(y)], staged[z(b)]);
  return vertical(column, join);
}
void rows(const BatchStatistics& p) {
  const BatchShape& s = p.shape;
  const BatchBlock launch = batch_rows(s.count(), s.channels);
  const std::int64_t stride = std::int64_t{launch.height} * launch.blocks;
  for (std::int64_t c = 0; c < s.channels; ++c) {
    const auto own = [&](std::int64_t m_offset) {
      Element e[kBatchLoads];
      for (std::int64_t i = 0; i < 1 + (s.count() - 1) / (stride * kBatchLoads); ++i)
        for (auto& t : e) {
          const bool valid = m_offset < s.count();
          const float x = valid ? load(s.type, p.x, m_offset * s.channels + c) : 0.0f;
          if (valid) ++t.count;
          const float delta0 = x - t.mean;
          t.mean = fma(delta0, valid ? 1.0f / static_cast<float>(t.count) : 0.0f, t.mean);
          t.m2n = fma(delta0 * (x - t.mean), valid ? 1.0f : 0.0f, t.m2n);
          m_offset += stride;
        }
      for (int j = 1; j < kBatchLoads; ++j) merge_element(e[0], e[j], true);
      return e[0];
    };
    const Element all =
        reduce_rows<Element>(launch, own, [](Element& a, const Element& b) { merge_element(a, b, false); });
    p.mean[c] = canonical(all.mean);
    p.var[c] = canonical(all.m2n / static_cast<float>(all.count));
  }
}

// ---- reduce() over GradOp
using Pair = std::array<float, 2>;  // Float2: made of two values of the input's type
Pair plane_sums(const BatchShape& s, const BatchBlock& block, const BatchLayout& x_at, const void* x_data,
                const BatchLayout& dy_at, const void* dy_data, std::int64_t plane, float mean) {
  std::vector<Pair> threads(z(block.width * block.height));
  for (int y = 0; y < block.height; ++y)
    for (int x0 = 0; x0 < block.width; ++x0) {
      Pair& sum = threads[z(x0 + y * block.width)];
      for (std::int64_t batch = y; batch < s.n; batch += block.height)
        for (std::int64_t x = x0; x < s.places; x += block.width) {
          const float g = load(s.type, dy_data, index(dy_at, batch, plane, x));
          const float c = load(s.type, x_data, index(x_at, batch, plane, x)) - mean;
          sum[0] = sum[0] + g;
          sum[1] = s.type == DType::kF32 ? fma(g, c, sum[1]) : sum[1] + rounded(s.type, g * c);
        }
    }
  const auto warp_reduce = [&](Pair* lanes) {  // lanes beyond the warp's end read themselves
    for (size_t offset = 16; offset > 0; offset /= 2) {
      const std::vector<Pair> old(lanes, lanes + 32);
      for (size_t l = 0; l < 32; ++l)
        for (size_t k = 0; k < 2; ++k)
          lanes[l][k] = old[l][k] + rounded(s.type, old[l + offset < 32 ? l + offset : l][k]);
    }
    return lanes[0];
  };
  std::vector<Pair> shared(32, Pair{0, 0});
  for (size_t w = 0; w < threads.size() / 32; ++w) shared[w] = warp_reduce(&threads[32 * w]);
  return warp_reduce(shared.data());
}

void give(const BatchSums& p, std::int64_t c, const Pair& sums) {
  if (p.dgamma) store(p.shape.parameters, p.dgamma, c, sums[1] * p.invstd[c]);
  if (p.dbeta) store(p.shape.parameters, p.dbeta, c, sums[0]);
  if (p.sum_dy) p.sum_dy[c] = canonical(sums[0]);
  if (p.sum_dy_xmu) p.sum_dy_xmu[c] = canonical(sums[1]);
}

}  // namespace

void batch_statistics(const BatchStatistics& p) { p.rows ? rows(p) : planes(p); }

void batch_update(const BatchUpdate& p) {
  const auto bessel = static_cast<float>(static_cast<double>(p.count) / static_cast<double>(p.count - 1));
  const auto momentum = static_cast<float>(p.momentum);
  for (std::int64_t c = 0; c < p.channels; ++c) {
    const float unbiased = p.var[c] * bessel;
    const float old_mean = load(p.parameters, p.running_mean, c), old_var = load(p.parameters, p.running_var, c);
    if (p.invstd) p.invstd[c] = libdevice::rsqrtf(p.var[c] + static_cast<float>(p.eps));
    store(p.parameters, p.running_mean, c, fma(p.mean[c], momentum, (1.0f - momentum) * old_mean));
    store(p.parameters, p.running_var, c, fma(unbiased, momentum, (1.0f - momentum) * old_var));
  }
}
void batch_invstd(DType type, std::int64_t channels, double eps, const void* var, float* invstd) {
  for (std::int64_t c = 0; c < channels; ++c)
    invstd[c] = libdevice::rsqrtf(load(type, var, c) + static_cast<float>(eps));
}

// batch_norm_transform_input[_channels_last]_kernel, and the map of other layouts
void batch_forward(const BatchForward& p) {
  const BatchShape& s = p.shape;
  for (std::int64_t plane = 0; plane < s.channels; ++plane) {
    const float gamma = load_or(s.parameters, p.weight, plane, 1), beta = load_or(s.parameters, p.bias, plane, 0);
    for (std::int64_t batch = 0; batch < s.n; ++batch)
      for (std::int64_t x = 0; x < s.places; ++x) {
        const float centred = load(s.type, p.x, index(p.x_at, batch, plane, x)) - p.mean[plane];
        store(s.type, p.y, index(p.y_at, batch, plane, x), fma(gamma * centred, p.invstd[plane], beta));
      }
  }
}

// batch_norm_backward_kernel
void batch_backward(const BatchBackward& p) {
  const BatchShape& s = p.shape;
  for (std::int64_t plane = 0; plane < s.channels; ++plane) {
    const float mean = p.train ? p.mean[plane] : load(s.parameters, p.running_mean, plane);
    const float invstd = p.train
                             ? p.invstd[plane]
                             : 1.0f / std::sqrt(load(s.parameters, p.running_var, plane) + static_cast<float>(p.eps));
    const float weight = load_or(s.parameters, p.weight, plane, 1);
    const float norm = 1.0f / static_cast<float>(static_cast<int>(s.count()));
    const Pair sums = plane_sums(s, batch_plane(s.places), p.x_at, p.x, p.dy_at, p.dy, plane, mean);
    const float grad_mean = sums[0] * norm, proj_scale = sums[1] * norm * invstd * invstd, grad_scale = invstd * weight;
    for (std::int64_t batch = 0; batch < s.n; ++batch)
      for (std::int64_t x = 0; x < s.places; ++x) {
        const float go = load(s.type, p.dy, index(p.dy_at, batch, plane, x));
        const float centred = load(s.type, p.x, index(p.x_at, batch, plane, x)) - mean;
        store(s.type, p.dx, index(p.dx_at, batch, plane, x),
              p.train ? (fma(-centred, proj_scale, go) - grad_mean) * grad_scale : go * grad_scale);
      }
    if (p.dgamma) store(s.parameters, p.dgamma, plane, sums[1] * invstd);
    if (p.dbeta) store(s.parameters, p.dbeta, plane, sums[0]);
  }
}

// batch_norm_backward_reduce[_channels_last]_kernel
void batch_sums(const BatchSums& p) {
  const BatchShape& s = p.shape;
  const BatchBlock launch = batch_rows(s.count(), s.channels);
  const std::int64_t stride = std::int64_t{launch.height} * launch.blocks;
  for (std::int64_t c = 0; c < s.channels; ++c) {
    const auto own = [&](std::int64_t m_offset) {
      Pair sums[kBatchLoads] = {};
      for (std::int64_t i = 0; i < 1 + (s.count() - 1) / (stride * kBatchLoads); ++i)
        for (Pair& t : sums) {
          const bool valid = m_offset < s.count();
          const float x = valid ? load(s.type, p.x, m_offset * s.channels + c) : 0.0f;
          const float g = valid ? load(s.type, p.dy, m_offset * s.channels + c) : 0.0f;
          t[0] = t[0] + g;
          t[1] = fma(g, x - p.mean[c], t[1]);
          m_offset += stride;
        }
      for (int j = 1; j < kBatchLoads; ++j) add_pair(sums[0], sums[j]);
      return sums[0];
    };
    give(p, c,
         p.rows ? reduce_rows<Pair>(launch, own, add_pair)
                : plane_sums(s, batch_sum_plane(s.n, s.places), p.x_at, p.x, p.dy_at, p.dy, c, p.mean[c]));
  }
}

// batch_norm_backward_elemt[_channels_last]_kernel, batch_norm_elementwise_backward_train and _eval
void batch_input(const BatchInput& p) {
  const BatchShape& s = p.shape;
  for (std::int64_t plane = 0; plane < s.channels; ++plane) {
    const float weight = load_or(s.parameters, p.weight, plane, 1), invstd = p.invstd[plane];
    for (std::int64_t batch = 0; batch < s.n; ++batch)
      for (std::int64_t x = 0; x < s.places; ++x) {
        const float go = load(s.type, p.dy, index(p.dy_at, batch, plane, x));
        float dx = p.weight ? go * weight * invstd : go * invstd;
        if (p.sum_dy) {
          const float centred = load(s.type, p.x, index(p.x_at, batch, plane, x)) - p.mean[plane];
          const float factor_1 = invstd * invstd * p.sum_dy_xmu[plane] * p.scale, factor_2 = weight * invstd;
          dx = fma(-centred, factor_1, fma(-p.sum_dy[plane], p.scale, go)) * factor_2;  // m_dy_c is fused
        }
        store(s.type, p.dx, index(p.dx_at, batch, plane, x), dx);
      }
  }
}

}  // namespace step_oracle::norm::ref
