// Choice of the instruction set at run time. The host decides speed only: every body gives the same bytes.
#pragma once
#include <string>
#include <vector>

#include "csrc/kernels/core/isa_list.h"

namespace step_oracle {

enum class Isa : int {
#define SO_X(isa) isa,
  SO_FOR_EACH_ISA(SO_X)
#undef SO_X
};

// All that were compiled in, worst first.
const std::vector<Isa>& compiled_isas();
// Those of compiled_isas() that this CPU runs.
std::vector<Isa> usable_isas();
// The one in use: the best usable one, or what STEP_ORACLE_ISA names at start (an unusable name is an error).
Isa active_isa();
// For tests and benches. Throws kBadInput when this CPU cannot run it.
void set_active_isa(Isa isa);
const char* isa_name(Isa isa);
Isa isa_from_name(const std::string& name);

}  // namespace step_oracle
