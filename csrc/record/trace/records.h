// The records in memory: flatc's object API of trace.fbs (rec::OpT, rec::TensorT, rec::ValueT, ...), and what makes
// them pleasant to fill in and to read.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "csrc/record/trace/digest.h"
#include "csrc/record/trace/trace_generated.h"

namespace step_oracle::rec {

using ValuePtr = std::unique_ptr<ValueT>;

ValuePtr none_value();
ValuePtr bool_value(bool v);
ValuePtr int_value(std::int64_t v);
ValuePtr float_value(double v);
ValuePtr complex_value(double re, double im);
ValuePtr tensor_value(std::size_t index);  // in OpT::tensors
ValuePtr storage_value(std::uint64_t id);
ValuePtr list_value(std::vector<ValuePtr> items);
// String, Device, Generator, Unknown.
ValuePtr text_value(ValueKind kind, std::string text);
// DType, Layout, MemoryFormat: torch's number.
ValuePtr enum_value(ValueKind kind, std::int64_t number);

double float_of(const ValueT& v);       // Float
double float_bits_re(const ValueT& v);  // Complex
double float_bits_im(const ValueT& v);

// "aten.mul_.Tensor", as torch prints it: "aten::mul_" with overload "Tensor".
std::string display_name(const OpT& op);
// "aten::mul_.Tensor", the key of the schema table.
std::string schema_key(const OpT& op);

const char* name_of(DType t);  // "float32"; "?" for a number outside the enum
std::size_t size_of(DType t);  // bytes of an element; 0 for a number outside the enum
const char* name_of(Phase p);
const char* name_of(DigestState s);
const char* name_of(NameRole r);

// Elements of the shape; -1 where that overflows or a size is negative.
std::int64_t numel(const std::vector<std::int64_t>& sizes);

}  // namespace step_oracle::rec
