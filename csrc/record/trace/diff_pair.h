// The walk along two aligned traces: one pair of ops, or one op that only one trace has, after the other.
#pragma once
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "csrc/record/trace/diff.h"
#include "csrc/record/trace/diff_state.h"

namespace step_oracle {

class PairWalk {
 public:
  // Adds to `out`: roots, knock_on, equal_ops, and the notes. `out.environment` is filled in already.
  PairWalk(const Trace& a, const Trace& b, TraceDiff& out) : a_(a), b_(b), out_(out) {}

  void only_in_a(std::size_t i) { alone(a_, i); }
  void only_in_b(std::size_t j) { alone(b_, j); }
  void pair(std::size_t i, std::size_t j);

  std::set<diff_state::Key>& told_aliases() { return told_aliases_; }  // a's storages

 private:
  struct Current;  // the pair at hand

  void alone(diff_state::Walk& side, std::size_t i);
  void input(Current& c, std::size_t k);
  void notes(Current& c, std::size_t k, bool reads);
  void classify(Current& c, std::size_t k, const std::string& difference);
  void entered_data(Current& c, std::size_t k, const std::string& difference, TraceDivergence d);
  void other_writers(Current& c, std::size_t k, const std::string& difference, TraceDivergence d);
  void alias(Current& c, std::size_t k);
  void generators(Current& c);
  void arguments(Current& c);
  void outputs(Current& c);
  void settle(Current& c);
  std::string stale_copy(const diff_state::Walk& side, const rec::TensorT& t, std::size_t now, const char* name) const;
  std::string names_of(const Trace& t, const diff_state::Key& key) const;
  void root(Current& c, TraceDivergence d);
  TraceDivergence begin(const Current& c) const;

  diff_state::Walk a_, b_;
  TraceDiff& out_;
  std::set<std::pair<diff_state::Key, diff_state::Key>> told_data_;
  std::set<diff_state::Key> told_aliases_;
  std::map<diff_state::Key, diff_state::Key> partner_of_a_, partner_of_b_;
  bool number_differs_ = false;  // a number that an op returned to Python
};

}  // namespace step_oracle
