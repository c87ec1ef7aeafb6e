#include "csrc/kernels/core/parallel.h"

#include <omp.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <exception>
#include <string>

#include "csrc/kernels/core/error.h"
#include "csrc/kernels/core/fp_env.h"

namespace step_oracle {
namespace {

int initial_threads() {
  if (const char* text = std::getenv("STEP_ORACLE_THREADS"); text && *text) {
    char* end = nullptr;
    const long n = std::strtol(text, &end, 10);
    if (*end == '\0' && n >= 1 && n <= 4096) return static_cast<int>(n);
    throw Error(ErrorKind::kBadInput, std::string("STEP_ORACLE_THREADS is '") + text + "'; give a number from 1 to 4096");
  }
  return std::max(1, omp_get_num_procs());
}

std::atomic<int>& threads() {
  static std::atomic<int> n{initial_threads()};
  return n;
}

}  // namespace

int num_threads() { return threads().load(std::memory_order_relaxed); }

void set_num_threads(int n) {
  if (n < 1 || n > 4096)
    throw Error(ErrorKind::kBadInput, "the number of threads is " + std::to_string(n) + "; give one from 1 to 4096");
  threads().store(n);
}

namespace detail {

void parallel_for(std::int64_t n, std::int64_t grain, void* fn,
                  void (*call)(void*, std::int64_t, std::int64_t)) {
  if (n <= 0) return;
  grain = std::max<std::int64_t>(grain, 1);
  const std::int64_t ranges = std::min<std::int64_t>((n + grain - 1) / grain, num_threads());
  if (ranges <= 1 || omp_in_parallel()) {
    FpEnvGuard guard;
    call(fn, 0, n);
    return;
  }
  // More ranges than threads, so that a thread that the machine interrupts does not hold up the others.
  const std::int64_t pieces = std::min<std::int64_t>((n + grain - 1) / grain, ranges * 4);
  std::exception_ptr first;
  std::atomic<bool> failed{false};
#pragma omp parallel for num_threads(static_cast<int>(ranges)) schedule(dynamic, 1)
  for (std::int64_t i = 0; i < pieces; ++i) {
    if (failed.load(std::memory_order_relaxed)) continue;
    try {
      FpEnvGuard guard;
      call(fn, n * i / pieces, n * (i + 1) / pieces);
    } catch (...) {
      if (!failed.exchange(true)) first = std::current_exception();
    }
  }
  if (first) std::rethrow_exception(first);
}

}  // namespace detail
}  // namespace step_oracle
