#include "csrc/record/capture/storages.h"

#include <algorithm>

#include <c10/core/DeviceType.h>

namespace step_oracle::capture {
namespace {

// A view with more runs than this counts as written whole between its first and last byte.
constexpr std::int64_t kMostRuns = 4096;

template <class F>
void each_run(const Geometry& g, F&& f) {
  if (g.contiguous()) return f(g.first, g.first + g.bytes);
  const bool inner_run = g.strides.back() == 1;
  const std::int64_t run = (inner_run ? g.sizes.back() : 1) * g.itemsize;
  const std::size_t dims = g.sizes.size() - (inner_run ? 1 : 0);
  if (run == 0 || g.bytes / run > kMostRuns) return f(g.low, g.high);
  std::vector<std::int64_t> at(dims, 0);
  std::int64_t position = g.first;
  while (true) {
    f(position, position + run);
    std::size_t d = dims;
    while (true) {
      if (d == 0) return;
      --d;
      position += g.strides[d] * g.itemsize;
      if (++at[d] < g.sizes[d]) break;
      position -= g.sizes[d] * g.strides[d] * g.itemsize;
      at[d] = 0;
    }
  }
}

// The virtual card's memory is plain memory of the host.
bool host_readable(c10::DeviceType type) {
  return type == c10::kCPU || (type == c10::kPrivateUse1 && c10::get_privateuse1_backend() == "oracle");
}

}  // namespace

void Ranges::add(std::int64_t low, std::int64_t high) {
  auto it = ranges_.upper_bound(low);
  if (it != ranges_.begin() && std::prev(it)->second >= low) {
    --it;
    low = it->first;
    high = std::max(high, it->second);
    it = ranges_.erase(it);
  }
  while (it != ranges_.end() && it->first <= high) {
    high = std::max(high, it->second);
    it = ranges_.erase(it);
  }
  ranges_[low] = high;
}

bool Ranges::covers(std::int64_t low, std::int64_t high) const {
  auto it = ranges_.upper_bound(low);
  return it != ranges_.begin() && std::prev(it)->second >= high;
}

StorageState::StorageState(const c10::StorageImpl& storage)
    : weak(c10::intrusive_ptr<c10::StorageImpl>::unsafe_reclaim_from_nonowning(
          const_cast<c10::StorageImpl*>(&storage))) {}

bool StorageState::is_written(const Geometry& g) const {
  if (filled || g.bytes == 0) return true;
  bool all = true;
  each_run(g, [&](std::int64_t low, std::int64_t high) { all = all && written.covers(low, high); });
  return all;
}

void StorageState::mark_written(const Geometry& g) {
  if (filled || g.bytes == 0) return;
  each_run(g, [&](std::int64_t low, std::int64_t high) { written.add(low, high); });
  if (written.covers(0, nbytes)) filled = true;
}

StorageState& Storages::of(c10::StorageImpl& storage, Seen* seen) {
  auto it = states_.find(&storage);
  const auto& data = static_cast<const c10::StorageImpl&>(storage).data_ptr();
  if (it == states_.end()) {
    auto state = std::make_unique<StorageState>(storage);
    state->id = next_id_++;
    state->data = data.get();
    state->nbytes = static_cast<std::int64_t>(storage.nbytes());
    state->direct = host_readable(data.device().type());
    if (state->direct && state->nbytes > 0) state->hold = hold_of(storage);
    *seen = Seen::kNew;
    auto& placed = *states_.emplace(&storage, std::move(state)).first->second;
    place(placed);
    return placed;
  }
  auto& s = *it->second;
  *seen = Seen::kKnown;
  const bool same_memory = s.data == data.get() && (s.hold == nullptr || is_held(data));
  if (same_memory && s.nbytes == static_cast<std::int64_t>(storage.nbytes())) return s;
  *seen = Seen::kNewGeneration;
  forget(s);
  const std::int64_t before = s.nbytes;
  s.data = data.get();
  s.nbytes = static_cast<std::int64_t>(storage.nbytes());
  s.hold = s.direct && s.nbytes > 0 ? hold_of(storage) : nullptr;
  ++s.generation;
  s.digests.clear();
  // resize_ keeps the bytes that fit; what it adds, nobody has written.
  if (s.nbytes > before) {
    if (s.filled && before > 0) s.written.add(0, before);
    s.filled = false;
  }
  place(s);
  return s;
}

void Storages::place(StorageState& s) {
  if (s.data == nullptr || s.nbytes == 0) return;
  const auto begin = reinterpret_cast<std::uintptr_t>(s.data);
  const auto end = begin + static_cast<std::uintptr_t>(s.nbytes);
  const auto join = [&](StorageState* other) {
    const auto from = reinterpret_cast<std::uintptr_t>(other->data);
    if (other->weak.expired() || from >= end || from + static_cast<std::uintptr_t>(other->nbytes) <= begin) return;
    other->overlapping.push_back(&s);
    s.overlapping.push_back(other);
  };
  auto it = by_address_.lower_bound({begin, 0});
  while (it != by_address_.begin() && std::prev(it)->second->weak.expired()) by_address_.erase(std::prev(it));
  if (it != by_address_.begin()) {
    // Whatever else begins earlier and reaches us reaches the nearest neighbour too, and is in its list.
    StorageState* before = std::prev(it)->second;
    const auto others = before->overlapping;
    join(before);
    for (StorageState* other : others)
      if (reinterpret_cast<std::uintptr_t>(other->data) < begin) join(other);
  }
  while (it != by_address_.end() && it->first.first < end) {
    if (it->second->weak.expired()) {
      it = by_address_.erase(it);
    } else {
      join((it++)->second);
    }
  }
  by_address_[{begin, s.id}] = &s;
}

void Storages::forget(StorageState& s) {
  by_address_.erase({reinterpret_cast<std::uintptr_t>(s.data), s.id});
  for (StorageState* other : s.overlapping) std::erase(other->overlapping, &s);
  s.overlapping.clear();
}

namespace {

// The bytes of `g` as bytes of another storage over the same memory.
Geometry seen_from(const StorageState& from, const Geometry& g, const StorageState& to) {
  const std::int64_t shift = reinterpret_cast<std::intptr_t>(from.data) - reinterpret_cast<std::intptr_t>(to.data);
  Geometry out = Geometry::whole(0);
  out.low = std::clamp<std::int64_t>(g.low + shift, 0, to.nbytes);
  out.high = std::clamp<std::int64_t>(g.high + shift, 0, to.nbytes);
  out.first = out.low;
  out.bytes = out.high - out.low;
  return out;
}

bool touch(const Geometry& a, const Geometry& b) { return a.low < b.high && b.low < a.high; }

}  // namespace

void Storages::before_write(StorageState& s, const Geometry& g) {
  for (auto& d : s.digests)
    if (!d.slot->ready() && !d.slot->on_card() && touch(d.geometry, g)) hashing_.finish(*d.slot);
  for (StorageState* other : s.overlapping) {
    const Geometry there = seen_from(s, g, *other);
    for (auto& d : other->digests)
      if (!d.slot->ready() && !d.slot->on_card() && touch(d.geometry, there)) hashing_.finish(*d.slot);
  }
}

void Storages::after_write(StorageState& s, const Geometry& g, bool filled) {
  ++s.version;
  std::erase_if(s.digests, [&](const StorageState::Digested& d) { return touch(d.geometry, g); });
  if (filled) s.mark_written(g);
  for (StorageState* other : s.overlapping) {
    const Geometry there = seen_from(s, g, *other);
    if (there.bytes == 0) continue;
    ++other->version;
    std::erase_if(other->digests, [&](const StorageState::Digested& d) { return touch(d.geometry, there); });
    if (filled) other->mark_written(there);
  }
}

SlotPtr Storages::digest(StorageState& s, const Geometry& g, bool keep) {
  for (auto& d : s.digests)
    if (d.geometry == g && (!keep || d.slot->keeps())) return d.slot;
  auto slot = hashing_.submit(g, s.data, s.overlapping.empty() ? s.hold : nullptr, keep);
  s.digests.push_back({g, slot});
  return slot;
}

}  // namespace step_oracle::capture
