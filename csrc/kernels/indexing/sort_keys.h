// What a sort compares: elements as numbers, or as bits.
#pragma once
#include <cstdint>
#include <cstring>

#include "csrc/kernels/arith/element.h"
#include "csrc/kernels/core/dtype.h"

namespace step_oracle::indexing {

// Storage of one element, and its comparison [src SortingCommon.cuh@v2.13.0 GTOp, LTOp with handleNaN].
template <class T>
struct Key {
  using Bits = std::make_unsigned_t<T>;
  static bool is_nan(T) { return false; }
  static bool less(T a, T b) { return a < b; }
  // Unsigned integers in the order of the elements; an equal key is an equal element.
  static Bits radix(T x) {
    constexpr Bits top = std::is_signed_v<T> ? Bits(Bits(1) << (8 * sizeof(T) - 1)) : Bits(0);
    return static_cast<Bits>(static_cast<Bits>(x) ^ top);
  }
  static Bits select(T x) { return radix(x); }
};

template <class T, class U>
struct FloatKey {
  using Bits = U;
  static constexpr U kSign = U(1) << (8 * sizeof(U) - 1);
  static U bits(T x) {
    U u;
    std::memcpy(&u, &x, sizeof u);
    return u;
  }
  static bool is_nan(T x) {
    const auto v = widen(x);
    return v != v;
  }
  static bool less(T a, T b) { return widen(a) < widen(b); }
  static U order(U u) { return static_cast<U>(u & kSign ? ~u : u | kSign); }
  // CUB's order of bits; -0 sorts as +0 [src cub/block/radix_rank_sort_operations.cuh ProcessFloatMinusZero].
  static U radix(T x) { return order(bits(x) == kSign ? U(0) : bits(x)); }
  // [src SortingRadixSelect.cuh@v2.13.0 TopKTypeConfig]: every NaN is the largest key.
  static U select(T x) { return is_nan(x) ? static_cast<U>(~U(0)) : order(bits(x)); }
};
template <>
struct Key<float> : FloatKey<float, std::uint32_t> {};
template <>
struct Key<double> : FloatKey<double, std::uint64_t> {};
template <>
struct Key<Bf16> : FloatKey<Bf16, std::uint16_t> {};
template <>
struct Key<F16> : FloatKey<F16, std::uint16_t> {};

// a comes before b, strictly.
template <class T>
bool before(T a, T b, bool descending) {
  const bool nan_a = Key<T>::is_nan(a), nan_b = Key<T>::is_nan(b);
  if (descending) return (nan_a && !nan_b) || Key<T>::less(b, a);
  return (nan_b && !nan_a) || Key<T>::less(a, b);
}

inline constexpr std::int64_t kBitonic = 32;    // [src Sort.cu sortKeyValueInplace]
inline constexpr std::int64_t kCompared = 128;  // [src Sort.cu sortKeyValueInplace]

template <class Fn>
void with_element(DType type, Fn&& fn) {
  switch (type) {
    case DType::kF32:
      return fn(float{});
    case DType::kF64:
      return fn(double{});
    case DType::kBF16:
      return fn(Bf16{});
    case DType::kF16:
      return fn(F16{});
    case DType::kI64:
      return fn(std::int64_t{});
    case DType::kI32:
      return fn(std::int32_t{});
    case DType::kI16:
      return fn(std::int16_t{});
    case DType::kI8:
      return fn(std::int8_t{});
    case DType::kU8:
    case DType::kBool:
      return fn(std::uint8_t{});
  }
}

}  // namespace step_oracle::indexing
