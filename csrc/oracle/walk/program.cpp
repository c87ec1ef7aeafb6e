#include "csrc/oracle/walk/program.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>

#include "csrc/kernels/core/error.h"
#include "csrc/oracle/program/host_ops.h"
#include "csrc/oracle/program/op_rules.h"

namespace step_oracle::walk {
namespace {

using Json = nlohmann::json;
using rec::ValueKind;
constexpr const char* kFormat = "step-oracle program 1";

template <class... Args>
[[noreturn]] void refuse(fmt::format_string<Args...> text, Args&&... args) {
  throw Error(ErrorKind::kBadInput, "program: " + fmt::format(text, std::forward<Args>(args)...));
}

std::int64_t integer(const Json& j, const char* what, std::int64_t least) {
  if (!j.is_number_integer() || (j.is_number_unsigned() && j.get<std::uint64_t>() > INT64_MAX) || j.get<std::int64_t>() < least)
    refuse("{} is {}; give a whole number from {}", what, j.dump().substr(0, 80), least);
  return j.get<std::int64_t>();
}

std::string text(const Json& j, const char* what) {
  if (!j.is_string() || j.get_ref<const std::string&>().empty())
    refuse("{} is {}; give a text", what, j.dump().substr(0, 80));
  return j.get<std::string>();
}

std::vector<std::int64_t> integers(const Json& j, const char* what, std::int64_t least) {
  if (!j.is_array() || j.size() > 64) refuse("{} is {}; give a list of numbers", what, j.dump().substr(0, 80));
  std::vector<std::int64_t> out;
  for (const Json& item : j) out.push_back(integer(item, what, least));
  return out;
}

void only(const Json& j, const char* what, std::initializer_list<const char*> fields) {
  if (!j.is_object()) refuse("{} is {}; give an object", what, j.dump().substr(0, 80));
  for (const auto& [key, value] : j.items())
    if (std::none_of(fields.begin(), fields.end(), [&](const char* f) { return key == f; }))
      refuse("{} has a field '{}', which is none of a program's", what, key);
  for (const char* f : fields)
    if (!j.contains(f)) refuse("{} has no field '{}'", what, f);
}

rec::DType dtype(const Json& j) {
  const std::string name = text(j, "a dtype");
  for (int i = 0; i <= static_cast<int>(rec::DType::Float4E2M1FNx2); ++i)
    if (const auto t = static_cast<rec::DType>(i); name == rec::name_of(t) && rec::size_of(t)) return t;
  refuse("there is no dtype '{}'", name);
}

std::vector<std::int64_t> dense(const std::vector<std::int64_t>& sizes) {
  std::vector<std::int64_t> strides(sizes.size(), 1);
  for (std::size_t d = sizes.size(); d-- > 1;)
    if (__builtin_mul_overflow(strides[d], std::max<std::int64_t>(sizes[d], 1), &strides[d - 1]))
      refuse("a tensor of more than 2^63 elements");
  return strides;
}

std::vector<std::uint8_t> from_base64(const std::string& s) {
  std::vector<std::uint8_t> out;
  std::uint32_t bits = 0;
  int have = 0;
  static const std::string kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  for (const char c : s) {
    const auto at = kDigits.find(c);
    if (at == std::string::npos) refuse("a slot's bytes are not base64 without padding");
    bits = bits << 6 | static_cast<std::uint32_t>(at);
    have += 6;
    if (have >= 8) out.push_back(static_cast<std::uint8_t>(bits >> (have -= 8)));
    bits &= (1u << have) - 1;
  }
  if (bits != 0 || have >= 6) refuse("a slot's bytes are not base64 without padding");
  return out;
}

// A value fits the argument it is given for, so that nothing of it goes unread.
bool fits(const rec::ValueT& v, const c10::TypePtr& type) {
  using c10::TypeKind;
  switch (type->kind()) {
    case TypeKind::OptionalType:
      return v.kind == ValueKind::None || fits(v, type->expectRef<c10::OptionalType>().getElementType());
    case TypeKind::TensorType: return v.kind == ValueKind::Tensor;
    case TypeKind::IntType:
    case TypeKind::SymIntType:
      return v.kind == ValueKind::Int || v.kind == ValueKind::DType || v.kind == ValueKind::Layout ||
             v.kind == ValueKind::MemoryFormat;
    case TypeKind::ScalarTypeType: return v.kind == ValueKind::DType;
    case TypeKind::LayoutType: return v.kind == ValueKind::Layout;
    case TypeKind::MemoryFormatType: return v.kind == ValueKind::MemoryFormat;
    case TypeKind::FloatType:
    case TypeKind::SymFloatType: return v.kind == ValueKind::Float || v.kind == ValueKind::Int;
    case TypeKind::BoolType:
    case TypeKind::SymBoolType: return v.kind == ValueKind::Bool;
    case TypeKind::NumberType: return v.kind == ValueKind::Float || v.kind == ValueKind::Int || v.kind == ValueKind::Bool;
    case TypeKind::StringType: return v.kind == ValueKind::String;
    case TypeKind::DeviceObjType: return v.kind == ValueKind::Device;
    case TypeKind::GeneratorType: return v.kind == ValueKind::Generator;
    case TypeKind::ListType: {
      const auto& element = type->expectRef<c10::ListType>().getElementType();
      return v.kind == ValueKind::List &&
             std::all_of(v.list.begin(), v.list.end(), [&](const auto& x) { return fits(*x, element); });
    }
    default: return false;
  }
}

class Parser {
 public:
  explicit Parser(Program& p) : p_(p) {}

