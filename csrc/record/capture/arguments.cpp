// Arguments and results as values of the trace.
#include "csrc/record/capture/recording_call.h"

namespace step_oracle::capture {
namespace {

std::unique_ptr<rec::ValueT> plain_value(const c10::IValue& v, const c10::Argument& argument) {
  using rec::ValueKind;
  if (v.isNone()) return rec::none_value();
  if (v.isBool()) return rec::bool_value(v.toBool());
  if (v.isInt()) {
    // A schema's ScalarType, Layout and MemoryFormat travel as ints.
    switch (argument.real_type()->kind()) {
      case c10::TypeKind::ScalarTypeType: return rec::enum_value(ValueKind::DType, v.toInt());
      case c10::TypeKind::LayoutType: return rec::enum_value(ValueKind::Layout, v.toInt());
      case c10::TypeKind::MemoryFormatType: return rec::enum_value(ValueKind::MemoryFormat, v.toInt());
      case c10::TypeKind::OptionalType: {
        const auto inner = argument.real_type()->castRaw<c10::OptionalType>()->getElementType()->kind();
        if (inner == c10::TypeKind::ScalarTypeType) return rec::enum_value(ValueKind::DType, v.toInt());
        if (inner == c10::TypeKind::LayoutType) return rec::enum_value(ValueKind::Layout, v.toInt());
        if (inner == c10::TypeKind::MemoryFormatType) return rec::enum_value(ValueKind::MemoryFormat, v.toInt());
        break;
      }
      default: break;
    }
    return rec::int_value(v.toInt());
  }
  if (v.isDouble()) return rec::float_value(v.toDouble());
  if (v.isComplexDouble()) return rec::complex_value(v.toComplexDouble().real(), v.toComplexDouble().imag());
  if (v.isString()) return rec::text_value(ValueKind::String, v.toStringRef());
  if (v.isDevice()) return rec::text_value(ValueKind::Device, v.toDevice().str());
  if (v.isGenerator()) return rec::text_value(ValueKind::Generator, v.toGenerator().device().str());
  return rec::text_value(ValueKind::Unknown, v.tagKind());
}

}  // namespace

std::unique_ptr<rec::ValueT> Recording::value_of(const c10::IValue& v, Call& call, std::size_t argument) {
  if (v.isTensor()) {
    const at::Tensor& t = v.toTensor();
    if (!t.defined()) return rec::none_value();
    Use use{&t, t.unsafeGetTensorImpl(), {}, nullptr, false, false};
    use.declared = call.info.writes[argument];
    use.undeclared = call.training && !call.info.undeclared.empty() && call.info.undeclared[argument];
    if (use.writes() || options_.paranoid) use.kept = t;
    if (t.is_meta() || is_wrapper(t)) {
      call.has_meta = true;
    } else if (!t.unsafeGetTensorImpl()->is_wrapped_number()) {
      call.has_real = true;
    }
    call.uses.push_back(std::move(use));
    return rec::tensor_value(call.uses.size() - 1);
  }
  if (v.isList() || v.isTuple()) {
    const auto items = v.isList() ? v.toListRef() : c10::ArrayRef<c10::IValue>(v.toTupleRef().elements().asArrayRef());
    std::vector<rec::ValuePtr> values;
    values.reserve(items.size());
    for (const auto& item : items) values.push_back(value_of(item, call, argument));
    return rec::list_value(std::move(values));
  }
  if (v.isStorage()) {
    auto value = rec::storage_value(0);
    call.storages.emplace_back(value.get(), v.toStorage());
    return value;
  }
  const auto& declared = call.op.schema().arguments()[argument];
  if (v.isDevice() && v.toDevice().is_meta()) call.has_meta = true;
  if (v.isGenerator() && v.toGenerator().defined()) call.generator = v.toGenerator();
  if (v.isDouble() && v.toDouble() == 0 && declared.name() == "dropout_p") call.draws = false;
  return plain_value(v, declared);
}

void Recording::read_arguments(Call& call) {
  const std::size_t count = call.info.arguments;
  const c10::ArrayRef<c10::IValue> args(call.stack->data() + call.stack->size() - count, count);
  if (!call.info.undeclared.empty()) {
    for (std::size_t i = 0; i < count; ++i)
      if (args[i].isBool() && !args[i].toBool() && call.op.schema().arguments()[i].name() == "training")
        call.training = false;
  }
  call.record->args.reserve(count);
  for (std::size_t i = 0; i < count; ++i) call.record->args.push_back(value_of(args[i], call, i));
}

std::unique_ptr<rec::ValueT> Recording::result_of(const c10::IValue& v, Call& call) {
  if (v.isTensor()) {
    const at::Tensor& t = v.toTensor();
    if (!t.defined()) return rec::none_value();
    auto& tensors = call.record->tensors;
    if (!call.info.geometry_only) {
      for (std::size_t i = 0; i < call.uses.size(); ++i)
        if (call.uses[i].identity == t.unsafeGetTensorImpl()) return rec::tensor_value(i);
    }
    for (std::size_t i = call.uses.size(); i < tensors.size(); ++i)
      if (call.results[i - call.uses.size()].is_same(t)) return rec::tensor_value(i);
    tensors.push_back(nullptr);
    call.results.push_back(t);
    return rec::tensor_value(tensors.size() - 1);
  }
  if (v.isList() || v.isTuple()) {
    const auto items = v.isList() ? v.toListRef() : c10::ArrayRef<c10::IValue>(v.toTupleRef().elements().asArrayRef());
    std::vector<rec::ValuePtr> values;
    for (const auto& item : items) values.push_back(result_of(item, call));
    return rec::list_value(std::move(values));
  }
  if (v.isNone()) return rec::none_value();
  if (v.isBool()) return rec::bool_value(v.toBool());
  if (v.isInt()) return rec::int_value(v.toInt());
  if (v.isDouble()) return rec::float_value(v.toDouble());
  if (v.isComplexDouble()) return rec::complex_value(v.toComplexDouble().real(), v.toComplexDouble().imag());
  if (v.isString()) return rec::text_value(rec::ValueKind::String, v.toStringRef());
  return rec::text_value(rec::ValueKind::Unknown, v.tagKind());
}

}  // namespace step_oracle::capture
