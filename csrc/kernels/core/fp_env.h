// The floating-point environment is the host process's state: a library loaded elsewhere may have set flush-to-zero or
// another rounding mode. Every thread that runs a body holds one of these: round to nearest even, subnormals kept.
#pragma once
#include <cstdint>

namespace step_oracle {

class FpEnvGuard {
 public:
  FpEnvGuard() noexcept;
  ~FpEnvGuard() noexcept;
  FpEnvGuard(const FpEnvGuard&) = delete;
  FpEnvGuard& operator=(const FpEnvGuard&) = delete;

 private:
  std::uint64_t saved_;
};

}  // namespace step_oracle
