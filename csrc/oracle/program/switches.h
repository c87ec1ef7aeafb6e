// The numeric switches that the trace was recorded with, for the time of a replay: they choose kernels.
#pragma once
#include <memory>
#include <vector>

#include "csrc/record/trace/records.h"

namespace step_oracle::program {

class SwitchScope {
 public:
  explicit SwitchScope(const std::vector<std::unique_ptr<rec::FieldT>>& switches);
  ~SwitchScope();
  SwitchScope(const SwitchScope&) = delete;
  SwitchScope& operator=(const SwitchScope&) = delete;

 private:
  bool deterministic_, warn_only_;
};

}  // namespace step_oracle::program
