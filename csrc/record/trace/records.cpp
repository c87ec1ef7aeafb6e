#include "csrc/record/trace/records.h"

#include <bit>

namespace flatbuffers {

step_oracle::rec::Digest32 Pack(const step_oracle::Digest& d) {
  return step_oracle::rec::Digest32(flatbuffers::span<const std::uint8_t, 32>(d.bytes.data(), 32));
}

step_oracle::Digest UnPack(const step_oracle::rec::Digest32& d) {
  step_oracle::Digest out;
  std::memcpy(out.bytes.data(), d.bytes()->Data(), out.bytes.size());
  return out;
}

}  // namespace flatbuffers

namespace step_oracle::rec {
namespace {

ValuePtr make(ValueKind kind, std::int64_t i = 0, std::int64_t j = 0) {
  auto v = std::make_unique<ValueT>();
  v->kind = kind;
  v->i = i;
  v->j = j;
  return v;
}

}  // namespace

ValuePtr none_value() { return make(ValueKind::None); }
ValuePtr bool_value(bool v) { return make(ValueKind::Bool, v); }
ValuePtr int_value(std::int64_t v) { return make(ValueKind::Int, v); }
ValuePtr float_value(double v) { return make(ValueKind::Float, std::bit_cast<std::int64_t>(v)); }
ValuePtr complex_value(double re, double im) {
  return make(ValueKind::Complex, std::bit_cast<std::int64_t>(re), std::bit_cast<std::int64_t>(im));
}
ValuePtr tensor_value(std::size_t index) { return make(ValueKind::Tensor, static_cast<std::int64_t>(index)); }
ValuePtr storage_value(std::uint64_t id) { return make(ValueKind::Storage, static_cast<std::int64_t>(id)); }

ValuePtr list_value(std::vector<ValuePtr> items) {
  auto v = make(ValueKind::List);
  v->list = std::move(items);
  return v;
}

ValuePtr text_value(ValueKind kind, std::string text) {
  auto v = make(kind);
  v->text = std::move(text);
  return v;
}

ValuePtr enum_value(ValueKind kind, std::int64_t number) { return make(kind, number); }

double float_of(const ValueT& v) { return std::bit_cast<double>(v.i); }
double float_bits_re(const ValueT& v) { return std::bit_cast<double>(v.i); }
double float_bits_im(const ValueT& v) { return std::bit_cast<double>(v.j); }

std::string schema_key(const OpT& op) { return op.overload.empty() ? op.name : op.name + "." + op.overload; }

std::string display_name(const OpT& op) {
  const std::string key = schema_key(op);
  const auto at = key.find("::");
  return at == std::string::npos ? key : key.substr(0, at) + '.' + key.substr(at + 2);
}

// torch's names; bytes of one element. Sub-byte kinds pack into bytes, as torch stores them.
#define STEP_ORACLE_TRACE_DTYPES(X)                                                                                   \
  X(UInt8, "uint8", 1)                                                                                                \
  X(Int8, "int8", 1) X(Int16, "int16", 2) X(Int32, "int32", 4) X(Int64, "int64", 8) X(Float16, "float16", 2)          \
      X(Float32, "float32", 4) X(Float64, "float64", 8) X(Complex32, "complex32", 4) X(Complex64, "complex64", 8)     \
          X(Complex128, "complex128", 16) X(Bool, "bool", 1) X(QInt8, "qint8", 1) X(QUInt8, "quint8", 1)              \
              X(QInt32, "qint32", 4) X(BFloat16, "bfloat16", 2) X(QUInt4x2, "quint4x2", 1) X(QUInt2x4, "quint2x4", 1) \
                  X(Bits1x8, "bits1x8", 1) X(Bits2x4, "bits2x4", 1) X(Bits4x2, "bits4x2", 1) X(Bits8, "bits8", 1)     \
                      X(Bits16, "bits16", 2) X(Float8E5M2, "float8_e5m2", 1) X(Float8E4M3FN, "float8_e4m3fn", 1)      \
                          X(Float8E5M2FNUZ, "float8_e5m2fnuz", 1) X(Float8E4M3FNUZ, "float8_e4m3fnuz", 1)             \
                              X(UInt16, "uint16", 2) X(UInt32, "uint32", 4) X(UInt64, "uint64", 8)                    \
                                  X(UInt1, "uint1", 1) X(UInt2, "uint2", 1) X(UInt3, "uint3", 1) X(UInt4, "uint4", 1) \
                                      X(UInt5, "uint5", 1) X(UInt6, "uint6", 1) X(UInt7, "uint7", 1)                  \
                                          X(Int1, "int1", 1) X(Int2, "int2", 1) X(Int3, "int3", 1) X(Int4, "int4", 1) \
                                              X(Int5, "int5", 1) X(Int6, "int6", 1) X(Int7, "int7", 1)                \
                                                  X(Float8E8M0FNU, "float8_e8m0fnu", 1)                               \
                                                      X(Float4E2M1FNx2, "float4_e2m1fn_x2", 1)

const char* name_of(DType t) {
  switch (t) {
#define X(id, text, bytes) \
  case DType::id:          \
    return text;
    STEP_ORACLE_TRACE_DTYPES(X)
#undef X
  }
  return "?";
}

std::size_t size_of(DType t) {
  switch (t) {
#define X(id, text, bytes) \
  case DType::id:          \
    return bytes;
    STEP_ORACLE_TRACE_DTYPES(X)
#undef X
  }
  return 0;
}

const char* name_of(Phase p) {
  switch (p) {
    case Phase::Unknown:
      return "unknown";
    case Phase::Forward:
      return "forward";
    case Phase::Backward:
      return "backward";
    case Phase::Optimizer:
      return "optimizer";
    case Phase::Recompute:
      return "recompute";
  }
  return "?";
}

const char* name_of(DigestState s) {
  switch (s) {
    case DigestState::Absent:
      return "absent";
    case DigestState::Known:
      return "known";
    case DigestState::NeverWritten:
      return "never written";
    case DigestState::Unreadable:
      return "unreadable";
    case DigestState::Pending:
      return "pending";
  }
  return "?";
}

const char* name_of(NameRole r) {
  switch (r) {
    case NameRole::Parameter:
      return "parameter";
    case NameRole::Buffer:
      return "buffer";
    case NameRole::Optimizer:
      return "optimizer";
    case NameRole::Gradient:
      return "gradient";
    case NameRole::Input:
      return "input";
    case NameRole::Output:
      return "output";
    case NameRole::Loss:
      return "loss";
  }
  return "?";
}

std::int64_t numel(const std::vector<std::int64_t>& sizes) {
  std::int64_t n = 1;
  for (std::int64_t s : sizes)
    if (s < 0 || __builtin_mul_overflow(n, s, &n)) return -1;
  return n;
}

}  // namespace step_oracle::rec
