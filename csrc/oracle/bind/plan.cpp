// Plan tables for Python: text in, text out.
#include "csrc/oracle/bind/plan.h"

#include <fmt/format.h>
#include <pybind11/pybind11.h>

#include <memory>
#include <string>

#include "csrc/kernels/card/card.h"
#include "csrc/kernels/core/error.h"
#include "csrc/oracle/device/device.h"
#include "csrc/oracle/plan/active.h"

namespace py = pybind11;

namespace step_oracle {
namespace {

void set_plans(int index, const std::string& json) {
  auto table = std::make_shared<plan::Table>(plan::parse(json));
  const Card& card = device::card(static_cast<c10::DeviceIndex>(index));
  if (table->card != card.name)
    throw Error(ErrorKind::kBadInput,
                fmt::format("the plan table is of {}, and oracle:{} is {}; give a table of this card", table->card,
                            index, card.name));
  plan::set_active(index, std::move(table));
}

py::dict as_dict(const plan::Table& table) {
  py::list rows;
  for (const auto& [key, row] : table.rows) {
    py::dict r;
    r["product"] = plan::describe(key), r["plan"] = plan::describe(row.plan), r["source"] = row.source;
    rows.append(r);
  }
  py::dict out;
  out["card"] = table.card, out["library"] = table.library, out["rows"] = rows;
  return out;
}

}  // namespace

void bind_plan(py::module_& m) {
  m.def("set_plans", &set_plans, py::arg("index"), py::arg("json"));
  m.def("clear_plans", [](int index) { plan::set_active(index, nullptr); }, py::arg("index"));
  m.def("plan_table", [](const std::string& json) { return as_dict(plan::parse(json)); }, py::arg("json"));
  m.def("format_plan_table", [](const std::string& json) { return plan::write(plan::parse(json)); }, py::arg("json"));
}

}  // namespace step_oracle
