// The numbers that torch draws on a host: its CPU generator (mt19937) and the fills that initialise a model.
//
// Shapes    n elements in the order in which TensorIterator walks the output: memory order.
// Types     float32, bfloat16, float16; uniform and skip also float64. int64 for random_from_to and randperm.
// Order     one word after the other, serially: no byte depends on the host's threads.
// Rounding  per operation as below; which products are fused into sums depends on the dispatch that drew (Dispatch).
// NaN       none arises from finite arguments.
// Errors    negative n or std, from > to, a type that is not listed: kBadInput. Normals in float64: kUnsupported (the
//           host's libm shows in their last bits).
// Source    [src aten/src/ATen/core/{MT19937RNGEngine,DistributionsHelper,TransformationHelper}.h,
//           ATen/native/cpu/{DistributionTemplates,avx_mathfun}.h, ATen/CPUGeneratorImpl.cpp @2.13]
//           [src ARM-software/optimized-routines math/{logf,sinf,cosf}.c: the functions of glibc 2.28 and later]
// Evidence  docs/evidence.md, rows host_random/*.
#pragma once
#include <cstdint>
#include <string>

#include "csrc/kernels/core/dtype.h"

namespace step_oracle::host_random {

// Which of torch's builds of the fill ran (ATEN_CPU_CAPABILITY and the CPU choose). It is a term of the bytes:
//   kDefault  x86-64 without AVX2: no fused products; large normals by the libm's logf, sinf, cosf.
//   kAvx2     fused products; large normals by the polynomials of avx_mathfun.h, as GCC contracts them.
//   kAvx512   the bytes of kAvx2: normal_ has no build of its own, uniform_ contracts alike.
//   kAarch64  fused products (GCC contracts on aarch64 too); large normals by libm; float16 of a small normal fill
//             rounded once.
enum class Dispatch { kDefault, kAvx2, kAvx512, kAarch64 };
Dispatch dispatch_from_name(const std::string& name);
const char* name_of(Dispatch dispatch);

// at::CPUGeneratorImpl.
struct Generator {
  std::uint64_t seed = 0;
  std::uint32_t state[624] = {};
  int left = 1;  // words until the next twist, plus one
  std::uint32_t next = 0;
  bool has_normal = false;  // the second number of a pair, kept for the next small fill
  double normal = 0.0;
};
// manual_seed: 32 bits of the seed enter.
Generator seeded(std::uint64_t seed);
// torch.get_rng_state's bytes. set_state refuses what is not such a state.
inline constexpr int kStateBytes = 5056;
void get_state(const Generator& generator, std::uint8_t* bytes);
Generator set_state(const std::uint8_t* bytes, std::int64_t count);

struct Fill {
  std::int64_t n;
  DType dtype;
  void* out;
};

// uniform_: 24 bits of a word (53 of two for float64), x * (to - from) + from; a result equal to `to` becomes `from`.
void uniform(Generator& generator, Dispatch dispatch, const Fill& fill, double from, double to);
// normal_. `contiguous` is the tensor's: with it and n >= 16, blocks of 16 (eight pairs of Box and Muller), the last one
// drawn anew where 16 does not divide n; otherwise pairs in double, the second kept in the generator.
void normal(Generator& generator, Dispatch dispatch, const Fill& fill, bool contiguous, double mean, double std);
// random_(from, to) of int64: word % range + base; two words where range >= 2^28.
void random_from_to(Generator& generator, std::int64_t n, std::uint64_t range, std::int64_t base, std::int64_t* out);
void randperm(Generator& generator, std::int64_t n, std::int64_t* out);

// Draws that are thrown away.
void skip(Generator& generator, std::uint64_t words);
// Words that a fill takes (a small normal fill is not counted in words alone: kBadInput).
std::uint64_t words_of_uniform(DType dtype, std::int64_t n);
std::uint64_t words_of_normal(DType dtype, std::int64_t n);

// The definitions: torch's loops, a word at a time.
namespace ref {
void uniform(Generator& generator, Dispatch dispatch, const Fill& fill, double from, double to);
void normal(Generator& generator, Dispatch dispatch, const Fill& fill, bool contiguous, double mean, double std);
void skip(Generator& generator, std::uint64_t words);
}  // namespace ref

}  // namespace step_oracle::host_random
