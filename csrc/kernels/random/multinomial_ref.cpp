// The definition: renormRowsL1 and sampleMultinomialWithReplacement thread by thread.
#include <algorithm>
#include <vector>

#include "csrc/kernels/arith/philox.h"
#include "csrc/kernels/arith/typed_element.h"
#include "csrc/kernels/random/multinomial.h"

namespace step_oracle::random::ref {
namespace {

using typed::load;
using typed::rounded;
using typed::store;
using Values = std::vector<float>;
// WarpReduceSum: every lane adds what the lane `offset` above it holds; a lane without one adds its own.
void reduce_warp(DType type, Values& v, std::size_t first) {
  for (std::size_t offset = 16; offset > 0; offset /= 2) {
    const Values before(v.begin() + static_cast<std::ptrdiff_t>(first),
                        v.begin() + static_cast<std::ptrdiff_t>(first) + 32);
    for (std::size_t l = 0; l < 32; ++l)
      v[first + l] = rounded(type, before[l] + before[l + offset < 32 ? l + offset : l]);
  }
}

}  // namespace

void normalise(const Rows& p) {
  const auto threads = static_cast<std::size_t>(std::min<std::int64_t>(1024, (p.cols + 31) / 32 * 32));
  for (std::int64_t row = 0; row < p.rows; ++row) {
    Values value(threads, 0.0f), shared(32, 0.0f);
    for (std::size_t t = 0; t < threads; ++t)
      for (auto col = static_cast<std::int64_t>(t); col < p.cols; col += static_cast<std::int64_t>(threads))
        value[t] = rounded(p.dtype, value[t] + load(p.dtype, p.data, row * p.cols + col));
    for (std::size_t w = 0; w < threads / 32; ++w) {
      reduce_warp(p.dtype, value, w * 32);
      shared[w] = value[w * 32];
    }
    reduce_warp(p.dtype, shared, 0);
    const float sum = shared[0];
    if (sum > 0.0f)
      for (std::int64_t i = row * p.cols; i < (row + 1) * p.cols; ++i)
        store(p.dtype, p.data, i, canonical(load(p.dtype, p.data, i) / sum));
  }
}

std::uint64_t multinomial(const Stream& s, const Search& p) {
  const std::int64_t grid_x = (p.samples - 1) / 128 + 1, grid_y = std::min<std::int64_t>(p.rows, 65535);
  for (std::int64_t by = 0; by < grid_y; ++by)
    for (std::int64_t bx = 0; bx < grid_x; ++bx)
      for (std::int64_t tx = 0; tx < 128; ++tx) {
        const auto index = static_cast<std::int32_t>(by * grid_x * 128 + bx * 128 + tx);
        std::uint64_t draws = s.offset / 4;
        for (std::int64_t row = by; row < p.rows; row += grid_y)
          for (std::int64_t sample = bx * 128 + tx; sample < p.samples; sample += 128 * grid_x) {
            const auto block = philox::block(s.seed, static_cast<std::uint64_t>(std::int64_t{index}), draws++);
            const float r = rounded(p.dtype, philox::uniform(block.word[0]));
            const auto sum = [&](std::int64_t i) { return load(p.dtype, p.sums, row * p.cols + i); };
            std::int64_t start = 0, end = p.cols;
            while (end - start > 0) {
              const std::int64_t mid = start + (end - start) / 2;
              if (sum(mid) < r)
                start = mid + 1;
              else
                end = mid;
            }
            if (start == p.cols) start = p.cols - 1;
            while (start >= 1 && load(p.dtype, p.dist, row * p.cols + start) == 0.0f) --start;
            p.out[row * p.samples + sample] = start;
          }
      }
  return static_cast<std::uint64_t>((p.rows - 1) / grid_y + 1) * 4;
}

}  // namespace step_oracle::random::ref
