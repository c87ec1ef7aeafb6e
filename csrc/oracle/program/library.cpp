// torch.ops.oracle.replay(trace): the final state by name, computed end to end. An error for a replay that diverges or
// meets an op that is not modelled: its final state would not be the recorded run's.
#include <ATen/core/Dict.h>
#include <fmt/format.h>
#include <torch/library.h>

#include "csrc/kernels/core/error.h"
#include "csrc/oracle/program/replay.h"

namespace step_oracle::program {
namespace {

c10::Dict<std::string, at::Tensor> replay_op(c10::string_view path) {
  try {
    const auto trace = Trace::open(std::string(path));
    Options options;
    options.mode = Mode::kEndToEnd;
    const Report report = replay(*trace, options);
    if (!report.unmodelled.empty())
      throw Error(ErrorKind::kUnsupported, fmt::format("op {} ({}): {}", report.unmodelled[0].index, report.unmodelled[0].op,
                                                       report.unmodelled[0].reason));
    if (report.divergence)
      throw Error(ErrorKind::kCorrupt,
                  fmt::format("the replay of {} diverges at op {} ({}), {}: expected {}, got {} ({})", std::string(path),
                              report.divergence->index, report.divergence->op, report.divergence->output,
                              report.divergence->expected, report.divergence->actual, report.divergence->cause));
    c10::Dict<std::string, at::Tensor> out;
    for (const auto& [name, tensor] : report.final_state) out.insert(name, tensor);
    return out;
  } catch (const Error& e) {
    if (e.kind() == ErrorKind::kUnsupported) TORCH_CHECK_NOT_IMPLEMENTED(false, e.what());
    TORCH_CHECK(false, e.what());
  }
}

TORCH_LIBRARY(oracle, m) { m.def("replay(str trace) -> Dict(str, Tensor)", TORCH_FN(replay_op)); }

}  // namespace
}  // namespace step_oracle::program
