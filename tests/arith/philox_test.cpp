#include "csrc/kernels/arith/philox.h"

#include <gtest/gtest.h>

namespace step_oracle {
namespace {

// Known answers of Philox4x32-10 [spec Random123 kat_vectors]: counter words (draw, subsequence), key, result.
TEST(Philox, KnownAnswers) {
  const struct {
    std::uint64_t seed, subsequence, draw;
    std::uint32_t word[4];
  } cases[] = {{0, 0, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
               {~0ull, ~0ull, ~0ull, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
               {0x299f31d0a4093822ull,
                0x0370734413198a2eull,
                0x85a308d3243f6a88ull,
                {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}}};
  for (const auto& c : cases) {
    const philox::Block b = philox::block(c.seed, c.subsequence, c.draw);
    for (int i = 0; i < 4; ++i) EXPECT_EQ(b.word[i], c.word[i]);
  }
}

TEST(Philox, UniformsStayInTheirInterval) {
  EXPECT_EQ(philox::uniform(0), 0x1p-33f);
  EXPECT_EQ(philox::uniform(0xffffffffu), 1.0f);
  EXPECT_EQ(philox::uniform_double(0, 0), 0x1p-54);
}

// Printed by a card, seed 1234: torch.rand(300)[0] and [1], nine digits [record a-rand-27-bits-s1234].
TEST(Philox, AsACardPrintedIt) {
  EXPECT_EQ(philox::uniform(philox::block(1234, 0, 0).word[0]), 0.127207950f);
  EXPECT_EQ(philox::uniform(philox::block(1234, 1, 0).word[0]), 0.816736281f);
}

}  // namespace
}  // namespace step_oracle
