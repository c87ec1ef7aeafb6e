// What the recorder needs to know about an op, found once per op from its schema, its tags and the tables in op_info.cpp.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>

namespace step_oracle::capture {

enum class Fills : std::uint8_t {
  kYes,      // results are written whole
  kNo,       // results are memory that nobody wrote: empty and its kin
  kByFlags,  // some results are not written (`unfilled`)
};

struct OpInfo {
  std::string name, overload;
  std::size_t arguments = 0, returns = 0;
  std::vector<bool> writes;          // by argument: declared in the schema
  std::vector<bool> undeclared;      // by argument: written though the schema does not say so; empty for most
  std::vector<std::uint8_t> unfilled;  // results that are not written where no dropout is drawn
  std::vector<std::uint8_t> never_filled;  // results that are not written
  bool passive = false;              // touches no tensor: profiler marks
  bool any_write = false;
  bool composite = false;            // has a CompositeImplicitAutograd kernel
  bool geometry_only = false;        // an in-place view: changes sizes or storage, writes no bytes
  bool overwrites = false;           // never reads what its written arguments hold
  bool view = false;                 // results are views of arguments: no byte is read
  bool fills_views = false;          // result 0 is a view of an argument that the op wrote
  bool random = false;
  bool collective = false;           // c10d:: : a Work, arguments written undeclared
  bool functional_collective = false;  // _c10d_functional:: : in flight until wait_tensor
  bool wait_tensor = false;
  Fills fills = Fills::kYes;
  mutable bool schema_recorded = false;  // in the running recording
  mutable std::uint64_t session = 0;
};

// Thread-safe; the reference stays valid. An op registered anew under the same address gets a new entry.
const OpInfo& info_of(const c10::OperatorHandle& op);

}  // namespace step_oracle::capture
