#pragma once
#include <pybind11/pybind11.h>

// step_oracle._record's traces: reading and comparing (step_oracle/trace.py), and the translation of
// step_oracle::Error.
void bind_trace(pybind11::module_& m);
