#pragma once

namespace step_oracle::aten {

// Registers a refusal for every operator of ops/cuda_native.inc that no adapter registered. Once, after all static
// registrations.
void refuse_silent_decompositions();

}  // namespace step_oracle::aten
