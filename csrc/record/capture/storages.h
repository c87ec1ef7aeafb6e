// Storages by identity, what is written in them, and the digests of their present bytes. Guarded by the recording's
// mutex.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <unordered_map>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>

#include "csrc/record/capture/hashing.h"

namespace step_oracle::capture {

// Byte ranges, sorted and merged.
class Ranges {
 public:
  void add(std::int64_t low, std::int64_t high);
  bool covers(std::int64_t low, std::int64_t high) const;
  bool empty() const { return ranges_.empty(); }

 private:
  std::map<std::int64_t, std::int64_t> ranges_;  // low -> high
};

struct StorageState {
  c10::weak_intrusive_ptr<c10::StorageImpl> weak;  // pins the object's address, not its memory
  std::uint64_t id = 0;
  std::uint32_t generation = 0;  // another memory under the same object (resize_, set_data_ptr)
  std::uint64_t version = 0;     // counts writes
  const void* data = nullptr;
  std::int64_t nbytes = 0;
  bool entered = false;          // existed before the op that showed it
  bool kept = false;             // its bytes, when it entered, are in the trace
  bool filled = true;            // no byte of it is memory that nobody wrote; else `written` says what was
  Ranges written;
  Hold* hold = nullptr;          // null: hashed at once
  bool direct = false;           // the host may read `data`
  std::uint64_t in_flight = 0;   // 1 + ticket of the collective that may be writing it
  struct Digested {
    Geometry geometry;
    SlotPtr slot;
  };
  std::vector<Digested> digests;  // of the present bytes
  std::vector<StorageState*> overlapping;  // other storages over the same memory (from_blob, shared memory)

  explicit StorageState(const c10::StorageImpl& storage);
  bool is_written(const Geometry& g) const;
  void mark_written(const Geometry& g);
};

class Storages {
 public:
  explicit Storages(Hashing& hashing) : hashing_(hashing) {}

  enum class Seen : std::uint8_t { kKnown, kNew, kNewGeneration };
  // The state of a tensor's storage, made where it is new.
  StorageState& of(c10::StorageImpl& storage, Seen* seen);

  // Null where it was not seen yet.
  StorageState* find(const c10::StorageImpl& storage) const {
    const auto it = states_.find(&storage);
    return it == states_.end() ? nullptr : it->second.get();
  }

  // Before bytes in [g.low, g.high) change: digests that read them are finished, here and in overlapping storages.
  void before_write(StorageState& s, const Geometry& g);
  // After: what was known of them is forgotten, the version rises, the bytes count as written.
  void after_write(StorageState& s, const Geometry& g, bool filled);

  // The digest of the view's present bytes: the one at hand or a new one. The memory must be readable by the host.
  SlotPtr digest(StorageState& s, const Geometry& g, bool keep);

  // Called with the id of every storage found dead since the last call.
  template <class F>
  void sweep(F&& dead) {
    for (auto it = states_.begin(); it != states_.end();) {
      if (it->second->weak.expired()) {
        dead(it->second->id);
        forget(*it->second);
        it = states_.erase(it);
      } else {
        ++it;
      }
    }
    sweep_at_ = std::max<std::size_t>(1024, 2 * states_.size());
  }
  bool wants_sweep() const { return states_.size() >= sweep_at_; }
  std::uint64_t count() const { return next_id_ - 1; }
  // Every live storage.
  template <class F>
  void each(F&& f) {
    for (auto& [key, state] : states_)
      if (!state->weak.expired()) f(*state);
  }

 private:
  void place(StorageState& s);
  void forget(StorageState& s);

  Hashing& hashing_;
  std::unordered_map<const c10::StorageImpl*, std::unique_ptr<StorageState>> states_;
  std::map<std::pair<std::uintptr_t, std::uint64_t>, StorageState*> by_address_;  // (first byte, id)
  std::size_t sweep_at_ = 1024;
  std::uint64_t next_id_ = 1;
};

}  // namespace step_oracle::capture
