#include <fmt/format.h>

#include <cstring>

#include "csrc/kernels/core/error.h"
#include "csrc/kernels/host_random/host_random.h"
#include "csrc/kernels/host_random/words.h"

namespace step_oracle::host_random {
namespace {

// [src ATen/CPUGeneratorImpl.cpp CPUGeneratorImplState @2.13]: the words are stored in 64 bits each.
struct State {
  std::uint64_t seed;
  std::int32_t left;
  std::int32_t seeded;
  std::uint64_t next;
  std::uint64_t words[624];
  double normal_x;  // unused, 0
  double normal;
  double normal_rho;  // unused, 0
  std::int32_t normal_is_valid;
  std::int32_t pad0;
  float float_normal;  // unused, 0
  std::int32_t float_normal_is_valid;
};
static_assert(sizeof(State) == kStateBytes);

constexpr Dispatch kAll[] = {Dispatch::kDefault, Dispatch::kAvx2, Dispatch::kAvx512, Dispatch::kAarch64};

}  // namespace

const char* name_of(Dispatch d) {
  switch (d) {
    case Dispatch::kDefault: return "default";
    case Dispatch::kAvx2: return "avx2";
    case Dispatch::kAvx512: return "avx512";
    case Dispatch::kAarch64: return "aarch64";
  }
  return "?";
}

Dispatch dispatch_from_name(const std::string& name) {
  for (Dispatch d : kAll)
    if (name == name_of(d)) return d;
  throw Error(ErrorKind::kBadInput,
              fmt::format("unknown host dispatch '{}'; known: default, avx2, avx512, aarch64", name));
}

Generator seeded(std::uint64_t seed) {
  Generator g;
  g.seed = seed;
  g.state[0] = static_cast<std::uint32_t>(seed);
  for (std::uint32_t j = 1; j < 624; ++j)
    g.state[j] = 1812433253u * (g.state[j - 1] ^ (g.state[j - 1] >> 30)) + j;
  return g;
}

void get_state(const Generator& g, std::uint8_t* bytes) {
  State s{};
  s.seed = g.seed, s.left = g.left, s.seeded = 1, s.next = g.next;
  for (int i = 0; i < 624; ++i) s.words[i] = g.state[i];
  s.normal_is_valid = g.has_normal ? 1 : 0;
  s.normal = g.has_normal ? g.normal : 0.0;
  std::memcpy(bytes, &s, sizeof s);
}

Generator set_state(const std::uint8_t* bytes, std::int64_t count) {
  if (count != kStateBytes)
    throw Error(ErrorKind::kBadInput, fmt::format("a state of torch's CPU generator has {} bytes, this has {}",
                                                  kStateBytes, count));
  State s;
  std::memcpy(&s, bytes, sizeof s);
  bool good = s.seeded == 1 && s.left >= 1 && s.left <= 624 && s.next <= 624;
  // Both count the same words; a fresh generator has drawn none.
  good = good && (s.left + static_cast<std::int32_t>(s.next) == 625 || (s.left == 1 && s.next == 0));
  for (std::uint64_t w : s.words) good = good && w <= 0xffffffffu;
  if (!good)
    throw Error(ErrorKind::kBadInput, "these bytes are not a state of torch's CPU generator; take them from "
                                      "torch.get_rng_state()");
  Generator g;
  g.seed = s.seed, g.left = s.left, g.next = static_cast<std::uint32_t>(s.next);
  for (int i = 0; i < 624; ++i) g.state[i] = static_cast<std::uint32_t>(s.words[i]);
  g.has_normal = s.normal_is_valid != 0;
  g.normal = g.has_normal ? s.normal : 0.0;
  return g;
}

void skip(Generator& g, std::uint64_t words) {
  draw(g, words, [](const std::uint32_t*, std::int64_t) {});
}

}  // namespace step_oracle::host_random
