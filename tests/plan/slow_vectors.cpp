// Forms of products with one row: gemv kernels, whose lanes share k, and dot_kernel.
#include "tests/plan/slow_vectors.h"

#include <algorithm>

#include "tests/plan/slow_sums.h"

namespace step_oracle::slow {

using gemm::Combine;
using gemm::Deal;
using gemm::Plan;
using gemm::SumOrder;
using gemm::Unit;

namespace {

Plan on_cores(const Problem& p) {
  Plan plan;
  if (on_tensor_cores(p.kind)) plan.unit = Unit::kChain;
  return plan;
}

}  // namespace

// Lane l of `lanes` has `load` neighbouring positions of every tile of lanes * load.
Case gemv_lanes(std::mt19937& gen, Problem& problem) {
  const int lanes = pick(gen, {2, 4, 8, 16, 32});
  const std::int64_t share = (problem.k + lanes - 1) / lanes;
  const std::int64_t load = gen() % 2 ? 1 : std::min<std::int64_t>(64, share);
  Plan plan = on_cores(problem);
  plan.slices = lanes, plan.slice_width = load, plan.combine = Combine::kHalves;
  return {plan, [=](const Problem& p, std::int64_t i, std::int64_t j) {
            return with_bias(p, j, butterfly(sliced(p, i, j, 0, p.k, lanes, load, true)));
          }};
}

// 16 lanes, each closing its chain every `tiles` positions, added left to right.
Case gemv_closed(std::mt19937& gen, Problem& problem) {
  const std::int64_t tiles = pick(gen, {16, 32});
  problem.k = 600 + gen() % 900;
  Plan plan = on_cores(problem);
  plan.slices = 16, plan.slice_width = 1, plan.block = tiles;
  return {plan, [=](const Problem& p, std::int64_t i, std::int64_t j) {
            std::vector<float> lanes;
            for (std::int64_t l = 0; l < 16; ++l) {
              float total = 0.0f;
              for (std::int64_t chunk = 0; chunk * 16 * tiles + l < p.k; ++chunk) {
                Acc acc(p, i, j, 0, true);
                for (std::int64_t t = 0; t < tiles; ++t)
                  if (const std::int64_t q = (chunk * tiles + t) * 16 + l; q < p.k) acc.take(q);
                total = chunk == 0 ? acc.value() : total + acc.value();
              }
              lanes.push_back(total);
            }
            return with_bias(p, j, in_order(lanes));
          }};
}

// 32 lanes of one slice each, closed every 16 positions.
Case gemv_slice(std::mt19937& gen, Problem& problem) {
  problem.k = 300 + gen() % 1200;
  const std::int64_t share = (problem.k + 31) / 32;
  Plan plan = on_cores(problem);
  plan.splits = static_cast<int>((problem.k + share - 1) / share), plan.width = share;
  if (share > 16) plan.block = 16;
  return {plan, [=](const Problem& p, std::int64_t i, std::int64_t j) {
            std::vector<float> lanes;
            for (std::int64_t l = 0; l < 32 && l * share < p.k; ++l)
              lanes.push_back(closed(p, i, j, l * share, std::min(p.k, (l + 1) * share), 16, true));
            return with_bias(p, j, in_order(lanes));
          }};
}

// dot_kernel: 128 threads of `load` accumulators, tiles dealt to the blocks; then reduce_1Block_kernel.
Case dot_kernel(std::mt19937& gen, Problem& problem) {
  const int load = pick(gen, {1, 2}), blocks = pick(gen, {1, 2, 4, 8});
  const std::int64_t tile = 128 * load;
  problem.k = blocks * tile + gen() % 700;
  Plan plan = on_cores(problem);
  plan.slices = 128 * load, plan.slice_width = 1, plan.combine = load == 1 ? Combine::kHalves : Combine::kPairs;
  if (blocks > 1) plan.splits = blocks, plan.width = tile, plan.deal = Deal::kRoundRobin, plan.order = SumOrder::kOneBlock;
  return {plan, [=](const Problem& p, std::int64_t i, std::int64_t j) {
            std::vector<float> partial;
            for (int block = 0; block < blocks; ++block) {
              std::vector<float> threads;
              for (std::int64_t t = 0; t < 128; ++t) {
                float sum = 0.0f;
                for (int s = 0; s < load; ++s) {
                  Acc acc(p, i, j, 0, true);
                  for (std::int64_t g = block; g * tile < p.k; g += blocks)
                    if (const std::int64_t q = g * tile + t * load + s; q < p.k) acc.take(q);
                  sum = s == 0 ? acc.value() : sum + acc.value();
                }
                threads.push_back(sum);
              }
              partial.push_back(butterfly(threads));
            }
            if (blocks == 1) return with_bias(p, j, partial[0]);
            partial.resize(128);
            for (std::size_t t = 0; t < 64; ++t) partial[t] += partial[t + 64];
            for (std::size_t t = 0; t < 32; ++t) partial[t] += partial[t + 32];
            float u[4] = {};
            for (std::size_t t = 0; t < 32; ++t) u[t % 4] = t < 4 ? partial[t] : u[t % 4] + partial[t];
            return with_bias(p, j, ((u[0] + u[1]) + u[2]) + u[3]);
          }};
}

}  // namespace step_oracle::slow
