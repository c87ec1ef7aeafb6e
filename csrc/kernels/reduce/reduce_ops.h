// The operations of the generic reduction: start, one element, two partial results, result.
// [src SharedReduceOps.h@v2.13.0, ReduceSumProdKernel.cu, ReduceMaxValuesKernel.cu, ReduceNormKernel.cu]
#pragma once
#include <cstdint>

#include "csrc/kernels/arith/element.h"
#include "csrc/kernels/arith/moments.h"
#include "csrc/kernels/core/isa_namespace.h"
#include "csrc/kernels/reduce/reduce.h"

SO_ISA_BEGIN
namespace reduce_ops {

template <class A>
constexpr A infinity() {
  return static_cast<A>(__builtin_inff());
}
inline float absolute(float x) { return float_of(bits_of(x) & 0x7fffffffu); }
inline double absolute(double x) { return double_of(bits_of(x) & 0x7fffffffffffffffull); }
inline float root(float x) { return __builtin_sqrtf(x); }
inline double root(double x) { return __builtin_sqrt(x); }

inline float chosen(bool condition, float a, float b) { return pick(condition, a, b); }
inline double chosen(bool condition, double a, double b) { return condition ? a : b; }

// What result() needs beside the value.
struct Context {
  double factor;      // mean
  double correction;  // moments
};

template <class A>
struct Plus {
  using Acc = A;
  static A start() { return A(0); }
  static A step(A a, A x) { return a + x; }
  static A merge(A a, A b) { return a + b; }
  static A result(A a, const Context&) { return a; }
  static constexpr bool kExact = false;
};
template <class A>
struct Mean : Plus<A> {
  static A result(A a, const Context& c) { return a * static_cast<A>(c.factor); }
};
template <class A>
struct NanSum : Plus<A> {
  static A step(A a, A x) { return a + chosen(x != x, A(0), x); }
};
template <class A>
struct Product : Plus<A> {
  static A start() { return A(1); }
  static A step(A a, A x) { return a * x; }
  static A merge(A a, A b) { return a * b; }
};
// A product of 16-bit elements is of their type: every step rounds [src ReduceSumProdKernel.cu prod_functor; compiled
// kernels of torch 2.13.0].
template <class E>
struct RoundedProduct : Product<float> {
  static float step(float a, float x) { return widen(narrow<E>(a * x)); }
  static float merge(float a, float b) { return step(a, b); }
};
template <class E, class A>
struct ProductOf {
  using Op = Product<A>;
};
template <>
struct ProductOf<Bf16, float> {
  using Op = RoundedProduct<Bf16>;
};
template <>
struct ProductOf<F16, float> {
  using Op = RoundedProduct<F16>;
};
template <class A>
struct Norm0 : Plus<A> {
  static A step(A a, A x) { return a + (x == A(0) ? A(0) : A(1)); }
};
template <class A>
struct Norm1 : Plus<A> {
  static A step(A a, A x) { return a + absolute(x); }
};
template <class A>
struct PowerSum2 : Plus<A> {
  static A step(A a, A x) { return fma(x, x, a); }
};
template <class A>
struct Norm2 : PowerSum2<A> {
  static A result(A a, const Context&) { return root(a); }
};
template <class A>
struct Max : Plus<A> {
  static A start() { return -infinity<A>(); }
  static A step(A a, A x) { return chosen((a != a) | (a > x), a, x); }
  static A merge(A a, A b) { return step(a, b); }
  static constexpr bool kExact = true;
};
template <class A>
struct Min : Plus<A> {
  static A start() { return infinity<A>(); }
  static A step(A a, A x) { return chosen((a != a) | (a < x), a, x); }
  static A merge(A a, A b) { return step(a, b); }
  static constexpr bool kExact = true;
};
template <class A>
struct NormInf : Plus<A> {
  static A merge(A a, A b) { return chosen((b != b) | (a < b), b, a); }
  static A step(A a, A x) { return merge(a, absolute(x)); }
  static constexpr bool kExact = true;
};
template <class A>
struct NormNegInf : Plus<A> {
  static A start() { return infinity<A>(); }
  static A merge(A a, A b) { return chosen((b != b) | (b < a), b, a); }
  static A step(A a, A x) { return merge(a, absolute(x)); }
  static constexpr bool kExact = true;
};
template <class A>
struct Variance {
  using Acc = Moments<A>;
  static Acc start() { return {A(0), A(0), A(0)}; }
  static Acc step(const Acc& a, A x) { return moments_step(a, x); }
  static Acc merge(const Acc& a, const Acc& b) { return moments_merge(a, b); }
  static A result(const Acc& a, const Context& c) {
    const A correction = static_cast<A>(c.correction);
    return a.m2 / (a.count > correction ? a.count - correction : A(0));
  }
  static constexpr bool kExact = false;
};
template <class A>
struct Deviation : Variance<A> {
  static A result(const Moments<A>& a, const Context& c) { return root(Variance<A>::result(a, c)); }
};

inline float canonical_result(float x) { return canonical(x); }
inline double canonical_result(double x) { return x != x ? double_of(0x7fffffffffffffffull) : x; }

template <class T, class Op, class A>
inline T store(A value) {
  if constexpr (sizeof(T) == 8)
    return Op::kExact ? value : canonical_result(value);
  else
    return Op::kExact ? narrow_exact<T>(value) : narrow<T>(canonical_result(value));
}

// Calls fn.call<E, Op<A>>() for the operation of `p`; false where there is none.
template <class E, class A, class Fn>
inline bool with_op(const reduce::Params& p, Fn& fn) {
  using reduce::Op;
  switch (p.op) {
    case Op::kSum:
      fn.template call<E, Plus<A>>();
      return true;
    case Op::kMean:
      fn.template call<E, Mean<A>>();
      return true;
    case Op::kNanSum:
      fn.template call<E, NanSum<A>>();
      return true;
    case Op::kProd:
      fn.template call<E, typename ProductOf<E, A>::Op>();
      return true;
    case Op::kNorm0:
      fn.template call<E, Norm0<A>>();
      return true;
    case Op::kNorm1:
      fn.template call<E, Norm1<A>>();
      return true;
    case Op::kNorm2:
      fn.template call<E, Norm2<A>>();
      return true;
    case Op::kPowerSum2:
      fn.template call<E, PowerSum2<A>>();
      return true;
    case Op::kNormInf:
      fn.template call<E, NormInf<A>>();
      return true;
    case Op::kNormNegInf:
      fn.template call<E, NormNegInf<A>>();
      return true;
    case Op::kMax:
      fn.template call<E, Max<A>>();
      return true;
    case Op::kMin:
      fn.template call<E, Min<A>>();
      return true;
    case Op::kVar:
    case Op::kVarMean:
      fn.template call<E, Variance<A>>();
      return true;
    case Op::kStd:
    case Op::kStdMean:
      fn.template call<E, Deviation<A>>();
      return true;
    default:
      return false;
  }
}

// E is the type of the elements (`type` = p.in) or of the results (p.out): what accumulates them follows from p.in.
template <class Fn>
inline bool with_type(const reduce::Params& p, DType type, Fn& fn) {
  if (p.in == DType::kF64) return type == DType::kF64 && with_op<double, double>(p, fn);
  if (type == DType::kF32) return with_op<float, float>(p, fn);
  if (type == DType::kBF16) return with_op<Bf16, float>(p, fn);
  if (type == DType::kF16) return with_op<F16, float>(p, fn);
  return false;
}

}  // namespace reduce_ops
SO_ISA_END
