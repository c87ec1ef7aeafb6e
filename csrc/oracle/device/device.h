// The device "oracle": PrivateUse1 under its own name. One index, one card.
#pragma once
#include <ATen/core/Generator.h>
#include <c10/core/Allocator.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "csrc/kernels/card/card.h"

namespace step_oracle::device {

constexpr c10::DeviceType kOracle = c10::DeviceType::PrivateUse1;
constexpr c10::DeviceIndex kMaxCards = 16;

// --- cards ---
// How many cards this process has: indices 0 .. count() - 1.
c10::DeviceIndex count();
// The index itself, or the current device for a negative one. Throws Error when there is no such card.
c10::DeviceIndex resolve(c10::DeviceIndex index);
// The card behind an index; a negative index is the current device.
const Card& card(c10::DeviceIndex index);
// Puts a card at an index: replaces the card there, or appends one when index == count(). Throws Error for another
// index, and once the autograd engine has made one thread a device, for an appended one.
void set_card(c10::DeviceIndex index, const std::string& name);

// --- current device, one a thread ---
c10::DeviceIndex current();
void set_current(c10::DeviceIndex index);

// --- fork: a child has the memory but not the threads ---
void watch_forks();
bool forked();
[[noreturn]] void refuse_fork();

// --- memory ---
c10::Allocator* allocator();
struct MemoryStats {
  std::int64_t allocated = 0, peak = 0, reserved = 0;  // bytes: in use, most in use, in use or kept for reuse
};
MemoryStats memory_stats(c10::DeviceIndex index);
void reset_peak(c10::DeviceIndex index);
void empty_cache();

// STEP_ORACLE_DEBUG_MEMORY=protect: the pages of a block can be touched only while an adapter runs that was given the
// block, or that allocated it; any other access of the host faults at once. One Access stands around every adapter.
extern const bool g_protects;
class Access {
 public:
  Access() {
    if (g_protects) enter();
  }
  ~Access() {
    if (g_protects) leave();
  }
  Access(const Access&) = delete;
  Access& operator=(const Access&) = delete;
  // `data` is the start of a storage of this device, or null.
  void open(const void* data) {
    if (g_protects && data != nullptr) open_block(data);
  }

 private:
  friend void* protected_block(std::size_t n);
  void enter();
  void leave();
  void open_block(const void* data);
  Access* outer_ = nullptr;
  std::vector<std::pair<const void*, std::uint64_t>> opened_;  // start of a block, its serial number
};

// --- random numbers ---
const at::Generator& default_generator(c10::DeviceIndex index);
at::Generator new_generator(c10::DeviceIndex index);
struct Philox {
  std::uint64_t seed, offset;
};
// The state a kernel starts from, as CUDAGeneratorImpl::philox_cuda_state: the offset then moves on by `increment`
// rounded up to a multiple of 4. `generator` must be one of this device.
Philox take_philox(const at::Generator& generator, std::uint64_t increment);

}  // namespace step_oracle::device
