// The running recording as step_oracle._record shows it to step_oracle/record.py.
#pragma once
#include <pybind11/pybind11.h>

void bind_recording(pybind11::module_& m);
