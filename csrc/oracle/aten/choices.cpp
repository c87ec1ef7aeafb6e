#include "csrc/oracle/aten/choices.h"

#include <fmt/format.h>

#include <set>
#include <tuple>

#include "csrc/kernels/core/error.h"

namespace step_oracle::aten {
namespace {
thread_local ChoiceScope* scope_of_thread = nullptr;
thread_local const Choice* forced_on_thread = nullptr;
thread_local std::vector<OpenChoice>* opened_on_thread = nullptr;
}  // namespace

ChoiceScope::ChoiceScope(std::vector<Choice> choices) : choices_(std::move(choices)), times_(choices_.size(), 0) {
  std::set<std::tuple<std::string, std::string, std::int64_t>> seen;
  for (const Choice& c : choices_)
    if (!seen.emplace(c.op, c.name, c.call).second)
      throw Error(ErrorKind::kBadInput,
                  fmt::format("choices: {} of {} is given twice for {}", c.name, c.op,
                              c.call < 0 ? std::string("all calls") : fmt::format("call {}", c.call)));
  outer_ = std::exchange(scope_of_thread, this);
}

void ChoiceScope::close() {
  if (!std::exchange(closed_, true)) scope_of_thread = outer_;
}

std::int64_t ChoiceScope::calls(const std::string& op, const std::string& name) const {
  const auto it = calls_.find({op, name});
  return it == calls_.end() ? 0 : it->second;
}

ForcedChoice::ForcedChoice(const Choice& choice) : outer_(std::exchange(forced_on_thread, &choice)) {}

ForcedChoice::~ForcedChoice() { forced_on_thread = outer_; }

std::vector<std::string> open_operators() {
  return {"_efficient_attention_backward", "_flash_attention_forward", "_scaled_dot_product_efficient_attention_backward"};
}

Asked ask(std::string_view op, std::string_view name) {
  if (forced_on_thread && forced_on_thread->op == op && forced_on_thread->name == name)
    return {forced_on_thread->call, forced_on_thread->value};
  if (!scope_of_thread) return {};
  ChoiceScope& s = *scope_of_thread;
  const std::int64_t call = s.calls_[{std::string(op), std::string(name)}]++;
  std::optional<std::size_t> found;
  for (std::size_t i = 0; i < s.choices_.size(); ++i) {
    const Choice& c = s.choices_[i];
    if (c.op == op && c.name == name && (c.call == call || (c.call < 0 && !found))) found = i;
  }
  if (!found) return {call, std::nullopt};
  ++s.times_[*found];
  const Choice& c = s.choices_[*found];
  s.taken_.push_back({c.op, c.name, call, c.value});
  return {call, c.value};
}

OpenScope::OpenScope(std::vector<OpenChoice>& opened) : outer_(std::exchange(opened_on_thread, &opened)) {}

OpenScope::~OpenScope() { opened_on_thread = outer_; }

void leave_open(const std::function<OpenChoice()>& describe) {
  if (opened_on_thread) opened_on_thread->push_back(describe());
}

}  // namespace step_oracle::aten
