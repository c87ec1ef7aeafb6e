#include "csrc/kernels/core/bits.h"
#include "csrc/kernels/gemm/gemm.h"

namespace step_oracle::gemm::ref {

void fp32_chain(const Params& p) {
  for (std::int64_t batch = 0; batch < p.batch; ++batch)
    for (std::int64_t i = 0; i < p.m; ++i)
      for (std::int64_t j = 0; j < p.n; ++j) {
        float acc = 0.0f;
        for (std::int64_t q = 0; q < p.k; ++q)
          acc = fma(p.a.data[batch * p.a.batch + i * p.a.row + q * p.a.col],
                    p.b.data[batch * p.b.batch + q * p.b.row + j * p.b.col], acc);
        if (p.bias) acc = acc + p.bias[j];
        p.c[batch * p.c_batch + i * p.c_row + j] = canonical(acc);
      }
}

}  // namespace step_oracle::gemm::ref
