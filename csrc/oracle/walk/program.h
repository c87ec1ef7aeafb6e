// A program that a recipe carries: one step of a run, or its initialisation, as ops over slots (docs/recipe-format.md).
// Nothing of it is executable by itself: every op is one of torch's, computed by the virtual card, or by the host where
// IEEE 754 or a plain move defines its bytes (host_ops.h).
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "csrc/record/trace/records.h"

namespace step_oracle::walk {

// A tensor over a slot's storage. Strides and offset are in elements.
struct Geometry {
  rec::DType dtype = rec::DType::Float32;
  std::vector<std::int64_t> sizes, strides;
  std::int64_t offset = 0;
  bool wrapped = false;  // a Python number made into a tensor
  bool operator==(const Geometry&) const = default;
};
std::size_t bytes_of(const Geometry& g);  // of a storage that just holds it; throws Error{kBadInput} where that overflows

enum class SlotKind { kState, kBatch, kBytes, kTerm, kMade };

struct Slot {
  SlotKind kind = SlotKind::kMade;
  std::string name;  // of the state, the batch or the term
  std::vector<std::uint8_t> bytes;
  bool card = true;  // else in the host's memory
  Geometry geometry;
  std::size_t nbytes = 0;
  std::size_t last_use = 0;  // index of the last op that uses it; ops.size() for what the program hands on
};

struct Use {
  std::size_t slot = 0;
  Geometry geometry;
};

struct Op {
  rec::OpT record;        // name, overload, args; a Tensor value's index is one of `uses`
  std::vector<Use> uses;
  std::vector<std::optional<std::size_t>> results;  // the slot that a tensor result makes; none: it is an argument
  std::optional<c10::OperatorHandle> handle;
  bool leaves_noise = false;  // program/op_rules.h
};

struct Program {
  // Throws Error{kBadInput} that names the place: unknown or missing fields, an op that torch does not have or whose
  // arguments are not its schema's, a host op whose bytes the host decides, a slot that is read before it is made or
  // that nothing reads.
  explicit Program(std::string_view json);

  std::vector<Slot> slots;
  std::vector<Op> ops;
  std::map<std::string, Use> state;  // what the program hands on, by name
  std::optional<Use> loss;
  std::map<std::string, std::vector<rec::ValueT*>> terms;  // numbers that are computed for each step, and their places
  bool draws = false;                                      // from the card's generator
  std::size_t live_bytes = 0;                              // the most that slots hold at one time
};

}  // namespace step_oracle::walk
