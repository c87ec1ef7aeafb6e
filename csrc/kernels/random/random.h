// Random fills and dropout.
//
// Shapes    n elements in memory order of the output (the order of TensorIterator, not the logical one).
// Types     float32, float64, bfloat16, float16 where Params names a DType; integers for random_; uint8 masks (bool).
// Order     which thread draws which element depends on the card's multiprocessors and resident threads (Grid): element
//           numbering as distribution_elementwise_grid_stride_kernel and fused_dropout_kernel[_vec].
// Rounding  one at the end, to the element type; see each function.
// NaN       0x7fffffff.
// Errors    n < 0; parameters outside the op's range; what is not modelled is kUnsupported.
// Source    [src aten/src/ATen/native/cuda/DistributionTemplates.h, Dropout.cu, Randperm.cu @2.13]
// Evidence  docs/evidence.md, rows random/*.
#pragma once
#include <cstdint>

#include "csrc/kernels/core/dtype.h"

namespace step_oracle::random {

// What of the card and the generator enters.
struct Stream {
  std::uint64_t seed;
  std::uint64_t offset;  // the generator's, a multiple of 4
  int sms;
  int threads_per_sm;
  int compute_capability = 80;  // 75 rounds bfloat16 NaN otherwise
};

// Every fill returns by how much it advances the generator's offset (a multiple of 4; 0 when n == 0).
struct Fill {
  std::int64_t n;
  DType dtype;
  void* out;
};

// Uniform in [from, to): fma(u, to - from, from), rounded to the type; equal to `to` becomes `from`.
std::uint64_t uniform(const Stream& stream, const Fill& fill, double from, double to);
// fma(r, std, mean), mean and std as float (double for float64).
std::uint64_t normal(const Stream& stream, const Fill& fill, double mean, double std);
// Natural log with the log of u near 1 replaced: -1 / lambda log(u).
std::uint64_t exponential(const Stream& stream, const Fill& fill, double lambda);
// 1 where u < p, else 0, in the element type (kBool, integers and floats).
std::uint64_t bernoulli(const Stream& stream, const Fill& fill, double p);
// 1 where u <= p[i]; p float32 (or float64), contiguous, n of them.
std::uint64_t bernoulli_tensor(const Stream& stream, const Fill& fill, DType p_dtype, const void* p);
// random_(from, to): word % range + from; range as unsigned 64-bit (0 means 2^64).
std::uint64_t random_from_to(const Stream& stream, const Fill& fill, std::uint64_t range, std::int64_t base);
// random_(): the whole range of the type.
std::uint64_t random_full(const Stream& stream, const Fill& fill);
std::uint64_t log_normal(const Stream& stream, const Fill& fill, double mean, double std);
std::uint64_t geometric(const Stream& stream, const Fill& fill, double p);
std::uint64_t cauchy(const Stream& stream, const Fill& fill, double median, double sigma);

// torch.randperm(n): int64 (or int32) indices: random keys, a stable radix sort, a shuffle inside runs of equal keys.
std::uint64_t randperm(const Stream& stream, const Fill& fill);

// native_dropout with 0 <= p < 1: out = (x * keep) * scale, keep = u < 1 - p. `vector` is the width that the alignment
// of x, out and mask allows: 16 bytes / element size at most, halved until it divides n (dropout_vector below).
struct Dropout {
  std::int64_t n;
  DType dtype;  // kF32, kF16, kBF16
  const void* x;
  void* out;
  std::uint8_t* mask;
  double p;
  int vector;  // 1, 2, 4 or 8
};
std::uint64_t dropout(const Stream& stream, const Dropout& params);
int dropout_vector(DType dtype, std::int64_t n, bool aligned = true);

struct DropoutBackward {
  std::int64_t n;
  DType dtype;
  const void* grad;
  const std::uint8_t* mask;
  void* out;
  double scale;  // 1 / (1 - p) in double; rounded to float here
};
void dropout_backward(const DropoutBackward& params, int compute_capability = 80);

// The definitions: kernels thread by thread, a curand state a thread. float32 only; tests compare.
namespace ref {
std::uint64_t uniform(const Stream& stream, std::int64_t n, float* out, double from, double to);
std::uint64_t normal(const Stream& stream, std::int64_t n, float* out, double mean, double std);
std::uint64_t exponential(const Stream& stream, std::int64_t n, float* out, double lambda);
std::uint64_t random_from_to(const Stream& stream, std::int64_t n, std::int64_t* out, std::uint64_t range,
                             std::int64_t base);
std::uint64_t dropout(const Stream& stream, const Dropout& params);
}  // namespace ref

}  // namespace step_oracle::random
