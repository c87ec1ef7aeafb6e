// Forms of products with one row.
#pragma once
#include "tests/plan/slow_forms.h"

namespace step_oracle::slow {

Case gemv_lanes(std::mt19937& gen, Problem& problem);
Case gemv_closed(std::mt19937& gen, Problem& problem);
Case gemv_slice(std::mt19937& gen, Problem& problem);
Case dot_kernel(std::mt19937& gen, Problem& problem);

}  // namespace step_oracle::slow
