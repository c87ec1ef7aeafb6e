// The boxed fallback that hands every op of a watched thread to the running recording.
#pragma once
#include <memory>

#include "csrc/record/capture/recording.h"

namespace step_oracle::capture {

// Puts the fallback on the key, once in a process. Throws Error{kUnsupported} where somebody else holds the key.
void install();

// One recording at a time. start() watches the calling thread; throws Error{kBadInput} where one is running.
void start(std::shared_ptr<Recording> recording);
// Stops watching the calling thread; waits for ops that other threads have begun (call it without the GIL). False where
// the thread was no longer watched: a context manager that began before the recording ended inside it.
bool detach(Recording& recording);
// Watches the calling thread too, or no longer.
void watch_thread(bool on);
std::shared_ptr<Recording> running();

// For the bench: the fallback that looks at nothing, on the calling thread.
void set_empty(bool on);

}  // namespace step_oracle::capture
