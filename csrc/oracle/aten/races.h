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

// While it lives, a race of this thread's operators is noted in `races`, and computed in the deterministic order as a
// stand-in: its owner takes the result from elsewhere (a replay carries the recorded bytes).
class RaceScope {
 public:
  explicit RaceScope(std::vector<Race>& races);
  ~RaceScope();
  RaceScope(const RaceScope&) = delete;
  RaceScope& operator=(const RaceScope&) = delete;

 private:
  std::vector<Race>* outer_;
};

// Returns where torch.are_deterministic_algorithms_enabled(), or inside a RaceScope; else NotImplementedError.
void on_race(std::string_view op, std::string_view why, std::string_view remedy);
// The same for an operator that has its own rule of what is deterministic, and found that this call is not.
void on_race(std::string_view op, std::string_view why, std::string_view remedy, std::vector<std::size_t> results);

}  // namespace step_oracle::aten
