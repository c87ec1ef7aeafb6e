#include "csrc/oracle/bind/choices.h"

#include <pybind11/stl.h>

#include <memory>

namespace py = pybind11;

namespace step_oracle {

std::vector<aten::Choice> choices_of(const ChoiceRows& rows) {
  std::vector<aten::Choice> out;
  for (const auto& [op, name, call, value] : rows) out.push_back({op, name, call, value});
  return out;
}

}  // namespace step_oracle

// Entered and left on one thread, innermost first: step_oracle/choices.py.
void bind_choices(py::module_& m) {
  using step_oracle::aten::ChoiceScope;
  py::class_<ChoiceScope>(m, "ChoiceScope", py::module_local())
      .def(py::init([](const step_oracle::ChoiceRows& rows) {
        return std::make_unique<ChoiceScope>(step_oracle::choices_of(rows));
      }))
      .def("times", &ChoiceScope::times)
      .def("close", &ChoiceScope::close);
  m.def("open_operators", &step_oracle::aten::open_operators);
}
