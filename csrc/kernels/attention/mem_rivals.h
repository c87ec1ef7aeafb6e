// Negative controls of the memory-efficient kernels' definition: other orders and roundings that look as plausible.
// Tests set one and must see bytes change; nothing else uses them.
#pragma once

namespace step_oracle::attention::ref {

enum class Rival {
  kNone,
  kFusedExponent,     // exp2f(fma(score, log2 e, -max))
  kMergedScale,       // score times (scale log2 e)
  kFusedRowSum,       // s f + sum as one fma
  kFallingButterfly,  // the farthest lane first
  kFusedBias,         // fma(score, scale, bias)
  kBigFirst,          // 3xTF32: big small before small big
  kNoStaging,         // 3xTF32: one accumulator
  kRemainderLast,     // 3xTF32: the depth's remainder last in every product
  kFusedLogsumexp,    // backward: fma(score, scale, -logsumexp)
  kExp2InBackward,
  kFusedDelta,        // dropout: fma(grad, factor, -delta)
  kChainedGradients,  // float32: dK and dV as one chain over query tiles
};

extern Rival rival;

}  // namespace step_oracle::attention::ref
