#include "csrc/record/capture/hashing.h"

#include <unordered_map>

namespace step_oracle::capture {

Geometry Geometry::whole(std::int64_t nbytes) {
  Geometry g;
  g.high = g.bytes = nbytes;
  return g;
}

Geometry Geometry::of(c10::IntArrayRef sizes, c10::IntArrayRef strides, std::int64_t offset, std::int64_t itemsize) {
  Geometry g;
  g.first = offset * itemsize;
  std::int64_t count = 1, low = 0, high = 0;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    count *= sizes[i];
    if (sizes[i] == 1) continue;
    (strides[i] < 0 ? low : high) += (sizes[i] - 1) * strides[i];
    if (!g.sizes.empty() && g.strides.back() == strides[i] * sizes[i]) {
      g.sizes.back() *= sizes[i];
      g.strides.back() = strides[i];
    } else {
      g.sizes.push_back(sizes[i]);
      g.strides.push_back(strides[i]);
    }
  }
  g.bytes = count * itemsize;
  if (count == 0) {
    g.sizes.clear();
    g.strides.clear();
    g.low = g.high = g.first = 0;
    return g;
  }
  g.low = g.first + low * itemsize;
  g.high = g.first + (high + 1) * itemsize;
  if (g.sizes.empty() || (g.sizes.size() == 1 && g.strides[0] == 1)) {
    g.sizes.clear();
    g.strides.clear();
  } else {
    g.itemsize = itemsize;
  }
  return g;
}

namespace {

struct Holds {
  std::mutex mutex;
  std::unordered_map<void*, std::unique_ptr<Hold>> table;
};
Holds& holds() {
  static Holds& h = *new Holds;  // never destroyed: storages are freed until the process ends
  return h;
}

void free_now(void* context, c10::DeleterFnPtr original) { original(context); }

// The deleter that stands in for the allocator's.
void free_when_hashed(void* context) {
  c10::DeleterFnPtr original = nullptr;
  {
    std::lock_guard lock(holds().mutex);
    auto it = holds().table.find(context);
    if (it == holds().table.end()) return;  // cannot be: the entry lives as long as the deleter stands
    if (it->second->pending.load() > 0) {
      it->second->freed = true;
      return;
    }
    original = it->second->original;
    holds().table.erase(it);
  }
  free_now(context, original);
}

void release(Hold* hold) {
  void* context = nullptr;
  c10::DeleterFnPtr original = nullptr;
  {
    std::lock_guard lock(holds().mutex);
    if (--hold->pending > 0 || !hold->freed) return;
    context = hold->context;
    original = hold->original;
    holds().table.erase(context);
  }
  free_now(context, original);
}

}  // namespace

Hold* hold_of(c10::StorageImpl& storage) {
  auto& data = storage._mutable_data_ptr_no_checks();
  void* context = data.get_context();
  if (context == nullptr || context != data.get()) return nullptr;
  if (data.get_deleter() == &free_when_hashed) {
    std::lock_guard lock(holds().mutex);
    auto it = holds().table.find(context);
    return it == holds().table.end() ? nullptr : it->second.get();
  }
  auto* allocator = c10::GetAllocator(data.device().type());
  const auto original = allocator == nullptr ? nullptr : allocator->raw_deleter();
  if (original == nullptr || data.get_deleter() != original) return nullptr;
  std::lock_guard lock(holds().mutex);
  auto& hold = holds().table[context];
  if (!hold) hold = std::make_unique<Hold>();
  hold->context = context;
  hold->original = original;
  hold->freed = false;
  if (!data.compare_exchange_deleter(original, &free_when_hashed)) return nullptr;
  return hold.get();
}

bool is_held(const c10::DataPtr& data) { return data.get_deleter() == &free_when_hashed; }

void lock_holds() { holds().mutex.lock(); }
void unlock_holds() { holds().mutex.unlock(); }

Hashing::Hashing(Options options, KeepBytes keep) : options_(options), keep_(std::move(keep)) {
  for (int i = 0; i < options_.workers; ++i) threads_.emplace_back([this] { work(); });
}

Hashing::~Hashing() { join(); }

void Hashing::join() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  more_.notify_all();
  for (auto& t : threads_) t.join();
  threads_.clear();
}

