// Matrix products.
//
// Shapes    D[m, n] = epilogue(sum over k of A[m, k] B[k, n]), `batch` of them. A, B and C may have any strides, in
//           elements, zero and negative ones too; D's elements are distinct and overlap neither A nor B.
// Types     float32 (fp32_chain).
// Order     fp32_chain: one accumulator an output, from +0, k ascending: acc = fma(a[i, p], b[p, j], acc).
// Rounding  one per fma, to nearest even. Epilogue: see Epilogue. k == 0 leaves acc = +0, and the epilogue is applied.
// NaN       0x7fffffff, whatever the inputs' payloads.
// Errors    negative sizes, D with a stride of 0, a bias together with beta: kBadInput.
// Source    "The step oracle", section 3.4 (class "fp32 FMA chain": every cuBLASLt configuration without split-K of algorithms 0 and
//           20, on Ampere, Ada and Hopper). The epilogue's order is CUTLASS's LinearCombination [src
//           cutlass/epilogue/thread/linear_combination.h]; cuBLAS itself is closed.
// Evidence  docs/evidence.md, row gemm float32: source. The class is published for single-pass kernels; that a shape
//           takes one is assumed. alpha other than 1, beta other than 0 and 1: fit (whether beta * C is rounded is not
//           known). Vectors (gemv, dot) are given the same chain; the vendor's own kernels for them walk k differently.
#pragma once
#include <cstdint>

namespace step_oracle::gemm {

struct Matrix {
  const float* data;
  std::int64_t row;    // elements from one row to the next
  std::int64_t col;    // elements from one column to the next
  std::int64_t batch;  // elements from one matrix of the batch to the next
};

struct MutableMatrix {
  float* data;
  std::int64_t row;
  std::int64_t col;
  std::int64_t batch;
};

// D = fma(alpha, acc, round(beta * C)). Exactly acc for alpha 1, beta 0; acc + C (one rounding) for alpha 1, beta 1;
// alpha * acc for beta 0, where C is not read, so that a NaN in it does not reach D [spec cuBLAS, cublas<t>gemm].
// With a bias instead of beta: D = fma(alpha, acc, bias[j]), one rounding: the bias enters the accumulator's format
// before the store.
struct Epilogue {
  float alpha = 1.0f;
  float beta = 0.0f;
  Matrix c{};                   // m x n, read when beta != 0; it may be D itself, and its strides may be 0 (a bias row)
  const float* bias = nullptr;  // n values, one a column of D; excludes beta
};

struct Params {
  std::int64_t m = 0, n = 0, k = 0, batch = 1;
  Matrix a{};         // m x k
  Matrix b{};         // k x n
  MutableMatrix d{};  // m x n
  Epilogue epilogue{};
};

void fp32_chain(const Params& params);

namespace ref {
// The definition: one scalar loop an output.
void fp32_chain(const Params& params);
}  // namespace ref

}  // namespace step_oracle::gemm
