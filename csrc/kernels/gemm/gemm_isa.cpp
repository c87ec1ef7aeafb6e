#include "csrc/kernels/core/bits.h"
#include "csrc/kernels/gemm/gemm_body.h"

SO_ISA_BEGIN
namespace {

void fp32_chain(const gemm::Params& p, std::int64_t batch, std::int64_t row_begin, std::int64_t row_end) {
  const float* a = p.a.data + batch * p.a.batch;
  const float* b = p.b.data + batch * p.b.batch;
  for (std::int64_t i = row_begin; i < row_end; ++i) {
    float* c = p.c + batch * p.c_batch + i * p.c_row;
    for (std::int64_t j = 0; j < p.n; ++j) c[j] = 0.0f;
    for (std::int64_t q = 0; q < p.k; ++q) {
      const float x = a[i * p.a.row + q * p.a.col];
      for (std::int64_t j = 0; j < p.n; ++j) c[j] = fma(x, b[q * p.b.row + j * p.b.col], c[j]);
    }
    for (std::int64_t j = 0; j < p.n; ++j) c[j] = canonical(p.bias ? c[j] + p.bias[j] : c[j]);
  }
}

}  // namespace

extern const GemmBody gemm_body;
const GemmBody gemm_body = {&fp32_chain};
SO_ISA_END
