// Records on their way to the sink, in order, on a thread of their own: a record leaves when its digests are known.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "csrc/record/capture/hashing.h"
#include "csrc/record/capture/sink.h"

namespace step_oracle::capture {

// A digest that the record still lacks.
struct Blank {
  enum Field : std::uint8_t { kBefore, kAfter, kOnly };
  std::uint32_t index = 0;  // in the record's tensors, names, settled tensors
  Field field = kOnly;
  SlotPtr slot;
};

class Outbox {
 public:
  Outbox(Sink& sink, Hashing& hashing);
  ~Outbox();

  void put(Record record, std::vector<Blank> blanks = {});
  // Returns when all that was put is with the sink. Throws the first error of the sink.
  void drain();

 private:
  struct Entry {
    Record record;
    std::vector<Blank> blanks;
  };
  void work();

  Sink& sink_;
  Hashing& hashing_;
  std::mutex mutex_;
  std::condition_variable more_, empty_;
  std::deque<Entry> entries_;
  bool busy_ = false, stop_ = false, hurry_ = false;
  std::exception_ptr error_;
  std::thread thread_;
};

}  // namespace step_oracle::capture
