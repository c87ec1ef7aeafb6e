#include "csrc/kernels/indexing/search.h"

#include "csrc/kernels/core/parallel.h"
#include "csrc/kernels/indexing/sort_keys.h"

namespace step_oracle::indexing {
namespace {

template <class T>
std::int64_t place_of(const SearchParams& p, const T* row, const std::int64_t* order, T value) {
  std::int64_t first = 0, last = p.length;
  while (first < last) {
    const std::int64_t middle = first + (last - first) / 2;
    const T at = row[order ? order[middle] : middle];
    // at >= value, or at > value: false where either is NaN.
    const bool beyond =
        p.right ? Key<T>::less(value, at) : !Key<T>::is_nan(at) && !Key<T>::is_nan(value) && !Key<T>::less(at, value);
    (beyond ? last : first) = beyond ? middle : middle + 1;
  }
  return first;
}

}  // namespace

void search(const SearchParams& p) {
  with_element(p.type, [&](auto zero) {
    using T = decltype(zero);
    parallel_for(p.n, 1024, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t row = p.one_row ? 0 : i / p.per_row;
        const std::int64_t place =
            place_of(p, static_cast<const T*>(p.rows) + row * p.length, p.order ? p.order + row * p.length : nullptr,
                     static_cast<const T*>(p.values)[i]);
        if (p.out_type == DType::kI32)
          static_cast<std::int32_t*>(p.out)[i] = static_cast<std::int32_t>(place);
        else
          static_cast<std::int64_t*>(p.out)[i] = place;
      }
    });
  });
}

void running_extremes(const ExtremesParams& p) {
  with_element(p.type, [&](auto zero) {
    using T = decltype(zero);
    const T* x = static_cast<const T*>(p.x);
    T* values = static_cast<T*>(p.values);
    parallel_for(p.outer * p.inner, 256, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t column = begin; column < end; ++column) {
        std::int64_t at = column / p.inner * p.n * p.inner + column % p.inner, place = 0;
        for (std::int64_t i = 0; i < p.n; ++i, at += p.inner) {
          const T own = x[at], before = i ? values[at - p.inner] : own;
          const bool not_beyond = p.max ? Key<T>::less(own, before) : Key<T>::less(before, own);
          const bool keeps = i && !Key<T>::is_nan(own) && (Key<T>::is_nan(before) || not_beyond);
          if (!keeps) place = i;
          values[at] = keeps ? before : own;
          p.indices[at] = place;
        }
      }
    });
  });
}

}  // namespace step_oracle::indexing
