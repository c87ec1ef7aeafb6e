#include "csrc/oracle/program/switches.h"

#include <ATen/Context.h>

namespace step_oracle::program {
namespace {

using at::CuBLASReductionOption;

// One switch of torch's global context: its name in a trace's header, and how it is read and set.
struct Switch {
  const char* key;
  bool (*get)(const at::Context&);
  void (*set)(at::Context&, bool);
};

constexpr Switch kSwitches[] = {
    {"deterministic_algorithms", [](const at::Context& c) { return c.deterministicAlgorithms(); },
     [](at::Context& c, bool on) { c.setDeterministicAlgorithms(on, c.deterministicAlgorithmsWarnOnly()); }},
    {"cuda.matmul.allow_tf32", [](const at::Context& c) { return c.allowTF32CuBLAS(); },
     [](at::Context& c, bool on) { c.setAllowTF32CuBLAS(on); }},
    {"cuda.matmul.allow_fp16_reduced_precision_reduction",
     [](const at::Context& c) { return c.allowFP16ReductionCuBLAS() == CuBLASReductionOption::AllowReducedPrecisionWithSplitK; },
     [](at::Context& c, bool on) { c.setAllowFP16ReductionCuBLAS(on); }},
    {"cuda.matmul.allow_bf16_reduced_precision_reduction",
     [](const at::Context& c) { return c.allowBF16ReductionCuBLAS() == CuBLASReductionOption::AllowReducedPrecisionWithSplitK; },
     [](at::Context& c, bool on) { c.setAllowBF16ReductionCuBLAS(on); }},
    {"cuda.matmul.allow_fp16_accumulation", [](const at::Context& c) { return c.allowFP16AccumulationCuBLAS(); },
     [](at::Context& c, bool on) { c.setAllowFP16AccumulationCuBLAS(on); }},
};

}  // namespace

SwitchScope::SwitchScope(const std::vector<std::unique_ptr<rec::FieldT>>& switches) {
  at::Context& context = at::globalContext();
  for (const auto& recorded : switches)
    for (const Switch& s : kSwitches)
      if (recorded->key == s.key) {
        const bool now = s.get(context), wanted = recorded->value == "True";
        if (now == wanted) continue;
        before_.emplace_back(s.set, now);
        s.set(context, wanted);
      }
}

SwitchScope::~SwitchScope() {
  for (auto it = before_.rbegin(); it != before_.rend(); ++it) it->first(at::globalContext(), it->second);
}

}  // namespace step_oracle::program
