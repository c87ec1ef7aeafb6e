#include "csrc/oracle/aten/races.h"

#include <utility>

#include "csrc/oracle/aten/adapter.h"

namespace step_oracle::aten {
namespace {
thread_local std::vector<Race>* races_of_thread = nullptr;
}

RaceScope::RaceScope(std::vector<Race>& races) : outer_(std::exchange(races_of_thread, &races)) {}

RaceScope::~RaceScope() { races_of_thread = outer_; }

void on_race(std::string_view op, std::string_view why, std::string_view remedy) {
  if (!numeric_switches().deterministic) on_race(op, why, remedy, {});
}

void on_race(std::string_view op, std::string_view why, std::string_view remedy, std::vector<std::size_t> results) {
  if (!races_of_thread) refuse(op, why, remedy);
  races_of_thread->push_back({std::string(op), std::string(why), std::string(remedy), std::move(results)});
}

}  // namespace step_oracle::aten
