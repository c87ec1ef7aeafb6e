// Walks for Python: programs, one step at a time; the sampler's offsets; digests.
#include "csrc/oracle/bind/walk.h"

#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include "csrc/kernels/card/card.h"
#include "csrc/kernels/gemm/tensor_core.h"
#include "csrc/oracle/bind/choices.h"
#include "csrc/oracle/plan/active.h"
#include "csrc/oracle/program/store.h"
#include "csrc/oracle/program/switches.h"
#include "csrc/oracle/walk/machine.h"
#include "csrc/oracle/walk/offsets.h"

namespace py = pybind11;

namespace step_oracle {
namespace {

using walk::SlotKind;

py::dict as_dict(const walk::Geometry& g, bool card) {
  py::dict out;
  out["device"] = card ? "card" : "host";
  out["dtype"] = rec::name_of(g.dtype);
  out["shape"] = g.sizes;
  out["strides"] = g.strides;
  return out;
}

py::dict slots(const walk::Program& p, SlotKind kind) {
  py::dict out;
  for (const walk::Slot& s : p.slots)
    if (s.kind == kind) out[py::str(s.name)] = as_dict(s.geometry, s.card);
  return out;
}

py::dict handed_on(const walk::Program& p) {
  py::dict out;
  for (const auto& [name, use] : p.state) out[py::str(name)] = as_dict(use.geometry, p.slots[use.slot].card);
  return out;
}

py::tuple run(walk::Program& program, walk::Tensors state, walk::Tensors batch, std::map<std::string, double> terms,
              const std::map<std::string, std::string>& switches, const ChoiceRows& choices) {
  walk::Step step{std::move(state), std::move(batch), std::move(terms), {switches.begin(), switches.end()},
                  choices_of(choices), [] {
                    py::gil_scoped_acquire gil;
                    if (PyErr_CheckSignals() != 0) throw py::error_already_set();  // Ctrl-C
                  }};
  walk::Outcome out;
  {
    py::gil_scoped_release nogil;
    out = walk::run(program, step);
  }
  return py::make_tuple(out.state, out.loss ? py::cast(*out.loss) : py::object(py::none()), out.taken);
}

}  // namespace

void bind_walk(py::module_& m) {
  py::class_<walk::Program>(m, "Program", py::module_local())
      .def(py::init([](const std::string& json) { return std::make_unique<walk::Program>(json); }))
      .def_property_readonly("state_in", [](const walk::Program& p) { return slots(p, SlotKind::kState); })
      .def_property_readonly("batch", [](const walk::Program& p) { return slots(p, SlotKind::kBatch); })
      .def_property_readonly("state_out", &handed_on)
      .def_property_readonly("has_loss", [](const walk::Program& p) { return p.loss.has_value(); })
      .def_property_readonly("terms",
                             [](const walk::Program& p) {
                               std::vector<std::string> out;
                               for (const auto& [key, places] : p.terms) out.push_back(key);
                               return out;
                             })
      .def_readonly("draws", &walk::Program::draws)
      .def_readonly("live_bytes", &walk::Program::live_bytes)
      .def_property_readonly("ops", [](const walk::Program& p) { return p.ops.size(); })
      .def("run", &run, py::arg("state"), py::arg("batch"), py::arg("terms"), py::arg("switches"),
           py::arg("choices"));
  py::class_<walk::Offsets>(m, "Offsets", py::module_local())
      .def(py::init<std::uint64_t>(), py::arg("seed"))
      .def("skip", &walk::Offsets::skip, py::arg("outputs"))
      .def("next", &walk::Offsets::next, py::arg("count"), py::arg("bound"));
  m.def("used_plans", [](int index) -> std::optional<std::string> {
    const auto table = plan::active(index);
    return table ? std::optional(plan::write(table->used())) : std::nullopt;
  });
  m.def("adder_class", [](const std::string& card) {
    const auto adder = gemm::adder_class(card_by_name(card).compute_capability(), DType::kF16);
    return adder == gemm::AdderClass::kHopper ? "16 terms" : "8 terms";
  });
  m.def("numeric_switches", &program::switch_names);
  m.def("digest", [](const at::Tensor& t) {
    py::gil_scoped_release nogil;
    return program::digest_of(t).hex();
  });
}

}  // namespace step_oracle
