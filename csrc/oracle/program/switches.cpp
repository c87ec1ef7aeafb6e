#include "csrc/oracle/program/switches.h"

#include <ATen/Context.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/ScalarTypeToTypeMeta.h>

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

// The type of results whose op was given none.
void set_default_dtype(const std::string& name) {
  for (const c10::ScalarType t : {c10::kFloat, c10::kDouble, c10::kHalf, c10::kBFloat16})
    if (name == rec::name_of(static_cast<rec::DType>(t))) c10::set_default_dtype(c10::scalarTypeToTypeMeta(t));
}

}  // namespace

std::vector<std::string> switch_names() {
  std::vector<std::string> out{"default_dtype"};
  for (const Switch& s : kSwitches) out.emplace_back(s.key);
  return out;
}

SwitchScope::SwitchScope(const std::vector<std::unique_ptr<rec::FieldT>>& switches)
    : default_dtype_(c10::get_default_dtype()) {
  at::Context& context = at::globalContext();
  for (const auto& recorded : switches) {
    if (recorded->key == "default_dtype") set_default_dtype(recorded->value);
    for (const Switch& s : kSwitches)
      if (recorded->key == s.key) {
        const bool now = s.get(context), wanted = recorded->value == "True";
        if (now == wanted) continue;
        before_.emplace_back(s.set, now);
        s.set(context, wanted);
      }
  }
}

SwitchScope::~SwitchScope() {
  c10::set_default_dtype(default_dtype_);
  for (auto it = before_.rbegin(); it != before_.rend(); ++it) it->first(at::globalContext(), it->second);
}

}  // namespace step_oracle::program
