// What the instruction sets provide for pointwise: contiguous 1-D pieces; pointwise.cpp feeds them.
#pragma once
#include <cstddef>
#include <cstdint>

#include "csrc/kernels/core/isa_body.h"
#include "csrc/kernels/pointwise/pointwise.h"

namespace step_oracle {
namespace pointwise {

// The rows of maps.inc in order: name_Domain.
enum class RowIndex : int {
#define SO_MAP(name, domain, inputs, kind, ...) name##_##domain,
#include "csrc/kernels/pointwise/maps.inc"
#undef SO_MAP
  kCount
};
enum class Kind : std::uint8_t { arith, exact, test };

struct Row {
  std::string_view name;
  Domain domain;
  int inputs;
  Kind kind;
  RowIndex index;
};
extern const Row kRows[static_cast<int>(RowIndex::kCount)];

using MapFn = void (*)(void* out, const void* const* in, std::int64_t n, const Scalars& scalars);
inline constexpr int kDTypes = 10;

}  // namespace pointwise

struct PointwiseBody {
  const pointwise::MapFn* maps;       // by row; of a row of domain H, the one that rounds to bfloat16
  const pointwise::MapFn* maps_half;  // by row: domain H rounding to float16, null for the others
  // [from][to], contiguous; equal types are null (copy the bytes).
  void (*const (*convert)[pointwise::kDTypes])(const void* in, void* out, std::int64_t n, std::uint16_t bf16_nan);
  void (*narrow_exact)(const void* in, void* out, std::int64_t n);       // float -> bfloat16, payloads kept
  void (*narrow_exact_half)(const void* in, void* out, std::int64_t n);  // float -> float16, payloads kept
  void (*canonical)(float* x, std::int64_t n);                           // every NaN becomes the card's
  // By log2 of the element size: strided -> contiguous and back.
  void (*gather[4])(const void* in, std::int64_t stride, void* out, std::int64_t n);
  void (*scatter[4])(const void* in, void* out, std::int64_t stride, std::int64_t n);
  void (*move[4])(const void* in, std::int64_t in_stride, void* out, std::int64_t out_stride, std::int64_t n);
  // out[r][c] = in[c][r]: out has rows of contiguous elements, in has contiguous columns.
  void (*transpose[4])(const void* in, std::int64_t in_stride, void* out, std::int64_t out_stride, std::int64_t rows,
                       std::int64_t cols);
  void (*select[4])(char* const* data, const std::int64_t* stride, std::int64_t n);
  void (*arange_f32)(float* out, std::int64_t begin, std::int64_t n, float start, float step);
};
SO_DECLARE_BODY(PointwiseBody, pointwise_body)

}  // namespace step_oracle
