// A structured operator of one output as upstream's own class computes it, and adapters that are no more than that.
#pragma once
#include "csrc/oracle/aten/structured.h"

namespace step_oracle::aten {

template <class Native, class... A>
at::Tensor& structured(at::Tensor& out, const A&... arguments) {
  Structured<Native> op(out);
  op.meta(arguments...);
  op.impl(arguments..., op.output(0));
  op.finish();
  return out;
}

}  // namespace step_oracle::aten

#define SO_UNARY(op)                                                 \
  at::Tensor& op##_out(const at::Tensor& self, at::Tensor& out) {    \
    return structured<at::native::structured_##op##_out>(out, self); \
  }
#define SO_BINARY(op)                                                                      \
  at::Tensor& op##_out(const at::Tensor& self, const at::Tensor& other, at::Tensor& out) { \
    return structured<at::native::structured_##op##_out>(out, self, other);                \
  }
