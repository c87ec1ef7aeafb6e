// Comparison is of bytes: EXPECT_SAME_BYTES(expected, actual, n) prints index, both patterns, ulps and the count.
#pragma once
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <type_traits>

#include "csrc/kernels/core/isa.h"
#include "csrc/kernels/core/parallel.h"

namespace step_oracle::test {

template <class T>
::testing::AssertionResult same_bytes(const char*, const char*, const char*, const T* expected, const T* actual,
                                      std::int64_t n) {
  std::int64_t first = -1, count = 0;
  for (std::int64_t i = 0; i < n; ++i)
    if (std::memcmp(expected + i, actual + i, sizeof(T)) != 0) {
      if (first < 0) first = i;
      ++count;
    }
  if (count == 0) return ::testing::AssertionSuccess();
  std::int64_t e = 0, a = 0;
  std::memcpy(&e, expected + first, sizeof(T));
  std::memcpy(&a, actual + first, sizeof(T));
  char line[160];
  std::snprintf(line, sizeof line, "%lld of %lld differ, first at %lld: expected 0x%llx, actual 0x%llx (%lld apart)",
                (long long)count, (long long)n, (long long)first, (unsigned long long)e, (unsigned long long)a,
                (long long)(a - e));
  return ::testing::AssertionFailure() << line;
}

// Runs body once for every usable instruction set with 1 and 2 threads; a compiled set that this CPU cannot run is
// reported, never skipped in silence.
inline void for_each_isa_and_threads(const std::function<void()>& body) {
  const Isa before = active_isa();
  const int threads = num_threads();
  for (Isa isa : compiled_isas()) {
    bool usable = false;
    for (Isa u : usable_isas()) usable |= u == isa;
    if (!usable) {
      std::printf("NOT RUN: this CPU has no %s\n", isa_name(isa));
      continue;
    }
    set_active_isa(isa);
    for (int t : {1, 2}) {
      set_num_threads(t);
      SCOPED_TRACE(std::string(isa_name(isa)) + ", " + std::to_string(t) + " threads");
      body();
    }
  }
  set_active_isa(before);
  set_num_threads(threads);
}

}  // namespace step_oracle::test

#define EXPECT_SAME_BYTES(expected, actual, n) EXPECT_PRED_FORMAT3(::step_oracle::test::same_bytes, expected, actual, n)
#define ASSERT_SAME_BYTES(expected, actual, n) ASSERT_PRED_FORMAT3(::step_oracle::test::same_bytes, expected, actual, n)
