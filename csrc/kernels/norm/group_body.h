// What the instruction sets provide for group norm.
#pragma once
#include <cstdint>

#include "csrc/kernels/core/isa_body.h"
#include "csrc/kernels/norm/group.h"

namespace step_oracle {

// Sums over places, in float: n x channels each; and what a group's dx takes: n x groups each.
struct GroupSums {
  float *ds, *db, *c2, *c3;
};

struct GroupBody {
  void (*forward)(const norm::GroupForward& p, std::int64_t begin, std::int64_t end);  // of n x groups
  void (*sums)(const norm::GroupBackward& p, const GroupSums& s, std::int64_t begin, std::int64_t end);  // n x channels
  void (*input)(const norm::GroupBackward& p, const GroupSums& s, std::int64_t begin, std::int64_t end);  // n x groups
  void (*parameters)(const norm::GroupBackward& p, const GroupSums& s, std::int64_t begin,
                     std::int64_t end);  // of channels
};
SO_DECLARE_BODY(GroupBody, group_body)

}  // namespace step_oracle
