#pragma once
#include <pybind11/pybind11.h>

namespace step_oracle {
void bind_host(pybind11::module_& m);
void bind_host_random(pybind11::module_& m);
}
