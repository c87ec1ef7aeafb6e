// Replay for Python: a report as a dict.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include "csrc/oracle/bind/choices.h"
#include "csrc/oracle/bind/plan.h"
#include "csrc/oracle/bind/program.h"
#include "csrc/oracle/program/replay.h"

namespace py = pybind11;

namespace step_oracle {
namespace {

py::dict as_dict(const program::Divergence& d) {
  py::dict out;
  out["index"] = d.index;
  out["op"] = d.op;
  out["module"] = d.module;
  out["output"] = d.output;
  out["coordinates"] = d.coordinates.empty() && d.differing < 0 ? py::object(py::none()) : py::cast(d.coordinates);
  out["expected"] = d.expected;
  out["actual"] = d.actual;
  out["ulps"] = py::cast(d.ulps);
  out["differing"] = d.differing < 0 ? py::object(py::none()) : py::cast(d.differing);
  out["elements"] = d.elements < 0 ? py::object(py::none()) : py::cast(d.elements);
  out["cause"] = d.cause;
  return out;
}

py::list as_list(const std::vector<program::OpNote>& notes) {
  py::list out;
  for (const auto& n : notes) {
    py::dict row;
    row["index"] = n.index;
    row["op"] = n.op;
    row["reason"] = n.reason;
    out.append(row);
  }
  return out;
}

py::list as_list(const std::vector<program::FittedPlan>& found) {
  py::list out;
  for (const auto& f : found) {
    py::dict row;
    row["index"] = f.index;
    row["product"] = plan::describe(f.key);
    row["plan"] = plan::describe(f.plan);
    row["tried"] = f.tried;
    out.append(row);
  }
  return out;
}

py::list as_list(const std::vector<program::ChoiceNote>& notes) {
  py::list out;
  for (const auto& n : notes) {
    py::dict row;
    row["index"] = n.index;
    row["op"] = n.choice.op;
    row["name"] = n.choice.name;
    row["call"] = n.choice.call;
    row["calls"] = n.calls;
    row["value"] = n.choice.value;
    row["given"] = n.given;
    row["tried"] = n.tried;
    out.append(row);
  }
  return out;
}

py::list as_list(const std::vector<program::ChoiceTie>& ties) {
  py::list out;
  for (const auto& t : ties) {
    py::dict row;
    row["index"] = t.index;
    row["op"] = t.op;
    row["name"] = t.name;
    row["part"] = t.part;
    row["variants"] = t.variants;
    out.append(row);
  }
  return out;
}

py::dict replay(const std::string& path, const std::string& mode, const std::string& card, const std::string& plans,
                bool fit_plans, const ChoiceRows& choices, bool ties, const py::object& progress) {
  program::Options options;
  options.mode = mode == "end-to-end" ? program::Mode::kEndToEnd : program::Mode::kOpLocal;
  options.card = card;
  options.plans = plans;
  options.fit_plans = fit_plans;
  options.choices = choices_of(choices);
  options.ties = ties;
  options.progress = [&](std::size_t done, std::size_t total) {
    py::gil_scoped_acquire gil;
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();  // Ctrl-C
    if (!progress.is_none()) progress(done, total);
  };
  program::Report report;
  {
    py::gil_scoped_release nogil;
    report = program::replay(*Trace::open(path), options);
  }
  py::dict out, counts, state;
  counts["match"] = report.counts.match;
  counts["mismatch"] = report.counts.mismatch;
  counts["unmodelled"] = report.counts.unmodelled;
  counts["carried"] = report.counts.carried;
  for (const auto& [name, tensor] : report.final_state) state[py::str(name)] = py::cast(tensor);
  py::list mismatches;
  for (const auto& d : report.mismatches) mismatches.append(as_dict(d));
  out["ok"] = report.ok();
  out["mode"] = mode;
  out["card"] = report.card;
  out["counts"] = counts;
  out["divergence"] = report.divergence ? py::object(as_dict(*report.divergence)) : py::object(py::none());
  out["mismatches"] = mismatches;
  out["unmodelled"] = as_list(report.unmodelled);
  out["carried"] = as_list(report.carried);
  out["declared_inputs"] = report.reads.declared;
  out["reads_from_recording"] = report.reads.inputs + report.reads.carried;
  out["products"] = step_oracle::as_dict(report.products);
  out["fitted"] = as_list(report.fitted);
  out["plan_table"] = report.plan_table;
  out["choices"] = as_list(report.choices);
  out["ties"] = as_list(report.ties);
  out["tied"] = report.tied;
  out["outputs"] = report.outputs;
  out["seconds"] = report.seconds;
  out["final"] = state;
  return out;
}

}  // namespace

void bind_program(py::module_& m) {
  m.def("card_of_trace", [](const std::string& path) { return program::card_of_trace(*Trace::open(path)); },
        py::arg("path"));
  m.def("replay", &replay, py::arg("path"), py::arg("mode"), py::arg("card"), py::arg("plans"),
        py::arg("fit_plans"), py::arg("choices"), py::arg("ties"), py::arg("progress"));
}

}  // namespace step_oracle
