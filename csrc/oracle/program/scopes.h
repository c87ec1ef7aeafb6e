// What a replay changes in the process, for its time only: the cards, their generators, torch's numeric switches.
#pragma once
#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "csrc/oracle/program/switches.h"
#include "csrc/record/trace/reader.h"

namespace step_oracle::program {

// One replay at a time in a process: they share the cards and the generators. Others wait; a replay inside a replay
// throws kBadInput.
class OneReplay {
 public:
  OneReplay();
  ~OneReplay();
  OneReplay(const OneReplay&) = delete;
  OneReplay& operator=(const OneReplay&) = delete;
};

// Puts the trace's cards (or `card`, where it is not empty) at the indices that the trace uses, and the cards and
// generators that were there back at the end. Throws kCorrupt for an index that the trace's header does not list.
class CardScope {
 public:
  CardScope(const Trace& trace, const std::string& card);
  ~CardScope() { put_back(); }
  CardScope(const CardScope&) = delete;
  CardScope& operator=(const CardScope&) = delete;

 private:
  void put_back();
  struct Before {
    int index;
    std::string card;
    at::Tensor generator;
  };
  std::vector<Before> before_;
};

// The profile of a card in a trace's header. Throws kUnsupported where there is none.
std::string profile_of(const rec::CardT& card);

}  // namespace step_oracle::program
