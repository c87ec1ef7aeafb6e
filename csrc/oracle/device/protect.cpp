#include "csrc/oracle/device/protect.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <mutex>
#include <string_view>
#include <unordered_map>

#include "csrc/oracle/device/device.h"

namespace step_oracle::device {
namespace {

struct Pages {
  std::size_t bytes;
  std::uint64_t serial;  // addresses come back, blocks do not
  int opens;
};

std::mutex& mutex() {
  static std::mutex& instance = *new std::mutex;
  return instance;
}
std::unordered_map<const void*, Pages>& blocks() {
  static auto& instance = *new std::unordered_map<const void*, Pages>;
  return instance;
}
thread_local Access* t_innermost = nullptr;

// Under the mutex.
void change(const void* data, Pages& pages, int by) {
  const bool was_open = pages.opens != 0;
  pages.opens += by;
  const bool open = pages.opens != 0;
  if (open != was_open) mprotect(const_cast<void*>(data), pages.bytes, open ? PROT_READ | PROT_WRITE : PROT_NONE);
}

}  // namespace

const bool g_protects = [] {
  const char* mode = std::getenv("STEP_ORACLE_DEBUG_MEMORY");
  return mode != nullptr && std::string_view(mode) == "protect";
}();

void Access::enter() {
  outer_ = t_innermost;
  t_innermost = this;
}

void Access::leave() {
  t_innermost = outer_;
  std::lock_guard lock(mutex());
  for (const auto& [data, serial] : opened_) {
    const auto it = blocks().find(data);
    if (it != blocks().end() && it->second.serial == serial) change(data, it->second, -1);
  }
}

void Access::open_block(const void* data) {
  std::lock_guard lock(mutex());
  const auto it = blocks().find(data);
  if (it == blocks().end()) return;
  change(data, it->second, 1);
  opened_.emplace_back(data, it->second.serial);
}

void* protected_block(std::size_t n) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const std::size_t bytes = (n + page - 1) / page * page;
  void* data = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) return nullptr;
  {
    static std::uint64_t serial = 0;
    std::lock_guard lock(mutex());
    blocks()[data] = {bytes, ++serial, 0};
  }
  // A block that an adapter makes is open to it, and to the adapters that called it.
  for (Access* access = t_innermost; access != nullptr; access = access->outer_) access->open(data);
  return data;
}

void release_protected(void* data) {
  std::lock_guard lock(mutex());
  const auto it = blocks().find(data);
  munmap(data, it->second.bytes);
  blocks().erase(it);
}

}  // namespace step_oracle::device
