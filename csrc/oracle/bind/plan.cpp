// Plan tables for Python: text in, text out.
#include "csrc/oracle/bind/plan.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>
#include <fmt/format.h>
#include <pybind11/functional.h>
#include <pybind11/pybind11.h>
#include <torch/csrc/utils/pybind.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "csrc/kernels/card/card.h"
#include "csrc/kernels/core/error.h"
#include "csrc/oracle/aten/adapter.h"
#include "csrc/oracle/device/device.h"
#include "csrc/oracle/plan/active.h"
#include "csrc/oracle/plan/fit.h"

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
  out["card"] = table.card, out["library"] = table.library, out["rows"] = rows, out["pinned"] = table.pinned;
  return out;
}

gemm::Strides strides_of(const at::Tensor& t) { return {t.stride(-2), t.stride(-1), t.dim() == 3 ? t.stride(0) : 0}; }

py::dict as_dict(const plan::Fit& fit) {
  py::list matches;
  for (const gemm::Plan& p : fit.matches) matches.append(py::str(plan::describe(p)));
  py::list rows;
  for (const gemm::Plan& p : fit.matches) rows.append(py::str(plan::text_of(p)));
  py::dict out;
  out["matches"] = matches, out["plans"] = rows, out["tried"] = fit.tried;
  const bool compared = fit.matches.empty() && fit.nearest_row >= 0;  // a digest says equal or not, and nothing more
  out["nearest"] = compared ? py::object(py::str(plan::describe(fit.nearest))) : py::object(py::none());
  out["nearest_equal"] = compared ? py::object(py::float_(fit.nearest_equal)) : py::object(py::none());
  out["nearest_at"] = py::object(py::none());
  if (compared) out["nearest_at"] = py::make_tuple(fit.nearest_row, fit.nearest_col);
  return out;
}

std::vector<gemm::Plan> plans_for(const plan::Shape& shape, bool everything) {
  return everything ? plan::candidates(shape) : plan::likely(shape);
}

template <class Params>
plan::Fit search(const Params& p, const std::vector<gemm::Plan>& plans, const plan::Judge& is_it,
                 const plan::Progress& progress) {
  return is_it ? plan::fit(p, plans, is_it, progress) : plan::fit(p, plans, progress);
}

// Tensors of host memory that hold what a card multiplied and what came out; a bias of one dimension, or none. With
// `is_it`, out gives the result's type, sizes and strides only, and a candidate's result is judged by it.
py::dict fit_plan(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out,
                  const std::optional<at::Tensor>& bias, const std::string& card, bool everything,
                  const std::function<bool(const at::Tensor&)>& is_it,
                  const std::function<bool(int, int)>& progress) {
  const bool shapes = a.dim() == b.dim() && a.dim() == out.dim() && (a.dim() == 2 || a.dim() == 3) &&
                      a.size(-1) == b.size(-2) && out.size(-2) == a.size(-2) && out.size(-1) == b.size(-1) &&
                      (!bias || (bias->dim() == 1 && bias->numel() == out.size(-1) && bias->is_contiguous()));
  if (!shapes) throw Error(ErrorKind::kBadInput, "plan fit: the shapes are not those of out = a @ b (+ bias)");
  for (const at::Tensor* t : {&a, &b, &out})
    if (!t->is_cpu() || t->scalar_type() != a.scalar_type())
      throw Error(ErrorKind::kBadInput, "plan fit: a, b and out must be host tensors of one type");
  plan::Progress report;
  if (progress)
    report = [&](int done, int all) {
      const py::gil_scoped_acquire gil;
      return progress(done, all);
    };
  plan::Judge judge;
  if (is_it)
    judge = [&](const void* d) {
      const py::gil_scoped_acquire gil;
      return is_it(at::from_blob(const_cast<void*>(d), out.sizes(), out.strides(), out.options()));
    };
  const DType type = aten::dtype_of(a, "plan fit");
  const std::int64_t m = a.size(-2), n = b.size(-1), k = a.size(-1), batch = a.dim() == 3 ? a.size(0) : 1;
  plan::Fit found;
  if (type == DType::kF32) {
    const auto matrix = [](const at::Tensor& t) {
      const gemm::Strides s = strides_of(t);
      return gemm::Matrix{t.const_data_ptr<float>(), s.row, s.col, s.batch};
    };
    gemm::Params p;
    p.m = m, p.n = n, p.k = k, p.batch = batch, p.a = matrix(a), p.b = matrix(b);
    const gemm::Strides d = strides_of(out);
    p.d = {out.data_ptr<float>(), d.row, d.col, d.batch};
    if (bias) p.epilogue.bias = bias->const_data_ptr<float>();
    const py::gil_scoped_release release;
    found = search(p, plans_for(plan::shape_of(p), everything), judge, report);
  } else {
    gemm::TensorCoreParams p;
    p.m = m, p.n = n, p.k = k, p.batch = batch, p.factors = p.results = type;
    p.adder = gemm::adder_class(card_by_name(card).compute_capability(), type);
    p.a = static_cast<const std::uint16_t*>(a.const_data_ptr()), p.a_strides = strides_of(a);
    p.b = static_cast<const std::uint16_t*>(b.const_data_ptr()), p.b_strides = strides_of(b);
    p.d = out.data_ptr(), p.d_strides = strides_of(out);
    if (bias) p.bias = bias->const_data_ptr();
    const py::gil_scoped_release release;
    found = search(p, plans_for(plan::shape_of(p), everything), judge, report);
  }
  return as_dict(found);
}

}  // namespace

py::dict as_dict(const plan::Tally& tally) {
  py::list kinds;
  for (const auto& [key, count] : tally.kinds) kinds.append(py::str(plan::describe(key)));
  py::dict out;
  out["products"] = tally.products, out["assumed"] = tally.assumed, out["kinds"] = kinds;
  return out;
}

void bind_plan(py::module_& m) {
  m.def("fit_plan", &fit_plan, py::arg("a"), py::arg("b"), py::arg("out"), py::arg("bias"), py::arg("card"),
        py::arg("everything"), py::arg("is_it"), py::arg("progress"));
  m.def("chunk_width", &gemm::chunk_width, py::arg("k"), py::arg("splits"), py::arg("rounding"));
  m.def("set_plans", &set_plans, py::arg("index"), py::arg("json"));
  m.def("clear_plans", [](int index) { plan::set_active(index, nullptr); }, py::arg("index"));
  m.def("set_plan_folder", &plan::set_folder, py::arg("path"));
  m.def("plan_tally", [] { return as_dict(plan::tally()); });
  m.def("clear_plan_tally", &plan::clear_tally);
  m.def("plan_table", [](const std::string& json) { return as_dict(plan::parse(json)); }, py::arg("json"));
  m.def("check_plan_tables",
        [](const std::string& a, const std::string& b) { plan::check_distinct(plan::parse(a), plan::parse(b)); },
        py::arg("a"), py::arg("b"));
  m.def("format_plan_table", [](const std::string& json) { return plan::write(plan::parse(json)); }, py::arg("json"));
}

}  // namespace step_oracle
