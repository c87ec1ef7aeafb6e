#include "csrc/oracle/program/recorded_bytes.h"

#include <fmt/format.h>

#include "csrc/oracle/program/op_rules.h"

namespace step_oracle::program {

using rec::DigestState;

void RecordedBytes::bring(const rec::TensorT& t, const Digest& digest) {
  store_.carry(t, digest);
  store_.set_doubtful(Store::key(t), true);
}

bool RecordedBytes::inputs_are_known(const rec::OpT& op, std::string& reason) {
  for (const auto& t : op.tensors) {
    if (t->created || t->storage == 0) continue;
    const auto k = Store::key(*t);
    if (const auto it = unknown_.find(k); it != unknown_.end() && t->before_state == DigestState::Known) {
      if (!op_local_ || !trace_.has_blob(t->before)) {
        reason = fmt::format("an input comes from op {}, which was not computed, and its bytes are not kept", it->second);
        return false;
      }
      bring(*t, t->before);
      unknown_.erase(it);
    }
    if (!op_local_ || !store_.doubtful(k) || t->before_state != DigestState::Known) continue;
    if (digest_of(store_.tensor(*t)) == t->before) continue;
    if (!trace_.has_blob(t->before)) {
      reason = "an input differs from the recorded one, whose bytes are not kept (record with keep=\"all\")";
      return false;
    }
    store_.restore(*t, t->before);
    ++store_.reads.inputs;
  }
  return true;
}

bool RecordedBytes::carry(const rec::OpT& op, std::uint64_t index) {
  bool all = true;
  for (const auto& t : op.tensors) {
    if (t->storage == 0 || !(t->created || t->mutated || t->undeclared)) continue;
    const auto k = Store::key(*t);
    const StorageInfo* info = trace_.storage(t->storage, t->generation);
    const bool is_view = t->created && !t->mutated && (store_.live(k) || (info && info->record.first_seen < op.ticket));
    if (is_view) continue;
    const bool empty = t->after_state == DigestState::NeverWritten;
    if (t->after_state == DigestState::Known && trace_.has_blob(t->after) && (op_local_ || stays_on_host(op))) {
      bring(*t, t->after);
      unknown_.erase(k);
    } else if (!empty) {
      lose(*t, index);
      all = false;
    }
  }
  return all;
}

bool RecordedBytes::take(const rec::TensorT& t, std::uint64_t index) {
  const bool kept = trace_.has_blob(t.after);
  if (kept) bring(t, t.after);
  else lose(t, index);
  return kept;
}

}  // namespace step_oracle::program
