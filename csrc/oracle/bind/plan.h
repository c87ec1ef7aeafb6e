#pragma once
#include <pybind11/pybind11.h>

#include "csrc/oracle/plan/active.h"

namespace step_oracle {
pybind11::dict as_dict(const plan::Tally& tally);
void bind_plan(pybind11::module_& m);
}
