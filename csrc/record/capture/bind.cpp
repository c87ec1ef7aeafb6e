// The Python module step_oracle._record: conversion, nothing else.
#include <pybind11/pybind11.h>

#include "csrc/record/capture/bind_recording.h"
#include "csrc/record/capture/bind_trace.h"
#include "csrc/record/trace/digest.h"

namespace py = pybind11;

PYBIND11_MODULE(_record, m) {
  bind_recording(m);
  bind_trace(m);
  m.def("blake3", [](py::bytes data) {
    const std::string_view view = data;
    return step_oracle::blake3(view.data(), view.size()).hex();
  });
}
