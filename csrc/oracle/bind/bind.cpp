// The Python module step_oracle._oracle: conversion, nothing else. Loading it registers the device "oracle".
#include <pybind11/pybind11.h>

#include "csrc/kernels/core/error.h"
#include "csrc/oracle/aten/composites.h"
#include "csrc/oracle/bind/device.h"
#include "csrc/oracle/bind/host.h"
#include "csrc/oracle/bind/plan.h"
#include "csrc/oracle/bind/program.h"
#include "csrc/oracle/bind/walk.h"

namespace py = pybind11;

namespace {

void translate(std::exception_ptr p) {
  try {
    if (p) std::rethrow_exception(p);
  } catch (const step_oracle::Error& e) {
    switch (e.kind()) {
      case step_oracle::ErrorKind::kBadInput: PyErr_SetString(PyExc_ValueError, e.what()); return;
      case step_oracle::ErrorKind::kUnsupported: PyErr_SetString(PyExc_NotImplementedError, e.what()); return;
      default: break;
    }
    const py::object type = py::module_::import("step_oracle").attr("StepOracleError");
    PyErr_SetString(type.ptr(), e.what());
  }
}

}  // namespace

PYBIND11_MODULE(_oracle, m) {
  py::register_local_exception_translator(&translate);
  step_oracle::aten::refuse_silent_decompositions();
  bind_device(m);
  step_oracle::bind_program(m);
  step_oracle::bind_host(m);
  step_oracle::bind_host_random(m);
  step_oracle::bind_plan(m);
  step_oracle::bind_walk(m);
}
