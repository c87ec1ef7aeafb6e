#include "csrc/record/capture/outbox.h"

#include <chrono>

namespace step_oracle::capture {
namespace {

// Entries that are worth waking a thread for, and the longest that fewer wait.
constexpr std::size_t kBatch = 128;
constexpr std::chrono::milliseconds kLongest{20};

void fill(rec::TensorT& t, const Blank& blank) {
  (blank.field == Blank::kBefore ? t.before : t.after) = blank.slot->value();
}

struct Fill {
  const Blank& blank;
  void operator()(std::unique_ptr<rec::OpT>& op) const { fill(*op->tensors[blank.index], blank); }
  void operator()(rec::NamesT& names) const { fill(*names.entries[blank.index]->tensor, blank); }
  void operator()(rec::SettledT& settled) const { settled.tensors[blank.index]->after = blank.slot->value(); }
  void operator()(rec::StorageInitT& init) const { init.digest = blank.slot->value(); }
  template <class Other>
  void operator()(Other&) const {}
};

}  // namespace

Outbox::Outbox(Sink& sink, Hashing& hashing) : sink_(sink), hashing_(hashing), thread_([this] { work(); }) {}

Outbox::~Outbox() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  more_.notify_all();
  thread_.join();
}

void Outbox::put(Record record, std::vector<Blank> blanks) {
  bool wake = false;
  {
    std::lock_guard lock(mutex_);
    entries_.push_back({std::move(record), std::move(blanks)});
    wake = entries_.size() == kBatch;
  }
  if (wake) more_.notify_one();
}

void Outbox::drain() {
  std::unique_lock lock(mutex_);
  hurry_ = true;
  more_.notify_all();
  empty_.wait(lock, [&] { return entries_.empty() && !busy_; });
  hurry_ = false;
  if (error_) std::rethrow_exception(error_);
}

void Outbox::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    more_.wait_for(lock, kLongest, [&] { return stop_ || hurry_ || entries_.size() >= kBatch; });
    if (entries_.empty()) {
      if (stop_) return;
      empty_.notify_all();
      if (hurry_) more_.wait_for(lock, kLongest);
      continue;
    }
    std::deque<Entry> batch;
    batch.swap(entries_);
    busy_ = true;
    const bool failed = error_ != nullptr;
    lock.unlock();
    try {
      for (auto& entry : batch) {
        for (const auto& blank : entry.blanks) {
          hashing_.finish(*blank.slot);
          std::visit(Fill{blank}, entry.record);
        }
        if (!failed) sink_.add(std::move(entry.record));
      }
    } catch (...) {
      lock.lock();
      if (!error_) error_ = std::current_exception();
      lock.unlock();
    }
    batch.clear();
    lock.lock();
    busy_ = false;
    if (entries_.empty()) empty_.notify_all();
  }
}

}  // namespace step_oracle::capture
