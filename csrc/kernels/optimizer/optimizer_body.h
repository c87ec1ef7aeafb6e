// What the instruction sets provide for optimizer.
#pragma once
#include <cstdint>

#include "csrc/kernels/core/isa_body.h"
#include "csrc/kernels/optimizer/optimizer.h"

namespace step_oracle {
namespace optimizer {

// Which elements of a tensor round p * wd on its own before it is added to g; the others fuse.
enum class Apart : std::uint8_t {
  kNone,      // decoupled or no weight decay, a gradient scale, bfloat16 on sm_75
  kAll,       // maximise without a scale
  kFirstOf4,  // minimise, vectorised kernel: elements 4k
  kFirst512,  // minimise, scalar kernel: elements i with i mod 2048 < 512
};

// A step's numbers as the kernel's threads have them: float all of them.
struct AdamNumbers {
  float beta1, beta2, weight_decay, eps;
  float decay;      // AdamW: -(lr * weight_decay)
  float step_size;  // lr / bias correction 1
  float root2;      // sqrt of bias correction 2
  bool coupled, decoupled, maximize;
  bool scaled;
  float scale;
  Apart apart;
};
struct SgdNumbers {
  float weight_decay, momentum, lr, one_minus_dampening;
  bool nesterov, maximize, first_step, scaled;
  float scale;
};
AdamNumbers numbers_of(const AdamParams& p);
SgdNumbers numbers_of(const SgdParams& p);

inline constexpr std::int64_t kChunk = 65536;  // elements a block [src MultiTensorApply.cuh@v2.13.0 kChunkSize]
inline constexpr int kThreads = 512;           // threads a block [src MultiTensorApply.cuh@v2.13.0 kBlockSize]
inline constexpr int kIlp = 4;                 // elements a thread [src MultiTensorApply.cuh@v2.13.0 kILP]

}  // namespace optimizer

struct OptimizerBody {
  // 1 - beta^step and the root of it, in float.
  void (*bias_corrections)(float beta1, float beta2, float step, float* bc1, float* root2);
  // Elements [begin, end).
  void (*adam)(const optimizer::AdamParams& p, const optimizer::AdamNumbers& k, std::int64_t begin, std::int64_t end);
  void (*sgd)(const optimizer::SgdParams& p, const optimizer::SgdNumbers& k, std::int64_t begin, std::int64_t end);
  float (*norm_chunk)(const optimizer::NormParams& p, std::int64_t chunk);
  float (*norm_fold)(const float* partials, std::int64_t n, optimizer::NormKind kind);
  // Scales in place; tells whether an element was not finite.
  bool (*unscale)(void* g, DType dtype, std::int64_t n, float inv_scale, std::uint16_t bf16_nan);
};
SO_DECLARE_BODY(OptimizerBody, optimizer_body)

}  // namespace step_oracle
