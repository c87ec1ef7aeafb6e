#pragma once
#include <pybind11/pybind11.h>

namespace step_oracle {
void bind_units(pybind11::module_& m);
}
