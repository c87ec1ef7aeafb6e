// Running mean and sum of squared deviations with true divisions: var, std and the row-wise layer norm.
// [src SharedReduceOps.h@v2.13.0 WelfordOps]; which products are fused [probe witness layer_norm_rowwise]: the last
// product of m2 and the merge's mean, but not mean + d / n.
#pragma once
#include "csrc/kernels/core/bits.h"
#include "csrc/kernels/core/isa_namespace.h"

SO_ISA_BEGIN

template <class A>
struct Moments {
  A mean, m2, count;
};

template <class A>
inline Moments<A> moments_step(const Moments<A>& a, A x) {
  const A count = a.count + A(1);
  const A d = x - a.mean;
  const A mean = a.mean + d / count;
  return {mean, fma(d, x - mean, a.m2), count};
}

template <class A>
inline Moments<A> moments_merge(const Moments<A>& a, const Moments<A>& b) {
  if (a.count == A(0)) return b;
  if (b.count == A(0)) return a;
  const A d = b.mean - a.mean;
  const A count = a.count + b.count;
  const A q = b.count / count;
  return {fma(d, q, a.mean), fma((d * d) * a.count, q, a.m2 + b.m2), count};
}

SO_ISA_END