  void run(std::string_view json) {
    Json j;
    try {
      j = Json::parse(json);
    } catch (const Json::exception& e) {
      refuse("it is not JSON: {}", e.what());
    }
    only(j, "it", {"format", "slots", "ops", "state", "loss"});
    if (j["format"] != kFormat) refuse("its format is {}, and this version reads '{}'", j["format"].dump().substr(0, 80), kFormat);
    for (const char* field : {"slots", "ops"})
      if (!j[field].is_array()) refuse("its '{}' is no list", field);
    for (const Json& slot : j["slots"]) global(slot);
    globals_ = p_.slots.size();
    for (const Json& item : j["ops"]) op(item);
    if (!j["state"].is_object()) refuse("its 'state' is no object");
    for (const auto& [name, at] : j["state"].items()) {
      const Use u = use(at);
      if (bytes_of(u.geometry) != p_.slots[u.slot].nbytes || u.geometry.offset)
        refuse("the state '{}' is a part of a slot", name);
      hand_on(u);
      p_.state.emplace(name, u);
    }
    if (!j["loss"].is_null()) {
      p_.loss = use(j["loss"]);
      if (p_.loss->geometry.sizes.size() > 1 || bytes_of(p_.loss->geometry) > 8) refuse("its loss is not one number");
      hand_on(*p_.loss);
    }
    for (std::size_t i = 0; i < globals_; ++i)
      if (!used_.at(i)) refuse("nothing reads slot {} ('{}')", i, p_.slots[i].name);
    measure();
  }

 private:
  void hand_on(const Use& u) { p_.slots[u.slot].last_use = p_.ops.size(); }

  Geometry geometry(const Json& j, std::size_t first) {
    Geometry g;
    g.dtype = dtype(j[first]);
    g.sizes = integers(j[first + 1], "a shape", 0);
    g.strides = j.size() > first + 2 ? integers(j[first + 2], "strides", 0) : dense(g.sizes);
    if (g.strides.size() != g.sizes.size()) refuse("a tensor with {} sizes and {} strides", g.sizes.size(), g.strides.size());
    bytes_of(g);
    return g;
  }

  // [device, dtype, shape] or [device, dtype, shape, strides]
  Slot place(const Json& j) {
    if (!j.is_array() || j.size() < 3 || j.size() > 4) refuse("a slot's geometry is {}", j.dump().substr(0, 80));
    Slot s;
    const std::string device = text(j[0], "a device");
    if (device != "card" && device != "host") refuse("there is no device '{}'; give card or host", device);
    s.card = device == "card";
    s.geometry = geometry(j, 1);
    s.nbytes = bytes_of(s.geometry);
    return s;
  }

  void global(const Json& j) {
    if (!j.is_object() || j.size() != 2 || !j.contains("is")) refuse("a slot is {}", j.dump().substr(0, 80));
    Slot s = place(j["is"]);
    if (j.contains("state")) {
      s.kind = SlotKind::kState, s.name = text(j["state"], "a state's name");
      if (rec::numel(s.geometry.sizes) * static_cast<std::int64_t>(rec::size_of(s.geometry.dtype)) != static_cast<std::int64_t>(s.nbytes))
        refuse("the state '{}' does not fill its slot, each byte once", s.name);
    } else if (j.contains("batch")) {
      s.kind = SlotKind::kBatch, s.name = text(j["batch"], "a batch's name");
    } else if (j.contains("term")) {
      s.kind = SlotKind::kTerm, s.name = text(j["term"], "a term");
      if (s.geometry.dtype != rec::DType::Float64 || s.nbytes != 8) refuse("the term '{}' fills no float64", s.name);
      p_.terms[s.name];
    } else if (j.contains("bytes")) {
      s.kind = SlotKind::kBytes;
      s.bytes = from_base64(text(j["bytes"], "a slot's bytes"));
      if (s.bytes.size() != s.nbytes) refuse("a slot of {} bytes is given {}", s.nbytes, s.bytes.size());
    } else {
      refuse("a slot is none of state, batch, term, bytes: {}", j.dump().substr(0, 80));
    }
    p_.slots.push_back(std::move(s));
    used_.push_back(false);
  }

