// Tangent, inverse and hyperbolic functions, atan2 and hypot: ATen's structured operators over maps.
#define AT_PER_OPERATOR_HEADERS
#include <ATen/native/BinaryOps.h>
#include <ATen/native/UnaryOps.h>
#include <ATen/ops/acos_native.h>
#include <ATen/ops/acosh_native.h>
#include <ATen/ops/asin_native.h>
#include <ATen/ops/asinh_native.h>
#include <ATen/ops/atan2_native.h>
#include <ATen/ops/atan_native.h>
#include <ATen/ops/atanh_native.h>
#include <ATen/ops/cosh_native.h>
#include <ATen/ops/hypot_native.h>
#include <ATen/ops/sinh_native.h>
#include <ATen/ops/tan_native.h>

#include "csrc/oracle/aten/adapter.h"
#include "csrc/oracle/aten/maps.h"
#include "csrc/oracle/aten/structured_call.h"

namespace step_oracle::aten {
namespace {

SO_UNARY(tan)
SO_UNARY(asin)
SO_UNARY(acos)
SO_UNARY(atan)
SO_UNARY(sinh)
SO_UNARY(cosh)
SO_UNARY(asinh)
SO_UNARY(acosh)
SO_UNARY(atanh)
SO_BINARY(atan2)
SO_BINARY(hypot)

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
#define SO_OP(name, fn, klass) m.impl(name, SO_ADAPTER(fn));
#include "csrc/oracle/ops/angles.inc"
#undef SO_OP
}

}  // namespace step_oracle::aten

namespace at::native {
namespace {
using step_oracle::aten::run_map;

#define SO_STUB(name)                                                    \
  void name##_oracle(TensorIteratorBase& iter) { run_map(iter, #name); } \
  REGISTER_PRIVATEUSE1_DISPATCH(name##_stub, &name##_oracle)
SO_STUB(tan)
SO_STUB(asin)
SO_STUB(acos)
SO_STUB(atan)
SO_STUB(sinh)
SO_STUB(cosh)
SO_STUB(asinh)
SO_STUB(acosh)
SO_STUB(atanh)
SO_STUB(atan2)
SO_STUB(hypot)

}  // namespace
}  // namespace at::native
