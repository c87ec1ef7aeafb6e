#include "csrc/kernels/indexing/sort.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <type_traits>
#include <vector>

#include "csrc/kernels/core/error.h"
#include "csrc/kernels/core/parallel.h"
#include "csrc/kernels/indexing/sort_keys.h"

namespace step_oracle::indexing {
namespace {

void check(const char* name, std::int64_t rows, std::int64_t n) {
  if (rows < 0 || n < 0)
    throw Error(ErrorKind::kBadInput, fmt::format("{}: {} rows of {}; none may be negative", name, rows, n));
  if (n > 0x7fffffff)
    throw Error(ErrorKind::kUnsupported, fmt::format("{}: {} elements in the sorted dimension; CUDA takes at most "
                                                     "2147483647",
                                                     name, n));
}

// The network for 32 places: places beyond n are invalid and go last. Equal elements change places.
template <class T>
void bitonic(T* values, std::int64_t* indices, std::int64_t n, bool descending) {
  T key[kBitonic] = {};
  std::int64_t from[kBitonic] = {};
  bool valid[kBitonic] = {};
  for (std::int64_t i = 0; i < n; ++i) {
    key[i] = values[i];
    from[i] = indices[i];
    valid[i] = true;
  }
  for (unsigned size = 2; size <= kBitonic; size *= 2)
    for (unsigned stride = size / 2; stride > 0; stride /= 2)
      for (unsigned thread = 0; thread < kBitonic / 2; ++thread) {
        const bool flag = size < kBitonic && (thread & (size / 2)) != 0;
        const unsigned a = 2 * thread - (thread & (stride - 1)), b = a + stride;
        const bool swap = (before(key[a], key[b], descending) && valid[a]) || !valid[b];
        if (swap != flag) continue;
        std::swap(key[a], key[b]);
        std::swap(from[a], from[b]);
        std::swap(valid[a], valid[b]);
      }
  for (std::int64_t i = 0; i < n; ++i) {
    values[i] = key[i];
    indices[i] = from[i];
  }
}

// values and indices, in place; scratch is `order` and copies of both.
template <class T>
void sort_row(T* values, std::int64_t* indices, std::int64_t n, bool descending, bool stable) {
  if (n <= 1) return;
  if (!stable && n <= kBitonic) return bitonic(values, indices, n, descending);
  struct Item {
    typename Key<T>::Bits key;
    std::int32_t at;
  };
  std::vector<Item> order(static_cast<std::size_t>(n));
  for (std::int64_t i = 0; i < n; ++i)
    order[static_cast<std::size_t>(i)] = {Key<T>::radix(values[i]), static_cast<std::int32_t>(i)};
  if (n <= kCompared)
    std::stable_sort(order.begin(), order.end(),
                     [&](const Item& a, const Item& b) { return before(values[a.at], values[b.at], descending); });
  else if (descending)
    std::sort(order.begin(), order.end(),
              [](const Item& a, const Item& b) { return a.key != b.key ? a.key > b.key : a.at < b.at; });
  else
    std::sort(order.begin(), order.end(),
              [](const Item& a, const Item& b) { return a.key != b.key ? a.key < b.key : a.at < b.at; });
  const std::vector<T> old_values(values, values + n);
  const std::vector<std::int64_t> old_indices(indices, indices + n);
  for (std::int64_t i = 0; i < n; ++i) {
    const auto at = static_cast<std::size_t>(order[static_cast<std::size_t>(i)].at);
    values[i] = old_values[at];
    indices[i] = old_indices[at];
  }
}

template <class T>
void top_row(const TopParams& p, const T* x, T* values, std::int64_t* indices) {
  std::vector<typename Key<T>::Bits> keys(static_cast<std::size_t>(p.n)), select;
  for (std::int64_t i = 0; i < p.n; ++i) {
    const auto key = Key<T>::select(x[i]);
    keys[static_cast<std::size_t>(i)] = p.largest ? static_cast<typename Key<T>::Bits>(~key) : key;
  }
  select = keys;
  std::nth_element(select.begin(), select.begin() + (p.k - 1), select.end());
  const auto last = select[static_cast<std::size_t>(p.k - 1)];
  std::int64_t out = 0;
  for (const bool equal : {false, true})
    for (std::int64_t i = 0; i < p.n && out < p.k; ++i) {
      const auto key = keys[static_cast<std::size_t>(i)];
      if (equal ? key != last : key >= last) continue;
      values[out] = x[i];
      indices[out++] = i;
    }
  if (p.sorted && p.rows * p.k > 1) sort_row(values, indices, p.k, p.largest, false);
}

}  // namespace

void sort(const SortParams& p) {
  check("sort", p.rows, p.n);
  with_element(p.type, [&](auto zero) {
    using T = decltype(zero);
    const std::int64_t grain = std::max<std::int64_t>(1, 4096 / std::max<std::int64_t>(1, p.n));
    parallel_for(p.rows, grain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        T* values = static_cast<T*>(p.values) + row * p.n;
        std::int64_t* indices = p.indices + row * p.n;
        std::copy_n(static_cast<const T*>(p.x) + row * p.n, p.n, values);
        std::iota(indices, indices + p.n, std::int64_t{0});
        sort_row(values, indices, p.n, p.descending, p.stable);
      }
    });
  });
}

void top(const TopParams& p) {
  check("topk", p.rows, p.n);
  if (p.k < 0 || p.k > p.n) throw Error(ErrorKind::kBadInput, fmt::format("topk: {} of {} elements", p.k, p.n));
  if (p.type == DType::kBool)
    throw Error(ErrorKind::kUnsupported, "topk of bool: CUDA has no such kernel; convert to uint8");
  if (p.k == 0) return;
  with_element(p.type, [&](auto zero) {
    using T = decltype(zero);
    const std::int64_t grain = std::max<std::int64_t>(1, 4096 / p.n);
    parallel_for(p.rows, grain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row)
        top_row<T>(p, static_cast<const T*>(p.x) + row * p.n, static_cast<T*>(p.values) + row * p.k,
                   p.indices + row * p.k);
    });
  });
}

}  // namespace step_oracle::indexing
