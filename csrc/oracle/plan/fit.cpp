#include "csrc/oracle/plan/fit.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "csrc/kernels/core/parallel.h"

namespace step_oracle::plan {
namespace {

using gemm::Plan;

// Where a result lies: its elements' size and their places.
struct Layout {
  std::int64_t m, n, batch;
  gemm::Strides strides;
  std::int64_t element;  // bytes

  std::int64_t place(std::int64_t z, std::int64_t i, std::int64_t j) const {
    return (z * strides.batch + i * strides.row + j * strides.col) * element;
  }
  // Bytes from the first element to behind the last, where no stride is negative.
  std::int64_t bytes() const { return place(batch - 1, m - 1, n - 1) + element; }
};

Layout layout_of(const gemm::Params& p) { return {p.m, p.n, p.batch, {p.d.row, p.d.col, p.d.batch}, 4}; }
Layout layout_of(const gemm::TensorCoreParams& p) {
  return {p.m, p.n, p.batch, p.d_strides, p.results == DType::kF32 ? 4 : 2};
}
std::byte* result_of(const gemm::Params& p) { return reinterpret_cast<std::byte*>(p.d.data); }
std::byte* result_of(const gemm::TensorCoreParams& p) { return static_cast<std::byte*>(p.d); }
void set_result(gemm::Params& p, std::byte* d) { p.d.data = reinterpret_cast<float*>(d); }
void set_result(gemm::TensorCoreParams& p, std::byte* d) { p.d = d; }

// A candidate's result against the recorded one.
struct Agreement {
  double share = 0;
  std::int64_t row = -1, col = -1;  // the first element that differs
};

Agreement compare(const Layout& l, const std::byte* a, const std::byte* b) {
  Agreement out;
  std::int64_t equal = 0;
  for (std::int64_t z = 0; z < l.batch; ++z)
    for (std::int64_t i = 0; i < l.m; ++i)
      for (std::int64_t j = 0; j < l.n; ++j) {
        const std::int64_t at = l.place(z, i, j);
        const bool same = std::memcmp(a + at, b + at, static_cast<std::size_t>(l.element)) == 0;
        equal += same;
        if (!same && out.row < 0) out.row = i, out.col = j;
      }
  out.share = static_cast<double>(equal) / static_cast<double>(l.m * l.n * l.batch);
  return out;
}

template <class Params>
Agreement agreement(Params p, const Plan& plan, std::vector<std::byte>& scratch) {
  const Layout l = layout_of(p);
  const std::byte* recorded = result_of(p);
  scratch.resize(static_cast<std::size_t>(l.bytes()));
  set_result(p, scratch.data());
  gemm::run(p, plan);
  return compare(l, scratch.data(), recorded);
}

// Calls work(i, scratch) for the candidates, several at once where a product is too small to share, and then done(i) on
// this thread, in their order, until it returns false.
template <class Params, class Work, class Done>
void over(const Params& p, std::size_t plans, Work work, Done done) {
  constexpr std::int64_t kShared = std::int64_t{1} << 24;  // products in a GEMM that keeps all threads busy itself
  const bool alone = p.m * p.n * p.k * p.batch >= kShared;
  const std::size_t batch = alone ? 1 : static_cast<std::size_t>(8 * num_threads());
  std::vector<std::byte> own;
  for (std::size_t from = 0; from < plans; from += batch) {
    const std::size_t to = std::min(plans, from + batch);
    if (alone)
      work(from, own);
    else
      parallel_for(static_cast<std::int64_t>(to - from), 1, [&](std::int64_t begin, std::int64_t end) {
        std::vector<std::byte> scratch;
        for (std::int64_t i = begin; i < end; ++i) work(from + static_cast<std::size_t>(i), scratch);
      });
    for (std::size_t i = from; i < to; ++i)
      if (!done(i)) return;
  }
}

template <class Params>
Fit fit_bytes(const Params& params, const std::vector<Plan>& plans, const Progress& progress) {
  constexpr std::int64_t kCornerRows = 32, kCornerCols = 64;
  Params corner = params;
  corner.m = std::min(params.m, kCornerRows), corner.n = std::min(params.n, kCornerCols), corner.batch = 1;
  const bool whole = corner.m == params.m && corner.n == params.n && params.batch <= 1;
  Fit out;
  std::vector<std::byte> scratch;
  std::vector<Agreement> found(plans.size());
  over(
      corner, plans.size(), [&](std::size_t i, auto& space) { found[i] = agreement(corner, plans[i], space); },
      [&](std::size_t i) {
        ++out.tried;
        Agreement a = found[i];
        if (a.share == 1.0 && !whole) a = agreement(params, plans[i], scratch);
        if (a.share == 1.0) out.matches.push_back(plans[i]);
        if (a.share > out.nearest_equal || out.tried == 1)
          out.nearest = plans[i], out.nearest_equal = a.share, out.nearest_row = a.row, out.nearest_col = a.col;
        return !progress || progress(out.tried, static_cast<int>(plans.size()));
      });
  return out;
}

template <class Params>
Fit fit_judged(const Params& params, const std::vector<Plan>& plans, const Judge& is_it, const Progress& progress) {
  Fit out;
  std::vector<char> matches(plans.size());
  const auto bytes = static_cast<std::size_t>(layout_of(params).bytes());
  over(
      params, plans.size(),
      [&](std::size_t i, auto& space) {
        Params p = params;
        space.resize(bytes);
        set_result(p, space.data());
        gemm::run(p, plans[i]);
        matches[i] = is_it(space.data());
      },
      [&](std::size_t i) {
        ++out.tried;
        if (matches[i]) out.matches.push_back(plans[i]);
        return !progress || progress(out.tried, static_cast<int>(plans.size()));
      });
  return out;
}

}  // namespace

Shape shape_of(const gemm::Params& p) { return {p.k, false, p.epilogue.bias != nullptr, 0, p.m == 1 || p.n == 1}; }
Shape shape_of(const gemm::TensorCoreParams& p) {
  const int terms = gemm::terms_of(p.adder, p.factors);
  return {p.k, p.results != DType::kF32, p.bias != nullptr, terms, p.m == 1 || p.n == 1};
}

Fit fit(const gemm::Params& p, const std::vector<Plan>& plans, const Progress& progress) {
  return fit_bytes(p, plans, progress);
}
Fit fit(const gemm::TensorCoreParams& p, const std::vector<Plan>& plans, const Progress& progress) {
  return fit_bytes(p, plans, progress);
}
Fit fit(const gemm::Params& p, const std::vector<Plan>& plans, const Judge& is_it, const Progress& progress) {
  return fit_judged(p, plans, is_it, progress);
}
Fit fit(const gemm::TensorCoreParams& p, const std::vector<Plan>& plans, const Judge& is_it, const Progress& progress) {
  return fit_judged(p, plans, is_it, progress);
}

}  // namespace step_oracle::plan
