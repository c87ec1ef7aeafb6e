#include "csrc/kernels/optimizer/adagrad.h"

#include <fmt/format.h>

#include "csrc/kernels/core/error.h"
#include "csrc/kernels/core/parallel.h"
#include "csrc/kernels/optimizer/adagrad_body.h"

namespace step_oracle::optimizer {

void adagrad(const AdagradParams& p) {
  if (p.dtype != DType::kF32 && p.dtype != DType::kBF16 && p.dtype != DType::kF16)
    throw Error(ErrorKind::kUnsupported,
                fmt::format("fused Adagrad of {} is not modelled; use float32, bfloat16 or float16", name_of(p.dtype)));
  parallel_for(p.n, 4096, [&](std::int64_t begin, std::int64_t end) { SO_BODY(adagrad_body).step(p, begin, end); });
}

}  // namespace step_oracle::optimizer
