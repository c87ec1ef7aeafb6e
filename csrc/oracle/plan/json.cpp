#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <set>

#include "csrc/kernels/card/card.h"
#include "csrc/kernels/core/error.h"
#include "csrc/oracle/plan/names.h"
#include "csrc/oracle/plan/table.h"

namespace step_oracle::plan {
namespace {

using Json = nlohmann::json;
constexpr const char* kFormat = "step-oracle plan table 1";

// An object of the file, and where it stands. Every field that is read is noted, so that an unknown one is an error.
class Object {
 public:
  Object(const Json& json, std::string where) : json_(json), where_(std::move(where)) {
    if (!json.is_object()) fail(fmt::format("is {}; give an object", json.type_name()));
  }
  [[noreturn]] void fail(const std::string& what) const {
    throw Error(ErrorKind::kBadInput, fmt::format("plan table: {} {}", where_, what));
  }
  const Json* find(const char* field) {
    seen_.insert(field);
    const auto it = json_.find(field);
    return it == json_.end() ? nullptr : &*it;
  }
  const Json& require(const char* field) {
    if (const Json* value = find(field)) return *value;
    fail(fmt::format("has no field '{}'", field));
  }
  std::string text(const char* field) {
    const Json& value = require(field);
    if (!value.is_string()) fail(fmt::format("has '{}' of type {}; give a string", field, value.type_name()));
    return value.get<std::string>();
  }
  std::int64_t integer(const char* field, std::int64_t least, std::optional<std::int64_t> otherwise = {}) {
    const Json* value = otherwise ? find(field) : &require(field);
    if (!value) return *otherwise;
    if (!value->is_number_integer() || *value < least || *value > std::int64_t{1} << 40)
      fail(fmt::format("has '{}': {}; give a whole number from {} to 2^40", field, value->dump(), least));
    return value->get<std::int64_t>();
  }
  bool flag(const char* field, bool otherwise) {
    const Json* value = find(field);
    if (!value) return otherwise;
    if (!value->is_boolean()) fail(fmt::format("has '{}': {}; give true or false", field, value->dump()));
    return value->get<bool>();
  }
  template <class E, std::size_t n>
  E choice(const char* field, const Names<E, n>& names, std::optional<E> otherwise = {}) {
    const Json* value = otherwise ? find(field) : &require(field);
    if (!value) return *otherwise;
    std::string known;
    for (const auto& [v, name] : names) {
      if (value->is_string() && value->get<std::string>() == name) return v;
      known += known.empty() ? "" : ", ";
      known += name;
    }
    fail(fmt::format("has '{}': {}; give one of: {}", field, value->dump(), known));
  }
  void no_other_fields() const {
    for (const auto& [field, value] : json_.items())
      if (!seen_.count(field)) fail(fmt::format("has a field '{}' that is not known", field));
  }

