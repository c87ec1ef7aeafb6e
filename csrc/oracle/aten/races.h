// Operators that a card computes with atomic additions: their bytes are not a function of their inputs.
#pragma once
#include <string>
#include <string_view>

namespace step_oracle::aten {

struct Race {
  std::string op;
  std::string why;  // what is added in no order
  std::string remedy;
};

// Called before a race is computed. Returns true when the caller takes the result from elsewhere (replay carries the
// recorded bytes): the operator then computes the deterministic order as a stand-in. Per thread; null: none.
using RaceHandler = bool (*)(const Race& race);
RaceHandler set_race_handler(RaceHandler handler);  // the one before

// Returns where torch.are_deterministic_algorithms_enabled(), or where the handler takes it; else NotImplementedError.
void on_race(std::string_view op, std::string_view why, std::string_view remedy);

}  // namespace step_oracle::aten
