// The host's generator for Python: fills of host tensors whose elements lie one after the other in memory.
#include "csrc/kernels/host_random/host_random.h"

#include <ATen/core/Tensor.h>
#include <fmt/format.h>
#include <pybind11/pybind11.h>
#include <torch/csrc/utils/pybind.h>

#include "csrc/kernels/core/error.h"
#include "csrc/oracle/bind/host.h"

namespace py = pybind11;

namespace step_oracle {
namespace {

using host_random::Fill;
using host_random::Generator;

DType dtype_of(const char* op, const at::Tensor& t) {
  switch (t.scalar_type()) {
    case at::kFloat: return DType::kF32;
    case at::kDouble: return DType::kF64;
    case at::kBFloat16: return DType::kBF16;
    case at::kHalf: return DType::kF16;
    case at::kLong: return DType::kI64;
    default:
      throw Error(ErrorKind::kUnsupported, fmt::format("{} of {} is not modelled; use a floating-point tensor or int64",
                                                       op, c10::toString(t.scalar_type())));
  }
}
Fill fill_of(const char* op, const at::Tensor& t) {
  if (!t.is_cpu() || !t.is_non_overlapping_and_dense())
    throw Error(ErrorKind::kBadInput, fmt::format("{}: give a host tensor without gaps", op));
  return {t.numel(), dtype_of(op, t), t.data_ptr()};
}
std::int64_t* indices_of(const char* op, const at::Tensor& t) {
  if (t.scalar_type() != at::kLong)
    throw Error(ErrorKind::kBadInput, fmt::format("{}: give an int64 tensor", op));
  return static_cast<std::int64_t*>(fill_of(op, t).out);
}

struct HostGenerator {
  Generator generator;
  host_random::Dispatch dispatch;
};

}  // namespace

void bind_host_random(py::module_& m) {
  py::class_<HostGenerator>(m, "HostGenerator")
      .def(py::init([](std::uint64_t seed, const std::string& dispatch) {
             return HostGenerator{host_random::seeded(seed), host_random::dispatch_from_name(dispatch)};
           }),
           py::arg("seed"), py::arg("dispatch"))
      .def_property_readonly("dispatch", [](const HostGenerator& g) { return host_random::name_of(g.dispatch); })
      .def("get_state",
           [](const HostGenerator& g) {
             std::string bytes(host_random::kStateBytes, '\0');
             host_random::get_state(g.generator, reinterpret_cast<std::uint8_t*>(bytes.data()));
             return py::bytes(bytes);
           })
      .def("set_state",
           [](HostGenerator& g, const std::string& bytes) {
             g.generator = host_random::set_state(reinterpret_cast<const std::uint8_t*>(bytes.data()),
                                                  static_cast<std::int64_t>(bytes.size()));
           })
      .def("uniform_",
           [](HostGenerator& g, const at::Tensor& t, double from, double to) {
             const Fill fill = fill_of("uniform_", t);
             const py::gil_scoped_release release;
             host_random::uniform(g.generator, g.dispatch, fill, from, to);
           },
           py::arg("out"), py::arg("low"), py::arg("high"))
      .def("normal_",
           [](HostGenerator& g, const at::Tensor& t, double mean, double std, bool contiguous) {
             const Fill fill = fill_of("normal_", t);
             const py::gil_scoped_release release;
             host_random::normal(g.generator, g.dispatch, fill, contiguous, mean, std);
           },
           py::arg("out"), py::arg("mean"), py::arg("std"), py::arg("contiguous") = true)
      .def("random_",
           [](HostGenerator& g, const at::Tensor& t, std::int64_t low, std::int64_t high) {
             if (high <= low)
               throw Error(ErrorKind::kBadInput, fmt::format("random_: [{}, {}) is not a range", low, high));
             host_random::random_from_to(g.generator, t.numel(),
                                         static_cast<std::uint64_t>(high) - static_cast<std::uint64_t>(low), low,
                                         indices_of("random_", t));
           },
           py::arg("out"), py::arg("low"), py::arg("high"))
      .def("randperm_",
           [](HostGenerator& g, const at::Tensor& t) {
             host_random::randperm(g.generator, t.numel(), indices_of("randperm_", t));
           },
           py::arg("out"))
      .def("skip",
           [](HostGenerator& g, std::uint64_t words) {
             const py::gil_scoped_release release;
             host_random::skip(g.generator, words);
           },
           py::arg("words"));
}

}  // namespace step_oracle
