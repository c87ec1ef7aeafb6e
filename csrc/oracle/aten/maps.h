// A row of the pointwise table over a TensorIterator.
#pragma once
#include <ATen/TensorIterator.h>
#include <c10/core/Scalar.h>

#include <string_view>

#include "csrc/kernels/pointwise/pointwise.h"

namespace step_oracle::aten {

// How a number on the host enters a 16-bit map: in float, or rounded to the map's type first. float32 and wider: alike.
enum class CpuNumbers { kInOpmath, kRounded };

// Operand 0 is the output. The map runs in `common`; by default the iterator's, or the first input's where it has none.
void run_map(at::TensorIteratorBase& iter, std::string_view map, const pointwise::Scalars& scalars = {},
             CpuNumbers numbers = CpuNumbers::kRounded);
// The same with one more operand behind the iterator's: a number, taken in float by 16-bit maps.
void run_map_with_number(at::TensorIteratorBase& iter, std::string_view map, const c10::Scalar& number,
                         const pointwise::Scalars& scalars = {});
// Without operand `dropped` of the iterator.
void run_map_without(at::TensorIteratorBase& iter, int dropped, std::string_view map,
                     const pointwise::Scalars& scalars);

DType common_dtype_of(const at::TensorIteratorBase& iter, std::string_view op);
// The numbers as a kernel's arguments have them.
pointwise::Scalars scalars_of(const c10::Scalar& s, const c10::Scalar& t = 0);
// The same after a rounding to `type`: what `value.to<scalar_t>()` does for a 16-bit type.
pointwise::Scalars rounded_scalars(DType type, const c10::Scalar& s, const c10::Scalar& t = 0);
// sm_75 rounds to bfloat16 in software and gives another NaN [contractions.md, Architectures].
std::uint16_t bf16_nan_of_current_card();

}  // namespace step_oracle::aten
