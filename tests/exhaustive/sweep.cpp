// sweep --isa: the instruction set in use. sweep --list: every sweep's name, inputs, whether it needs the vendor's
// library, and what it is compared with. sweep NAME FIRST END LIBRARY: the chunks [FIRST, END) of 2^26 inputs; LIBRARY
// holds the vendor's functions, or is "alone": the product's results are not compared. A line for each chunk as it is
// done: its number, BLAKE3 of the product's results (little endian), how many differ from the expected ones, the first
// input that does or -1.
#include "tests/exhaustive/sweep.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <mutex>
#include <vector>

#include "blake3.h"
#include "csrc/kernels/core/isa.h"
#include "csrc/kernels/core/parallel.h"

namespace step_oracle::exhaustive {
namespace {

constexpr std::uint64_t kChunk = 1 << 26;

struct Found {
  std::uint64_t differ = 0;
  std::uint64_t first = UINT64_MAX;
};

Found compare(const unsigned char* got, const unsigned char* want, std::uint64_t first, int n, int size) {
  Found found;
  if (std::memcmp(got, want, static_cast<std::size_t>(n) * size) == 0) return found;
  for (int i = 0; i < n; ++i)
    if (std::memcmp(got + static_cast<std::ptrdiff_t>(i) * size, want + static_cast<std::ptrdiff_t>(i) * size, size) !=
        0) {
      ++found.differ;
      found.first = std::min(found.first, first + i);
    }
  return found;
}

void chunk(const Sweep& sweep, std::uint64_t index, bool alone) {
  const std::uint64_t first = index * kChunk, n = std::min(kChunk, sweep.inputs - first);
  const auto blocks = static_cast<std::int64_t>((n + kBlock - 1) / kBlock);
  static std::vector<unsigned char> got;
  if (got.size() < n * sweep.size) got.resize(n * sweep.size);
  Found all;
  std::mutex mutex;
  parallel_for(blocks, 1, [&](std::int64_t begin, std::int64_t end) {
    std::vector<unsigned char> want(std::size_t{kBlock} * sweep.size);
    for (std::int64_t b = begin; b < end; ++b) {
      const std::uint64_t at = static_cast<std::uint64_t>(b) * kBlock;
      const int m = static_cast<int>(std::min<std::uint64_t>(kBlock, n - at));
      unsigned char* results = got.data() + at * sweep.size;
      sweep.run(sweep, first + at, m, results, alone ? nullptr : want.data());
      if (alone) continue;
      const Found found = compare(results, want.data(), first + at, m, sweep.size);
      if (found.differ == 0) continue;
      const std::lock_guard lock(mutex);
      all.differ += found.differ;
      all.first = std::min(all.first, found.first);
    }
  });
  blake3_hasher hasher;
  blake3_hasher_init(&hasher);
  blake3_hasher_update(&hasher, got.data(), n * sweep.size);
  std::uint8_t digest[BLAKE3_OUT_LEN];
  blake3_hasher_finalize(&hasher, digest, sizeof digest);
  std::printf("%llu ", static_cast<unsigned long long>(index));
  for (const std::uint8_t byte : digest) std::printf("%02x", byte);
  std::printf(" %llu %lld\n", static_cast<unsigned long long>(all.differ),
              all.differ ? static_cast<long long>(all.first) : -1ll);
  std::fflush(stdout);
}

int main(int count, char** arg) {
  if (count == 2 && std::strcmp(arg[1], "--isa") == 0) {
    std::puts(isa_name(active_isa()));
    return 0;
  }
  std::vector<Sweep> all;
  add_functions(all);
  add_halves(all);
  if (count == 2 && std::strcmp(arg[1], "--list") == 0) {
    for (const Sweep& s : all)
      std::printf("%s\t%llu\t%d\t%s\n", s.name.c_str(), static_cast<unsigned long long>(s.inputs), s.vendor, s.against);
    return 0;
  }
  const auto it = std::find_if(all.begin(), all.end(), [&](const Sweep& s) { return count > 1 && s.name == arg[1]; });
  if (it == all.end() || count != 5) {
    std::fprintf(stderr,
                 "sweep: give a name that --list prints, the first chunk, the one after the last, and the library "
                 "of the vendor's functions (or 'alone')\n");
    return 2;
  }
  const bool alone = std::strcmp(arg[4], "alone") == 0;
  if (it->vendor && !alone) open_vendor(arg[4]);
  const std::uint64_t chunks = (it->inputs + kChunk - 1) / kChunk, end = std::strtoull(arg[3], nullptr, 0);
  for (std::uint64_t c = std::strtoull(arg[2], nullptr, 0); c < std::min(chunks, end); ++c) chunk(*it, c, alone);
  return 0;
}

}  // namespace
}  // namespace step_oracle::exhaustive

int main(int count, char** arg) {
  try {
    return step_oracle::exhaustive::main(count, arg);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "sweep: %s\n", e.what());
    return 2;
  }
}
