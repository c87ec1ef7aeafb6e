// The rules of docs/trace-format.md that are about what the records say. Each throws Error{kCorrupt}.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "csrc/record/trace/frame.h"
#include "csrc/record/trace/records.h"

namespace step_oracle::check {

constexpr std::size_t kMaxDims = 64, kMaxNesting = 16, kMaxText = 1 << 20;

// FlatBuffers' own rules, and that the records do not grow when taken apart (offsets may be shared). Returns the root.
const rec::Records* verified(frame::View payload, std::uint64_t frame_number);

// What is known of storages so far: (id, generation) -> nbytes.
using Storages = std::map<std::pair<std::uint64_t, std::uint32_t>, std::uint64_t>;

void storage(const rec::StorageT& s, Storages& known);
void tensor(const rec::TensorT& t, const Storages& known, const std::string& where);
void op(const rec::OpT& op, const Storages& known);
void name(const rec::NameT& n, const Storages& known);
void init(const rec::StorageInitT& i, const Storages& known);
void environment(const rec::EnvironmentT& e);
void event(const rec::EventT& e);

[[noreturn]] void corrupt(const std::string& what);

}  // namespace step_oracle::check
