// All that the recorder does on a CUDA card: digests computed there, whether a graph is being captured, cuBLASLt's log,
// what the driver says of the card. Every library is found at load time by dlopen and none is required: without them, or
// without a card, each call says why. Nothing here includes a header of CUDA's or of torch's CUDA build.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <c10/core/Device.h>

#include "csrc/record/device_digest/plan.h"
#include "csrc/record/trace/digest.h"

namespace step_oracle::capture {

// Digests of one launch. They are known when the card has come so far; wait() blocks the calling thread, not the card.
class CardBatch {
 public:
  virtual ~CardBatch() = default;
  // Throws Error{kIo} where the card reports a fault.
  virtual Digest wait(std::uint32_t index) = 0;
};

// The digests of one recording. Calls come under the recording's mutex.
class CardDigests {
 public:
  // Null where no card can be used; then `why` is a sentence.
  static std::unique_ptr<CardDigests> open(std::string& why);
  virtual ~CardDigests() = default;

  struct Asked {
    std::shared_ptr<CardBatch> batch;
    std::uint32_t index = 0;
  };
  // Joins the next launch on the device's current stream. None where the tensor has too many dimensions, or the device
  // cannot run the kernels (trouble() says why): its bytes go over the host then.
  virtual std::optional<Asked> ask(c10::DeviceIndex device, const StridedBytes& bytes) = 0;
  // Launches what was asked for, on the calling thread's current streams: before the op that may overwrite it.
  virtual void flush() = 0;
  virtual std::uint64_t launches() const = 0;
  // A sentence on the first device that was of no use, once; then empty.
  virtual std::string trouble() = 0;
};

// The calling thread's current stream on the device is recording a CUDA graph instead of running.
bool is_capturing(c10::DeviceIndex device);

// cuBLASLt's log lines of the calling thread go to `lines` while this lives. `switch_on` at the start of a recording.
class LtLog {
 public:
  explicit LtLog(std::vector<std::string>& lines);
  ~LtLog();
  LtLog(const LtLog&) = delete;
  LtLog& operator=(const LtLog&) = delete;
  // False where no cuBLASLt is loaded; the log is off again when the last caller switched it off.
  static bool switch_on();
  static void switch_off();

 private:
  std::vector<std::string>* before_;
};

struct CardFacts {
  int ecc = -1, mig = -1;  // 1 on, 0 off, -1 not known
  int driver = 0;          // the CUDA version that the driver serves, 13000 for 13.0
};
CardFacts card_facts(int device);

}  // namespace step_oracle::capture
