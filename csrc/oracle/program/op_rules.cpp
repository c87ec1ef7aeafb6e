#include "csrc/oracle/program/op_rules.h"

#include <fmt/format.h>

#include <algorithm>

#include "csrc/kernels/core/error.h"

namespace step_oracle::program {

using rec::DigestState;

bool on_card(const std::string& device) { return device.rfind("cuda", 0) == 0 || device.rfind("oracle", 0) == 0; }

namespace {
bool names_card(const rec::ValueT& v) {
  if (v.kind == rec::ValueKind::Device) return on_card(v.text);
  for (const auto& item : v.list)
    if (names_card(*item)) return true;
  return false;
}

}  // namespace

bool same_geometry(const rec::TensorT& a, const rec::TensorT& b) {
  return a.dtype == b.dtype && a.offset == b.offset && a.sizes == b.sizes && a.strides == b.strides;
}

void each_tensor(const rec::ValueT& v, const std::function<void(std::size_t)>& see) {
  if (v.kind == rec::ValueKind::Tensor) see(static_cast<std::size_t>(v.i));
  for (const auto& item : v.list) each_tensor(*item, see);
}

bool is_host_op(const rec::OpT& op) {
  bool host = true;
  for (const auto& a : op.args) {
    host &= !names_card(*a);
    each_tensor(*a, [&](std::size_t i) { host &= i >= op.tensors.size() || !on_card(op.tensors[i]->device); });
  }
  return host;
}

bool stays_on_host(const rec::OpT& op) {
  return std::none_of(op.tensors.begin(), op.tensors.end(), [](const auto& t) { return on_card(t->device); });
}

bool leaves_noise(const rec::OpT& op) {
  for (const char* name : {"aten::empty", "aten::new_empty", "aten::_empty", "aten::resize", "aten::_scaled_dot_product"})
    if (op.name.rfind(name, 0) == 0) return true;
  return false;
}

void refuse_what_is_no_program(const Trace& trace) {
  if (!trace.complete)
    throw Error(ErrorKind::kBadInput, fmt::format("{} is not complete: {}", trace.path, trace.reason));
  const auto& env = trace.environment;
  if (env.device != "oracle" && env.device != "cuda")
    throw Error(ErrorKind::kUnsupported,
                fmt::format("the trace was recorded on '{}': the host's arithmetic is not modelled. Record on device "
                            "\"oracle\" or on a card", env.device));
  bool digests = false, on_a_card = false;
  for (const auto& op : trace.ops)
    for (const auto& t : op.tensors) {
      digests |= t->after_state == DigestState::Known || t->after_state == DigestState::Pending;
      on_a_card |= on_card(t->device);
    }
  if (!on_a_card)
    throw Error(ErrorKind::kBadInput, fmt::format("{} has no op on a card: there is nothing to verify", trace.path));
  if (!digests)
    throw Error(ErrorKind::kUnsupported,
                fmt::format("{} holds no digest of a result, so there is nothing to compare with: record with digests",
                            trace.path));
  for (const StorageInfo& s : trace.storages)
    if (env.keep == rec::Keep::Digests && s.record.entered && s.last_use && s.init.state == DigestState::Known &&
        !trace.has_blob(s.init.digest))
      throw Error(ErrorKind::kUnsupported,
                  fmt::format("{} keeps digests only, not the bytes that the program starts from: record with "
                              "keep=\"state\" to replay", trace.path));
}

}  // namespace step_oracle::program
