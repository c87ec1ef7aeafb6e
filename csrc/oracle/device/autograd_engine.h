// torch's autograd engine: it makes one thread a device at the first backward pass, and those threads know Python.
#pragma once
#include <cstddef>

namespace step_oracle::device {

// How many device threads the engine has made (0 before the first backward pass).
std::size_t autograd_threads();
// Whether a backward pass that this thread starts stays on it, and making it so. The thread that loads the device does:
// a virtual card computes on the host, so a device thread gains nothing, and the engine counts its devices once, at the
// first backward pass, whichever device that pass is of.
bool backward_on_calling_thread();
void keep_backward_on_calling_thread();
// Ends them in order. Left alone they end in the engine's static destructor, after Python's finalization, where
// taking the GIL is fatal: the process dies with SIGABRT now and then. Call without the GIL, before finalization;
// a backward pass after it runs on the calling thread.
void stop_autograd_threads();

}  // namespace step_oracle::device
