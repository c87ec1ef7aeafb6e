#include <gtest/gtest.h>

#include <atomic>
#include <numeric>
#include <vector>

#include "csrc/kernels/card/card.h"
#include "csrc/kernels/core/bits.h"
#include "csrc/kernels/core/error.h"
#include "csrc/kernels/core/fp_env.h"
#include "csrc/kernels/core/isa.h"
#include "csrc/kernels/core/parallel.h"
#include "tests/support/same_bytes.h"
#include "tests/support/vectors.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace step_oracle {
namespace {

TEST(Isa, NamesRoundTripAndUnknownIsRefused) {
  for (Isa isa : compiled_isas()) EXPECT_EQ(isa_from_name(isa_name(isa)), isa);
  EXPECT_THROW(isa_from_name("sse9"), Error);
}

TEST(Parallel, EveryItemOnceWithAnyThreadCount) {
  const int before = num_threads();
  for (int threads : {1, 2, 3, 7}) {
    set_num_threads(threads);
    for (std::int64_t n : {0, 1, 2, 15, 16, 17, 1000}) {
      std::vector<std::atomic<int>> seen(static_cast<std::size_t>(n));
      parallel_for(n, 4, [&](std::int64_t b, std::int64_t e) {
        for (std::int64_t i = b; i < e; ++i) ++seen[static_cast<std::size_t>(i)];
      });
      for (auto& s : seen) ASSERT_EQ(s.load(), 1);
    }
  }
  set_num_threads(before);
}

TEST(Parallel, TheFirstErrorReachesTheCaller) {
  EXPECT_THROW(parallel_for(100, 1, [](std::int64_t, std::int64_t) { throw Error(ErrorKind::kInternal, "x"); }), Error);
  EXPECT_THROW(set_num_threads(0), Error);
}

#if defined(__x86_64__)
TEST(FpEnv, FlushToZeroOfTheHostDoesNotReachABody) {
  const unsigned before = _mm_getcsr();
  _mm_setcsr(before | 0x8040);  // FTZ and DAZ, as a fast-math library sets them
  volatile float tiny = float_of(1), one = 1.0f;
  float inside = 0;
  parallel_for(1, 1, [&](std::int64_t, std::int64_t) { inside = tiny * one; });
  const unsigned after = _mm_getcsr();
  _mm_setcsr(before);
  EXPECT_EQ(bits_of(inside), 1u);
  EXPECT_EQ(after & 0x8040u, 0x8040u) << "the host's own setting is put back";
}
#endif

TEST(Cards, NumbersOfTheTableAndAnUnknownName) {
  EXPECT_EQ(card_by_name("h100-sxm").sms, 132);
  EXPECT_EQ(card_by_name("t4").threads_per_sm, 1024);
  EXPECT_EQ(all_cards().size(), 15u);
  try {
    card_by_name("h100");
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kBadInput);
    EXPECT_NE(std::string(e.what()).find("h100-pcie"), std::string::npos);
  }
}

TEST(Vectors, EveryFileReads) {
  const auto names = test::vector_names("");
  EXPECT_GE(names.size(), 1138u);  // more may come, none goes
  EXPECT_EQ(test::load_vectors("relu_f32.special").meta.at("case"), "relu_f32");
}

}  // namespace
}  // namespace step_oracle
