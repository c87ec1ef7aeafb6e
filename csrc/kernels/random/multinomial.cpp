#include "csrc/kernels/random/multinomial.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "csrc/kernels/arith/element.h"
#include "csrc/kernels/arith/philox.h"
#include "csrc/kernels/core/error.h"
#include "csrc/kernels/core/parallel.h"

namespace step_oracle::random {
namespace {

constexpr std::int64_t kWarp = 32, kMostThreads = 1024;      // [src block_reduce.cuh kCUDABlockReduceMaxThreads]
constexpr std::int64_t kSampleBlock = 128, kMostGrid = 65535;  // [spec CUDA: blocks of a grid in y]

void validate(DType dtype, std::int64_t rows, std::int64_t cols, std::int64_t samples) {
  if (rows < 0 || cols < 0 || samples < 0 || cols > INT32_MAX || samples > INT32_MAX)
    throw Error(ErrorKind::kBadInput, fmt::format("multinomial: {} samples of {} rows of {} probabilities; sizes of 0 "
                                                  "to 2^31 - 1 are taken", samples, rows, cols));
  if (dtype != DType::kF32 && dtype != DType::kBF16 && dtype != DType::kF16)
    throw Error(ErrorKind::kUnsupported, fmt::format("multinomial of {} with replacement is not modelled; use "
                                                     "float32, bfloat16 or float16", name_of(dtype)));
}

template <class T>
float add(float a, float b) {
  return widen(narrow<T>(a + b));
}
// Lane 0 of shuffles down a warp.
template <class T>
float fold_warp(float* lane) {
  for (std::int64_t o = kWarp / 2; o > 0; o /= 2)
    for (std::int64_t i = 0; i < o; ++i) lane[i] = add<T>(lane[i], lane[i + o]);
  return lane[0];
}

template <class T>
void normalise_row(T* p, std::int64_t cols, std::int64_t row) {
  const std::int64_t threads = std::min(kMostThreads, (cols + kWarp - 1) / kWarp * kWarp);
  float sum[kMostThreads] = {}, warps[kWarp] = {};
  for (std::int64_t base = 0; base < cols; base += threads)
    for (std::int64_t t = 0, n = std::min(threads, cols - base); t < n; ++t) {
      const float v = widen(p[base + t]);
      if (v < 0.0f)
        throw Error(ErrorKind::kBadInput, fmt::format("multinomial: probability {} of row {} is {}; none may be "
                                                      "negative", base + t, row, v));
      sum[t] = add<T>(sum[t], v);
    }
  for (std::int64_t w = 0; w < threads / kWarp; ++w) warps[w] = fold_warp<T>(sum + w * kWarp);
  const float total = fold_warp<T>(warps);
  if (total > 0.0f)
    for (std::int64_t i = 0; i < cols; ++i) p[i] = narrow<T>(canonical(widen(p[i]) / total));
}

template <class T>
std::int64_t choice_of(const T* dist, const T* sums, std::int64_t n, float u) {
  std::int64_t begin = 0, end = n;
  while (begin < end) {
    const std::int64_t middle = begin + (end - begin) / 2;
    if (widen(sums[middle]) < u)
      begin = middle + 1;
    else
      end = middle;
  }
  if (begin == n) begin = n - 1;
  while (begin >= 1 && widen(dist[begin]) == 0.0f) --begin;
  return begin;
}

// The subsequence is an int on the card.
std::uint64_t thread_of(std::int64_t block_y, std::int64_t blocks_x, std::int64_t sample) {
  const auto index = static_cast<std::uint32_t>((block_y * blocks_x) * kSampleBlock + sample);
  return static_cast<std::uint64_t>(static_cast<std::int64_t>(static_cast<std::int32_t>(index)));
}

template <class T>
void search_row(const Stream& s, const Search& p, std::int64_t row) {
  const T *dist = static_cast<const T*>(p.dist) + row * p.cols, *sums = static_cast<const T*>(p.sums) + row * p.cols;
  if (!(widen(sums[p.cols - 1]) > 0.0f))
    throw Error(ErrorKind::kBadInput, fmt::format("multinomial: the probabilities of row {} sum to {}; the sum must be "
                                                  "a number above 0", row, widen(sums[p.cols - 1])));
  const std::int64_t grid = std::min(p.rows, kMostGrid), blocks = (p.samples - 1) / kSampleBlock + 1;
  const std::uint64_t draw = s.offset / 4 + static_cast<std::uint64_t>(row / grid);
  for (std::int64_t i = 0; i < p.samples; ++i) {
    const philox::Block b = philox::block(s.seed, thread_of(row % grid, blocks, i), draw);
    p.out[row * p.samples + i] = choice_of(dist, sums, p.cols, widen(narrow<T>(philox::uniform(b.word[0]))));
  }
}

}  // namespace

void normalise(const Rows& p) {
  validate(p.dtype, p.rows, p.cols, 0);
  parallel_for(p.rows, std::max<std::int64_t>(1, 4096 / std::max<std::int64_t>(1, p.cols)),
               [&](std::int64_t b, std::int64_t e) {
                 for (std::int64_t row = b; row < e; ++row) {
                   const std::int64_t at = row * p.cols;
                   if (p.dtype == DType::kF32)
                     normalise_row(static_cast<float*>(p.data) + at, p.cols, row);
                   else if (p.dtype == DType::kBF16)
                     normalise_row(static_cast<Bf16*>(p.data) + at, p.cols, row);
                   else
                     normalise_row(static_cast<F16*>(p.data) + at, p.cols, row);
                 }
               });
}

std::uint64_t multinomial(const Stream& s, const Search& p) {
  validate(p.dtype, p.rows, p.cols, p.samples);
  if (p.rows * p.cols * p.samples == 0) return 0;
  parallel_for(p.rows, std::max<std::int64_t>(1, 1024 / p.samples), [&](std::int64_t b, std::int64_t e) {
    for (std::int64_t row = b; row < e; ++row) {
      if (p.dtype == DType::kF32)
        search_row<float>(s, p, row);
      else if (p.dtype == DType::kBF16)
        search_row<Bf16>(s, p, row);
      else
        search_row<F16>(s, p, row);
    }
  });
  return static_cast<std::uint64_t>((p.rows - 1) / std::min(p.rows, kMostGrid) + 1) * 4;
}

}  // namespace step_oracle::random
