// Reductions whose result no order changes: integers, any, all, and the extreme with its index. One pass in index
// order.
#pragma once
#include <cstdint>

#include "csrc/kernels/arith/element.h"
#include "csrc/kernels/core/isa_namespace.h"
#include "csrc/kernels/reduce/reduce.h"
#include "csrc/kernels/reduce/walk.h"

SO_ISA_BEGIN
namespace reduce_exact {

using reduce::Op;
using reduce::Params;

inline std::int64_t widen_any(std::int64_t x) { return x; }
inline std::int64_t widen_any(std::int32_t x) { return x; }
inline std::int64_t widen_any(std::int16_t x) { return x; }
inline std::int64_t widen_any(std::int8_t x) { return x; }
inline std::int64_t widen_any(std::uint8_t x) { return x; }
inline std::int64_t widen_any(bool x) { return x; }
inline float widen_any(float x) { return x; }
inline double widen_any(double x) { return x; }
inline float widen_any(Bf16 x) { return widen(x); }
inline float widen_any(F16 x) { return widen(x); }

// fn(element, index in the reduced dimensions) over one output's input.
template <class T, class Fn>
inline void each(const Params& p, const char* data, std::int64_t inputs, Fn fn) {
  const reduce::Iterator& it = p.iter;
  const std::int64_t inner = it.reduced ? it.shape[0] : 1, pitch = it.reduced ? it.in_stride[0] : 0;
  const int outer = it.reduced > 1 ? it.reduced - 1 : 0;
  Walk walk(outer, it.shape + 1, it.in_stride + 1, 0);
  for (std::int64_t base = 0; base < inputs; base += inner, walk.next()) {
    const char* at = data + walk.offset;
    for (std::int64_t i = 0; i < inner; ++i) fn(*reinterpret_cast<const T*>(at + i * pitch), base + i);
  }
}

// Of a and the later b, is a kept as the larger (smaller)? NaN is larger than all; equal: the earlier.
template <bool kLargest, class A>
inline bool keeps(A a, A b) {
  return (a != a) | (kLargest ? a >= b : a <= b);
}

template <class T, bool kLargest>
inline void extreme(const Params& p, const char* data, std::int64_t inputs, char* y, char* y2) {
  T best = *reinterpret_cast<const T*>(data);
  std::int64_t index = 0;
  each<T>(p, data, inputs, [&](T x, std::int64_t i) {
    const bool keep = keeps<kLargest>(widen_any(best), widen_any(x));
    best = keep ? best : x;
    index = keep ? index : i;
  });
  if (p.op == Op::kArgMax || p.op == Op::kArgMin) {
    *reinterpret_cast<std::int64_t*>(y) = index;
    return;
  }
  *reinterpret_cast<T*>(y) = best;
  if (y2) *reinterpret_cast<std::int64_t*>(y2) = index;
}

template <class T>
inline bool one(const Params& p, const char* data, std::int64_t inputs, char* y, char* y2) {
  switch (p.op) {
    case Op::kSum: {
      std::uint64_t sum = 0;
      each<T>(p, data, inputs, [&](T x, std::int64_t) { sum += static_cast<std::uint64_t>(widen_any(x)); });
      *reinterpret_cast<std::uint64_t*>(y) = sum;
      return true;
    }
    case Op::kProd: {
      std::uint64_t product = 1;
      each<T>(p, data, inputs, [&](T x, std::int64_t) { product *= static_cast<std::uint64_t>(widen_any(x)); });
      *reinterpret_cast<std::uint64_t*>(y) = product;
      return true;
    }
    case Op::kAny:
    case Op::kAll: {
      bool any = false, all = true;
      each<T>(p, data, inputs, [&](T x, std::int64_t) {
        const bool set = widen_any(x) != 0;
        any |= set;
        all &= set;
      });
      *reinterpret_cast<bool*>(y) = p.op == Op::kAny ? any : all;
      return true;
    }
    case Op::kMax:
    case Op::kMaxIndex:
    case Op::kArgMax:
      extreme<T, true>(p, data, inputs, y, y2);
      return true;
    case Op::kMin:
    case Op::kMinIndex:
    case Op::kArgMin:
      extreme<T, false>(p, data, inputs, y, y2);
      return true;
    default:
      return false;
  }
}

template <class T>
inline bool outputs(const Params& p, std::int64_t begin, std::int64_t end) {
  const reduce::Iterator& it = p.iter;
  std::int64_t inputs = 1;
  for (int d = 0; d < it.reduced; ++d) inputs *= it.shape[d];
  Walk in(it.dims - it.reduced, it.shape + it.reduced, it.in_stride + it.reduced, begin);
  Walk out(it.dims - it.reduced, it.shape + it.reduced, it.out_stride + it.reduced, begin);
  const auto size = static_cast<std::int64_t>(size_of(p.out));
  for (std::int64_t o = begin; o < end; ++o, in.next(), out.next()) {
    char* y2 = p.y2 ? static_cast<char*>(p.y2) + out.offset / size * 8 : nullptr;
    if (!one<T>(p, static_cast<const char*>(p.x) + in.offset, inputs, static_cast<char*>(p.y) + out.offset, y2))
      return false;
  }
  return true;
}

inline bool run(const Params& p, std::int64_t begin, std::int64_t end) {
  const bool sum = p.op == Op::kSum || p.op == Op::kProd;
  const bool index = p.op == Op::kMaxIndex || p.op == Op::kMinIndex;
  const bool arg = p.op == Op::kArgMax || p.op == Op::kArgMin;
  const bool truth = p.op == Op::kAny || p.op == Op::kAll;
  const bool right = sum || arg ? p.out == DType::kI64 : truth ? size_of(p.out) == 1 : p.out == p.in;
  const bool whole = p.in != DType::kF32 && p.in != DType::kF64 && p.in != DType::kBF16 && p.in != DType::kF16;
  if (!right || (!whole && !index && !arg && !truth)) return false;
  switch (p.in) {
    case DType::kF32:
      return outputs<float>(p, begin, end);
    case DType::kF64:
      return outputs<double>(p, begin, end);
    case DType::kBF16:
      return outputs<Bf16>(p, begin, end);
    case DType::kF16:
      return outputs<F16>(p, begin, end);
    case DType::kI64:
      return outputs<std::int64_t>(p, begin, end);
    case DType::kI32:
      return outputs<std::int32_t>(p, begin, end);
    case DType::kI16:
      return outputs<std::int16_t>(p, begin, end);
    case DType::kI8:
      return outputs<std::int8_t>(p, begin, end);
    case DType::kU8:
      return outputs<std::uint8_t>(p, begin, end);
    case DType::kBool:
      return outputs<bool>(p, begin, end);
  }
  return false;
}

}  // namespace reduce_exact
SO_ISA_END
