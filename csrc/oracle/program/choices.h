// Open choices of a replay's ops: the search for the variant that has the recorded bytes.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "csrc/oracle/aten/choices.h"
#include "csrc/record/trace/reader.h"

namespace step_oracle::program {

// A choice that an op of a replay took.
struct ChoiceNote {
  std::uint64_t index;  // of the op in the trace
  aten::Choice choice;
  bool given;           // to the replay; else found: the op has the recorded bytes by it
  int tried = 0;        // values that were computed to find it
  std::int64_t calls = 0;  // of this operator in the trace that leave it open
};

// Variants that give one part of a result the same bytes: the recording does not tell them apart.
struct ChoiceTie {
  std::uint64_t index;
  std::string op, name, part;
  std::vector<std::string> variants;
};

// Where the trace keeps the bytes of what a choice decides, each part of it is searched by itself; where it has only the
// digest, the values that treat all parts alike are tried.
class ChoiceSearch {
 public:
  // What a search asks of the replay.
  struct Caller {
    std::function<bool()> has_recorded_inputs;  // else no variant can be told from another
    std::function<void()> rewind;               // puts the generators where they stood before the op; before each candidate
    std::function<void()> tick;                 // after each candidate
  };
  // `ties`: all variants are tried, not only until one has the recorded bytes.
  ChoiceSearch(const Trace& trace, bool ties) : trace_(trace), ties_wanted_(ties) {}

  // `stack` holds the results of an op that was called with `args` and took the first variant of `open`. Where a variant
  // has the recorded bytes, its results take the place. False where none has.
  bool settle(const c10::OperatorHandle& op, const torch::jit::Stack& args, torch::jit::Stack& stack,
              const rec::OpT& recorded, std::uint64_t index, const aten::OpenChoice& open, const Caller& caller);

  int tried = 0;          // by the last search
  bool by_parts = false;  // the last search: else of the result as a whole
  std::vector<ChoiceNote> notes;
  std::vector<ChoiceTie> ties;       // the first kMostTies
  std::uint64_t tied = 0;            // parts
  static constexpr std::size_t kMostTies = 100;

 private:
  struct Call;
  bool search_parts(Call& call);
  bool search_whole(Call& call);
  void note(const Call& call, const std::string& value);
  void note_tie(const Call& call, std::string part, std::vector<std::string> variants);

  const Trace& trace_;
  bool ties_wanted_;
};

}  // namespace step_oracle::program
