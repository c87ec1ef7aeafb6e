// Golden vectors: tests/data/witness/*.safetensors.zst (made from the witness tool's files by scripts/import_vectors).
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "csrc/kernels/core/dtype.h"

namespace step_oracle::test {

struct Array {
  std::string dtype;  // safetensors' name: U32 (float bits), U16 (bf16 bits), F16, I64, U8, BOOL ...
  std::vector<std::int64_t> shape;
  std::vector<std::uint8_t> bytes;
  std::int64_t numel() const;
  template <class T>
  const T* as() const { return reinterpret_cast<const T*>(bytes.data()); }
};

// The type of an array of floats.
inline DType float_type(const Array& a) {
  return a.dtype == "U32" ? DType::kF32 : a.dtype == "F16" ? DType::kF16 : DType::kBF16;
}

struct VectorFile {
  std::string name;               // e.g. "gelu_tanh_f32.2085"
  nlohmann::json meta;            // the witness tool's meta: symbols, grid, block, seed, notes
  std::map<std::string, Array> arrays;  // "in_x", "out_y", "out_y@sm_75" where an architecture differs
  // The expected output on an architecture ("sm_75" ...): out_NAME@ARCH where present, else out_NAME.
  const Array& out(const std::string& name, const std::string& arch) const;
  const Array& in(const std::string& name) const;
};

VectorFile load_vectors(const std::string& file);           // by name, without folder and ending
std::vector<std::string> vector_names(const std::string& prefix);  // sorted; "gelu_tanh_f32." for all its shapes
inline const std::vector<std::string> kArchs{"sm_75", "sm_80", "sm_86", "sm_90"};

}  // namespace step_oracle::test
