// The Python module step_oracle._oracle: conversion, nothing else.
#include <pybind11/pybind11.h>

#include "csrc/kernels/card/card.h"

namespace py = pybind11;

PYBIND11_MODULE(_oracle, m) {
  m.def("cards", [] {
    py::list out;
    for (const auto& c : step_oracle::all_cards()) out.append(py::str(c.name));
    return out;
  });
}
