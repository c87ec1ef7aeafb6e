#include "csrc/oracle/plan/fit.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

namespace step_oracle::plan {
namespace {

using gemm::Plan;

// Collects plans, each once: different spellings of one walk are one candidate.
class Candidates {
 public:
  explicit Candidates(const Shape& shape) : shape_(shape) {}

  // A plan with every reduction and place of the bias that this product can have.
  void add(Plan plan) {
    if (plan.splits > 1 && plan.width * (plan.splits - 1) >= shape_.k) return;  // a part would be empty
    if (plan.deal == gemm::Deal::kChunks && plan.splits > 1 && plan.width * plan.splits < shape_.k) return;
    if (plan.deal == gemm::Deal::kBalanced) {
      const std::int64_t more = (shape_.k + plan.width - 1) / plan.width % plan.splits;
      if (more == 0 || more == plan.splits - 1) return;  // equal parts but for the last: chunks by another name
    }
    std::vector<gemm::Reduction> reductions{gemm::Reduction::kComputeType};
    if (plan.splits > 1 && shape_.sixteen_bit)
      reductions = {gemm::Reduction::kComputeType, gemm::Reduction::kInPlace, gemm::Reduction::kOutputType};
    for (const gemm::Reduction reduction : reductions) {
      plan.reduction = reduction;
      plan.bias = gemm::BiasPlace::kLast;
      push(plan);
      if (!shape_.bias) continue;
      if (plan.splits > 1) plan.bias = gemm::BiasPlace::kFirst, push(plan);
      if (plan.slices > 1) plan.bias = gemm::BiasPlace::kSliceZero, push(plan);
    }
  }
  std::vector<Plan> take() { return std::move(plans_); }

 private:
  void push(const Plan& plan) {
    if (std::find(plans_.begin(), plans_.end(), plan) == plans_.end()) plans_.push_back(plan);
  }
  Shape shape_;
  std::vector<Plan> plans_;
};

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

std::int64_t equal_elements(const Layout& l, const std::byte* a, const std::byte* b) {
  std::int64_t equal = 0;
  for (std::int64_t z = 0; z < l.batch; ++z)
    for (std::int64_t i = 0; i < l.m; ++i)
      for (std::int64_t j = 0; j < l.n; ++j) {
        const std::int64_t at = l.place(z, i, j);
        equal += std::memcmp(a + at, b + at, static_cast<std::size_t>(l.element)) == 0;
      }
  return equal;
}

// The share of elements in which the plan's result agrees with the recorded one.
template <class Params>
double agreement(Params p, const Plan& plan, std::vector<std::byte>& scratch) {
  const Layout l = layout_of(p);
  const std::byte* recorded = result_of(p);
  scratch.resize(static_cast<std::size_t>(l.bytes()));
  set_result(p, scratch.data());
  gemm::run(p, plan);
  return static_cast<double>(equal_elements(l, scratch.data(), recorded)) / static_cast<double>(l.m * l.n * l.batch);
}

template <class Params>
Fit fit_bytes(const Params& params, const std::vector<Plan>& plans, const Progress& progress) {
  constexpr std::int64_t kCornerRows = 32, kCornerCols = 64;
  Params corner = params;
  corner.m = std::min(params.m, kCornerRows), corner.n = std::min(params.n, kCornerCols), corner.batch = 1;
  const bool whole = corner.m == params.m && corner.n == params.n && params.batch <= 1;
  Fit out;
  std::vector<std::byte> scratch;
  const int all = static_cast<int>(plans.size());
  for (const Plan& plan : plans) {
    const double share = agreement(corner, plan, scratch);
    ++out.tried;
    if (share > out.nearest_equal || out.tried == 1) out.nearest_equal = share, out.nearest = plan;
    if (share == 1.0 && (whole || agreement(params, plan, scratch) == 1.0)) out.matches.push_back(plan);
    if (progress && !progress(out.tried, all)) break;
  }
  return out;
}

template <class Params>
Fit fit_judged(Params p, const std::vector<Plan>& plans, const Judge& is_it, const Progress& progress) {
  Fit out;
  std::vector<std::byte> scratch(static_cast<std::size_t>(layout_of(p).bytes()));
  set_result(p, scratch.data());
  for (const Plan& plan : plans) {
    gemm::run(p, plan);
    ++out.tried;
    if (is_it(scratch.data())) out.matches.push_back(plan);
    if (progress && !progress(out.tried, static_cast<int>(plans.size()))) break;
  }
  return out;
}

}  // namespace

std::vector<Plan> candidates(const Shape& shape) {
  using enum gemm::Combine;
  Candidates out(shape);
  const auto with = [](auto change) {
    Plan p;
    change(p);
    return p;
  };
  const auto slices = [&](Plan p, int count, std::int64_t width, gemm::Combine combine) {
    p.slices = count, p.slice_width = width, p.combine = combine;
    return p;
  };
  // One pass: the chain; algorithm 30's slices at 64x64 and 128x64; Turing's four slices combined pairwise
  // ["The step oracle", sections 3.4 and 4].
  const Plan one;
  out.add(one);
  out.add(slices(one, 4, 16, kHalves));
  out.add(slices(one, 2, 32, kInOrder));
  out.add(slices(one, 4, 8, kAdjacent));
  out.add(slices(one, 4, 8, kInOrder));
  out.add(slices(one, 2, 16, kInOrder));
  for (const std::int64_t tile : {32, 64}) {
    out.add(with([&](Plan& p) { p.tail = gemm::Tail::kFirst, p.tail_width = tile; }));
    if (shape.k % tile) out.add(with([&](Plan& p) { p.tail = gemm::Tail::kDropped, p.tail_width = tile; }));
  }
  const bool short_groups = shape.terms > 8;  // Hopper's algorithm 24 adds eight products at once
  if (short_groups) out.add(with([](Plan& p) { p.group = 8; }));

  for (const int splits : {2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16, 18, 20, 24, 32}) {
    for (const std::int64_t rounding : {64, 32, 16, 8, 4}) {
      Plan p;
      p.splits = splits, p.width = gemm::chunk_width(shape.k, splits, rounding);
      out.add(p);
      if (rounding == 64) {
        out.add(slices(p, 4, 16, kHalves));
        out.add(slices(p, 4, 8, kAdjacent));
        if (short_groups) p.group = 8, out.add(p);
      }
    }
    out.add(with([&](Plan& p) { p.splits = splits, p.deal = gemm::Deal::kRoundRobin, p.width = 8; }));
    for (const std::int64_t tile : {64, 32})
      out.add(with([&](Plan& p) { p.splits = splits, p.deal = gemm::Deal::kBalanced, p.width = tile; }));
  }
  return out.take();
}

Shape shape_of(const gemm::Params& p) { return {p.k, false, p.epilogue.bias != nullptr, 0}; }
Shape shape_of(const gemm::TensorCoreParams& p) {
  const Adder adder = p.adder == gemm::AdderClass::kTuring ? kAdderTuring : kAdderHopper;
  return {p.k, p.results != DType::kF32, p.bias != nullptr, adder.terms};
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
