// The recording's digests on a card. A launch is put on the thread's current stream; the card writes 32 bytes a tensor into
// pinned memory of the host, and an event behind it says when they are there. Nothing waits but who needs the digest.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "csrc/kernels/core/error.h"
#include "csrc/record/capture/device.h"
#include "csrc/record/capture/device_libraries.h"

namespace step_oracle::capture {
namespace {

using device_digest::Item;

constexpr std::uint32_t kArena = 1 << 15;  // digests in a piece of pinned memory: 1 MiB

struct Context {
  Context(const Driver& driver, CuContext context) : d(driver) { d.check(d.push(context), "cuCtxPushCurrent"); }
  ~Context() {
    CuContext was;
    d.pop(&was);
  }
  const Driver& d;
};

// Pinned memory for digests; used again when the last launch that writes it is done.
struct Arena {
  Arena(const Driver& driver, CuContext c) : d(driver), context(c) {
    constexpr unsigned kPortableMapped = 1 | 2;  // CU_MEMHOSTALLOC_PORTABLE | DEVICEMAP
    d.check(d.host_alloc(&data, std::size_t{kArena} * 32, kPortableMapped), "cuMemHostAlloc");
  }
  ~Arena() {
    if (getpid() != pid) return;  // a forked child: the memory is its parent's
    try {
      const Context here(d, context);
      d.host_free(data);
    } catch (const std::exception&) {  // the context is gone, and its memory with it
    }
  }
  const Driver& d;
  const CuContext context;
  const int pid = getpid();
  void* data = nullptr;
  std::uint32_t used = 0;
};

class Batch final : public CardBatch {
 public:
  Batch(const Driver& driver, CuContext context) : d_(driver), context_(context) {}
  ~Batch() override {
    if (getpid() != pid_) return;
    try {
      settle();
    } catch (const std::exception&) {  // its digests were not asked for
    }
    if (event_ == nullptr) return;
    try {
      const Context here(d_, context_);
      d_.event_destroy(event_);
    } catch (const std::exception&) {  // the context is gone, and the event with it
    }
  }

  // The launch's place in pinned memory; then settle() waits for the event.
  void launched(std::shared_ptr<Arena> arena, std::uint32_t first, CuEvent event) {
    std::lock_guard lock(mutex_);
    arena_ = std::move(arena);
    first_ = first;
    event_ = event;
  }

  void failed(std::string why) {
    std::lock_guard lock(mutex_);
    why_ = std::move(why);
  }

  Digest wait(std::uint32_t index) override {
    settle();
    Digest out;
    std::memcpy(out.bytes.data(), static_cast<const char*>(arena_->data) + std::size_t{32} * (first_ + index), 32);
    return out;
  }

 private:
  void settle() {
    std::lock_guard lock(mutex_);
    if (!why_.empty()) throw Error(ErrorKind::kIo, why_);
    if (done_) return;
    if (event_ == nullptr) throw Error(ErrorKind::kIo, "A digest was asked for and never launched: report this.");
    try {
      const Context here(d_, context_);
      d_.check(d_.event_wait(event_), "cuEventSynchronize");
    } catch (const Error& e) {
      why_ = e.what();
      throw;
    }
    done_ = true;
  }

  const Driver& d_;
  const CuContext context_;
  const int pid_ = getpid();
  std::mutex mutex_;
  std::shared_ptr<Arena> arena_;
  std::uint32_t first_ = 0;
  CuEvent event_ = nullptr;
  bool done_ = false;
  std::string why_;
};

// One device: its kernels, its streams' scratch, what waits for the next launch.
class OnDevice {
 public:
  OnDevice(const Driver& driver, int index) : d_(driver), index_(index) {
    CuDevice device = 0;
    d_.check(d_.device_get(&device, index), "cuDeviceGet");
    d_.check(d_.retain(&context_, device), "cuDevicePrimaryCtxRetain");
    int major = 0, minor = 0;
    constexpr int kMajor = 75, kMinor = 76;  // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*
    d_.check(d_.device_attribute(&major, kMajor, device), "cuDeviceGetAttribute");
    d_.check(d_.device_attribute(&minor, kMinor, device), "cuDeviceGetAttribute");
    const Context here(d_, context_);
    const std::string image = digest_image(10 * major + minor);
    CuModule module = nullptr;
    d_.check(d_.module_load(&module, image.data()), "cuModuleLoadData");
    d_.check(d_.get_function(&groups_, module, "step_oracle_digest_groups"), "cuModuleGetFunction");
    d_.check(d_.get_function(&tree_, module, "step_oracle_digest_tree"), "cuModuleGetFunction");
  }

  ~OnDevice() {
    try {
      const Context here(d_, context_);
      for (const auto& [stream, scratch] : scratch_) d_.free_async(scratch.first, stream);
    } catch (const std::exception&) {  // the context is gone, and its memory with it
    }
  }

  CardDigests::Asked ask(const Item& item) {
    if (!batch_) batch_ = std::make_shared<Batch>(d_, context_);
    waiting_.push_back(item);
    return {batch_, static_cast<std::uint32_t>(waiting_.size() - 1)};
  }

  std::uint64_t flush() {
    if (!batch_) return 0;
    const auto batch = std::move(batch_);
    const auto items = std::move(waiting_);
    batch_.reset();
    waiting_.clear();
    try {
      return launch(*batch, items);
    } catch (const std::exception& e) {
      batch->failed(e.what());  // the recording ends with it; the program goes on
      return 0;
    }
  }

