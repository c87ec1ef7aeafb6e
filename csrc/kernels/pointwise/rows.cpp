// The rows of maps.inc by name and common type.
#include <fmt/format.h>

#include <array>
#include <string>
#include <unordered_map>

#include "csrc/kernels/core/error.h"
#include "csrc/kernels/pointwise/pointwise_body.h"

namespace step_oracle::pointwise {

const Row kRows[static_cast<int>(RowIndex::kCount)] = {
#define SO_MAP(name, domain, inputs, kind, ...) {#name, Domain::domain, inputs, Kind::kind, RowIndex::name##_##domain},
#include "csrc/kernels/pointwise/maps.inc"
#undef SO_MAP
};

namespace {
using RowsOf = std::unordered_map<std::string_view, const Row*>;
const RowsOf& rows_of(Domain domain) {
  static const auto all = [] {
    std::array<RowsOf, 4> out;
    for (const Row& row : kRows) out[static_cast<std::size_t>(row.domain)].emplace(row.name, &row);
    return out;
  }();
  return all[static_cast<std::size_t>(domain)];
}
const Row* in(Domain domain, std::string_view name) {
  const auto& rows = rows_of(domain);
  const auto it = rows.find(name);
  return it == rows.end() ? nullptr : it->second;
}
}  // namespace

const Row* find_row(std::string_view name, DType common) {
  switch (common) {
    case DType::kF16:
    case DType::kBF16:
      if (const Row* row = in(Domain::H, name)) return row;
      return in(Domain::F, name);
    case DType::kF32:
      return in(Domain::F, name);
    case DType::kF64:
      return in(Domain::D, name);
    default:
      return in(Domain::I, name);
  }
}

const Row& row(std::string_view name, DType common) {
  if (const Row* found = find_row(name, common)) return *found;
  throw Error(ErrorKind::kUnsupported,
              fmt::format("'{}' has no {} kernel here; convert the tensor to float32 first, or open an issue with the "
                          "operator's name",
                          name, name_of(common)));
}

Scalars Scalars::of(double s, double t) {
  Scalars out;
  const double v[2] = {s, t};
  for (int k = 0; k < 2; ++k) {
    out.f[k] = static_cast<float>(v[k]);
    out.d[k] = v[k];
    out.i[k] = v[k] >= -0x1p63 && v[k] < 0x1p63 ? static_cast<std::int64_t>(v[k]) : 0;
  }
  return out;
}

Scalars Scalars::of_int(std::int64_t s, std::int64_t t) {
  Scalars out;
  const std::int64_t v[2] = {s, t};
  for (int k = 0; k < 2; ++k) {
    out.f[k] = static_cast<float>(v[k]);
    out.d[k] = static_cast<double>(v[k]);
    out.i[k] = v[k];
  }
  return out;
}

}  // namespace step_oracle::pointwise
