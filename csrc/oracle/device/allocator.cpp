// Memory of the virtual cards: host memory, 512-byte aligned as CUDA's caching allocator gives it (alignment chooses
// kernels; nothing else of the address enters the bytes). Freed blocks are kept by size class for reuse, because a
// training step asks for the same sizes again and fresh pages cost more than the kernels that fill them.
#include <c10/core/Allocator.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <random>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "csrc/oracle/device/device.h"
#include "csrc/oracle/device/noise.h"
#include "csrc/oracle/device/protect.h"

namespace step_oracle::device {
namespace {

constexpr std::size_t kAlign = 512;               // [src c10/cuda/CUDACachingAllocator.h kMinBlockSize]
constexpr std::size_t kMinKept = 128u << 20;      // freed bytes always worth keeping
constexpr unsigned char kPoison = 0xff;           // a NaN in every floating format
thread_local bool gives_noise = false;

// Lies in the kAlign bytes before the data.
struct Block {
  std::size_t bytes;  // of data
  c10::DeviceIndex device;
};
static_assert(sizeof(Block) <= kAlign);

// Eight classes a power of two: at most 12.5 % more than asked for.
std::size_t size_class(std::size_t n) {
  const std::size_t floor = std::bit_floor(std::max(n, kAlign));
  const std::size_t step = std::max(kAlign, floor / 8);
  return (std::max(n, std::size_t{1}) + step - 1) / step * step;
}

class Pool {
 public:
  void* take(std::size_t n, c10::DeviceIndex device) {
    if (g_protects) return take_protected(n, device);
    const std::size_t bytes = size_class(n);
    std::lock_guard lock(mutex_);
    void* base = nullptr;
    if (auto it = kept_.find(bytes); it != kept_.end() && !it->second.empty()) {
      base = it->second.back();
      it->second.pop_back();
      kept_bytes_ -= bytes;
    } else {
      base = std::aligned_alloc(kAlign, bytes + kAlign);
      if (base == nullptr) {
        release_locked();
        base = std::aligned_alloc(kAlign, bytes + kAlign);
      }
      TORCH_CHECK_WITH(OutOfMemoryError, base != nullptr, "oracle: this machine has no ", bytes,
                       " bytes for a tensor of oracle:", static_cast<int>(device), ". In use on all cards: ", used_,
                       " bytes.");
    }
    *static_cast<Block*>(base) = {bytes, device};
    void* data = static_cast<char*>(base) + kAlign;
    if (poison_) std::memset(data, kPoison, bytes);
    if (gives_noise) fill_with_noise(data, bytes);
    count({bytes, device});
    return data;
  }

  void give(void* data) {
    if (g_protects) return give_protected(data);
    void* base = static_cast<char*>(data) - kAlign;
    const Block block = *static_cast<Block*>(base);
    std::lock_guard lock(mutex_);
    discount(block);
    if (kept_bytes_ + block.bytes > std::max(kMinKept, used_ / 4)) {
      std::free(base);
      return;
    }
    kept_[block.bytes].push_back(base);
    kept_bytes_ += block.bytes;
  }

  void release() {
    std::lock_guard lock(mutex_);
    release_locked();
  }
  MemoryStats stats(c10::DeviceIndex device) {
    std::lock_guard lock(mutex_);
    MemoryStats s = stats_[device];
    s.reserved = s.allocated + static_cast<std::int64_t>(kept_bytes_);
    return s;
  }
  void reset_peak(c10::DeviceIndex device) {
    std::lock_guard lock(mutex_);
    stats_[device].peak = stats_[device].allocated;
  }

 private:
  void count(const Block& block) {
    used_ += block.bytes;
    MemoryStats& stats = stats_[block.device];
    stats.allocated += static_cast<std::int64_t>(block.bytes);
    stats.peak = std::max(stats.peak, stats.allocated);
  }
  void discount(const Block& block) {
    used_ -= block.bytes;
    stats_[block.device].allocated -= static_cast<std::int64_t>(block.bytes);
  }

  void* take_protected(std::size_t n, c10::DeviceIndex device) {
    void* data = protected_block(n);
    TORCH_CHECK_WITH(OutOfMemoryError, data != nullptr, "oracle: this machine has no ", n, " bytes in pages of their own");
    std::lock_guard lock(mutex_);
    protected_[data] = {n, device};
    count(protected_[data]);
    return data;
  }
  void give_protected(void* data) {
    {
      std::lock_guard lock(mutex_);
      discount(protected_[data]);
      protected_.erase(data);
    }
    release_protected(data);
  }

  void release_locked() {
    for (auto& [bytes, blocks] : kept_) {
      for (void* base : blocks) std::free(base);
    }
    kept_.clear();
    kept_bytes_ = 0;
  }

  std::mutex mutex_;
  std::unordered_map<std::size_t, std::vector<void*>> kept_;
  std::unordered_map<void*, Block> protected_;
  std::size_t kept_bytes_ = 0, used_ = 0;
  std::array<MemoryStats, kMaxCards> stats_{};
  // STEP_ORACLE_DEBUG_MEMORY=poison: new memory is NaN, so that a kernel that reads what nobody wrote is seen.
  const bool poison_ = std::string_view(std::getenv("STEP_ORACLE_DEBUG_MEMORY") ? std::getenv("STEP_ORACLE_DEBUG_MEMORY")
                                                                                : "") == "poison";
};

// Never destroyed: tensors may outlive static destructors.
Pool& pool() {
  static Pool& instance = *new Pool;
  return instance;
}

void deleter(void* data) {
  if (data != nullptr) pool().give(data);
}

class OracleAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t n) override {
    if (forked()) TORCH_CHECK(false, "oracle: a forked process cannot use a virtual card; start it with 'spawn'");
    const c10::DeviceIndex index = resolve(-1);
    const c10::Device device(kOracle, index);
    if (n == 0) return {nullptr, nullptr, &deleter, device};
    void* data = pool().take(n, index);
    return {data, data, &deleter, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &deleter; }
  void copy_data(void* to, const void* from, std::size_t n) const override { std::memcpy(to, from, n); }
};

OracleAllocator g_allocator;
REGISTER_ALLOCATOR(kOracle, &g_allocator);

}  // namespace

c10::Allocator* allocator() { return &g_allocator; }

NoiseScope::NoiseScope() : outer_(std::exchange(gives_noise, true)) {}
NoiseScope::~NoiseScope() { gives_noise = outer_; }

void fill_with_noise(void* data, std::size_t n) {
  static const std::uint64_t key = (std::uint64_t{std::random_device{}()} << 32) | std::random_device{}();
  static std::atomic<std::uint64_t> fills{0};
  const std::uint64_t start = key ^ (fills.fetch_add(1, std::memory_order_relaxed) * 0xd1342543de82ef95u);
  auto* const bytes = static_cast<unsigned char*>(data);
  for (std::size_t i = 0; i < n; i += 8) {
    std::uint64_t word = (start + i) * 0x9e3779b97f4a7c15u;
    word = (word ^ (word >> 32)) * 0xd6e8feb86659fd93u;
    std::memcpy(bytes + i, &word, std::min<std::size_t>(8, n - i));
  }
}

MemoryStats memory_stats(c10::DeviceIndex index) { return pool().stats(resolve(index)); }
void reset_peak(c10::DeviceIndex index) { pool().reset_peak(resolve(index)); }
void empty_cache() { pool().release(); }

}  // namespace step_oracle::device
