// Why an op gave other bytes though its inputs are equal: what the headers, plans and collectives say.
#pragma once
#include <string>
#include <vector>

#include "csrc/record/trace/diff.h"

namespace step_oracle::cause {

struct Cause {
  std::string kind, text;  // text begins with kind
};

std::vector<TraceFieldDifference> environment(const rec::EnvironmentT& a, const rec::EnvironmentT& b);

// The op's inputs, arguments and generator are equal, its outputs are not.
Cause of_root(const Trace& a, const rec::OpT& oa, const Trace& b, const rec::OpT& ob,
              const std::vector<TraceFieldDifference>& environment);

bool is_collective(const rec::OpT& op);
std::string describe(const rec::CollectiveT* c, const rec::OpT& op);
// Sentences of the traces about what was not seen, each once; only those that hold `word`, if it is not empty.
std::string not_seen(const Trace& a, const Trace& b, const std::string& word = {});

// Ops whose named argument is overwritten without being read.
bool overwrites_only(const rec::OpT& op);
// Ops that look at shapes and never at bytes: *_like, new_*, sizes.
bool reads_no_bytes(const rec::OpT& op);

}  // namespace step_oracle::cause
