// The definition: Embedding.cu, EmbeddingBackwardKernel.cu and Indexing.cu, one feature at a time.
#include <algorithm>
#include <numeric>
#include <vector>

#include "csrc/kernels/arith/element.h"
#include "csrc/kernels/indexing/indexing.h"

namespace step_oracle::indexing::ref {
namespace {

std::vector<std::int64_t> stable_order(const std::vector<std::int64_t>& index) {
  std::vector<std::int64_t> order(index.size());
  std::iota(order.begin(), order.end(), std::int64_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
    return index[static_cast<std::size_t>(a)] < index[static_cast<std::size_t>(b)];
  });
  return order;
}

// embedding_backward_feature_kernel: batches of 1024, chunks of 32 warps; the lowest warp with a destination leads.
template <class T>
void feature_kernel(const EmbeddingParams& p, const std::vector<std::int64_t>& index) {
  const T* grad = static_cast<const T*>(p.grad);
  T* out = static_cast<T*>(p.out);
  for (std::int64_t f = 0; f < p.width; ++f)
    for (std::int64_t batch = 0; batch < p.n; batch += 1024)
      for (std::int64_t chunk = batch; chunk < std::min(p.n, batch + 1024); chunk += 32) {
        const std::int64_t end = std::min({p.n, batch + 1024, chunk + 32});
        for (std::int64_t r = chunk; r < end; ++r) {
          const std::int64_t dst = index[static_cast<std::size_t>(r)];
          const auto same = [&](std::int64_t q) { return index[static_cast<std::size_t>(q)] == dst; };
          bool leads = dst != p.padding_index;
          for (std::int64_t q = chunk; q < r; ++q) leads = leads && !same(q);
          if (!leads) continue;
          float sum = widen(grad[r * p.width + f]);
          for (std::int64_t q = r + 1; q < end; ++q)
            if (same(q)) sum = sum + widen(grad[q * p.width + f]);
          T& w = out[dst * p.width + f];
          w = narrow<T>(canonical(widen(w) + widen(narrow<T>(sum))));
        }
      }
}

// compute_grad_weight, then sum_and_scatter.
template <class T>
void sorted_kernels(const EmbeddingParams& p, const std::vector<std::int64_t>& index) {
  const auto order = stable_order(index);
  const auto at = [&](std::int64_t i) { return index[static_cast<std::size_t>(order[static_cast<std::size_t>(i)])]; };
  for (std::int64_t begin = 0, end; begin < p.n; begin = end) {
    for (end = begin; end < p.n && at(end) == at(begin);) ++end;
    if (at(begin) == p.padding_index) continue;
    const float scale = p.scale_by_frequency ? 1.0f / static_cast<float>(end - begin) : 1.0f;
    for (std::int64_t f = 0; f < p.width; ++f) {
      float total = 0.0f;
      for (std::int64_t part = begin; part < end; part += 10) {
        float sum = 0.0f;
        for (std::int64_t i = part; i < std::min(end, part + 10); ++i)
          sum = fma(widen(static_cast<const T*>(p.grad)[order[static_cast<std::size_t>(i)] * p.width + f]), scale, sum);
        total = total + sum;
      }
      static_cast<T*>(p.out)[at(begin) * p.width + f] = narrow<T>(canonical(total));
    }
  }
}

template <class T>
void embedding(const EmbeddingParams& p) {
  std::fill_n(static_cast<T*>(p.out), p.table_rows * p.width, T{});
  std::vector<std::int64_t> index(static_cast<std::size_t>(p.n));
  for (std::size_t i = 0; i < index.size(); ++i)
    index[i] = p.index_type == DType::kI64 ? static_cast<const std::int64_t*>(p.index)[i]
                                           : static_cast<const std::int32_t*>(p.index)[i];
  p.n <= 3072 && !p.scale_by_frequency ? feature_kernel<T>(p, index) : sorted_kernels<T>(p, index);
}

// indexing_backward_kernel, _small_stride and _stride_1.
template <class T>
void put(const AccumulateParams& p) {
  const std::vector<std::int64_t> index(p.index, p.index + p.n);
  const auto order = stable_order(index);
  const auto at = [&](std::int64_t i) { return index[static_cast<std::size_t>(order[static_cast<std::size_t>(i)])]; };
  for (std::int64_t begin = 0, end; begin < p.n; begin = end) {
    for (end = begin; end < p.n && at(end) == at(begin);) ++end;
    for (std::int64_t f = 0; f < p.width; ++f) {
      T& dest = static_cast<T*>(p.dest)[at(begin) * p.width + f];
      const auto value = [&](std::int64_t i) {
        return widen(static_cast<const T*>(p.values)[order[static_cast<std::size_t>(i)] * p.width + f]);
      };
      if (p.width > 32 || p.one_by_one) {
        for (std::int64_t i = begin; i < end; ++i) dest = narrow<T>(canonical(widen(dest) + value(i)));
        continue;
      }
      float sum = 0.0f;
      std::int64_t i = begin;
      if (p.width == 1) {
        const std::int64_t passes = (end - begin) / 32;
        std::vector<float> lanes(32);
        for (std::int64_t pass = 0; pass < passes; ++pass)
          for (std::size_t l = 0; l < 32; ++l)
            lanes[l] = lanes[l] + value(begin + pass * 32 + static_cast<std::int64_t>(l));
        for (std::size_t offset = 16; offset > 0; offset /= 2) {
          const auto before = lanes;
          for (std::size_t l = 0; l < 32; ++l) lanes[l] = before[l] + before[l + offset < 32 ? l + offset : l];
        }
        sum = lanes[0];
        i += passes * 32;
      }
      for (; i < end; ++i) sum = sum + value(i);
      dest = narrow<T>(canonical(widen(dest) + sum));
    }
  }
}

}  // namespace

void embedding_backward(const EmbeddingParams& p) {
  p.type == DType::kF32 ? embedding<float>(p) : p.type == DType::kBF16 ? embedding<Bf16>(p) : embedding<F16>(p);
}
void accumulate(const AccumulateParams& p) {
  p.type == DType::kF32 ? put<float>(p) : p.type == DType::kBF16 ? put<Bf16>(p) : put<F16>(p);
}

}  // namespace step_oracle::indexing::ref
