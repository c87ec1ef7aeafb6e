// Digests of tensors' memory, off the caller's path where that is safe.
//
// No bytes are copied. Memory must therefore not change before it was hashed: whoever is about to write calls finish()
// for the digests that lie in the way, and freed memory is handed over by the storage's own deleter (Hold), which keeps
// it until its last digest is known. Nothing here takes the GIL.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include <c10/core/StorageImpl.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>

#include "csrc/record/capture/device.h"
#include "csrc/record/trace/digest.h"

namespace step_oracle::capture {

// Where the logical bytes of a view lie in its storage, in a form that two views share when their logical bytes are the
// same bytes in the same order: dimensions of size 1 are dropped, neighbours merged, and what is contiguous is one run.
struct Geometry {
  std::int64_t first = 0;     // byte of the first element
  std::int64_t low = 0, high = 0;  // the span that the view touches, in bytes: [low, high)
  std::int64_t bytes = 0;     // logical
  std::int64_t itemsize = 1;  // 1 where contiguous
  c10::SmallVector<std::int64_t, 6> sizes, strides;  // strides in elements; empty where contiguous

  static Geometry of(c10::IntArrayRef sizes, c10::IntArrayRef strides, std::int64_t offset, std::int64_t itemsize);
  static Geometry whole(std::int64_t nbytes);
  bool contiguous() const { return sizes.empty(); }
  bool operator==(const Geometry& o) const {
    return first == o.first && bytes == o.bytes && itemsize == o.itemsize && sizes == o.sizes && strides == o.strides;
  }
};

// An allocation whose deleter is ours: it outlives its storage until no digest of it is pending.
struct Hold {
  void* context = nullptr;
  c10::DeleterFnPtr original = nullptr;
  std::atomic<std::int64_t> pending{0};
  bool freed = false;  // guarded by the table's mutex
};
// Null where the allocation is not a plain one of its device's allocator (shared memory, from_blob, COW): such memory is
// hashed at once.
Hold* hold_of(c10::StorageImpl& storage);
// Whether the allocation is held: false for one that took a held one's address.
bool is_held(const c10::DataPtr& data);

// Round fork(), so that the child does not find the table locked.
void lock_holds();
void unlock_holds();

class Slot {
 public:
  bool ready() const { return state_.load(std::memory_order_acquire) == kReady; }
  const Digest& value() const { return value_; }  // once ready
  bool keeps() const { return keep_; }
  // The card computes it, in the order of its stream: who writes the memory next need not wait.
  bool on_card() const { return card_ != nullptr; }

 private:
  friend class Hashing;
  enum State : int { kQueued, kRunning, kReady };
  std::atomic<int> state_{kQueued};
  bool keep_ = false;
  Digest value_;
  Geometry geometry_;
  const std::byte* base_ = nullptr;
  Hold* hold_ = nullptr;
  std::shared_ptr<CardBatch> card_;
  std::uint32_t card_index_ = 0;
  std::exception_ptr error_;  // the card's; thrown by finish()
};
using SlotPtr = std::shared_ptr<Slot>;

class Hashing {
 public:
  using KeepBytes = std::function<void(const Digest&, const StridedBytes&)>;
  struct Options {
    int workers = 1;
    std::int64_t inline_bytes = 2048;         // hashed by the caller: cheaper than handing over
    std::int64_t wake_bytes = 64 << 10;       // queued bytes at which a sleeping worker is woken
    std::int64_t limit_bytes = 256ll << 20;   // queued bytes at which callers help
  };
  Hashing(Options options, KeepBytes keep);
  ~Hashing();

  // `base` is the storage's first byte. Without a hold the digest is known on return.
  SlotPtr submit(const Geometry& geometry, const void* base, Hold* hold, bool keep);
  SlotPtr submit(const Geometry& geometry, CardDigests::Asked asked);
  // Returns when the digest is known; does the work itself where nobody has begun it.
  void finish(Slot& slot);
  // Ends the workers; callers then hash themselves.
  void join();
  // Wakes the workers whatever the amount.
  void wake();
  std::uint64_t bytes_hashed() const { return hashed_.load(); }
  std::uint64_t digests() const { return digests_.load(); }

 private:
  void run(Slot& slot);
  bool claim(Slot& slot);
  void work();

  const Options options_;
  const KeepBytes keep_;
  std::mutex mutex_;
  std::condition_variable more_;
  std::deque<SlotPtr> queue_;
  bool stop_ = false;
  int sleeping_ = 0;
  std::atomic<std::int64_t> queued_bytes_{0};
  std::atomic<std::uint64_t> hashed_{0}, digests_{0};
  std::vector<std::thread> threads_;
};

}  // namespace step_oracle::capture
