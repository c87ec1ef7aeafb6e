// Group norm: ATen's host code over two stubs, as CUDA's group_norm_kernel.cu has them.
#define AT_PER_OPERATOR_HEADERS
#include <ATen/core/Tensor.h>
#include <ATen/native/group_norm.h>
#include <ATen/ops/native_group_norm_backward_native.h>
#include <ATen/ops/native_group_norm_native.h>

#include "csrc/kernels/norm/group.h"
#include "csrc/oracle/aten/adapter.h"

namespace step_oracle::aten {
namespace {

constexpr auto group_norm = &at::native::native_group_norm;
constexpr auto group_norm_backward = &at::native::native_group_norm_backward;

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
#define SO_OP(name, fn, klass) m.impl(name, SO_ADAPTER(fn));
#include "csrc/oracle/ops/group_norm.inc"
#undef SO_OP
}

}  // namespace step_oracle::aten

namespace at::native {
namespace {
namespace norm = step_oracle::norm;

// CUDA's kernels read all operands in the input's type.
norm::GroupShape group_shape(const Tensor& X, const Tensor& gamma, const Tensor& beta, int64_t N, int64_t C,
                             int64_t HxW, int64_t group) {
  for (const Tensor* t : {&gamma, &beta})
    if (t->defined())
      step_oracle::aten::require_dtype(*t, X.scalar_type(), "native_group_norm", t == &gamma ? "weight" : "bias");
  return {step_oracle::aten::dtype_of(X, "native_group_norm"), N, C, group, HxW};
}
const void* data_or_null(const Tensor& t) { return t.defined() ? t.const_data_ptr() : nullptr; }
void* out_or_null(const Tensor& t) { return t.defined() ? t.mutable_data_ptr() : nullptr; }

void group_norm_oracle(const Tensor& X, const Tensor& gamma, const Tensor& beta, int64_t N, int64_t C, int64_t HxW,
                       int64_t group, double eps, Tensor& Y, Tensor& mean, Tensor& rstd) {
  TORCH_CHECK(X.numel() == N * C * HxW);
  if (N == 0) return;
  norm::group_forward({group_shape(X, gamma, beta, N, C, HxW, group), eps, X.const_data_ptr(), data_or_null(gamma),
                       data_or_null(beta), Y.mutable_data_ptr(), mean.mutable_data_ptr(), rstd.mutable_data_ptr()});
}
REGISTER_PRIVATEUSE1_DISPATCH(GroupNormKernel, &group_norm_oracle)

void group_norm_backward_oracle(const Tensor& dY, const Tensor& X, const Tensor& mean, const Tensor& rstd,
                                const Tensor& gamma, int64_t N, int64_t C, int64_t HxW, int64_t group, Tensor& dX,
                                Tensor& dgamma, Tensor& dbeta) {
  TORCH_CHECK(dY.numel() == N * C * HxW && X.numel() == N * C * HxW);
  const Tensor dy = dY.contiguous(), x = X.contiguous();
  norm::group_backward({group_shape(X, gamma, Tensor(), N, C, HxW, group), dy.const_data_ptr(), x.const_data_ptr(),
                        mean.const_data_ptr(), rstd.const_data_ptr(), data_or_null(gamma), out_or_null(dX),
                        out_or_null(dgamma), out_or_null(dbeta)});
}
REGISTER_PRIVATEUSE1_DISPATCH(GroupNormBackwardKernel, &group_norm_backward_oracle)

}  // namespace
}  // namespace at::native
