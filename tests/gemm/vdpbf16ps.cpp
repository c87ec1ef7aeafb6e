#include "tests/gemm/vdpbf16ps.h"

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop

namespace step_oracle::test {

bool has_vdpbf16ps() { return __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vl"); }

[[gnu::target("avx512bf16,avx512vl,avx512f")]] float vdpbf16ps(const float* a, const float* b, float acc) {
  std::uint32_t x, y, pair[4] = {}, other[4] = {};
  std::memcpy(&x, a, 4), std::memcpy(&y, a + 1, 4);
  pair[0] = x >> 16 | (y & 0xffff0000u);
  std::memcpy(&x, b, 4), std::memcpy(&y, b + 1, 4);
  other[0] = x >> 16 | (y & 0xffff0000u);
  __m128i va, vb;
  std::memcpy(&va, pair, 16), std::memcpy(&vb, other, 16);
  const __m128 r = _mm_dpbf16_ps(_mm_set_ss(acc), reinterpret_cast<__m128bh&>(va), reinterpret_cast<__m128bh&>(vb));
  return _mm_cvtss_f32(r);
}

}  // namespace step_oracle::test
#else
namespace step_oracle::test {
bool has_vdpbf16ps() { return false; }
float vdpbf16ps(const float*, const float*, float acc) { return acc; }
}  // namespace step_oracle::test
#endif
