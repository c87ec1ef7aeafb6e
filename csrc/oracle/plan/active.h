// The plan table behind each card of the device "oracle".
#pragma once
#include <memory>

#include "csrc/oracle/plan/table.h"

namespace step_oracle::plan {

// Null: none, every product takes the class default. Safe to call while products run: they keep the table they found.
void set_active(int device, std::shared_ptr<const Table> table);
std::shared_ptr<const Table> active(int device);

}  // namespace step_oracle::plan
