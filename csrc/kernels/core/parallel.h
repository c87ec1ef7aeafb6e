// Threads split outputs, never a reduction: each range computes the same bytes as it would alone.
#pragma once
#include <cstdint>
#include <type_traits>

namespace step_oracle {

int num_threads();
// n >= 1. Default: STEP_ORACLE_THREADS, else the CPUs this process may use.
void set_num_threads(int n);

namespace detail {
void parallel_for(std::int64_t n, std::int64_t grain, void* fn,
                  void (*call)(void* fn, std::int64_t begin, std::int64_t end));
}

// Calls fn(begin, end) over disjoint ranges that cover [0, n), each of at least `grain` items but for the last. The
// floating-point environment is guarded in each call. The first exception is rethrown on the calling thread. A call
// from inside a range runs in that thread.
template <class Fn>
void parallel_for(std::int64_t n, std::int64_t grain, Fn&& fn) {
  using F = std::remove_reference_t<Fn>;
  detail::parallel_for(n, grain, const_cast<void*>(static_cast<const void*>(&fn)),
                       [](void* f, std::int64_t b, std::int64_t e) { (*static_cast<F*>(f))(b, e); });
}

}  // namespace step_oracle
