#include "csrc/kernels/core/bits.h"
#include "csrc/kernels/gemm/plain_body.h"

SO_ISA_BEGIN
namespace {

template <class T>
T step(T a, T b, T acc) {
  if constexpr (sizeof(T) == 8)
    return fma(a, b, acc);
  else
    return static_cast<T>(static_cast<std::uint32_t>(acc) + static_cast<std::uint32_t>(a * b));
}

template <class T>
void tile(std::int64_t k, const T* a, const T* b, T* out) {
  T acc[kPlainRows][kPlainCols] = {};
  for (std::int64_t q = 0; q < k; ++q)
    for (int r = 0; r < kPlainRows; ++r) {
      const T x = a[q * kPlainRows + r];
      for (int j = 0; j < kPlainCols; ++j) acc[r][j] = step(x, b[q * kPlainCols + j], acc[r][j]);
    }
  for (int r = 0; r < kPlainRows; ++r)
    for (int j = 0; j < kPlainCols; ++j) out[r * kPlainCols + j] = acc[r][j];
}

}  // namespace

extern const PlainBody plain_body;
const PlainBody plain_body = {&tile<double>, &tile<std::int32_t>};
SO_ISA_END
