// The numeric switches that the trace was recorded with, for the time of a replay: they choose kernels.
#pragma once
#include <c10/util/typeid.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "csrc/record/trace/records.h"

namespace at {
class Context;
}

namespace step_oracle::program {

// The keys of a trace's header that choose bytes.
std::vector<std::string> switch_names();

class SwitchScope {
 public:
  explicit SwitchScope(const std::vector<std::unique_ptr<rec::FieldT>>& switches);
  ~SwitchScope();
  SwitchScope(const SwitchScope&) = delete;
  SwitchScope& operator=(const SwitchScope&) = delete;

 private:
  caffe2::TypeMeta default_dtype_;
  std::vector<std::pair<void (*)(at::Context&, bool), bool>> before_;
};

}  // namespace step_oracle::program
