// Choices as Python gives them.
#pragma once
#include <pybind11/pybind11.h>

#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "csrc/oracle/aten/choices.h"

namespace step_oracle {

// op, name, call (-1: all), value
using ChoiceRows = std::vector<std::tuple<std::string, std::string, std::int64_t, std::string>>;
std::vector<aten::Choice> choices_of(const ChoiceRows& rows);

}  // namespace step_oracle

void bind_choices(pybind11::module_& m);
