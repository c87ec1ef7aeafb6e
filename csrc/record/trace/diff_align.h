// Which op of one list belongs to which of another: the longest common subsequence of their keys (Myers' O(ND)).
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace step_oracle::align {

using Pairs = std::vector<std::pair<std::size_t, std::size_t>>;

// Pairs of equal keys, rising in both lists. Lists that differ in more than `max_edits` places are paired at their
// common beginning and end only.
Pairs common(const std::vector<std::uint32_t>& a, const std::vector<std::uint32_t>& b, std::size_t max_edits = 4000);

}  // namespace step_oracle::align
