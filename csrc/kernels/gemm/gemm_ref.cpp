#include <vector>

#include "csrc/kernels/core/bits.h"
#include "csrc/kernels/gemm/gemm.h"

namespace step_oracle::gemm::ref {
namespace {

float chain(const Params& p, std::int64_t batch, std::int64_t i, std::int64_t j) {
  float acc = 0.0f;
  for (std::int64_t q = 0; q < p.k; ++q)
    acc = fma(p.a.data[batch * p.a.batch + i * p.a.row + q * p.a.col],
              p.b.data[batch * p.b.batch + q * p.b.row + j * p.b.col], acc);
  return acc;
}

float epilogue(const Epilogue& e, float acc, std::int64_t batch, std::int64_t i, std::int64_t j) {
  if (e.bias) return fma(e.alpha, acc, e.bias[j]);
  if (e.beta == 0.0f) return e.alpha * acc;
  const float product = e.beta * e.c.data[batch * e.c.batch + i * e.c.row + j * e.c.col];
  return fma(e.alpha, acc, product);
}

}  // namespace

void fp32_chain(const Params& p) {
  // All outputs before the first store: C may be D.
  std::vector<float> out;
  for (std::int64_t batch = 0; batch < p.batch; ++batch)
    for (std::int64_t i = 0; i < p.m; ++i)
      for (std::int64_t j = 0; j < p.n; ++j)
        out.push_back(canonical(epilogue(p.epilogue, chain(p, batch, i, j), batch, i, j)));
  const float* next = out.data();
  for (std::int64_t batch = 0; batch < p.batch; ++batch)
    for (std::int64_t i = 0; i < p.m; ++i)
      for (std::int64_t j = 0; j < p.n; ++j) p.d.data[batch * p.d.batch + i * p.d.row + j * p.d.col] = *next++;
}

}  // namespace step_oracle::gemm::ref
