#include "csrc/oracle/program/host_ops.h"

#include <algorithm>
#include <iterator>

namespace step_oracle::program {
namespace {

// Sorted. Moves, views, constructors, comparisons, integer arithmetic, and single correctly rounded operations.
constexpr const char* kExact[] = {
    "aten::_foreach_add_", "aten::_foreach_sub_", "aten::_local_scalar_dense", "aten::_reshape_alias", "aten::_to_copy",
    "aten::_unsafe_view", "aten::add", "aten::add_", "aten::alias", "aten::arange", "aten::as_strided", "aten::cat",
    "aten::clone", "aten::copy_", "aten::detach", "aten::detach_", "aten::div", "aten::div_", "aten::empty",
    "aten::empty_like", "aten::empty_strided", "aten::eq", "aten::expand", "aten::fill_", "aten::full", "aten::full_like",
    "aten::ge", "aten::gt", "aten::index_select", "aten::le", "aten::lift_fresh", "aten::lift_fresh_copy", "aten::lt",
    "aten::mul", "aten::mul_", "aten::ne", "aten::neg", "aten::new_empty", "aten::new_empty_strided", "aten::new_full",
    "aten::new_ones", "aten::new_zeros", "aten::ones", "aten::ones_like", "aten::permute", "aten::resize_",
    "aten::scalar_tensor", "aten::select", "aten::slice", "aten::split", "aten::squeeze", "aten::stack", "aten::sub",
    "aten::sub_", "aten::t", "aten::transpose", "aten::unbind", "aten::unsqueeze", "aten::view", "aten::zero_",
    "aten::zeros", "aten::zeros_like",
};

}  // namespace

bool host_op_is_exact(const rec::OpT& op) {
  if (std::none_of(std::begin(kExact), std::end(kExact), [&](const char* n) { return op.name == n; })) return false;
  // a + alpha * b rounds once or twice, as the host's compiler had it, unless alpha is 1.
  const bool adds = op.name.find("add") != std::string::npos || op.name.find("sub") != std::string::npos;
  if (!adds || (op.overload != "Tensor" && op.overload != "List") || op.args.empty()) return true;
  const rec::ValueT& alpha = *op.args.back();
  return alpha.kind == rec::ValueKind::Int ? alpha.i == 1
                                           : alpha.kind == rec::ValueKind::Float && rec::float_of(alpha) == 1.0;
}

}  // namespace step_oracle::program
