// Elementwise maps, casts and selections.
//
// Shapes    any strided loop (core/loop.h); operand 0 is the output, the others are the inputs in ATen's order.
// Types     every operand is converted to the common type, as CUDA's dynamic casts do; the map runs in float (float32,
//           float16, bfloat16), double (float64) or int64 (the rest); its result is rounded to the common type and then
//           converted to the output's type. Tests (comparisons) give bool.
// Order     none: elements are independent.
// Rounding  as written in maps.inc: every operation rounds once, fma(...) is fused. 16-bit types round at the end, but
//           for the maps that CUDA computes in the 16-bit type (rows of domain H).
// NaN       arithmetic gives 0x7fffffff; selections and copies keep the payload. bfloat16: 0x7fff (0x7fc0 on sm_75).
// Errors    a map that has no row for the common type: kUnsupported.
// Source    ATen/native/cuda/*.cu, *.cuh of torch 2.13.0; maps.inc names what contractions were proved.
// Evidence  docs/evidence.md, rows pointwise/*.
#pragma once
#include <cstdint>
#include <string_view>

#include "csrc/kernels/core/loop.h"

namespace step_oracle::pointwise {

// Where a map is computed. H is float with every written operation rounded to bfloat16 or float16.
enum class Domain : std::uint8_t { F, D, I, H };

// The scalars s and t of a row of maps.inc, in each domain. Numbers reach a kernel already rounded: f is the float
// that CUDA's host code passes, i the integer.
struct Scalars {
  float f[2] = {};
  double d[2] = {};
  std::int64_t i[2] = {};

  static Scalars of(double s, double t = 0.0);
  static Scalars of_int(std::int64_t s, std::int64_t t = 0);
};

struct Row;  // one line of maps.inc
// The row of `name` that computes in the common type. Throws kUnsupported naming both when there is none.
const Row& row(std::string_view name, DType common);
const Row* find_row(std::string_view name, DType common);

struct Params {
  const Row* row;
  DType common;
  Loop loop;
  Scalars scalars;
  unsigned opmath_operands = 0;  // bit k: operand k is a CPU number that a 16-bit map takes in float, not rounded first
  std::uint16_t bf16_nan = 0x7fff;  // the card's bfloat16 NaN: 0x7fc0 on sm_75 [contractions.md, Architectures]
};
void map(const Params& params);

// Operand 1 converted to operand 0's type as CUDA's static_cast does; equal types keep their bits.
void copy(const Loop& loop, std::uint16_t bf16_nan = 0x7fff);
// out = mask ? a : b on bits: operands out, mask (bool), a, b; out, a and b have one type.
void select(const Loop& loop);
// out[i] = start + i * step, one fma in float and double. `out` holds n contiguous elements.
void arange(void* out, DType dtype, std::int64_t n, const Scalars& start_step);
// Keeps column - row <= diagonal (lower) or >= diagonal (upper) and zeroes the rest; out and in may be the same.
struct Triangle {
  std::int64_t batch, rows, cols, diagonal;
  bool upper;
  std::int64_t element;  // bytes
  const void* in;
  std::int64_t in_batch, in_row, in_col;  // strides in bytes
  void* out;
  std::int64_t out_batch, out_row, out_col;
};
void triangle(const Triangle& params);

namespace ref {
// The definition: one element after the other, each operand loaded and converted on its own.
void map(const Params& params);
void copy(const Loop& loop, std::uint16_t bf16_nan = 0x7fff);
}  // namespace ref

}  // namespace step_oracle::pointwise