 private:
  std::uint64_t launch(Batch& batch, const std::vector<Item>& items) {
    const Context here(d_, context_);
    CuStream stream = nullptr;
    if (!current_stream(index_, &stream)) throw Error(ErrorKind::kIo, "Torch's current CUDA stream cannot be found.");
    if (items.size() > kArena) throw Error(ErrorKind::kUnsupported, "One op has more than 32768 tensors to digest.");
    const std::shared_ptr<Arena>& arena = room(static_cast<std::uint32_t>(items.size()));
    const std::uint32_t first = arena->used;
    arena->used += static_cast<std::uint32_t>(items.size());
    constexpr unsigned kQuiet = 1 | 2;  // CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING
    CuEvent event = nullptr;
    d_.check(d_.event_create(&event, kQuiet), "cuEventCreate");
    std::uint64_t launches = 0;
    for (std::size_t i = 0; i < items.size(); i += device_digest::kMostItems) {
      const auto some = std::span(items).subspan(i, std::min<std::size_t>(device_digest::kMostItems, items.size() - i));
      auto plan = device_digest::plan_launch(some, first + static_cast<std::uint32_t>(i));
      plan.batch.output = reinterpret_cast<std::uintptr_t>(arena->data);
      plan.batch.scratch = scratch(stream, plan.scratch_bytes);
      void* arguments[] = {&plan.batch};
      constexpr unsigned kThreads = device_digest::kThreads;
      d_.check(d_.launch(groups_, plan.blocks, 1, 1, kThreads, 1, 1, 0, stream, arguments, nullptr), "cuLaunchKernel");
      ++launches;
      if (!plan.tree) continue;
      d_.check(d_.launch(tree_, plan.batch.count, 1, 1, kThreads, 1, 1, 0, stream, arguments, nullptr), "cuLaunchKernel");
      ++launches;
    }
    d_.check(d_.event_record(event, stream), "cuEventRecord");
    batch.launched(arena, first, event);
    return launches;
  }

  const std::shared_ptr<Arena>& room(std::uint32_t digests) {
    for (auto& arena : arenas_) {
      if (arena.use_count() == 1) arena->used = 0;  // no launch has it
      if (arena->used + digests <= kArena) return arena;
    }
    return arenas_.emplace_back(std::make_shared<Arena>(d_, context_));
  }

  // The launches of one stream follow each other, so one piece of memory serves them all.
  CuAddress scratch(CuStream stream, std::uint64_t bytes) {
    auto& [address, size] = scratch_[stream];
    if (size >= bytes) return address;
    if (size > 0) d_.check(d_.free_async(address, stream), "cuMemFreeAsync");
    size = 0;
    const std::uint64_t more = std::max<std::uint64_t>(bytes, 1 << 20);
    d_.check(d_.alloc_async(&address, more, stream), "cuMemAllocAsync");
    size = more;
    return address;
  }

  const Driver& d_;
  const int index_;
  CuContext context_ = nullptr;
  CuFunction groups_ = nullptr, tree_ = nullptr;
  std::map<CuStream, std::pair<CuAddress, std::uint64_t>> scratch_;
  std::vector<std::shared_ptr<Arena>> arenas_;
  std::shared_ptr<Batch> batch_;
  std::vector<Item> waiting_;
};

class Cards final : public CardDigests {
 public:
  explicit Cards(const Driver& driver) : d_(driver) {}

  std::optional<Asked> ask(c10::DeviceIndex device, const StridedBytes& bytes) override {
    const auto item = device_digest::item_of(bytes);
    if (!item) return std::nullopt;
    const auto [it, is_new] = devices_.try_emplace(device);
    if (is_new) {
      try {
        it->second = std::make_unique<OnDevice>(d_, device);
      } catch (const std::exception& e) {
        trouble_ = e.what();
      }
    }
    if (!it->second) return std::nullopt;
    return it->second->ask(*item);
  }

  void flush() override {
    for (auto& [index, on] : devices_)
      if (on) launches_ += on->flush();
  }

  std::uint64_t launches() const override { return launches_.load(); }

  std::string trouble() override { return std::exchange(trouble_, {}); }

 private:
  const Driver& d_;
  std::map<int, std::unique_ptr<OnDevice>> devices_;
  std::string trouble_;
  std::atomic<std::uint64_t> launches_{0};
};

}  // namespace

std::unique_ptr<CardDigests> CardDigests::open(std::string& why) {
  const Driver* driver = Driver::get(&why);
  if (driver == nullptr) return nullptr;
  CuStream stream = nullptr;
  if (!current_stream(0, &stream)) {
    why = "Torch's CUDA library (libtorch_cuda.so) is not in this process, or has no current stream.";
    return nullptr;
  }
  return std::make_unique<Cards>(*driver);
}

bool is_capturing(c10::DeviceIndex device) {
  const Driver* d = Driver::get();
  CuStream stream = nullptr;
  int status = 0;  // CU_STREAM_CAPTURE_STATUS_NONE
  if (d == nullptr || !current_stream(device, &stream)) return false;
  return d->is_capturing(stream, &status) != 0 || status != 0;
}

}  // namespace step_oracle::capture
