// torch's autograd engine: it makes one thread a device at the first backward pass, and those threads know Python.
#pragma once
#include <cstddef>

namespace step_oracle::device {

// How many device threads the engine has made (0 before the first backward pass).
std::size_t autograd_threads();
// Ends them in order. Left alone they end in the engine's static destructor, after Python's finalization, where
// taking the GIL is fatal: the process dies with SIGABRT now and then. Call without the GIL, before finalization;
// a backward pass after it runs on the calling thread.
void stop_autograd_threads();

}  // namespace step_oracle::device
