// Which card stands behind which index, and the current index of a thread.
#include <fmt/format.h>
#include <pthread.h>

#include <array>
#include <atomic>

#include "csrc/kernels/core/error.h"
#include "csrc/oracle/device/autograd_engine.h"
#include "csrc/oracle/device/device.h"

namespace step_oracle::device {
namespace {

std::array<std::atomic<const Card*>, kMaxCards> g_cards{};
std::atomic<c10::DeviceIndex> g_count{0};
thread_local c10::DeviceIndex t_current = 0;
std::atomic<bool> g_forked{false};

c10::DeviceIndex checked(c10::DeviceIndex index) {
  const c10::DeviceIndex n = g_count.load(std::memory_order_acquire);
  if (index < 0) index = t_current;
  if (index < n) return index;
  throw Error(ErrorKind::kBadInput,
              fmt::format("this process has {} virtual card{}, and oracle:{} is not among them; add one with "
                          "step_oracle.set_card(name, index={})",
                          n, n == 1 ? "" : "s", index, n));
}

}  // namespace

c10::DeviceIndex count() { return g_count.load(std::memory_order_acquire); }
c10::DeviceIndex resolve(c10::DeviceIndex index) { return checked(index); }
const Card& card(c10::DeviceIndex index) { return *g_cards[checked(index)].load(std::memory_order_acquire); }

void set_card(c10::DeviceIndex index, const std::string& name) {
  const Card& chosen = card_by_name(name);
  const c10::DeviceIndex n = count();
  if (index < 0 || index > n || index >= kMaxCards) {
    throw Error(ErrorKind::kBadInput, fmt::format("a card goes to an index from 0 to {}, not to {}: indices are "
                                                  "filled in order",
                                                  std::min<int>(n, kMaxCards - 1), index));
  }
  if (index == n && n == 0) keep_backward_on_calling_thread();
  if (index == n && n != 0 && autograd_threads() != 0 && !backward_on_calling_thread()) {
    throw Error(ErrorKind::kBadInput,
                fmt::format("oracle:{} cannot be added now: torch's autograd engine made its {} device thread(s) at "
                            "the first backward pass; call step_oracle.set_card(..., index={}) before it",
                            index, autograd_threads(), index));
  }
  g_cards[index].store(&chosen, std::memory_order_release);
  if (index == n) g_count.store(static_cast<c10::DeviceIndex>(n + 1), std::memory_order_release);
}

c10::DeviceIndex current() { return t_current; }
void set_current(c10::DeviceIndex index) { t_current = checked(index); }

void watch_forks() { pthread_atfork(nullptr, nullptr, [] { g_forked.store(true, std::memory_order_relaxed); }); }
bool forked() { return g_forked.load(std::memory_order_relaxed); }
void refuse_fork() {
  throw Error(ErrorKind::kUnsupported,
              "oracle: this process was forked from one that used a virtual card, whose threads did not come along. "
              "Start it with the 'spawn' method (torch.multiprocessing.set_start_method('spawn'))");
}

}  // namespace step_oracle::device
