#include "csrc/kernels/core/bits.h"
#include "csrc/kernels/gemm/gemm_body.h"

SO_ISA_BEGIN
namespace {

void fp32_chain(const gemm::Params& p, std::int64_t batch, std::int64_t row_begin, std::int64_t row_end,
                std::int64_t col_begin, std::int64_t col_end) {
  const auto& e = p.epilogue;
  for (std::int64_t i = row_begin; i < row_end; ++i)
    for (std::int64_t j = col_begin; j < col_end; ++j) {
      const float* a = p.a.data + batch * p.a.batch + i * p.a.row;
      const float* b = p.b.data + batch * p.b.batch + j * p.b.col;
      float x = 0.0f;
      for (std::int64_t q = 0; q < p.k; ++q) x = fma(a[q * p.a.col], b[q * p.b.row], x);
      if (e.bias)
        x = fma(e.alpha, x, e.bias[j]);
      else if (e.beta == 0.0f)
        x = e.alpha * x;
      else
        x = fma(e.alpha, x, e.beta * e.c.data[batch * e.c.batch + i * e.c.row + j * e.c.col]);
      p.d.data[batch * p.d.batch + i * p.d.row + j * p.d.col] = canonical(x);
    }
}

}  // namespace

extern const GemmBody gemm_body;
const GemmBody gemm_body = {&fp32_chain};
SO_ISA_END
