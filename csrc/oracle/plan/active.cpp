#include "csrc/oracle/plan/active.h"

#include <filesystem>
#include <fstream>
#include <mutex>
#include <sstream>
#include <utility>
#include <vector>

namespace step_oracle::plan {
namespace {

std::mutex& lock() {
  static std::mutex m;
  return m;
}
std::vector<std::shared_ptr<const Table>>& tables() {
  static std::vector<std::shared_ptr<const Table>> t;
  return t;
}
std::string& folder() {
  static std::string path;
  return path;
}
Tally& whole() {
  static Tally t;
  return t;
}

thread_local Tally* t_tally = nullptr;  // null: whole()
thread_local const gemm::Plan* t_forced = nullptr;
thread_local Asked t_asked;

void count(Tally& tally, const Key& key, bool assumed) {
  ++tally.products;
  if (!assumed) return;
  ++tally.assumed;
  ++tally.kinds[key];
}

}  // namespace

void set_active(int device, std::shared_ptr<const Table> table) {
  const std::lock_guard guard(lock());
  const auto index = static_cast<std::size_t>(device);
  if (tables().size() <= index) tables().resize(index + 1);
  tables()[index] = std::move(table);
}

std::shared_ptr<const Table> active(int device) {
  const std::lock_guard guard(lock());
  const auto index = static_cast<std::size_t>(device);
  return index < tables().size() ? tables()[index] : nullptr;
}

void set_folder(std::string path) {
  const std::lock_guard guard(lock());
  folder() = std::move(path);
}

std::shared_ptr<const Table> shipped(const std::string& card) {
  std::filesystem::path path;
  {
    const std::lock_guard guard(lock());
    if (folder().empty()) return nullptr;
    path = std::filesystem::path(folder()) / (card + ".json");
  }
  std::ifstream in(path);
  if (!in) return nullptr;
  std::stringstream text;
  text << in.rdbuf();
  return std::make_shared<const Table>(parse(text.str()));
}

gemm::Plan choose(int device, const std::string& card, const Key& key) {
  ++t_asked.count;
  t_asked.key = key;
  if (t_forced) return *t_forced;
  const auto table = active(device);
  const bool mine = table && table->card == card;  // the card may have been changed since
  const Row* row = mine ? table->find(key) : nullptr;
  const bool assumed = !row && !(mine && table->pinned);
  if (t_tally) {
    count(*t_tally, key, assumed);
  } else {
    const std::lock_guard guard(lock());
    count(whole(), key, assumed);
  }
  return row ? row->plan : gemm::Plan{};
}

Tally tally() {
  const std::lock_guard guard(lock());
  return whole();
}

void clear_tally() {
  const std::lock_guard guard(lock());
  whole() = {};
}

TallyScope::TallyScope() : before_(std::exchange(t_tally, &own_)) {}
TallyScope::~TallyScope() { t_tally = before_; }

Forced::Forced(const gemm::Plan& plan) : plan_(plan) { t_forced = &plan_; }
Forced::~Forced() { t_forced = nullptr; }

Asked take_asked() { return std::exchange(t_asked, Asked{}); }

}  // namespace step_oracle::plan
