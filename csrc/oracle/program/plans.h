// Plans of a replay's matrix products: the tables behind its cards, and the search where a product's bytes are not the
// recorded ones.
#pragma once
#include <ATen/core/dispatch/Dispatcher.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "csrc/oracle/plan/active.h"
#include "csrc/record/trace/reader.h"

namespace step_oracle::program {

// Puts a plan table behind each card for its time: the given one (its text; kBadInput where it is of another card than
// `card`), else the one that is there, where it is the card's, else the one that comes along.
class PlanScope {
 public:
  PlanScope(const std::string& text, const std::string& card);
  ~PlanScope();
  PlanScope(const PlanScope&) = delete;
  PlanScope& operator=(const PlanScope&) = delete;

 private:
  std::vector<std::shared_ptr<const plan::Table>> before_;  // by index
};

struct FittedPlan {
  std::uint64_t index;  // of the op that chose it
  plan::Key key;
  gemm::Plan plan;
  int tried;
};

// Chooses plans by the recorded digests: the first candidate whose result has the digest stands in the card's table
// from then on. Another candidate may give the same bytes for this product: a later product of the kind then differs,
// and is searched again.
class PlanSearch {
 public:
  explicit PlanSearch(const Trace& trace) : trace_(trace) {}

  // `stack` holds the results of an op that was called with `args`. Where it was one product and its result is not the
  // recorded one, the result of the candidate that gives it takes the place. `tick` is called after each candidate.
  // Returns the number of candidates where none gives it, else 0.
  int refine(const c10::OperatorHandle& op, const torch::jit::Stack& args, torch::jit::Stack& stack,
             const rec::OpT& recorded, std::uint64_t index, const std::function<void()>& tick);

  const std::vector<FittedPlan>& found() const { return found_; }
  // A plan table with what was found and what stood there before; empty where nothing was found.
  std::string table() const { return table_; }

 private:
  const Trace& trace_;
  std::vector<FittedPlan> found_;
  std::map<plan::Key, int> none_;  // kinds without a match, and how many candidates were tried
  std::string table_;
};

}  // namespace step_oracle::program
