// Would the golden vectors notice? Formulas with a rounding dropped or a product swapped must give other bytes.
#pragma once
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <string>

#include "csrc/kernels/core/bits.h"
#include "tests/support/vectors.h"

namespace step_oracle::test {

struct Mutant {
  const char* vectors;  // a prefix of the files' names
  float (*formula)(float x, float y, float z);
};

inline bool differs(const VectorFile& file, const Mutant& mutant) {
  const Array& want = file.out("out", "sm_90");
  const auto element = [&](const char* name, std::int64_t i) {
    const auto it = file.arrays.find(std::string("in_") + name);
    return it == file.arrays.end() ? 0.0f : it->second.as<float>()[i];
  };
  for (std::int64_t i = 0; i < want.numel(); ++i) {
    const float got = mutant.formula(element("x", i), element("y", i), element("z", i)), expected = want.as<float>()[i];
    if (got == got && bits_of(got) != bits_of(expected)) return true;
  }
  return false;
}

// Every mutant must differ from some file of its vectors; prints the score.
template <std::size_t kCount>
void expect_noticed(const Mutant (&mutants)[kCount]) {
  int killed = 0;
  for (const Mutant& mutant : mutants) {
    bool noticed = false;
    for (const std::string& name : vector_names(mutant.vectors)) noticed |= differs(load_vectors(name), mutant);
    EXPECT_TRUE(noticed) << mutant.vectors << " mutant " << killed;
    killed += noticed;
  }
  std::printf("mutation score: %d of %zu\n", killed, kCount);
}

}  // namespace step_oracle::test
