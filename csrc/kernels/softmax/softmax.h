// softmax and log_softmax over one dimension, forward and backward.
//
// Shapes    contiguous (outer, n, inner). inner == 1: the warp, register, shared-memory and general kernels; else the
//           spatial kernel.
// Types     float32, bfloat16, float16, computed in float32; the output may be float32 for 16-bit inputs (forward), the
//           gradient may be 16-bit for float32 inputs (backward).
// Order     [src PersistentSoftmax.cuh@v2.13.0, SoftMax.cu] n <= 2048 (backward 1024): lane l folds l, l + 32, ...,
//           padding included, then the xor tree. Wider: a block of 1024 (backward fewer) threads: registers up to 9216,
//           shared memory where the row fits and is aligned, else the general loop whose head depends on the row's
//           address; block tree; the general backward folds warps serially. `kernel_of` names the choice.
// Rounding  softmax expf(x - max) / sum; log_softmax (x - max) - logf(sum); backward fma(-sum, y, g) and
//           fma(-expf(y), sum, g). One rounding to the output type.
// NaN       0x7fffffff.
// Errors    sizes below zero.
// Source    contractions.md section 3, upstream-arithmetic.md section 2.
// Evidence  docs/evidence.md, rows softmax/*.
#pragma once
#include <cstdint>

#include "csrc/kernels/core/dtype.h"

namespace step_oracle::softmax {

struct Params {
  bool log;
  DType in, out;
  std::int64_t outer, n, inner;
  const void* x;
  void* y;
  std::uint64_t x_address, y_address;  // on the card, modulo 512: the byte offset in the storage
};

struct BackwardParams {
  bool log;
  DType in;   // of grad and y
  DType out;  // of dx
  std::int64_t outer, n, inner;
  const void* grad;  // softmax: grad * y, rounded to `in`; or, with `multiplies`, the gradient itself
  const void* y;
  void* dx;
  std::uint64_t grad_address, y_address, dx_address;  // with `multiplies`, grad's is that of the card's product
  bool multiplies = false;
};

enum class Kernel : std::uint8_t { kWarp, kRegister, kShared, kGeneral, kSpatial };
struct Plan {
  Kernel kernel;
  int threads;  // of the block over one row; kWarp: lanes; kSpatial: over the dimension
  int vector;   // elements of 16 bytes
};
Plan plan_forward(const Params& params);
Plan plan_backward(const BackwardParams& params);

void forward(const Params& params);
void backward(const BackwardParams& params);

namespace ref {
void forward(const Params& params);
void backward(const BackwardParams& params);
}  // namespace ref

}  // namespace step_oracle::softmax
