#include "csrc/oracle/program/plans.h"

#include <fmt/format.h>

#include <filesystem>

#include "csrc/kernels/card/card.h"
#include "csrc/kernels/core/error.h"
#include "csrc/oracle/device/device.h"
#include "csrc/oracle/plan/fit.h"
#include "csrc/oracle/program/store.h"
#include "csrc/oracle/program/value.h"

namespace step_oracle::program {
namespace {

int terms_of(const Card& card, const plan::Key& key) {
  if (key.dtype == DType::kF32 && !key.tf32) return 0;
  return gemm::terms_of(gemm::adder_class(card.compute_capability(), key.dtype), key.dtype);
}

void remember(int device, const plan::Key& key, const gemm::Plan& plan, const std::string& source) {
  const std::string card = device::card(static_cast<c10::DeviceIndex>(device)).name;
  const auto before = plan::active(device);
  plan::Table table;
  if (before && before->card == card)
    table = *before;
  else
    table.card = card, table.library = "as recorded", table.source = "fitted in a replay";
  table.rows[key] = {plan, source};
  plan::set_active(device, std::make_shared<const plan::Table>(std::move(table)));
}

}  // namespace

PlanScope::PlanScope(const std::string& text, const std::string& card) {
  std::shared_ptr<const plan::Table> given;
  if (!text.empty()) {
    given = std::make_shared<const plan::Table>(plan::parse(text));
    if (given->card != card)
      throw Error(ErrorKind::kBadInput, fmt::format("the plan table is of {}, and the replay is for {}; give a table of "
                                                    "this card", given->card, card));
  }
  for (int i = 0; i < device::count(); ++i) {
    before_.push_back(plan::active(i));
    const std::string name = device::card(static_cast<c10::DeviceIndex>(i)).name;
    if (given && name == card)
      plan::set_active(i, given);
    else if (!before_.back() || before_.back()->card != name)
      plan::set_active(i, plan::shipped(name));
  }
}

PlanScope::~PlanScope() {
  for (std::size_t i = 0; i < before_.size(); ++i) plan::set_active(static_cast<int>(i), before_[i]);
}

int PlanSearch::refine(const c10::OperatorHandle& op, const torch::jit::Stack& args, torch::jit::Stack& stack,
                       const rec::OpT& recorded, std::uint64_t index, const std::function<void()>& tick) {
  const plan::Asked asked = plan::take_asked();
  if (asked.count != 1 || stack.size() != 1 || !stack[0].isTensor() || recorded.returns.size() != 1 ||
      recorded.returns[0]->kind != rec::ValueKind::Tensor)
    return 0;
  const rec::TensorT& t = *recorded.tensors.at(static_cast<std::size_t>(recorded.returns[0]->i));
  const at::Tensor& own = stack[0].toTensor();
  if (!t.created || t.mutated || t.after_state != rec::DigestState::Known || digest_of(own) == t.after) return 0;
  if (const auto it = none_.find(asked.key); it != none_.end()) return it->second;
  const int device = own.device().index();
  const DType dtype = asked.key.dtype;
  const plan::Shape shape{asked.key.k, dtype != DType::kF32, asked.key.epilogue == plan::EpilogueKind::kBias,
                          terms_of(device::card(static_cast<c10::DeviceIndex>(device)), asked.key),
                          asked.key.m == 1 || asked.key.n == 1};
  const auto candidates = plan::candidates(shape);
  int tried = 0;
  for (const gemm::Plan& plan : candidates) {
    torch::jit::Stack again = args;
    {
      const plan::Forced forced(plan);
      op.callBoxed(again);
    }
    ++tried;
    tick();
    if (digest_of(again.at(0).toTensor()) != t.after) continue;
    stack = std::move(again);
    found_.push_back({index, asked.key, plan, tried});
    remember(device, asked.key, plan,
             fmt::format("fitted to {}, op {}", std::filesystem::path(trace_.path).filename().string(), index));
    table_ = plan::write(*plan::active(device));
    plan::take_asked();
    return 0;
  }
  plan::take_asked();
  none_[asked.key] = tried;
  return tried;
}

}  // namespace step_oracle::program
