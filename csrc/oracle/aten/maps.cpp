#include "csrc/oracle/aten/maps.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include "csrc/kernels/arith/convert.h"
#include "csrc/oracle/aten/adapter.h"
#include "csrc/oracle/aten/iterator.h"

namespace step_oracle::aten {
namespace {

pointwise::Params params_of(at::TensorIteratorBase& iter, std::string_view map, const pointwise::Scalars& scalars,
                            CpuNumbers numbers) {
  pointwise::Params p;
  p.common = common_dtype_of(iter, map);
  p.row = &pointwise::row(map, p.common);
  p.loop = loop_of(iter, map);
  p.scalars = scalars;
  p.bf16_nan = bf16_nan_of_current_card();
  if (numbers == CpuNumbers::kInOpmath)
    for (int k = 1; k < iter.ntensors(); ++k)
      if (iter.is_cpu_scalar(k)) p.opmath_operands |= 1u << k;
  return p;
}

}  // namespace

std::uint16_t bf16_nan_of_current_card() { return convert::bf16_nan(current_card().compute_capability()); }

DType common_dtype_of(const at::TensorIteratorBase& iter, std::string_view op) {
  const at::ScalarType common = iter.common_dtype();
  return dtype_of(common != at::ScalarType::Undefined ? common : iter.dtype(iter.ntensors() > 1 ? 1 : 0), op);
}

pointwise::Scalars scalars_of(const c10::Scalar& s, const c10::Scalar& t) {
  pointwise::Scalars out;
  const c10::Scalar* v[2] = {&s, &t};
  for (int k = 0; k < 2; ++k) {
    out.d[k] = v[k]->toDouble();
    out.f[k] = v[k]->isFloatingPoint() ? static_cast<float>(out.d[k]) : static_cast<float>(v[k]->toLong());
    // A fraction reaches an integer map only as CUDA's conversion of it; out of range it means nothing.
    out.i[k] = v[k]->isFloatingPoint() ? convert::to_int64(out.d[k]) : v[k]->toLong();
  }
  return out;
}

pointwise::Scalars rounded_scalars(DType type, const c10::Scalar& s, const c10::Scalar& t) {
  pointwise::Scalars out = scalars_of(s, t);
  for (float& f : out.f) {
    if (type == DType::kBF16) f = static_cast<float>(c10::BFloat16(f));
    if (type == DType::kF16) f = static_cast<float>(c10::Half(f));
  }
  return out;
}

void run_map(at::TensorIteratorBase& iter, std::string_view map, const pointwise::Scalars& scalars,
             CpuNumbers numbers) {
  if (iter.numel() == 0) return;
  pointwise::map(params_of(iter, map, scalars, numbers));
}

void run_map_with_number(at::TensorIteratorBase& iter, std::string_view map, const c10::Scalar& number,
                         const pointwise::Scalars& scalars) {
  if (iter.numel() == 0) return;
  pointwise::Params p = params_of(iter, map, scalars, CpuNumbers::kInOpmath);
  double real = number.toDouble();
  std::int64_t whole = number.isFloatingPoint() ? 0 : number.toLong();
  Operand& last = p.loop.operand[p.loop.operands];
  last = {};
  last.dtype = number.isFloatingPoint() ? DType::kF64 : DType::kI64;
  last.data = number.isFloatingPoint() ? static_cast<void*>(&real) : static_cast<void*>(&whole);
  p.opmath_operands |= 1u << p.loop.operands;
  ++p.loop.operands;
  pointwise::map(p);
}

void run_map_without(at::TensorIteratorBase& iter, int dropped, std::string_view map,
                     const pointwise::Scalars& scalars) {
  if (iter.numel() == 0) return;
  pointwise::Params p = params_of(iter, map, scalars, CpuNumbers::kRounded);
  for (int k = dropped; k + 1 < p.loop.operands; ++k) p.loop.operand[k] = p.loop.operand[k + 1];
  --p.loop.operands;
  pointwise::map(p);
}

}  // namespace step_oracle::aten
