// The table look-ups of mufu.h as vector functions: a loop that calls them stays a vector loop. The names are the
// vector function ABI's (_ZGV, ISA letter, lanes, parameters): the compiler calls them for [[gnu::simd]] declarations.
#define SO_MUFU_DEFINES_LANES  // else the compiler makes vector forms of its own out of the scalar ones
#include "csrc/kernels/arith/mufu_lanes.h"

#ifdef SO_MUFU_LANES
SO_ISA_BEGIN
namespace mufu {
namespace {
// Entry points: one number, and 16, 8 or 4 lanes under the letters of AVX-512, AVX2, AVX, SSE. Narrower vectors ride in
// wide ones.
[[gnu::always_inline]] inline Lanes wide(std::int32_t v) { return _mm512_castsi128_si512(_mm_cvtsi32_si128(v)); }
[[gnu::always_inline]] inline Lanes wide(__m128i v) { return _mm512_castsi128_si512(v); }
[[gnu::always_inline]] inline Lanes wide(__m256i v) { return _mm512_castsi256_si512(v); }
[[gnu::always_inline]] inline Lanes wide(Lanes v) { return v; }
[[gnu::always_inline]] inline __m512 wide(float v) { return _mm512_castps128_ps512(_mm_set_ss(v)); }
[[gnu::always_inline]] inline __m512 wide(__m128 v) { return _mm512_castps128_ps512(v); }
[[gnu::always_inline]] inline __m512 wide(__m256 v) { return _mm512_castps256_ps512(v); }
[[gnu::always_inline]] inline __m512 wide(__m512 v) { return v; }
[[gnu::always_inline]] inline void narrow(Lanes v, std::int32_t& r) { r = _mm512_cvtsi512_si32(v); }
[[gnu::always_inline]] inline void narrow(Lanes v, __m128i& r) { r = _mm512_castsi512_si128(v); }
[[gnu::always_inline]] inline void narrow(Lanes v, __m256i& r) { r = _mm512_castsi512_si256(v); }
[[gnu::always_inline]] inline void narrow(Lanes v, Lanes& r) { r = v; }
[[gnu::always_inline]] inline void narrow(__m512 v, float& r) { r = _mm512_cvtss_f32(v); }
[[gnu::always_inline]] inline void narrow(__m512 v, __m128& r) { r = _mm512_castps512_ps128(v); }
[[gnu::always_inline]] inline void narrow(__m512 v, __m256& r) { r = _mm512_castps512_ps256(v); }
[[gnu::always_inline]] inline void narrow(__m512 v, __m512& r) { r = v; }
}  // namespace

#define SO_ENTRY(To, From, symbol, name, body)                         \
  [[gnu::visibility("hidden")]] To symbol(From v) __asm__(name); \
  To symbol(From v) {                                                  \
    To r;                                                              \
    narrow(body(wide(v)), r);                                          \
    return r;                                                          \
  }
#define SO_SCALAR "_ZN11step_oracle6avx5124mufu"
#define SO_ENTRIES(name, mangled, To, To4, To8, To16, From, From4, From8, From16, body) \
  SO_ENTRY(To, From, name##_1, SO_SCALAR mangled, body)                                 \
  SO_ENTRY(To4, From4, name##_4b, "_ZGVbN4v_" SO_SCALAR mangled, body)                  \
  SO_ENTRY(To4, From4, name##_4c, "_ZGVcN4v_" SO_SCALAR mangled, body)                  \
  SO_ENTRY(To8, From8, name##_8, "_ZGVdN8v_" SO_SCALAR mangled, body)                   \
  SO_ENTRY(To16, From16, name##_16, "_ZGVeN16v_" SO_SCALAR mangled, body)
#define SO_INTS std::int32_t, __m128i, __m256i, Lanes
#define SO_FLOATS float, __m128, __m256, __m512
#define SO_EXPAND(...) SO_ENTRIES(__VA_ARGS__)
SO_EXPAND(ex2_ftz, "7ex2_ftzEf", SO_FLOATS, SO_FLOATS, ex2_lanes)
SO_EXPAND(rcp_table, "9rcp_tableEi", SO_INTS, SO_INTS, rcp_lanes)
SO_EXPAND(rsqrt_table, "11rsqrt_tableEi", SO_INTS, SO_INTS, rsqrt_lanes)
SO_EXPAND(sin_table, "9sin_tableEi", SO_FLOATS, SO_INTS, sin_lanes)

}  // namespace mufu
SO_ISA_END
#endif
