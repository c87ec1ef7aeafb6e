// The host for Python: instruction sets and threads. They decide speed, never bytes.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "csrc/kernels/core/isa.h"
#include "csrc/kernels/core/parallel.h"
#include "csrc/oracle/bind/host.h"

namespace py = pybind11;

namespace step_oracle {

void bind_host(py::module_& m) {
  m.def("isas", [] {
    const auto names = [](const std::vector<Isa>& isas) {
      std::vector<std::string> out;
      for (Isa isa : isas) out.emplace_back(isa_name(isa));
      return out;
    };
    py::dict out;
    out["compiled"] = names(compiled_isas());
    out["usable"] = names(usable_isas());
    out["active"] = isa_name(active_isa());
    out["threads"] = num_threads();
    return out;
  });
  m.def("set_isa", [](const std::string& name) { set_active_isa(isa_from_name(name)); }, py::arg("name"));
  m.def("set_num_threads", &set_num_threads, py::arg("n"));
}

}  // namespace step_oracle
