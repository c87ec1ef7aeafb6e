#include "csrc/oracle/plan/active.h"

#include <mutex>
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

}  // namespace step_oracle::plan
