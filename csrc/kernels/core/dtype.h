// Element types of the kernels' operands.
#pragma once
#include <cstddef>
#include <cstdint>

namespace step_oracle {

enum class DType : std::uint8_t { kF32, kF64, kF16, kBF16, kI8, kU8, kI16, kI32, kI64, kBool };

constexpr std::size_t size_of(DType t) {
  switch (t) {
    case DType::kF64:
    case DType::kI64: return 8;
    case DType::kF32:
    case DType::kI32: return 4;
    case DType::kF16:
    case DType::kBF16:
    case DType::kI16: return 2;
    default: return 1;
  }
}

constexpr const char* name_of(DType t) {
  switch (t) {
    case DType::kF32: return "float32";
    case DType::kF64: return "float64";
    case DType::kF16: return "float16";
    case DType::kBF16: return "bfloat16";
    case DType::kI8: return "int8";
    case DType::kU8: return "uint8";
    case DType::kI16: return "int16";
    case DType::kI32: return "int32";
    case DType::kI64: return "int64";
    case DType::kBool: return "bool";
  }
  return "?";
}

}  // namespace step_oracle
