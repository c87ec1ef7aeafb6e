#include "csrc/oracle/program/choices.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "csrc/kernels/core/error.h"
#include "csrc/oracle/program/divergence.h"
#include "csrc/oracle/program/store.h"

namespace step_oracle::program {
namespace {

at::Tensor on_host(const std::vector<std::uint8_t>& bytes, const at::Tensor& like) {
  at::Tensor t = at::empty(like.sizes(), at::TensorOptions().dtype(like.scalar_type()).device(at::kCPU));
  if (bytes.size() != t.nbytes()) return {};
  if (t.nbytes()) std::memcpy(t.mutable_data_ptr(), bytes.data(), bytes.size());
  return t;
}

bool same_bytes(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor x = a.contiguous(), y = b.contiguous();
  return x.nbytes() == y.nbytes() && (x.nbytes() == 0 || std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0);
}

}  // namespace

struct ChoiceSearch::Call {
  const c10::OperatorHandle& op;
  const torch::jit::Stack& args;
  torch::jit::Stack& stack;
  const rec::TensorT& recorded;  // what the choice decides
  std::uint64_t index;
  const aten::OpenChoice& open;
  const Caller& caller;
  int& tried;

  const at::Tensor& result(const torch::jit::Stack& s) const { return s.at(open.result).toTensor(); }
  torch::jit::Stack with(const std::string& value) {
    aten::Choice choice = open.choice;
    choice.value = value;
    const aten::ForcedChoice forced(choice);
    torch::jit::Stack again = args;
    caller.rewind();
    op.callBoxed(again);
    ++tried;
    caller.tick();
    return again;
  }
};

bool ChoiceSearch::settle(const c10::OperatorHandle& op, const torch::jit::Stack& args, torch::jit::Stack& stack,
                          const rec::OpT& recorded, std::uint64_t index, const aten::OpenChoice& open,
                          const Caller& caller) {
  tried = 0;
  const rec::ValueT& value = *recorded.returns.at(open.result);
  if (value.kind != rec::ValueKind::Tensor || !stack.at(open.result).isTensor()) return false;
  const rec::TensorT& t = *recorded.tensors.at(static_cast<std::size_t>(value.i));
  const at::Tensor& own = stack[open.result].toTensor();
  if (!t.created || t.mutated || t.after_state != rec::DigestState::Known || own.sizes() != at::IntArrayRef(t.sizes))
    return false;
  tried = 1;
  Call call{op, args, stack, t, index, open, caller, tried};
  if (digest_of(own) == t.after && !ties_wanted_) {
    note(call, open.whole.front());
    return true;
  }
  if (!caller.has_recorded_inputs()) return false;
  by_parts = trace_.has_blob(t.after);
  return by_parts ? search_parts(call) : search_whole(call);
}

bool ChoiceSearch::search_parts(Call& call) {
  const aten::OpenChoice& open = call.open;
  const at::Tensor wanted = on_host(trace_.blob(call.recorded.after), call.result(call.stack));
  if (!wanted.defined()) return false;
  const std::size_t parts = open.variants.size();
  std::vector<std::vector<int>> equal(parts);
  const int rounds = parts ? *std::max_element(open.variants.begin(), open.variants.end()) : 0;
  for (int round = 0; round < rounds; ++round) {
    bool open_parts = false;
    for (std::size_t p = 0; p < parts; ++p) {
      if (equal[p].empty() && round >= open.variants[p]) return false;  // none of its variants
      open_parts |= equal[p].empty();
    }
    if (!open_parts && !ties_wanted_) break;
    std::vector<int> variants;
    for (const int count : open.variants) variants.push_back(std::min(round, count - 1));
    const torch::jit::Stack results = round == 0 ? call.stack : call.with(open.value(variants));
    const at::Tensor own = on_host(logical_bytes(call.result(results)), wanted);
    for (std::size_t p = 0; p < parts; ++p)
      if (round < open.variants[p] && same_bytes(open.elements(own, p), open.elements(wanted, p))) equal[p].push_back(round);
  }
  std::vector<int> chosen;
  for (const auto& e : equal) {
    if (e.empty()) return false;
    chosen.push_back(e.front());
  }
  const std::string value = open.value(chosen);
  note(call, value);
  torch::jit::Stack results = call.with(value);
  if (digest_of(call.result(results)) != call.recorded.after)
    throw Error(ErrorKind::kInternal, fmt::format("op {}: the parts of {} are not all of its result", call.index, open.choice.name));
  call.stack = std::move(results);
  for (std::size_t p = 0; p < parts; ++p) {
    if (equal[p].size() < 2) continue;
    std::vector<std::string> same;
    for (const int variant : equal[p]) same.push_back(open.variant(p, variant));
    note_tie(call, open.part(p), std::move(same));
  }
  return true;
}

bool ChoiceSearch::search_whole(Call& call) {
  std::vector<std::string> equal;
  for (const std::string& value : call.open.whole) {
    const bool stand_in = &value == &call.open.whole.front();
    torch::jit::Stack results = stand_in ? call.stack : call.with(value);
    if (digest_of(call.result(results)) != call.recorded.after) continue;
    if (equal.empty()) call.stack = std::move(results);
    equal.push_back(value);
    if (!ties_wanted_) break;
  }
  if (equal.empty()) return false;
  note(call, equal.front());
  if (equal.size() > 1) note_tie(call, "all", std::move(equal));
  return true;
}

// What is assumed without a choice needs none.
void ChoiceSearch::note(const Call& call, const std::string& value) {
  if (!call.open.race && value == call.open.whole.front()) return;
  notes.push_back({call.index, call.open.choice, false, call.tried});
  notes.back().choice.value = value;
}

void ChoiceSearch::note_tie(const Call& call, std::string part, std::vector<std::string> variants) {
  ++tied;
  if (ties.size() < kMostTies)
    ties.push_back({call.index, call.open.choice.op, call.open.choice.name, std::move(part), std::move(variants)});
}

}  // namespace step_oracle::program
