#include "csrc/kernels/arith/dot_add_lanes.h"
#include "tests/arith/lanes_body.h"

SO_ISA_BEGIN
namespace {

template <class Format, int kTerms, int kFractionBits>
void walk(std::int64_t depth, const float* a, const float* b, float* acc, Adder adder) {
  for (std::int64_t q = 0; q < depth; q += kTerms) {
    std::int32_t x[kTerms], y[kTerms * kTestLanes];
    for (int s = 0; s < kTerms; ++s) x[s] = lanes::lane_exponent<Format>(a[q + s]);
    for (int i = 0; i < kTerms * kTestLanes; ++i) y[i] = lanes::lane_exponent<Format>(b[q * kTestLanes + i]);
    lanes::dot_add<Format, kTerms, kFractionBits, kTestLanes>(a + q, x, b + q * kTestLanes, y, kTestLanes, acc, adder);
  }
}

template <class Format, int kWords>
void both(bool hopper, std::int64_t depth, const float* a, const float* b, float* acc) {
  if (hopper)
    walk<Format, 16 / kWords, 25>(depth, a, b, acc, kAdderHopper);
  else
    walk<Format, 8 / kWords, 24>(depth, a, b, acc, kAdderTuring);
}

void chain(int format, bool hopper, std::int64_t depth, const float* a, const float* b, float* acc) {
  if (format == 0) both<Tf32Format, 2>(hopper, depth, a, b, acc);
  if (format == 1) both<Bf16Format, 1>(hopper, depth, a, b, acc);
  if (format == 2) both<Fp16Format, 1>(hopper, depth, a, b, acc);
}

}  // namespace

extern const LanesBody lanes_body;
const LanesBody lanes_body = {&chain};
SO_ISA_END
