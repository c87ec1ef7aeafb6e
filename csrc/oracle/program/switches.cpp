#include "csrc/oracle/program/switches.h"

#include <ATen/Context.h>

namespace step_oracle::program {

SwitchScope::SwitchScope(const std::vector<std::unique_ptr<rec::FieldT>>& switches)
    : deterministic_(at::globalContext().deterministicAlgorithms()),
      warn_only_(at::globalContext().deterministicAlgorithmsWarnOnly()) {
  for (const auto& s : switches)
    if (s->key == "deterministic_algorithms") at::globalContext().setDeterministicAlgorithms(s->value == "true", false);
}

SwitchScope::~SwitchScope() { at::globalContext().setDeterministicAlgorithms(deterministic_, warn_only_); }

}  // namespace step_oracle::program
