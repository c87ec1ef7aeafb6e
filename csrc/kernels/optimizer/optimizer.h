// Optimizer steps and the reductions of the foreach family.
//
// Shapes    one tensor a call, its elements in memory order (dense); lists are loops over tensors.
// Types     float32 and bfloat16; fused Adam also float32 with bfloat16 moments.
// Order     adam, sgd: none but the weight decay of Adam, whose fusion depends on the element's place in its group of
//           four (see AdamParams). norm2: per chunk of 65536 elements, 512 threads, four accumulators a thread, block
//           sum, then one block sums the chunks.
// Rounding  as written in optimizer.inc and docs; all in float.
// NaN       0x7fffffff.
// Errors    unsupported types: kUnsupported.
// Source    ATen/native/cuda/fused_adam_utils.cuh, FusedSgdKernel.cu, ForeachReduceOp.cu of torch 2.13.0.
// Evidence  docs/evidence.md, rows optimizer/*.
#pragma once
#include <cstdint>

#include "csrc/kernels/core/dtype.h"

namespace step_oracle::optimizer {

enum class WeightDecay : std::uint8_t { kCoupled, kDecoupled };  // Adam, AdamW

// `vectorised` is what the kernel decides per tensor: all pointers aligned to four elements and n a multiple of four.
// It decides which elements of Adam's `g + p * wd` round twice [contractions.md, section 7].
struct AdamParams {
  std::int64_t n;
  DType dtype;        // of p and g
  DType state_dtype;  // of m, v and max_v: the same, or kBF16 with dtype kF32
  void* p;
  void* g;  // divided by *grad_scale and stored back when there is one
  void* m;
  void* v;
  void* max_v;  // amsgrad, or null
  float step;
  double lr, beta1, beta2, weight_decay, eps;
  WeightDecay mode;
  bool maximize;
  const float* grad_scale;  // or null
  bool vectorised;
  bool fuses_everywhere = false;  // bfloat16 on sm_75
  std::uint16_t bf16_nan = 0x7fff;
};
void adam(const AdamParams& params);

struct SgdParams {
  std::int64_t n;
  DType dtype;
  void* p;
  void* g;
  void* buf;  // momentum buffer, or null
  double weight_decay, momentum, lr, dampening;
  bool nesterov, maximize, first_step;
  const float* grad_scale;
  std::uint16_t bf16_nan = 0x7fff;
};
void sgd(const SgdParams& params);

// The p-norm of one tensor as _foreach_norm computes it: partials of 65536 elements, then the sum over `max_chunks`
// chunks (those of the longest tensor of the list; missing ones are zero).
enum class NormKind : std::uint8_t { kL1, kL2, kInf };
struct NormParams {
  const void* x;
  DType dtype;
  std::int64_t n;
  std::int64_t max_chunks;
  NormKind kind;
  bool vectorised;  // the pointer is aligned to four elements and n is a multiple of four
  bool power_sum;   // without the final root
};
float norm(const NormParams& params, float* partials = nullptr);

// g *= inv_scale where it is finite; *found_inf becomes 1 when an element is not. inv_scale 1 leaves g as it is.
void unscale(void* g, DType dtype, std::int64_t n, float inv_scale, float* found_inf, std::uint16_t bf16_nan = 0x7fff);

namespace ref {
void adam(const AdamParams& params);
void sgd(const SgdParams& params);
float norm(const NormParams& params, float* partials = nullptr);
}  // namespace ref

}  // namespace step_oracle::optimizer
