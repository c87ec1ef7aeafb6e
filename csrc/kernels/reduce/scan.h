// Running sums and products [src ScanUtils.cuh@v2.13.0 tensor_kernel_scan_innermost_dim, tensor_kernel_scan_outer_dim].
#pragma once
#include <cstdint>

#include "csrc/kernels/arith/element.h"
#include "csrc/kernels/core/isa_namespace.h"
#include "csrc/kernels/reduce/reduce.h"

SO_ISA_BEGIN

struct ScanSum {
  template <class T>
  static T of(T a, T b) {
    return a + b;
  }
  static Bf16 of(Bf16 a, Bf16 b) { return narrow<Bf16>(widen(a) + widen(b)); }
  static F16 of(F16 a, F16 b) { return narrow<F16>(widen(a) + widen(b)); }
  template <class T>
  static T start() {
    return T{};
  }
};
struct ScanProduct {
  template <class T>
  static T of(T a, T b) {
    return a * b;
  }
  static Bf16 of(Bf16 a, Bf16 b) { return narrow<Bf16>(widen(a) * widen(b)); }
  static F16 of(F16 a, F16 b) { return narrow<F16>(widen(a) * widen(b)); }
  template <class T>
  static T start() {
    if constexpr (sizeof(T) == 2)
      return narrow<T>(1.0f);
    else
      return T{1};
  }
};
inline float scan_result(float a) { return canonical(a); }
inline double scan_result(double a) { return a != a ? double_of(0x7fffffffffffffffull) : a; }
inline Bf16 scan_result(Bf16 a) { return a; }
inline F16 scan_result(F16 a) { return a; }

// log2 of the threads over a row: the ratio of row length to rows, 512 threads in all, 16 to 512
// [src ScanUtils.cuh@v2.13.0 get_log_num_threads_x_inner_scan].
inline int scan_log_threads(std::int64_t rows, std::int64_t n) {
  unsigned x = 0, y = 0;
  while ((std::int64_t{1} << x) < n) ++x;
  while ((std::int64_t{1} << y) < rows) ++y;
  const unsigned half = (9u + x - y) / 2u;  // wraps for many rows, as the source's unsigned arithmetic does
  return static_cast<int>(half < 4u ? 4u : half > 9u ? 9u : half);
}

template <class T, class Op>
inline void scan_inner(const reduce::ScanParams& p, std::int64_t row) {
  const int log = scan_log_threads(p.outer, p.n);
  const std::int64_t block = std::int64_t{2} << log;
  const T* x = static_cast<const T*>(p.x) + row * p.n;
  T* y = static_cast<T*>(p.y) + row * p.n;
  T buffer[1024], total = Op::template start<T>();
  for (std::int64_t base = 0; base < p.n; base += block) {
    const std::int64_t n = p.n - base < block ? p.n - base : block;
    for (std::int64_t i = 0; i < block; ++i) buffer[i] = i < n ? x[base + i] : Op::template start<T>();
    buffer[0] = Op::of(buffer[0], total);
    for (std::int64_t s = 1; s < block; s *= 2)
      for (std::int64_t a = s; a < block; a += 2 * s) {
        const T before = buffer[a - 1];
        for (std::int64_t i = 0; i < s; ++i) buffer[a + i] = Op::of(buffer[a + i], before);
      }
    for (std::int64_t i = 0; i < n; ++i) y[base + i] = scan_result(buffer[i]);
    total = buffer[block - 1];
  }
}

template <class T, class Op>
inline void scan_outer(const reduce::ScanParams& p, std::int64_t row) {
  const T* x = static_cast<const T*>(p.x) + row * p.n * p.inner;
  T* y = static_cast<T*>(p.y) + row * p.n * p.inner;
  for (std::int64_t j = 0; j < p.inner; ++j) y[j] = scan_result(Op::of(Op::template start<T>(), x[j]));
  for (std::int64_t i = 1; i < p.n; ++i)
    for (std::int64_t j = 0; j < p.inner; ++j)
      y[i * p.inner + j] = scan_result(Op::of(y[(i - 1) * p.inner + j], x[i * p.inner + j]));
}

template <class T, class Op>
inline void scan_exact(const reduce::ScanParams& p, std::int64_t row) {
  const T* x = static_cast<const T*>(p.x) + row * p.n * p.inner;
  std::uint64_t* y = static_cast<std::uint64_t*>(p.y) + row * p.n * p.inner;
  for (std::int64_t i = 0; i < p.n; ++i)
    for (std::int64_t j = 0; j < p.inner; ++j)
      y[i * p.inner + j] = Op::of(i ? y[(i - 1) * p.inner + j] : Op::template start<std::uint64_t>(),
                                  static_cast<std::uint64_t>(static_cast<std::int64_t>(x[i * p.inner + j])));
}

template <class T, class Op>
inline void scan_float(const reduce::ScanParams& p, std::int64_t row) {
  p.inner == 1 ? scan_inner<T, Op>(p, row) : scan_outer<T, Op>(p, row);
}

template <class Op>
inline void scan_rows_with(const reduce::ScanParams& p, std::int64_t begin, std::int64_t end) {
  for (std::int64_t row = begin; row < end; ++row) switch (p.in) {
      case DType::kF32:
        scan_float<float, Op>(p, row);
        break;
      case DType::kF64:
        scan_float<double, Op>(p, row);
        break;
      case DType::kBF16:
        scan_float<Bf16, Op>(p, row);
        break;
      case DType::kF16:
        scan_float<F16, Op>(p, row);
        break;
      case DType::kI64:
        scan_exact<std::int64_t, Op>(p, row);
        break;
      case DType::kI32:
        scan_exact<std::int32_t, Op>(p, row);
        break;
      case DType::kI16:
        scan_exact<std::int16_t, Op>(p, row);
        break;
      case DType::kI8:
        scan_exact<std::int8_t, Op>(p, row);
        break;
      case DType::kU8:
        scan_exact<std::uint8_t, Op>(p, row);
        break;
      case DType::kBool:
        scan_exact<bool, Op>(p, row);
        break;
    }
}

inline void scan_rows(const reduce::ScanParams& p, std::int64_t begin, std::int64_t end) {
  p.product ? scan_rows_with<ScanProduct>(p, begin, end) : scan_rows_with<ScanSum>(p, begin, end);
}

SO_ISA_END
