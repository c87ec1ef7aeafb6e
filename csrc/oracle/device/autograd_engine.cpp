#include "csrc/oracle/device/autograd_engine.h"

#include <c10/core/AutogradState.h>
#include <torch/csrc/autograd/engine.h>

namespace step_oracle::device {
namespace {

struct Peek : torch::autograd::Engine {
  static std::size_t threads(torch::autograd::Engine& engine) { return (engine.*&Peek::device_ready_queues_).size(); }
};

}  // namespace

std::size_t autograd_threads() { return Peek::threads(torch::autograd::Engine::get_default_engine()); }

bool backward_on_calling_thread() { return !c10::AutogradState::get_tls_state().get_multithreading_enabled(); }

void keep_backward_on_calling_thread() { c10::AutogradState::get_tls_state().set_multithreading_enabled(false); }

void stop_autograd_threads() {
  torch::autograd::Engine::get_default_engine().stop();
  keep_backward_on_calling_thread();
}

}  // namespace step_oracle::device
