// exhaustive NAME: SHA-256 of a function's results for the inputs 0 .. 2^32 - 1, little endian.
// exhaustive --list: the names.
// exhaustive --part NAME FIRST COUNT STEP: the results' words for COUNT inputs from FIRST, STEP apart, to standard output.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "csrc/kernels/arith/libdevice.h"
#include "csrc/kernels/arith/mufu.h"
#include "csrc/kernels/core/parallel.h"
#include "tests/support/sha256.h"

namespace {

using namespace step_oracle;

struct Row {
  const char* name;
  void (*run)(std::uint32_t first, float* y, int n);
};
#define SO_RUN(family, name)                                                                           \
  {#family "." #name, [](std::uint32_t first, float* y, int n) {                                       \
     for (int i = 0; i < n; ++i) y[i] = family::name(float_of(first + static_cast<std::uint32_t>(i))); \
   }},
const Row kRows[] = {SO_RUN(mufu, ex2_ftz) SO_RUN(mufu, ex2) SO_RUN(mufu, rcp_ftz) SO_RUN(mufu, rsqrt_ftz)
                         SO_RUN(mufu, rsqrt) SO_RUN(mufu, lg2_ftz) SO_RUN(mufu, sin_turns) SO_RUN(mufu, cos_turns)
                             SO_RUN(mufu, sin_ftz) SO_RUN(mufu, cos_ftz) SO_RUN(libdevice, expf)
                                 SO_RUN(libdevice, exp2f) SO_RUN(libdevice, expm1f) SO_RUN(libdevice, logf)
                                     SO_RUN(libdevice, log2f) SO_RUN(libdevice, log10f) SO_RUN(libdevice, log1pf)
                                         SO_RUN(libdevice, tanhf) SO_RUN(libdevice, erff) SO_RUN(libdevice, erfcf)
                                             SO_RUN(libdevice, sinf) SO_RUN(libdevice, cosf) SO_RUN(libdevice, rsqrtf)};

int part(const Row& row, std::uint64_t first, std::uint64_t count, std::uint64_t step) {
  constexpr std::uint64_t kPart = 1 << 14;
  std::vector<float> y(count);
  parallel_for(static_cast<std::int64_t>((count + kPart - 1) / kPart), 1, [&](std::int64_t begin, std::int64_t end) {
    for (auto i = static_cast<std::uint64_t>(begin) * kPart; i < std::min(count, static_cast<std::uint64_t>(end) * kPart); ++i)
      row.run(static_cast<std::uint32_t>(first + i * step), &y[i], 1);
  });
  return std::fwrite(y.data(), 4, count, stdout) == count ? 0 : 1;
}

}  // namespace

int main(int count, char** arg) {
  if (count == 2 && std::strcmp(arg[1], "--list") == 0) {
    for (const Row& row : kRows) std::puts(row.name);
    return 0;
  }
  for (const Row& row : kRows) {
    if (count == 6 && std::strcmp(arg[1], "--part") == 0 && std::strcmp(arg[2], row.name) == 0)
      return part(row, std::strtoull(arg[3], nullptr, 0), std::strtoull(arg[4], nullptr, 0), std::strtoull(arg[5], nullptr, 0));
    if (count != 2 || std::strcmp(arg[1], row.name) != 0) continue;
    constexpr int kChunk = 1 << 22, kPart = 1 << 14;
    std::vector<float> y(kChunk);
    step_oracle::test::Sha256 digest;
    for (std::uint64_t first = 0; first < std::uint64_t{1} << 32; first += kChunk) {
      parallel_for(kChunk / kPart, 1, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i)
          row.run(static_cast<std::uint32_t>(first + static_cast<std::uint64_t>(i) * kPart), y.data() + i * kPart,
                  kPart);
      });
      digest.update(y.data(), y.size() * 4);
    }
    std::puts(digest.hex().c_str());
    return 0;
  }
  std::fprintf(stderr, "exhaustive: one name of those that --list prints\n");
  return 2;
}