  // A slot's number (from the end of those made so far, for a negative one), alone or with another geometry than its own.
  Use use(const Json& j) {
    const bool alone = !j.is_array();
    if (!alone && j.size() != 5) refuse("a tensor is {}", j.dump().substr(0, 80));
    const std::int64_t number = integer(alone ? j : j[0], "a slot's number", INT64_MIN / 2);
    const auto n = static_cast<std::int64_t>(p_.slots.size()), globals = static_cast<std::int64_t>(globals_);
    const std::int64_t at = number < 0 ? n + number : number;
    if (at < 0 || at >= n || (number < 0 ? at < globals : at >= globals)) refuse("there is no slot {} at op {}", number, p_.ops.size());
    Use u{static_cast<std::size_t>(at), p_.slots[static_cast<std::size_t>(at)].geometry};
    if (!alone) {
      u.geometry = geometry(j, 1);
      u.geometry.offset = integer(j[4], "an offset", 0);
      if (bytes_of(u.geometry) > p_.slots[u.slot].nbytes) refuse("a tensor of op {} reaches outside its slot", p_.ops.size());
      const Geometry& own = p_.slots[u.slot].geometry;
      if (u.geometry == own) refuse("a tensor of op {} spells out the geometry of its slot", p_.ops.size());
    }
    used_[u.slot] = true;
    p_.slots[u.slot].last_use = std::max(p_.slots[u.slot].last_use, p_.ops.size());
    return u;
  }

  rec::ValuePtr value(const Json& j, Op& op) {
    switch (j.type()) {
      case Json::value_t::null: return rec::none_value();
      case Json::value_t::boolean: return rec::bool_value(j.get<bool>());
      case Json::value_t::number_integer:
      case Json::value_t::number_unsigned: return rec::int_value(integer(j, "a number", INT64_MIN));
      case Json::value_t::number_float: return rec::float_value(j.get<double>());
      case Json::value_t::string: return rec::text_value(ValueKind::String, j.get<std::string>());
      case Json::value_t::array: {
        std::vector<rec::ValuePtr> items;
        for (const Json& item : j) items.push_back(value(item, op));
        return rec::list_value(std::move(items));
      }
      default: break;
    }
    if (!j.is_object() || j.size() != 1) refuse("an argument of op {} is {}", p_.ops.size(), j.dump().substr(0, 80));
    const std::string key = j.begin().key();
    const Json& v = j.begin().value();
    if (key == "t" || key == "w") {
      if (v.is_null()) return tensor(-1);
      op.uses.push_back(use(v));
      op.uses.back().geometry.wrapped = key == "w";
      return tensor(static_cast<std::int64_t>(op.uses.size()) - 1);
    }
    if (key == "float") {
      const double inf = std::numeric_limits<double>::infinity();
      if (v == "inf") return rec::float_value(inf);
      if (v == "-inf") return rec::float_value(-inf);
      if (v == "nan") return rec::float_value(std::numeric_limits<double>::quiet_NaN());
      refuse("a float of op {} is {}; give inf, -inf or nan", p_.ops.size(), v.dump().substr(0, 80));
    }
    if (key == "term") {
      auto out = rec::float_value(0);
      p_.terms[text(v, "a term")].push_back(out.get());
      return out;
    }
    if (key == "dtype") return rec::enum_value(ValueKind::DType, static_cast<std::int64_t>(dtype(v)));
    if (key == "layout") return rec::enum_value(ValueKind::Layout, integer(v, "a layout", 0));
    if (key == "memory_format") return rec::enum_value(ValueKind::MemoryFormat, integer(v, "a memory format", 0));
    if (key == "device" || key == "generator") {
      const std::string name = text(v, "a device");
      if (name != "card" && (name != "host" || key == "generator")) refuse("there is no {} '{}'", key, name);
      return rec::text_value(key == "device" ? ValueKind::Device : ValueKind::Generator, name == "card" ? "oracle:0" : "cpu");
    }
    refuse("an argument of op {} has the field '{}'", p_.ops.size(), key);
  }

  static rec::ValuePtr tensor(std::int64_t index) {
    auto out = rec::tensor_value(0);
    out->i = index;
    return out;
  }

