// The Python module step_oracle._host: the draws of hosts. It registers no device, so that a process which uses CUDA can
// load it.
#include <pybind11/pybind11.h>

#include "csrc/oracle/bind/errors.h"
#include "csrc/oracle/bind/host.h"

PYBIND11_MODULE(_host, m) {
  pybind11::register_local_exception_translator(&step_oracle::translate);
  step_oracle::bind_host(m);
  step_oracle::bind_host_random(m);
}
