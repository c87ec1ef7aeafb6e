// Compares two traces: what differs first, what is a root, what is only knock-on, and why.
//
// A root is an op whose inputs agree and whose outputs do not, or whose inputs differ for a reason of their own: the
// data that entered, the generator, an argument, other ops. All that follows from a root is knock-on.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "csrc/record/trace/reader.h"

namespace step_oracle {

struct TraceDivergence {
  std::int64_t index = -1, index_b = -1;  // of the op in a, in b; -1 where only the other has it
  std::string op, module;
  std::string output;                     // "result 0", "argument 1 (written)"; empty where an input is the reason
  std::string input;                      // "argument 1"
  std::vector<std::int64_t> coordinates;  // of the first element that differs; empty where the bytes are not kept
  bool has_coordinates = false;
  std::string expected, actual;  // a's and b's bit pattern of that element, else digest or description
  std::optional<std::uint64_t> ulps;
  std::string kind;   // "generator", "input data", "layout", ...: docs/trace-format.md lists them
  std::string cause;  // a sentence that begins with the kind
  // Explains only itself, so another root goes first: never-written memory, whole numbers that are copied or sent
  // (DDP's bucket sizes).
  bool minor = false;
};

struct TraceOpNote {
  std::int64_t index;
  std::string op, module, text;
};

struct TraceFieldDifference {
  std::string field, a, b;
};

struct TraceNameDifference {
  std::string name, text;
};

struct TraceStateComparison {
  std::uint64_t compared = 0, equal = 0;
  std::vector<TraceNameDifference> different;  // at most 100
};

struct TraceDiff {
  bool equal = false;
  std::optional<TraceDivergence> first;
  std::vector<TraceDivergence> roots;  // in a's order
  std::uint64_t knock_on = 0;          // ops
  std::uint64_t aligned = 0, equal_ops = 0;
  std::uint64_t only_a_count = 0, only_b_count = 0;
  std::vector<TraceOpNote> only_a, only_b;  // at most 100
  std::vector<TraceFieldDifference> environment;
  TraceStateComparison start, end;                            // named tensors and numbers
  std::vector<TraceOpNote> layouts;                           // other strides, same bytes; at most 100
  std::vector<TraceOpNote> arguments;                         // other numbers in the arguments; at most 100
  std::vector<TraceOpNote> never_written_a, never_written_b;  // memory that is read and that nobody wrote
  std::vector<std::string> not_complete;                      // one sentence for each trace that is not
};

TraceDiff diff(const Trace& a, const Trace& b);

}  // namespace step_oracle
