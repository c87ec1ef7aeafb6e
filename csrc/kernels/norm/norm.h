// Layer norm and RMS norm, forward and backward.
//
// Shapes    x, y, dy, dx: rows x width, contiguous; gamma, beta, dgamma, dbeta: width; mean, rstd: rows.
// Types     float32, bfloat16, float16 for the tensors and gamma, beta; float32 for mean and rstd, computed in float32.
// Order     forward, width a multiple of 4 and pointers aligned: 128 threads, thread t owns groups of four t, t + 128,
//           ..., running moments with a reciprocal, warps' trees, warps by halves. Otherwise 512 threads, running
//           moments with a division, block tree. dx: 128 threads, groups of four, block tree. dgamma and dbeta: tiles
//           of rows over 1, 8, 16 or 32 threads a column by the number of rows; more than 65536 rows and few columns:
//           parameter_blocks() partial results in the tensor's type, which the caller sums as a tensor (sum(0)).
// Rounding  contractions.md section 2 states each fused product.
// NaN       0x7fffffff.
// Errors    negative sizes; widths above 2^31 - 1.
// Source    layer_norm_kernel.cu, contractions.md section 2, upstream-arithmetic.md section 3.
// Evidence  docs/evidence.md, rows norm/*.
#pragma once
#include <cstdint>

#include "csrc/kernels/core/dtype.h"

namespace step_oracle::norm {

struct ForwardParams {
  bool rms;  // no mean, no beta
  DType type;
  std::int64_t rows, width;
  double eps;
  const void* x;
  const void* gamma;  // or null
  const void* beta;   // or null
  void* y;
  float* mean;  // null for rms
  float* rstd;
  std::uint64_t x_address, gamma_address, beta_address, y_address;  // on the card, modulo 512
};

struct BackwardParams {
  bool rms;
  DType type;
  std::int64_t rows, width;
  const void* dy;
  const void* x;
  const float* mean;  // null for rms
  const float* rstd;
  const void* gamma;  // or null
  void* dx;
  std::uint64_t dy_address, x_address, gamma_address, dx_address;
};

struct ParameterParams {  // dgamma and dbeta
  bool rms;
  DType type;
  std::int64_t rows, width;
  const void* dy;
  const void* x;
  const float* mean;
  const float* rstd;
  void* dgamma;  // parameter_blocks() x width, or null
  void* dbeta;   // likewise
  int sms;       // multiprocessors
};

bool forward_is_vectorised(const ForwardParams& params);
// Rows of dgamma and dbeta that backward_parameters writes: 1, or the partial results that sum(0) folds.
std::int64_t parameter_blocks(const ParameterParams& params);

void forward(const ForwardParams& params);
void backward_input(const BackwardParams& params);
void backward_parameters(const ParameterParams& params);

namespace ref {
void forward(const ForwardParams& params);
void backward_input(const BackwardParams& params);
void backward_parameters(const ParameterParams& params);
}  // namespace ref

}  // namespace step_oracle::norm
