// Matrix products.
//
// Shapes    C[m, n] = A[m, k] B[k, n], `batch` of them. Any strides, in elements; they may be zero or negative.
// Types     float32 (fp32_chain).
// Order     fp32_chain: one accumulator an output, from +0, k ascending: acc = fma(a[i, p], b[p, j], acc).
// Rounding  one per fma, to nearest even. Epilogue: bias is added to the finished accumulator (one rounding).
// NaN       0x7fffffff, whatever the inputs' payloads.
// Errors    negative sizes, k == 0 is allowed and gives zeros.
// Source    seeds section 3.4 (class "fp32 FMA chain"); cuBLAS itself is closed.
// Evidence  docs/evidence.md, row gemm/float32.
#pragma once
#include <cstdint>

namespace step_oracle::gemm {

struct Matrix {
  const float* data;
  std::int64_t row;    // elements from one row to the next
  std::int64_t col;    // elements from one column to the next
  std::int64_t batch;  // elements from one matrix of the batch to the next
};

struct Params {
  std::int64_t m, n, k, batch;
  Matrix a;              // m x k
  Matrix b;              // k x n
  float* c;              // m x n, row-major within each matrix
  std::int64_t c_row;    // elements from one row of C to the next, >= n
  std::int64_t c_batch;
  const float* bias;     // n values added to every row after the sum over k, or null
};

void fp32_chain(const Params& params);

namespace ref {
// The definition: one scalar loop an output.
void fp32_chain(const Params& params);
}  // namespace ref

}  // namespace step_oracle::gemm
