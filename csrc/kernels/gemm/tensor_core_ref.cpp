#include <vector>

#include "csrc/kernels/arith/typed_element.h"
#include "csrc/kernels/core/bits.h"
#include "csrc/kernels/gemm/tensor_core.h"

namespace step_oracle::gemm::ref {
namespace {

std::int64_t offset(const Strides& s, std::int64_t batch, std::int64_t i, std::int64_t j) {
  return batch * s.batch + i * s.row + j * s.col;
}

// A thread of the CUDA cores.
float fma_chain(const TensorCoreParams& p, std::int64_t batch, std::int64_t i, std::int64_t j) {
  float acc = 0.0f;
  for (std::int64_t q = 0; q < p.k; ++q)
    acc = fma(typed::load(p.factors, p.a, offset(p.a_strides, batch, i, q)),
              typed::load(p.factors, p.b, offset(p.b_strides, batch, q, j)), acc);
  return acc;
}

template <class Format>
float chain(const TensorCoreParams& p, std::int64_t batch, std::int64_t i, std::int64_t j) {
  const Adder adder = adder_of(p.adder, p.factors);
  const auto* a = static_cast<const typename Format::Storage*>(p.a) + batch * p.a_strides.batch + i * p.a_strides.row;
  const auto* b = static_cast<const typename Format::Storage*>(p.b) + batch * p.b_strides.batch + j * p.b_strides.col;
  float acc = 0.0f;
  for (std::int64_t q = 0; q < p.k; q += adder.terms) {
    const int terms = static_cast<int>(p.k - q < adder.terms ? p.k - q : adder.terms);
    acc = dot_add<Format>(a + q * p.a_strides.col, p.a_strides.col, b + q * p.b_strides.row, p.b_strides.row, terms,
                          acc, adder);
  }
  return acc;
}

float output(const TensorCoreParams& p, std::int64_t batch, std::int64_t i, std::int64_t j) {
  const float acc = p.adder == AdderClass::kFmaChain ? fma_chain(p, batch, i, j)
                    : p.factors == DType::kBF16      ? chain<Bf16Format>(p, batch, i, j)
                    : p.factors == DType::kF16       ? chain<Fp16Format>(p, batch, i, j)
                    : p.rounds_tf32                  ? chain<Tf32RoundedFormat>(p, batch, i, j)
                                                     : chain<Tf32Format>(p, batch, i, j);
  if (p.bias) return fma(p.alpha, acc, typed::load(p.results, p.bias, j));
  if (p.beta == 0.0f) return p.alpha * acc;
  const float product = p.beta * typed::load(p.results, p.c, offset(p.c_strides, batch, i, j));
  return fma(p.alpha, acc, product);
}

}  // namespace

void tensor_core(const TensorCoreParams& p) {
  std::vector<float> out;  // all outputs before the first store: C may be D
  for (std::int64_t batch = 0; batch < p.batch; ++batch)
    for (std::int64_t i = 0; i < p.m; ++i)
      for (std::int64_t j = 0; j < p.n; ++j) out.push_back(output(p, batch, i, j));
  const float* next = out.data();
  for (std::int64_t batch = 0; batch < p.batch; ++batch)
    for (std::int64_t i = 0; i < p.m; ++i)
      for (std::int64_t j = 0; j < p.n; ++j)
        typed::store(p.results, p.d, offset(p.d_strides, batch, i, j), canonical(*next++));
}

}  // namespace step_oracle::gemm::ref
