#pragma once
#include <pybind11/pybind11.h>

// The functions behind step_oracle.device and step_oracle.cards.
void bind_device(pybind11::module_& m);