  static bool names_card(const rec::ValueT& v) {
    if (v.kind == ValueKind::Device) return v.text != "cpu";
    return std::any_of(v.list.begin(), v.list.end(), [](const auto& item) { return names_card(*item); });
  }

  // [name, overload, arguments, results]
  void op(const Json& j) {
    const std::size_t at = p_.ops.size();
    if (!j.is_array() || j.size() != 4 || !j[0].is_string() || !j[1].is_string() || !j[2].is_array() || !j[3].is_array())
      refuse("op {} is {}", at, j.dump().substr(0, 80));
    Op op;
    op.record.name = j[0].get<std::string>();
    op.record.overload = j[1].get<std::string>();
    if (op.record.name.rfind("aten::", 0) != 0) refuse("op {} is '{}'; programs are of torch's own ops (aten::)", at, op.record.name);
    op.handle = c10::Dispatcher::singleton().findSchema({op.record.name, op.record.overload});
    if (!op.handle) refuse("op {}: this torch has no '{}'", at, rec::display_name(op.record));
    const auto& arguments = op.handle->schema().arguments();
    if (arguments.size() != j[2].size())
      refuse("op {} ({}) has {} arguments; its schema has {}", at, rec::display_name(op.record), j[2].size(), arguments.size());
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      op.record.args.push_back(value(j[2][i], op));
      if (!fits(*op.record.args.back(), arguments[i].real_type()) && !fits(*op.record.args.back(), arguments[i].type()))
        refuse("op {} ({}) has a value of another type for its argument '{}'", at, rec::display_name(op.record), arguments[i].name());
    }
    const bool on_host = std::none_of(op.uses.begin(), op.uses.end(), [&](const Use& u) { return p_.slots[u.slot].card; }) &&
                         std::none_of(op.record.args.begin(), op.record.args.end(), [](const auto& v) { return names_card(*v); });
    if (on_host && !program::host_op_is_exact(op.record))
      refuse("op {} ({}) is of the host, and the host decides its bytes", at, rec::display_name(op.record));
    op.leaves_noise = program::leaves_noise(op.record);
    p_.draws |= op.handle->hasTag(at::Tag::nondeterministic_seeded);
    std::vector<Slot> made;
    for (const Json& result : j[3]) {
      if (result.is_null()) {
        op.results.emplace_back();
        continue;
      }
      op.results.emplace_back(p_.slots.size() + made.size());
      made.push_back(place(result));
      made.back().last_use = at;
    }
    for (Slot& s : made) {
      p_.slots.push_back(std::move(s));
      used_.push_back(false);
    }
    p_.ops.push_back(std::move(op));
  }

  void measure() {
    std::vector<std::int64_t> change(p_.ops.size() + 2, 0);
    std::vector<std::size_t> born(p_.slots.size(), 0);
    for (std::size_t i = 0; i < p_.ops.size(); ++i)
      for (const auto& r : p_.ops[i].results)
        if (r) born[*r] = i;
    for (std::size_t s = 0; s < p_.slots.size(); ++s) {
      change[born[s]] += static_cast<std::int64_t>(p_.slots[s].nbytes);
      change[std::min(p_.slots[s].last_use, p_.ops.size()) + 1] -= static_cast<std::int64_t>(p_.slots[s].nbytes);
    }
    std::int64_t now = 0, most = 0;
    for (const std::int64_t c : change) most = std::max(most, now += c);
    p_.live_bytes = static_cast<std::size_t>(most);
  }

  Program& p_;
  std::size_t globals_ = std::numeric_limits<std::int32_t>::max();
  std::vector<bool> used_;
};

}  // namespace

std::size_t bytes_of(const Geometry& g) {
  constexpr std::int64_t kMost = std::int64_t{1} << 46;
  const auto item = static_cast<std::int64_t>(rec::size_of(g.dtype));
  std::int64_t last = g.offset;
  bool empty = false;
  for (std::size_t d = 0; d < g.sizes.size(); ++d) {
    std::int64_t span = 0;
    empty |= g.sizes[d] == 0;
    if (__builtin_mul_overflow(std::max<std::int64_t>(g.sizes[d], 1) - 1, g.strides[d], &span) ||
        __builtin_add_overflow(last, span, &last))
      refuse("a tensor that reaches past 2^63 elements");
  }
  if (last >= kMost / item) refuse("a tensor of more than 2^46 bytes");
  return empty ? 0 : static_cast<std::size_t>((last + 1) * item);
}

Program::Program(std::string_view json) { Parser(*this).run(json); }

}  // namespace step_oracle::walk
