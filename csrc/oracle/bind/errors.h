// The kernels' errors as Python's.
#pragma once
#include <pybind11/pybind11.h>

#include <exception>

#include "csrc/kernels/core/error.h"

namespace step_oracle {

inline void translate(std::exception_ptr p) {
  try {
    if (p) std::rethrow_exception(p);
  } catch (const Error& e) {
    switch (e.kind()) {
      case ErrorKind::kBadInput: PyErr_SetString(PyExc_ValueError, e.what()); return;
      case ErrorKind::kUnsupported: PyErr_SetString(PyExc_NotImplementedError, e.what()); return;
      default: break;
    }
    const pybind11::object type = pybind11::module_::import("step_oracle").attr("StepOracleError");
    PyErr_SetString(type.ptr(), e.what());
  }
}

}  // namespace step_oracle
