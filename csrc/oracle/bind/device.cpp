#include "csrc/oracle/bind/device.h"

#include <pybind11/stl.h>
#include <torch/csrc/Generator.h>
#include <torch/csrc/utils/device_lazy_init.h>

#include <chrono>
#include <thread>

#include "csrc/kernels/card/card.h"
#include "csrc/oracle/device/autograd_engine.h"
#include "csrc/oracle/device/device.h"

namespace py = pybind11;
namespace device = step_oracle::device;

namespace {

py::dict as_dict(const step_oracle::Card& card) {
  py::dict d;
  d["name"] = card.name;
  d["product"] = card.product;
  d["sms"] = card.sms;
  d["threads_per_sm"] = card.threads_per_sm;
  d["compute_capability"] = std::to_string(card.cc_major) + "." + std::to_string(card.cc_minor);
  d["source"] = card.source;
  return d;
}

int python_threads() {
  int n = 0;
  for (PyThreadState* t = PyInterpreterState_ThreadHead(PyInterpreterState_Get()); t; t = PyThreadState_Next(t)) ++n;
  return n;
}

// At exit, before Python finalizes. The engine counts its threads as ended a moment before they give back their Python
// states, which takes the GIL: wait for that too.
void stop_autograd() {
  const int expected = python_threads() - static_cast<int>(device::autograd_threads());
  {
    const py::gil_scoped_release no_gil;
    device::stop_autograd_threads();
  }
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(500);
  while (python_threads() > expected && std::chrono::steady_clock::now() < deadline) {
    const py::gil_scoped_release no_gil;
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}

py::dict memory(int index) {
  const device::MemoryStats s = device::memory_stats(static_cast<c10::DeviceIndex>(index));
  py::dict d;
  d["allocated"] = s.allocated;
  d["peak"] = s.peak;
  d["reserved"] = s.reserved;
  return d;
}

}  // namespace

void bind_device(py::module_& m) {
  const auto index_of = [](int i) { return static_cast<c10::DeviceIndex>(i); };
  m.def("cards", [] {
    py::list out;
    for (const auto& card : step_oracle::all_cards()) out.append(as_dict(card));
    return out;
  });
  m.def("card", [index_of](int index) { return as_dict(device::card(index_of(index))); }, py::arg("index") = -1);
  m.def("set_card", [index_of](int index, const std::string& name) { device::set_card(index_of(index), name); });
  m.def("device_count", [] { return static_cast<int>(device::count()); });
  m.def("current_device", [] { return static_cast<int>(device::current()); });
  m.def("set_device", [index_of](int index) { device::set_current(index_of(index)); });
  m.def("default_generator", [index_of](int index) -> py::object {
    return py::reinterpret_steal<py::object>(THPGenerator_Wrap(device::default_generator(index_of(index))));
  });
  m.def("memory", &memory, py::arg("index") = -1);
  m.def("reset_peak_memory", [index_of](int index) { device::reset_peak(index_of(index)); }, py::arg("index") = -1);
  m.def("empty_cache", &device::empty_cache);
  m.def("forked", &device::forked);
  m.def("stop_autograd", &stop_autograd);
  m.def("ops", [] {
    py::list out;
#define SO_OP(name, fn, klass) out.append(py::make_tuple(name, klass));
#include "csrc/oracle/ops.inc"
#undef SO_OP
    return out;
  });
  torch::utils::register_fork_handler_for_device_init(device::kOracle);
}
