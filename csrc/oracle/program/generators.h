// The cards' generators that an op draws from: where the recording says that they stood before it and after it.
#pragma once
#include <cstdint>
#include <functional>
#include <set>
#include <string>

#include "csrc/record/trace/reader.h"

namespace step_oracle::program {

class Generators {
 public:
  // `op_local`: every op gets the recorded state; else only the states that an op did not leave.
  explicit Generators(bool op_local) : op_local_(op_local) {}

  // Before the op. Returns how many of the states are inputs of the program. Throws kCorrupt for what is no state.
  std::uint64_t set(const rec::OpT& op, std::uint64_t index);

 private:
  bool op_local_;
  std::set<std::string> seen_;  // devices
};

// After the op: `differs` gets the recorded state and the generator's own, which then gives way to the recorded one.
void check_generators(const rec::OpT& op,
                      const std::function<void(std::string expected, std::string actual)>& differs);

// Puts the op's generators where they stand now.
std::function<void()> rewinding(const rec::OpT& op);

}  // namespace step_oracle::program
