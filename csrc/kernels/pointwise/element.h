// The element types of a map's operands: what each is in arithmetic, and how a result becomes each.
#pragma once
#include <cstdint>

#include "csrc/kernels/arith/convert.h"
#include "csrc/kernels/core/bits.h"

SO_ISA_BEGIN

// Storage types: bits of a 16-bit float, a bool byte.
struct Half {
  std::uint16_t bits;
};
struct Brain {
  std::uint16_t bits;
};
struct Bool {
  std::uint8_t bits;
};

inline constexpr std::uint64_t kCardNan64 = 0xfff8000000000000ull;  // [fit: no vector shows a float64 NaN]
inline double canonical(double x) { return x != x ? double_of(kCardNan64) : x; }
inline std::int64_t canonical(std::int64_t x) { return x; }

inline float widen(Brain x) { return convert::from_bf16(x.bits); }
inline float widen(Half x) { return convert::from_fp16(x.bits); }
// `nan` is the card's bfloat16 NaN.
inline Brain narrow(float x, std::uint16_t nan) { return Brain{convert::to_bf16(x, nan)}; }
inline Half narrow_half(float x) { return Half{convert::to_fp16(x)}; }
// Selections keep a NaN's payload.
inline Brain narrow_exact(float x) {
  return Brain{x != x ? static_cast<std::uint16_t>(bits_of(x) >> 16) : convert::to_bf16(x)};
}
inline Half narrow_half_exact(float x) {
  const std::uint32_t u = bits_of(x);
  const auto nan = static_cast<std::uint16_t>((u >> 16 & 0x8000u) | 0x7c00u | (u >> 13 & 0x3ffu));
  return Half{x != x ? nan : convert::to_fp16(x)};
}

// Narrower integers take the low bits of the 32-bit result [fit].
inline std::int64_t to_int64(double x) { return convert::to_int64(x); }
// NaN: 0 from float, the low end from double [spec PTX ISA, cvt].
inline std::int32_t to_int32(double x) {
  if (x != x) return INT32_MIN;
  return x >= 0x1p31 ? INT32_MAX : x <= -0x1p31 ? INT32_MIN : static_cast<std::int32_t>(x);
}

// What a value of each storage type is in arithmetic: float, double or int64.
inline float value_of(float x) { return x; }
inline double value_of(double x) { return x; }
inline float value_of(Half x) { return widen(x); }
inline float value_of(Brain x) { return widen(x); }
inline std::int64_t value_of(std::int64_t x) { return x; }
inline std::int64_t value_of(std::int32_t x) { return x; }
inline std::int64_t value_of(std::int16_t x) { return x; }
inline std::int64_t value_of(std::int8_t x) { return x; }
inline std::int64_t value_of(std::uint8_t x) { return x; }
inline std::int64_t value_of(Bool x) { return x.bits != 0; }

// From such a value to a storage type. 16-bit floats go through float, as c10's constructors do.
struct Nan16 {
  std::uint16_t bf16;
};
inline float as_float(float x) { return x; }
inline float as_float(double x) { return x != x ? card_nan() : static_cast<float>(x); }
inline float as_float(std::int64_t x) { return static_cast<float>(x); }
template <class V>
inline void store(V x, float& out, Nan16) {
  out = as_float(x);
}
template <class V>
inline void store(V x, Half& out, Nan16) {
  out = narrow_half(as_float(x));
}
template <class V>
inline void store(V x, Brain& out, Nan16 nan) {
  out = narrow(as_float(x), nan.bf16);
}
inline void store(float x, double& out, Nan16) { out = canonical(static_cast<double>(x)); }
inline void store(double x, double& out, Nan16) { out = x; }
inline void store(std::int64_t x, double& out, Nan16) { out = static_cast<double>(x); }
template <class V>
inline void store(V x, Bool& out, Nan16) {
  out.bits = x != 0;
}
inline void store(std::int64_t x, std::int64_t& out, Nan16) { out = x; }
inline void store(double x, std::int64_t& out, Nan16) { out = to_int64(x); }
inline void store(std::int64_t x, std::int32_t& out, Nan16) { out = static_cast<std::int32_t>(x); }
inline void store(double x, std::int32_t& out, Nan16) { out = to_int32(x); }
inline void store(std::int64_t x, std::int16_t& out, Nan16) { out = static_cast<std::int16_t>(x); }
inline void store(double x, std::int16_t& out, Nan16) { out = static_cast<std::int16_t>(to_int32(x)); }
inline void store(std::int64_t x, std::int8_t& out, Nan16) { out = static_cast<std::int8_t>(x); }
inline void store(double x, std::int8_t& out, Nan16) { out = static_cast<std::int8_t>(to_int32(x)); }
// Through int64 [src c10/util/TypeCast.h].
inline void store(std::int64_t x, std::uint8_t& out, Nan16) { out = static_cast<std::uint8_t>(x); }
inline void store(double x, std::uint8_t& out, Nan16) { out = static_cast<std::uint8_t>(to_int64(x)); }
inline void store(float x, std::int64_t& out, Nan16 n) { store(static_cast<double>(x), out, n); }
inline double zero_for_nan(float x) { return x != x ? 0.0 : static_cast<double>(x); }
inline void store(float x, std::int32_t& out, Nan16 n) { store(zero_for_nan(x), out, n); }
inline void store(float x, std::int16_t& out, Nan16 n) { store(zero_for_nan(x), out, n); }
inline void store(float x, std::int8_t& out, Nan16 n) { store(zero_for_nan(x), out, n); }
inline void store(float x, std::uint8_t& out, Nan16 n) { store(static_cast<double>(x), out, n); }

SO_ISA_END

// The storage type of each DType, in the enum's order.
#define SO_FOR_EACH_DTYPE(X)                                                                                   \
  X(kF32, float)                                                                                               \
  X(kF64, double) X(kF16, Half) X(kBF16, Brain) X(kI8, std::int8_t) X(kU8, std::uint8_t) X(kI16, std::int16_t) \
      X(kI32, std::int32_t) X(kI64, std::int64_t) X(kBool, Bool)
