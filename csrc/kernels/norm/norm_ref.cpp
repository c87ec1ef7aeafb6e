// The definition: thread by thread, as layer_norm_kernel.cu and block_reduce.cuh have them; a row is a block.
#include <vector>

#include "csrc/kernels/arith/libdevice.h"
#include "csrc/kernels/arith/moments.h"
#include "csrc/kernels/arith/typed_element.h"
#include "csrc/kernels/norm/moments_row.h"
#include "csrc/kernels/norm/norm.h"
#include "csrc/kernels/norm/norm_tile.h"

namespace step_oracle::norm::ref {
namespace {

using typed::load;

void store(DType type, void* data, std::int64_t i, float value) { typed::store(type, data, i, canonical(value)); }

template <class V, class Op>
V shuffle_down(std::vector<V> v, Op op) {
  for (int offset = 16; offset > 0; offset /= 2) {
    const std::vector<V> before = v;
    for (int l = 0; l < 32; ++l)
      v[static_cast<std::size_t>(l)] =
          op(before[static_cast<std::size_t>(l)], before[static_cast<std::size_t>(l + offset < 32 ? l + offset : l)]);
  }
  return v[0];
}

template <class V, class Op>
V block_fold(const std::vector<V>& v, V identity, Op op) {
  std::vector<V> leaders(32, identity);
  for (std::size_t w = 0; w < v.size() / 32; ++w)
    leaders[w] = shuffle_down(std::vector<V>(v.begin() + static_cast<std::ptrdiff_t>(w * 32),
                                             v.begin() + static_cast<std::ptrdiff_t>(w * 32 + 32)),
                              op);
  return shuffle_down(leaders, op);
}

float plus(float a, float b) { return a + b; }

// compute_stats: 4 warps, groups of four.
template <class V, class Step, class Merge>
V four_warps(const ForwardParams& p, std::int64_t row, V start, Step step, Merge merge) {
  std::vector<V> warps;
  for (int w = 0; w < 4; ++w) {
    std::vector<V> lanes(32, start);
    for (int l = 0; l < 32; ++l)
      for (std::int64_t g = w * 32 + l; g < p.width / 4; g += 128)
        for (int k = 0; k < 4; ++k)
          lanes[static_cast<std::size_t>(l)] =
              step(lanes[static_cast<std::size_t>(l)], load(p.type, p.x, row * p.width + g * 4 + k));
    warps.push_back(shuffle_down(lanes, merge));
  }
  for (std::size_t offset = 2; offset > 0; offset /= 2)
    for (std::size_t w = 0; w < offset; ++w) warps[w] = merge(warps[w], warps[w + offset]);
  return warps[0];
}

void forward_row(const ForwardParams& p, std::int64_t row, bool vectorised) {
  const auto n = static_cast<float>(p.width);
  float mean = 0.0f, variance = 0.0f;
  if (vectorised && p.rms) {
    variance = four_warps(p, row, 0.0f, [](float s, float x) { return fma(x, x, s); }, plus) / n;
  } else if (vectorised) {
    const auto step = [](const RowMoments& a, float x) {
      const float d = x - a.mean, count = a.count + 1.0f;
      const float m = fma(d, 1.0f / count, a.mean);
      return RowMoments{m, fma(d, x - m, a.m2), count};
    };
    const RowMoments v = four_warps(p, row, RowMoments{0.0f, 0.0f, 0.0f}, step, row_merge);
    mean = v.mean;
    variance = v.m2 / n;
  } else {
    std::vector<Moments<float>> threads(512, Moments<float>{0.0f, 0.0f, 0.0f});
    for (std::int64_t i = 0; i < p.width; ++i) {
      auto& own = threads[static_cast<std::size_t>(i % 512)];
      own = moments_step(own, load(p.type, p.x, row * p.width + i));
    }
    const auto v = block_fold(threads, Moments<float>{0.0f, 0.0f, 0.0f}, &moments_merge<float>);
    mean = v.mean;
    variance = v.m2 / v.count;
    if (p.rms) variance = fma(mean, mean, variance);
  }
  const float rstd = libdevice::rsqrtf(variance + static_cast<float>(p.eps));
  p.rstd[row] = rstd;
  if (p.mean) p.mean[row] = canonical(mean);
  for (std::int64_t i = 0; i < p.width; ++i) {
    const float x = load(p.type, p.x, row * p.width + i);
    const float g = p.gamma ? load(p.type, p.gamma, i) : 1.0f, b = p.beta ? load(p.type, p.beta, i) : 0.0f;
    float y;
    if (p.rms)
      y = vectorised ? g * (rstd * x) : (x * rstd) * g;
    else if (!vectorised)
      y = p.gamma ? fma((x - mean) * rstd, g, b) : fma(x - mean, rstd, b);
    else if (p.gamma && p.beta)
      y = fma(g, rstd * (x - mean), b);
    else if (p.gamma)
      y = g * (rstd * (x - mean));
    else if (p.beta)
      y = i % 4 == 0 ? rstd * (x - mean) + b : fma(rstd, x - mean, b);  // of a group of four the first is not fused
    else
      y = rstd * (x - mean);
    store(p.type, p.y, row * p.width + i, y);
  }
}

}  // namespace

void forward(const ForwardParams& p) {
  for (std::int64_t row = 0; row < p.rows; ++row) forward_row(p, row, forward_is_vectorised(p));
}

void backward_input(const BackwardParams& p) {
  for (std::int64_t row = 0; row < p.rows; ++row) {
    const float mean = p.rms ? 0.0f : p.mean[row], rstd = p.rstd[row];
    std::vector<float> s1(128), s2(128);
    const auto at = [&](const void* data, std::int64_t i) { return load(p.type, data, row * p.width + i); };
    const auto gamma = [&](std::int64_t i) { return p.gamma ? load(p.type, p.gamma, i) : 1.0f; };
    for (std::size_t t = 0; t < 128; ++t) {
      const auto step = [&](std::int64_t i) {
        const float q = at(p.dy, i) * gamma(i);
        s1[t] = s1[t] + q;
        s2[t] = fma(q * (p.rms ? at(p.x, i) : at(p.x, i) - mean), rstd, s2[t]);
      };
      std::int64_t l = static_cast<std::int64_t>(t) * 4;
      for (; l + 3 < p.width; l += 512)
        for (std::int64_t k = 0; k < 4; ++k) step(l + k);
      for (; l < p.width; ++l) step(l);
    }
    const float a = block_fold(s1, 0.0f, plus), b = block_fold(s2, 0.0f, plus);
    const float n = static_cast<float>(p.width), term = (1.0f / n) * rstd;
    for (std::int64_t i = 0; i < p.width; ++i) {
      const float x = p.rms ? at(p.x, i) : at(p.x, i) - mean;
      const float f = fma(at(p.dy, i), n * gamma(i), -((x * rstd) * b));
      store(p.type, p.dx, row * p.width + i, (p.rms ? f : f - a) * term);
    }
  }
}

void backward_parameters(const ParameterParams& p) {
  const ParameterTile tile = parameter_tile(p);
  for (std::int64_t block = 0; block < tile.blocks; ++block)
    for (std::int64_t column = 0; column < p.width; ++column) {
      std::vector<float> dg(static_cast<std::size_t>(tile.threads)), db(dg.size());
      const std::int64_t rows = tile.threads * tile.each;
      for (std::size_t ty = 0; ty < dg.size(); ++ty)
        for (std::int64_t start = block * rows; start < p.rows; start += rows * tile.blocks)
          for (std::int64_t i = 0; i < tile.each; ++i) {
            const std::int64_t r = start + static_cast<std::int64_t>(ty) * tile.each + i;
            const bool active = r < p.rows;
            const float dy = active ? load(p.type, p.dy, r * p.width + column) : 0.0f;
            const float x = active ? load(p.type, p.x, r * p.width + column) : 0.0f;
            const float mean = active && !p.rms ? p.mean[r] : 0.0f, rstd = active ? p.rstd[r] : 0.0f;
            dg[ty] = fma(dy * (p.rms ? x : x - mean), rstd, dg[ty]);
            db[ty] = db[ty] + dy;
          }
      for (std::size_t delta = dg.size() / 2; delta > 0; delta /= 2) {
        const auto g = dg, b = db;
        for (std::size_t ty = 0; ty < dg.size(); ++ty) {
          dg[ty] = g[ty] + g[ty ^ delta];
          db[ty] = b[ty] + b[ty ^ delta];
        }
      }
      if (p.dgamma) store(p.type, p.dgamma, block * p.width + column, dg[0]);
      if (p.dbeta) store(p.type, p.dbeta, block * p.width + column, db[0]);
    }
}

}  // namespace step_oracle::norm::ref
