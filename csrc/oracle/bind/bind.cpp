// The Python module step_oracle._oracle: conversion, nothing else. Loading it registers the device "oracle".
#include <pybind11/pybind11.h>

#include "csrc/oracle/aten/composites.h"
#include "csrc/oracle/bind/choices.h"
#include "csrc/oracle/bind/device.h"
#include "csrc/oracle/bind/errors.h"
#include "csrc/oracle/bind/host.h"
#include "csrc/oracle/bind/plan.h"
#include "csrc/oracle/bind/program.h"
#include "csrc/oracle/bind/units.h"
#include "csrc/oracle/bind/walk.h"

namespace py = pybind11;

PYBIND11_MODULE(_oracle, m) {
  py::register_local_exception_translator(&step_oracle::translate);
  step_oracle::aten::refuse_silent_decompositions();
  bind_device(m);
  bind_choices(m);
  step_oracle::bind_program(m);
  step_oracle::bind_host(m);
  step_oracle::bind_plan(m);
  step_oracle::bind_units(m);
  step_oracle::bind_walk(m);
}
