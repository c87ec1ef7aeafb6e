// One step of a walk: a program over the state, on the virtual card.
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "csrc/oracle/aten/choices.h"
#include "csrc/oracle/walk/program.h"

namespace step_oracle::walk {

using Tensors = std::map<std::string, at::Tensor>;

struct Step {
  Tensors state;                                       // by name; written in place
  Tensors batch;                                       // by name, in the host's memory
  std::map<std::string, double> terms;                 // exactly the program's
  std::vector<std::pair<std::string, std::string>> switches;  // torch's numeric switches (program/switches.h)
  std::vector<aten::Choice> choices;                   // of what kernels leave open
  std::function<void()> between_ops;                   // called now and then; may throw to stop
};

struct Outcome {
  Tensors state;
  std::optional<at::Tensor> loss;
  std::vector<std::uint64_t> taken;  // how many calls took each of the choices
};

// Runs on oracle:0 with its generator. Throws Error: kBadInput where the state or the batch does not fit the program, or a
// result is not of the geometry that the program states; kUnsupported where an op is not modelled or memory runs out.
Outcome run(Program& program, const Step& step);

}  // namespace step_oracle::walk
