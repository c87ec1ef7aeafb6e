// Running moments of the vectorised layer norm: a reciprocal in place of the division, and their merge
// [src layer_norm_kernel.cu]; which products are fused [probe witness layer_norm].
#pragma once
#include "csrc/kernels/core/bits.h"
#include "csrc/kernels/core/isa_namespace.h"

SO_ISA_BEGIN

struct RowMoments {
  float mean, m2, count;
};

inline RowMoments row_merge(const RowMoments& own, const RowMoments& other) {
  const float count = own.count + other.count;
  const float c = 1.0f / count;
  const float d = own.mean - other.mean;
  const float mean = fma(other.mean, other.count * c, (own.count * c) * own.mean);
  const float m2 = fma(own.count * c, other.count * (d * d), other.m2 + own.m2);
  const bool some = count > 0.0f;
  return {some ? mean : 0.0f, some ? m2 : 0.0f, count};
}

SO_ISA_END
