#include "csrc/oracle/program/value.h"

#include <ATen/core/List.h>
#include <c10/core/ScalarType.h>
#include <fmt/format.h>

#include <charconv>
#include <limits>

#include "csrc/kernels/core/error.h"
#include "csrc/oracle/device/device.h"

namespace step_oracle::program {
namespace {

using c10::IValue;
using c10::TypeKind;

[[noreturn]] void unsupported(const rec::ValueT& value, const c10::TypePtr& type) {
  throw Error(ErrorKind::kUnsupported,
              fmt::format("an argument of type {} was recorded as {} {}, which a replay cannot make", type->str(),
                          rec::EnumNameValueKind(value.kind), value.text));
}

std::optional<at::Tensor> tensor_of(const rec::ValueT& v, const c10::TypePtr& type, const Resolver& r) {
  if (v.kind == rec::ValueKind::None) return std::nullopt;
  if (v.kind != rec::ValueKind::Tensor) unsupported(v, type);
  return v.i < 0 ? at::Tensor() : r.tensor(static_cast<std::size_t>(v.i));
}

IValue list_of(const rec::ValueT& v, const c10::TypePtr& element, const Resolver& r) {
  const auto fill = [&](auto list, auto get) {
    list.reserve(v.list.size());
    for (const auto& item : v.list) list.push_back(get(*item));
    return IValue(std::move(list));
  };
  switch (element->kind()) {
    case TypeKind::TensorType:
      return fill(c10::List<at::Tensor>(), [&](const rec::ValueT& x) { return tensor_of(x, element, r).value_or(at::Tensor()); });
    case TypeKind::OptionalType:
      if (element->expectRef<c10::OptionalType>().getElementType()->kind() != TypeKind::TensorType) unsupported(v, element);
      return fill(c10::List<std::optional<at::Tensor>>(), [&](const rec::ValueT& x) { return tensor_of(x, element, r); });
    case TypeKind::IntType:
    case TypeKind::SymIntType:
      return fill(c10::List<std::int64_t>(), [](const rec::ValueT& x) { return x.i; });
    case TypeKind::FloatType:
    case TypeKind::SymFloatType:
      return fill(c10::List<double>(), [](const rec::ValueT& x) {
        return x.kind == rec::ValueKind::Float ? rec::float_of(x) : static_cast<double>(x.i);
      });
    case TypeKind::BoolType:
      return fill(c10::List<bool>(), [](const rec::ValueT& x) { return x.i != 0; });
    case TypeKind::StringType:
      return fill(c10::List<std::string>(), [](const rec::ValueT& x) { return x.text; });
    default: {
      c10::impl::GenericList list(element);
      for (const auto& item : v.list) list.push_back(to_ivalue(*item, element, r));
      return IValue(std::move(list));
    }
  }
}

}  // namespace

c10::Device mapped_device(const std::string& recorded) {
  const auto colon = recorded.find(':');
  const std::string kind = recorded.substr(0, colon);
  int index = -1;
  if (colon != std::string::npos) {
    const char *from = recorded.data() + colon + 1, *end = recorded.data() + recorded.size();
    const auto read = std::from_chars(from, end, index);
    if (read.ec != std::errc() || read.ptr != end || index < 0 || index > std::numeric_limits<c10::DeviceIndex>::max())
      throw Error(ErrorKind::kCorrupt, fmt::format("the trace names a device '{}'", recorded));
  }
  if (kind == "cuda" || kind == "oracle") return c10::Device(device::kOracle, static_cast<c10::DeviceIndex>(index));
  if (kind == "cpu") return c10::Device(c10::kCPU);
  if (kind == "meta") return c10::Device(c10::kMeta);
  throw Error(ErrorKind::kUnsupported, fmt::format("the trace uses the device '{}', which is not an NVIDIA card", recorded));
}

c10::ScalarType scalar_type(rec::DType dtype) { return static_cast<c10::ScalarType>(dtype); }

IValue to_ivalue(const rec::ValueT& v, const c10::TypePtr& type, const Resolver& r) {
  using rec::ValueKind;
  if (type->kind() == TypeKind::OptionalType) {
    if (v.kind == ValueKind::None) return IValue();
    return to_ivalue(v, type->expectRef<c10::OptionalType>().getElementType(), r);
  }
  switch (v.kind) {
    case ValueKind::None: return type->kind() == TypeKind::TensorType ? IValue(at::Tensor()) : IValue();
    case ValueKind::Bool: return IValue(v.i != 0);
    case ValueKind::Int:
      return type->kind() == TypeKind::FloatType ? IValue(static_cast<double>(v.i)) : IValue(v.i);
    case ValueKind::DType:
    case ValueKind::Layout:
    case ValueKind::MemoryFormat: return IValue(v.i);
    case ValueKind::Float: return IValue(rec::float_of(v));
    case ValueKind::Complex: return IValue(c10::complex<double>(rec::float_bits_re(v), rec::float_bits_im(v)));
    case ValueKind::String: return IValue(v.text);
    case ValueKind::Device: return IValue(mapped_device(v.text));
    case ValueKind::Generator: return IValue(r.generator(v.text));
    case ValueKind::Tensor: return IValue(tensor_of(v, type, r).value_or(at::Tensor()));
    case ValueKind::List:
      if (type->kind() == TypeKind::ListType)
        return list_of(v, type->expectRef<c10::ListType>().getElementType(), r);
      unsupported(v, type);
    default: unsupported(v, type);
  }
}

void pair_tensors(const IValue& actual, const rec::ValueT& recorded,
                  const std::function<void(const at::Tensor&, std::size_t)>& see,
                  const std::function<void(const std::string&)>& differs) {
  const auto each = [&](const auto& items) {
    if (recorded.kind != rec::ValueKind::List || items.size() != recorded.list.size())
      return differs(fmt::format("{} results here, {} recorded", items.size(), recorded.list.size()));
    std::size_t i = 0;
    for (const IValue& item : items) pair_tensors(item, *recorded.list[i++], see, differs);
  };
  const bool defined = actual.isTensor() && actual.toTensor().defined();
  const bool was_defined = recorded.kind == rec::ValueKind::Tensor && recorded.i >= 0;
  if (actual.isList()) return each(actual.toListRef());
  if (actual.isTuple()) return each(actual.toTupleRef().elements());
  if (defined != was_defined) return differs(defined ? "a tensor here, none recorded" : "no tensor here, one recorded");
  if (defined) see(actual.toTensor(), static_cast<std::size_t>(recorded.i));
}

}  // namespace step_oracle::program
