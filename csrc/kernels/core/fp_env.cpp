#include "csrc/kernels/core/fp_env.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace step_oracle {

#if defined(__x86_64__)
// MXCSR 0x1f80: all exceptions masked, round to nearest, no FTZ, no DAZ [spec Intel SDM vol. 1, 10.2.3].
FpEnvGuard::FpEnvGuard() noexcept : saved_(_mm_getcsr()) {
  if ((saved_ & ~0x3full) != 0x1f80) _mm_setcsr(0x1f80);
}
FpEnvGuard::~FpEnvGuard() noexcept {
  if ((saved_ & ~0x3full) != 0x1f80) _mm_setcsr(static_cast<unsigned>(saved_));
}
#elif defined(__aarch64__)
// FPCR: 0 is round to nearest, no flush to zero, no default NaN [spec Arm ARM, FPCR].
FpEnvGuard::FpEnvGuard() noexcept {
  asm volatile("mrs %0, fpcr" : "=r"(saved_));
  if (saved_ != 0) asm volatile("msr fpcr, %0" : : "r"(std::uint64_t{0}));
}
FpEnvGuard::~FpEnvGuard() noexcept {
  if (saved_ != 0) asm volatile("msr fpcr, %0" : : "r"(saved_));
}
#else
#error "step-oracle knows the floating-point control registers of x86-64 and aarch64 only"
#endif

}  // namespace step_oracle
