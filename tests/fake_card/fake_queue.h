// The fake card's one stream: work runs when somebody waits for it, or before the next op.
#pragma once
#include <functional>

namespace fake_card {
void push(std::function<void()> work);
void drain();
void log_line(const char* function, const char* message);  // cuBLASLt's
}  // namespace fake_card
