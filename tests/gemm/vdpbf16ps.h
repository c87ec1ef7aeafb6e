// The CPU's own instruction, for the test that compares it with the model.
#pragma once

namespace step_oracle::test {

bool has_vdpbf16ps();
// One lane of VDPBF16PS: acc and two pairs of values that are bfloat16s.
float vdpbf16ps(const float* a, const float* b, float acc);

}  // namespace step_oracle::test
