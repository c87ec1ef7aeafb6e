// The kernels step by step: bitonicSortKVInPlace for 16 threads, the merge and radix sorts as stable insertions (what
// CUB's order is defined to be), gatherTopK by counting.
#include <utility>

#include "csrc/kernels/indexing/sort.h"
#include "csrc/kernels/indexing/sort_keys.h"

namespace step_oracle::indexing::ref {
namespace {

template <class T>
struct Shared {
  T key;
  std::int64_t value;
  bool valid;
};

template <class T>
void compare_and_swap(Shared<T>& a, Shared<T>& b, bool dir, bool descending) {
  const bool swap = (before(a.key, b.key, descending) && a.valid) || !b.valid;
  if (swap == dir) std::swap(a, b);
}

template <class T>
void bitonic_kernel(T* keys, std::int64_t* values, std::int64_t n, bool descending) {
  Shared<T> shared[32];
  for (int i = 0; i < 32; ++i) shared[i] = i < n ? Shared<T>{keys[i], values[i], true} : Shared<T>{T{}, 0, false};
  for (unsigned size = 2; size < 32; size *= 2)
    for (unsigned stride = size / 2; stride > 0; stride /= 2)
      for (unsigned t = 0; t < 16; ++t) {
        const unsigned pos = 2 * t - (t & (stride - 1));
        compare_and_swap(shared[pos], shared[pos + stride], (t & (size / 2)) != 0, descending);
      }
  for (unsigned stride = 16; stride > 0; stride /= 2)
    for (unsigned t = 0; t < 16; ++t) {
      const unsigned pos = 2 * t - (t & (stride - 1));
      compare_and_swap(shared[pos], shared[pos + stride], false, descending);
    }
  for (std::int64_t i = 0; i < n; ++i) {
    keys[i] = shared[i].key;
    values[i] = shared[i].value;
  }
}

template <class T, class Before>
void insertion(T* keys, std::int64_t* values, std::int64_t n, Before&& comes_before) {
  for (std::int64_t i = 1; i < n; ++i)
    for (std::int64_t j = i; j > 0 && comes_before(keys[j], keys[j - 1]); --j) {
      std::swap(keys[j], keys[j - 1]);
      std::swap(values[j], values[j - 1]);
    }
}

template <class T>
void sort_key_value_in_place(T* keys, std::int64_t* values, std::int64_t n, bool descending, bool stable) {
  if (n <= 1) return;
  if (!stable && n <= 32) return bitonic_kernel(keys, values, n, descending);
  if (n <= 128) return insertion(keys, values, n, [&](T a, T b) { return before(a, b, descending); });
  insertion(keys, values, n, [&](T a, T b) {
    return descending ? Key<T>::radix(a) > Key<T>::radix(b) : Key<T>::radix(a) < Key<T>::radix(b);
  });
}

// How many of the row are strictly beyond x[i], and how many equal it and stand before it.
template <class T>
std::pair<std::int64_t, std::int64_t> ranks(const TopParams& p, const T* x, std::int64_t i) {
  const auto key = Key<T>::select(x[i]);
  std::int64_t beyond = 0, equal = 0;
  for (std::int64_t j = 0; j < p.n; ++j) {
    const auto other = Key<T>::select(x[j]);
    beyond += p.largest ? other > key : other < key;
    equal += other == key && j < i;
  }
  return {beyond, equal};
}

}  // namespace

void sort(const SortParams& p) {
  with_element(p.type, [&](auto zero) {
    using T = decltype(zero);
    for (std::int64_t row = 0; row < p.rows; ++row) {
      T* keys = static_cast<T*>(p.values) + row * p.n;
      for (std::int64_t i = 0; i < p.n; ++i) {
        keys[i] = static_cast<const T*>(p.x)[row * p.n + i];
        p.indices[row * p.n + i] = i;
      }
      sort_key_value_in_place(keys, p.indices + row * p.n, p.n, p.descending, p.stable);
    }
  });
}

void top(const TopParams& p) {
  with_element(p.type, [&](auto zero) {
    using T = decltype(zero);
    for (std::int64_t row = 0; row < p.rows; ++row) {
      const T* x = static_cast<const T*>(p.x) + row * p.n;
      T* keys = static_cast<T*>(p.values) + row * p.k;
      std::int64_t* values = p.indices + row * p.k;
      std::int64_t out = 0;
      for (const bool at_the_limit : {false, true})
        for (std::int64_t i = 0; i < p.n; ++i) {
          const auto [beyond, equal] = ranks(p, x, i);
          // The k-th element's key: fewer than k are beyond it, and with its equals there are k or more.
          std::int64_t equals = equal;
          for (std::int64_t j = i; j < p.n; ++j) equals += Key<T>::select(x[j]) == Key<T>::select(x[i]);
          const bool limit = beyond < p.k && beyond + equals >= p.k;
          if (at_the_limit ? !(limit && beyond + equal < p.k) : limit || beyond >= p.k) continue;
          keys[out] = x[i];
          values[out++] = i;
        }
      if (p.sorted && p.rows * p.k > 1) sort_key_value_in_place(keys, values, p.k, p.largest, false);
    }
  });
}

}  // namespace step_oracle::indexing::ref
