#include "csrc/oracle/program/scopes.h"

#include <ATen/core/Generator.h>
#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <set>

#include "csrc/kernels/card/card.h"
#include "csrc/kernels/core/error.h"
#include "csrc/oracle/device/device.h"
#include "csrc/oracle/program/value.h"

namespace step_oracle::program {
namespace {

std::mutex g_one;
thread_local bool t_inside = false;

}  // namespace

OneReplay::OneReplay() {
  if (t_inside)
    throw Error(ErrorKind::kBadInput, "a replay is running in this thread: start the next one when it has ended");
  g_one.lock();
  t_inside = true;
}

OneReplay::~OneReplay() {
  t_inside = false;
  g_one.unlock();
}

CardScope::CardScope(const Trace& trace, const std::string& card) {
  std::set<int> used{0};
  for (const auto& s : trace.storages)
    if (const c10::Device d = mapped_device(s.record.device); d.type() == device::kOracle)
      used.insert(std::max<int>(0, d.index()));
  const auto& listed = trace.environment.cards;
  std::vector<std::string> cards;  // by index
  for (int i = 0; i <= *used.rbegin(); ++i) {
    const auto at = std::find_if(listed.begin(), listed.end(), [&](const auto& c) { return c->index == i; });
    if (at == listed.end())
      throw Error(ErrorKind::kCorrupt,
                  fmt::format("the trace uses card {}, and its header lists {} cards", i, listed.size()));
    cards.push_back(!card.empty() ? card : used.count(i) ? profile_of(**at) : cards.front());
  }
  for (c10::DeviceIndex i = 0; i < device::count(); ++i) {
    at::Generator generator = device::default_generator(i);
    std::lock_guard<std::mutex> lock(generator.mutex());
    before_.push_back({i, device::card(i).name, generator.get_state()});
  }
  try {
    for (int i = 0; i < static_cast<int>(cards.size()); ++i)
      if (used.count(i) || i >= device::count()) device::set_card(static_cast<c10::DeviceIndex>(i), cards[i]);
  } catch (...) {
    put_back();
    throw;
  }
}

void CardScope::put_back() {
  for (const auto& b : before_) {
    device::set_card(static_cast<c10::DeviceIndex>(b.index), b.card);
    at::Generator generator = device::default_generator(static_cast<c10::DeviceIndex>(b.index));
    std::lock_guard<std::mutex> lock(generator.mutex());
    generator.set_state(b.generator);
  }
}

std::string profile_of(const rec::CardT& c) {
  std::string near;
  for (const Card& card : all_cards()) {
    if (c.name != card.name && c.name != card.product) continue;
    if (c.sms == card.sms && c.threads_per_sm == card.threads_per_sm && c.cc_major == card.cc_major &&
        c.cc_minor == card.cc_minor)
      return card.name;
    near = fmt::format("; the profile {} has {} SMs of {} threads", card.name, card.sms, card.threads_per_sm);
  }
  throw Error(ErrorKind::kUnsupported,
              fmt::format("no profile for the trace's card '{}' ({} SMs, {} threads an SM, compute capability {}.{}){}. "
                          "Name the card whose bytes to compute (see: step-oracle cards)",
                          c.name, c.sms, c.threads_per_sm, c.cc_major, c.cc_minor, near));
}

}  // namespace step_oracle::program
