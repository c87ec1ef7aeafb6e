// Operators that a card computes with atomic additions: their bytes are not a function of their inputs.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace step_oracle::aten {

struct Race {
  std::string op;
  std::string why;  // what is added in no order
  std::string remedy;
  std::vector<std::size_t> results;  // which results of the operator race; none: all that it writes
};

// Called before a race is computed. Returns true when the caller takes the result from elsewhere (replay carries the
// recorded bytes): the operator then computes the deterministic order as a stand-in. Per thread; null: none.
using RaceHandler = bool (*)(const Race& race);
RaceHandler set_race_handler(RaceHandler handler);  // the one before

// Returns where torch.are_deterministic_algorithms_enabled(), or where the handler takes it; else NotImplementedError.
void on_race(std::string_view op, std::string_view why, std::string_view remedy);
// The same for an operator that has its own rule of what is deterministic, and found that this call is not.
void on_race(std::string_view op, std::string_view why, std::string_view remedy, std::vector<std::size_t> results);

}  // namespace step_oracle::aten
