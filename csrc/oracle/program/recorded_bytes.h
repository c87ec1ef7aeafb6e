// What a replay takes from the recording while it runs, and the storages whose bytes it does not know.
#pragma once
#include <cstdint>
#include <map>
#include <string>

#include "csrc/oracle/program/store.h"

namespace step_oracle::program {

class RecordedBytes {
 public:
  RecordedBytes(const Trace& trace, Store& store, bool op_local) : trace_(trace), store_(store), op_local_(op_local) {}

  // Op-local: puts back inputs that an earlier op got wrong. False, and why, where an input cannot be known.
  bool inputs_are_known(const rec::OpT& op, std::string& reason);
  // Takes the results of op `index`. False (and the results unknown) where the trace does not keep them.
  bool carry(const rec::OpT& op, std::uint64_t index);
  // Takes one result of it, whatever the mode. False (and it is unknown) where the trace does not keep its bytes.
  bool take(const rec::TensorT& t, std::uint64_t index);
  // Op `index` did not make the storage's bytes.
  void lose(const rec::TensorT& t, std::uint64_t index) { unknown_[Store::key(t)] = index; }
  bool unknown(const rec::TensorT& t) const { return unknown_.count(Store::key(t)) != 0; }

 private:
  void bring(const rec::TensorT& t, const Digest& digest);

  const Trace& trace_;
  Store& store_;
  bool op_local_;
  std::map<Store::Key, std::uint64_t> unknown_;  // storages whose bytes are not known -> the op that did not make them
};

}  // namespace step_oracle::program
