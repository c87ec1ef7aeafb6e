// Matrix units of every maker for Python: dense float32 buffers in and out.
#include "csrc/oracle/bind/units.h"

#include <fmt/format.h>

#include <string>

#include "csrc/kernels/core/error.h"
#include "csrc/kernels/gemm/units.h"

namespace py = pybind11;

namespace step_oracle {
namespace {

struct Dense {
  float* data;
  std::int64_t rows, cols;
};
Dense dense(const py::buffer_info& b, const char* which) {
  const bool ok = b.ndim == 2 && b.format == "f" && (b.shape[0] <= 1 || b.strides[0] == b.shape[1] * 4) &&
                  (b.shape[1] <= 1 || b.strides[1] == 4);
  if (!ok)
    throw Error(ErrorKind::kBadInput, fmt::format("units: {} must be a contiguous float32 matrix", which));
  return {static_cast<float*>(b.ptr), b.shape[0], b.shape[1]};
}

void product(const std::string& name, const py::buffer& a, const py::buffer& b, const py::buffer& d, bool accumulate) {
  const py::buffer_info ai = a.request(), bi = b.request(), di = d.request(true);
  const Dense x = dense(ai, "a"), y = dense(bi, "b"), out = dense(di, "d");
  if (x.cols != y.rows || out.rows != x.rows || out.cols != y.cols)
    throw Error(ErrorKind::kBadInput, fmt::format("units: a is {}x{}, b {}x{}, d {}x{}; give d the shape of a @ b", x.rows,
                                                  x.cols, y.rows, y.cols, out.rows, out.cols));
  const gemm::MatrixUnit& unit = gemm::unit_by_name(name);
  const py::gil_scoped_release release;
  gemm::run(unit, {x.rows, y.cols, x.cols, x.data, y.data, accumulate ? out.data : nullptr, out.data});
}

py::list list() {
  py::list out;
  for (const gemm::MatrixUnit& u : gemm::all_units()) {
    py::dict row;
    row["name"] = u.name, row["terms"] = u.terms, row["arithmetic"] = u.arithmetic, row["grade"] = u.grade;
    row["source"] = u.source;
    out.append(row);
  }
  return out;
}

}  // namespace

void bind_units(py::module_& m) {
  m.def("unit_product", &product, py::arg("unit"), py::arg("a"), py::arg("b"), py::arg("d"), py::arg("accumulate"));
  m.def("units", &list);
}

}  // namespace step_oracle
