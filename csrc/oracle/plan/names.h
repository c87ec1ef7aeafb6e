// The spellings of plan tables, written once for the reader, the writer and the messages.
#pragma once
#include <array>
#include <string_view>
#include <utility>

#include "csrc/oracle/plan/table.h"

namespace step_oracle::plan {

template <class E, std::size_t n>
using Names = std::array<std::pair<E, std::string_view>, n>;

inline constexpr Names<Op, 5> kOps{
    {{Op::kMm, "mm"}, {Op::kAddmm, "addmm"}, {Op::kBmm, "bmm"}, {Op::kBaddbmm, "baddbmm"}, {Op::kAddmv, "addmv"}}};
// The names of factor types: float32 has two, by how it is multiplied.
struct FactorType {
  DType dtype;
  bool tf32 = false;
  bool operator==(const FactorType&) const = default;
};
inline constexpr Names<FactorType, 4> kTypes{{{{DType::kF32}, "float32"},
                                              {{DType::kF32, true}, "tf32"},
                                              {{DType::kBF16}, "bfloat16"},
                                              {{DType::kF16}, "float16"}}};
inline constexpr Names<EpilogueKind, 3> kEpilogues{
    {{EpilogueKind::kNone, "none"}, {EpilogueKind::kBias, "bias"}, {EpilogueKind::kBeta, "beta"}}};
inline constexpr Names<gemm::Deal, 3> kDeals{
    {{gemm::Deal::kChunks, "chunks"}, {gemm::Deal::kRoundRobin, "round_robin"}, {gemm::Deal::kBalanced, "balanced"}}};
inline constexpr Names<gemm::Tail, 4> kTails{{{gemm::Tail::kLast, "last"},
                                              {gemm::Tail::kFirst, "first"},
                                              {gemm::Tail::kDropped, "dropped"},
                                              {gemm::Tail::kShortFirst, "short_first"}}};
inline constexpr Names<gemm::Combine, 4> kCombines{{{gemm::Combine::kInOrder, "in_order"},
                                                    {gemm::Combine::kAdjacent, "adjacent"},
                                                    {gemm::Combine::kHalves, "halves"},
                                                    {gemm::Combine::kPairs, "pairs"}}};
inline constexpr Names<gemm::Unit, 2> kUnits{{{gemm::Unit::kClass, "class"}, {gemm::Unit::kChain, "chain"}}};
inline constexpr Names<gemm::Reduction, 3> kReductions{{{gemm::Reduction::kComputeType, "compute_type"},
                                                        {gemm::Reduction::kInPlace, "in_place"},
                                                        {gemm::Reduction::kOutputType, "output_type"}}};
inline constexpr Names<gemm::SumOrder, 4> kOrders{{{gemm::SumOrder::kAscending, "ascending"},
                                                   {gemm::SumOrder::kDescending, "descending"},
                                                   {gemm::SumOrder::kPairwise, "pairwise"},
                                                   {gemm::SumOrder::kOneBlock, "one_block"}}};
inline constexpr Names<gemm::BiasPlace, 3> kBiasPlaces{{{gemm::BiasPlace::kLast, "last"},
                                                        {gemm::BiasPlace::kFirst, "first"},
                                                        {gemm::BiasPlace::kSliceZero, "slice_zero"}}};

template <class E, std::size_t n>
constexpr std::string_view name_in(const Names<E, n>& names, E value) {
  for (const auto& [v, name] : names)
    if (v == value) return name;
  return "?";
}

}  // namespace step_oracle::plan
