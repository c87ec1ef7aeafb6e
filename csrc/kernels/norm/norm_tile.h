// How dgamma and dbeta are cut, for the body and for the definition.
#pragma once
#include "csrc/kernels/norm/norm_body.h"

namespace step_oracle::norm {
ParameterTile parameter_tile(const ParameterParams& params);
}  // namespace step_oracle::norm