SlotPtr Hashing::submit(const Geometry& geometry, const void* base, Hold* hold, bool keep) {
  auto slot = std::make_shared<Slot>();
  slot->geometry_ = geometry;
  slot->base_ = static_cast<const std::byte*>(base);
  slot->keep_ = keep;
  digests_.fetch_add(1, std::memory_order_relaxed);
  if (hold == nullptr || geometry.bytes <= options_.inline_bytes) {
    slot->state_.store(Slot::kRunning, std::memory_order_relaxed);
    run(*slot);
    return slot;
  }
  slot->hold_ = hold;
  hold->pending.fetch_add(1);
  bool wake = false;
  {
    std::lock_guard lock(mutex_);
    queue_.push_back(slot);
    wake = sleeping_ > 0 && queued_bytes_.load(std::memory_order_relaxed) + geometry.bytes >= options_.wake_bytes;
    queued_bytes_.fetch_add(geometry.bytes);
  }
  if (wake) more_.notify_one();
  while (queued_bytes_.load() > options_.limit_bytes) {
    SlotPtr oldest;
    {
      std::lock_guard lock(mutex_);
      if (queue_.empty()) break;
      oldest = std::move(queue_.front());
      queue_.pop_front();
    }
    if (claim(*oldest)) run(*oldest);
  }
  return slot;
}

SlotPtr Hashing::submit(const Geometry& geometry, CardDigests::Asked asked) {
  auto slot = std::make_shared<Slot>();
  slot->geometry_ = geometry;
  slot->card_ = std::move(asked.batch);
  slot->card_index_ = asked.index;
  digests_.fetch_add(1, std::memory_order_relaxed);
  return slot;
}

bool Hashing::claim(Slot& slot) {
  int expected = Slot::kQueued;
  if (!slot.state_.compare_exchange_strong(expected, Slot::kRunning)) return false;
  if (!slot.on_card()) queued_bytes_.fetch_sub(slot.geometry_.bytes);
  return true;
}

void Hashing::run(Slot& slot) {
  const Geometry& g = slot.geometry_;
  if (slot.on_card()) {
    try {
      slot.value_ = slot.card_->wait(slot.card_index_);
    } catch (...) {
      slot.error_ = std::current_exception();
    }
    hashed_.fetch_add(static_cast<std::uint64_t>(g.bytes), std::memory_order_relaxed);
    slot.state_.store(Slot::kReady, std::memory_order_release);
    slot.state_.notify_all();
    return;
  }
  const StridedBytes bytes{slot.base_ + g.first, g.sizes, g.strides, static_cast<std::size_t>(g.itemsize)};
  if (g.contiguous()) {
    slot.value_ = blake3(slot.base_ + g.first, static_cast<std::size_t>(g.bytes));
  } else {
    slot.value_ = blake3(bytes);
  }
  hashed_.fetch_add(static_cast<std::uint64_t>(g.bytes), std::memory_order_relaxed);
  if (slot.keep_ && keep_) {
    const std::int64_t size = g.bytes, stride = 1;
    keep_(slot.value_, g.contiguous() ? StridedBytes{slot.base_ + g.first, {&size, 1}, {&stride, 1}, 1} : bytes);
  }
  Hold* hold = slot.hold_;
  slot.state_.store(Slot::kReady, std::memory_order_release);
  if (hold != nullptr) {
    slot.state_.notify_all();
    release(hold);
  }
}

void Hashing::finish(Slot& slot) {
  if (!slot.ready() && claim(slot)) run(slot);
  for (int s = slot.state_.load(); s != Slot::kReady; s = slot.state_.load()) slot.state_.wait(s);
  if (slot.error_) std::rethrow_exception(slot.error_);
}

void Hashing::wake() {
  { std::lock_guard lock(mutex_); }
  more_.notify_all();
}

void Hashing::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    while (!queue_.empty()) {
      SlotPtr slot = std::move(queue_.front());
      queue_.pop_front();
      if (!claim(*slot)) continue;
      lock.unlock();
      run(*slot);
      slot.reset();
      lock.lock();
    }
    if (stop_) return;
    ++sleeping_;
    more_.wait(lock);
    --sleeping_;
  }
}

}  // namespace step_oracle::capture
