#include "csrc/oracle/aten/races.h"

#include <utility>

#include "csrc/oracle/aten/adapter.h"

namespace step_oracle::aten {
namespace {
thread_local RaceHandler handler_of_thread = nullptr;
}

RaceHandler set_race_handler(RaceHandler handler) {
  const RaceHandler before = handler_of_thread;
  handler_of_thread = handler;
  return before;
}

void on_race(std::string_view op, std::string_view why, std::string_view remedy) {
  if (!numeric_switches().deterministic) on_race(op, why, remedy, {});
}

void on_race(std::string_view op, std::string_view why, std::string_view remedy, std::vector<std::size_t> results) {
  const Race race{std::string(op), std::string(why), std::string(remedy), std::move(results)};
  if (!handler_of_thread || !handler_of_thread(race)) refuse(op, why, remedy);
}

}  // namespace step_oracle::aten