 private:
  const Json& json_;
  std::string where_;
  std::set<std::string> seen_;
};

gemm::Plan plan_from(Object o) {
  gemm::Plan p;
  p.splits = static_cast<int>(o.integer("splits", 1, 1));
  p.deal = o.choice("deal", kDeals, std::optional{p.deal});
  p.width = o.integer("width", 1, 0);
  p.slices = static_cast<int>(o.integer("slices", 1, 1));
  p.slice_width = o.integer("slice_width", 1, 0);
  p.combine = o.choice("combine", kCombines, std::optional{p.combine});
  p.tail = o.choice("tail", kTails, std::optional{p.tail});
  p.tail_width = o.integer("tail_width", 1, 0);
  p.group = static_cast<int>(o.integer("group", 1, 0));
  p.block = o.integer("block", 1, 0);
  p.reduction = o.choice("reduction", kReductions, std::optional{p.reduction});
  p.order = o.choice("order", kOrders, std::optional{p.order});
  p.bias = o.choice("bias", kBiasPlaces, std::optional{p.bias});
  p.unit = o.choice("unit", kUnits, std::optional{p.unit});
  o.no_other_fields();
  try {
    gemm::check(p);
  } catch (const Error& e) {
    o.fail(fmt::format("is no plan: {}", e.what()));
  }
  return p;
}

Key key_from(Object& o) {
  Key key;
  key.op = o.choice("op", kOps);
  const FactorType factors = o.choice("dtype", kTypes);
  key.dtype = factors.dtype, key.tf32 = factors.tf32;
  const std::string layout = o.text("layout");
  if (layout.size() != 2 || layout.find_first_not_of("nt") != std::string::npos)
    o.fail(fmt::format("has 'layout': \"{}\"; give nn, nt, tn or tt", layout));
  key.a_transposed = layout[0] == 't', key.b_transposed = layout[1] == 't';
  key.epilogue = o.choice("epilogue", kEpilogues, std::optional{EpilogueKind::kNone});
  key.m = o.integer("m", 1), key.n = o.integer("n", 1), key.k = o.integer("k", 1);
  key.batch = o.integer("batch", 1, 1);
  return key;
}

void add_row(Table& table, const Json& json, std::size_t number) {
  const std::string where = fmt::format("row {}", number);
  Object o(json, where);
  Key key = key_from(o);
  Row row{plan_from(Object(o.require("plan"), where + " 'plan'")), o.find("source") ? o.text("source") : table.source};
  try {
    gemm::check(row.plan, key.k);
  } catch (const Error& e) {
    o.fail(fmt::format("has a plan that is none for it: {}", e.what()));
  }
  // A row without the field holds for both settings of the switch.
  const bool both = !o.find("reduced_precision");
  const bool on = o.flag("reduced_precision", true);
  o.no_other_fields();
  for (const bool setting : {true, false}) {
    if (!both && setting != on) continue;
    if (key.dtype == DType::kF32 && !setting) continue;
    key.reduced_precision = setting;
    if (!table.rows.emplace(key, row).second) o.fail(fmt::format("repeats {}", describe(key)));
  }
}

}  // namespace

Table parse(std::string_view text) {
  const Json json = Json::parse(text, nullptr, false);
  if (json.is_discarded())
    throw Error(ErrorKind::kBadInput, "plan table: the text is not JSON; docs/plan-table.md describes the file");
  Object o(json, "the file");
  if (o.text("format") != kFormat)
    o.fail(fmt::format("has the format '{}'; this version reads '{}'", o.text("format"), kFormat));
  Table table;
  table.card = card_by_name(o.text("card")).name;
  table.library = o.text("library");
  table.source = o.text("source");
  const std::string otherwise = o.find("otherwise") ? o.text("otherwise") : "assumed";
  if (otherwise != "assumed" && otherwise != "pinned")
    o.fail(fmt::format("has 'otherwise': \"{}\"; give assumed or pinned", otherwise));
  table.pinned = otherwise == "pinned";
  const Json& rows = o.require("rows");
  if (!rows.is_array()) o.fail(fmt::format("has 'rows' of type {}; give an array", rows.type_name()));
  o.no_other_fields();
  for (std::size_t i = 0; i < rows.size(); ++i) add_row(table, rows[i], i + 1);
  return table;
}

namespace {

nlohmann::ordered_json plan_json(const gemm::Plan& p) {
  const gemm::Plan none;
  nlohmann::ordered_json o = nlohmann::ordered_json::object();
  const auto number = [&](const char* field, std::int64_t value, std::int64_t usual) {
    if (value != usual) o[field] = value;
  };
  const auto choice = [&](const char* field, const auto& names, auto value, auto usual) {
    if (value != usual) o[field] = name_in(names, value);
  };
  number("splits", p.splits, none.splits);
  choice("deal", kDeals, p.deal, none.deal);
  number("width", p.width, none.width);
  number("slices", p.slices, none.slices);
  number("slice_width", p.slice_width, none.slice_width);
  choice("combine", kCombines, p.combine, none.combine);
  choice("tail", kTails, p.tail, none.tail);
  number("tail_width", p.tail_width, none.tail_width);
  number("group", p.group, none.group);
  number("block", p.block, none.block);
  choice("reduction", kReductions, p.reduction, none.reduction);
  choice("order", kOrders, p.order, none.order);
  choice("bias", kBiasPlaces, p.bias, none.bias);
  choice("unit", kUnits, p.unit, none.unit);
  return o;
}

}  // namespace

std::string text_of(const gemm::Plan& plan) { return plan_json(plan).dump(); }

std::string write(const Table& table) {
  using Ordered = nlohmann::ordered_json;
  std::string rows;
  for (const auto& [key, row] : table.rows) {
    Key other = key;
    other.reduced_precision = !key.reduced_precision;
    const Row* twin = table.find(other);
    const bool both = twin && twin->plan == row.plan && twin->source == row.source;
    if (both && !key.reduced_precision) continue;  // written once, with the other setting
    Ordered o;
    o["op"] = name_in(kOps, key.op);
    o["dtype"] = name_in(kTypes, {key.dtype, key.tf32});
    o["layout"] = std::string{key.a_transposed ? 't' : 'n', key.b_transposed ? 't' : 'n'};
    if (key.epilogue != EpilogueKind::kNone) o["epilogue"] = name_in(kEpilogues, key.epilogue);
    if (key.dtype != DType::kF32 && !both) o["reduced_precision"] = key.reduced_precision;
    o["m"] = key.m, o["n"] = key.n, o["k"] = key.k;
    if (key.batch != 1) o["batch"] = key.batch;
    o["plan"] = plan_json(row.plan);
    if (row.source != table.source) o["source"] = row.source;
    rows += rows.empty() ? "\n  " : ",\n  ";
    rows += o.dump();
  }
  return fmt::format(
      "{{\n \"format\": {},\n \"card\": {},\n \"library\": {},\n \"source\": {},\n{} \"rows\": [{}\n ]\n}}\n",
      Json(kFormat).dump(), Json(table.card).dump(), Json(table.library).dump(), Json(table.source).dump(),
      table.pinned ? " \"otherwise\": \"pinned\",\n" : "", rows);
}

}  // namespace step_oracle::plan
