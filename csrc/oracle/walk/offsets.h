// Where a run's own sampler cuts the corpus: torch's CPU generator and randint, as integers only.
//
// Source  [src ATen/CPUGeneratorImpl.cpp, ATen/core/MT19937RNGEngine.h, ATen/core/DistributionsHelper.h@v2.13.0]
#pragma once
#include <cstdint>
#include <random>
#include <vector>

namespace step_oracle::walk {

class Offsets {
 public:
  // torch.Generator().manual_seed(seed); the engine takes the low 32 bits.
  explicit Offsets(std::uint64_t seed) : engine_(static_cast<std::uint32_t>(seed)) {}

  // Passes over 32-bit outputs.
  void skip(std::uint64_t outputs) { engine_.discard(outputs); }

  // torch.randint(bound, (count,), generator=g), int64.
  std::vector<std::int64_t> next(std::int64_t count, std::int64_t bound) {
    std::vector<std::int64_t> out;
    const auto range = static_cast<std::uint64_t>(bound);
    for (std::int64_t i = 0; i < count; ++i) out.push_back(static_cast<std::int64_t>(draw(range) % range));
    return out;
  }

 private:
  std::uint64_t draw(std::uint64_t range) {
    std::uint64_t bits = engine_();
    if (range >= std::uint64_t{1} << 28) bits = bits << 32 | engine_();
    return bits;
  }

  std::mt19937 engine_;
};

}  // namespace step_oracle::walk
