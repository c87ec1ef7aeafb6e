// Replay: a trace's ops through torch's dispatcher on the virtual card, each result against its recorded digest.
//
// Op-local     every op gets the recorded inputs: what an earlier op got wrong is put back from the recording (where
//              the trace keeps it) before the next one is judged.
// End to end   every op gets the replay's own results; from the recording come only the declared inputs: what the
//              storages held before the program began, and the generator's first state.
//
// Ops of the host (no tensor on the card) run as torch runs them where IEEE 754 or a plain move defines their bytes;
// the others are carried: their results are taken from the recording, and counted.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "csrc/oracle/program/choices.h"
#include "csrc/oracle/program/plans.h"
#include "csrc/oracle/program/store.h"
#include "csrc/record/trace/reader.h"

namespace step_oracle::program {

enum class Mode { kOpLocal, kEndToEnd };

struct Divergence {
  std::uint64_t index = 0;                 // of the op in the trace
  std::string op, module, output;          // output: "result 0", "argument 1 (written)", "generator"
  std::vector<std::int64_t> coordinates;   // of the first element that differs; empty where unknown
  std::string expected, actual;            // bit patterns of that element; digests where the bytes are not kept
  std::optional<std::int64_t> ulps;
  std::int64_t differing = -1;             // elements; -1 where unknown
  std::int64_t elements = -1;
  std::string cause;
};

struct Counts {
  std::uint64_t match = 0, mismatch = 0, unmodelled = 0, carried = 0;  // ops
};

struct OpNote {
  std::uint64_t index;
  std::string op, reason;
};

struct Options {
  Mode mode = Mode::kOpLocal;
  std::string card;                                             // empty: the trace's
  std::string plans;       // the text of a plan table; empty: the card's
  bool fit_plans = false;  // search for the plan of a product whose bytes are not the recorded ones
  std::vector<aten::Choice> choices;  // taken, and not searched for; one that no call takes is kBadInput
  bool ties = false;  // of open choices: try all variants, not only until one has the recorded bytes
  std::function<void(std::size_t done, std::size_t total)> progress;  // called now and then; may throw to stop
};

struct Report {
  Mode mode;
  std::string card;
  Counts counts;
  std::optional<Divergence> divergence;  // the first mismatch
  std::vector<Divergence> mismatches;    // the first mismatch of each op, at most 1000
  std::vector<OpNote> unmodelled, carried;
  Reads reads;
  plan::Tally products;                  // matrix products, and which of them took the class default
  std::vector<FittedPlan> fitted;        // plans that were found by digest
  std::string plan_table;                // with them; empty where there are none
  std::vector<ChoiceNote> choices;       // that ops took: given, or found by their bytes
  std::vector<ChoiceTie> ties;           // of the found ones, the first of them
  std::uint64_t tied = 0;                // all of them
  std::uint64_t outputs = 0;             // digests compared
  std::map<std::string, at::Tensor> final_state;  // by name, on the virtual card
  double seconds = 0;
  // Every op computed and equal. Carried results are allowed; an op that is not modelled is not a pass.
  bool ok() const { return counts.mismatch == 0 && counts.unmodelled == 0 && !divergence; }
};

// Throws Error for a trace that is no program for a card (recorded on the CPU, not complete, bytes not kept).
Report replay(const Trace& trace, const Options& options);

// The virtual card that a trace was recorded on. Throws Error where there is none.
std::string card_of_trace(const Trace& trace);

}  // namespace step_oracle::program
