// What a walk along one trace knows: who wrote each storage last, and whether its bytes already differ from the
// other's.
#pragma once
#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "csrc/record/trace/reader.h"

namespace step_oracle::diff_state {

using Key = std::pair<std::uint64_t, std::uint32_t>;  // storage id, generation
inline Key key_of(const rec::TensorT& t) { return {t.storage, t.generation}; }

enum class Taint : std::uint8_t {
  kNone,
  kProgram,  // written by an op that only this trace has
  kDiffers,  // written by an op after a difference
};

struct Memory {
  std::int64_t writer = -1;  // op
  Taint taint = Taint::kNone;
  bool cut_otherwise = false;  // a recorded op made a view of it that the other trace has not, or has in another shape
};

struct Generator {
  std::string after;
  bool differs = false;           // from the other trace's since a difference that is reported
  std::int64_t drawn_alone = -1;  // the last op that only this trace has and that drew
};

inline std::string state_text(const std::vector<std::uint8_t>& bytes, const Digest& d) {
  return bytes.empty() ? d.hex() : std::string(bytes.begin(), bytes.end());
}

// A result that shares an argument's storage: nothing was written.
inline bool is_view(const rec::OpT& op, const rec::TensorT& t) {
  return t.created && std::any_of(op.tensors.begin(), op.tensors.end(),
                                  [&](const auto& u) { return !u->created && key_of(*u) == key_of(t); });
}
inline bool is_written(const rec::OpT& op, const rec::TensorT& t) {
  return t.mutated || t.undeclared || (t.created && !is_view(op, t));
}
// Looks at shapes only: every result is a view and nothing is written.
inline bool is_view_op(const rec::OpT& op) {
  bool views = false;
  for (const auto& t : op.tensors) {
    if (is_written(op, *t)) return false;
    views = views || t->created;
  }
  return views;
}

struct Walk {
  explicit Walk(const Trace& t) : trace(t) {
    for (const auto& op : t.ops)
      for (const auto& u : op.tensors)
        if (u->mutated || u->undeclared) mutated.insert(key_of(*u));
  }

  bool entered(const rec::TensorT& t) const {
    const auto* s = trace.storage(t.storage, t.generation);
    return s && s->record.entered;
  }
  bool unwritten(const rec::TensorT& t) const {
    const auto at = memory.find(key_of(t));
    return entered(t) && (at == memory.end() || at->second.writer < 0);
  }
  Memory of(const rec::TensorT& t) const {
    const auto at = memory.find(key_of(t));
    return at == memory.end() ? Memory{} : at->second;
  }

  const Trace& trace;
  std::map<Key, Memory> memory;
  std::map<std::string, Generator> generators;
  std::set<Key> mutated;  // in the whole trace
};

}  // namespace step_oracle::diff_state
