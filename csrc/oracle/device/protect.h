// Blocks whose pages are closed while no adapter uses them: see Access in device.h.
#pragma once
#include <cstddef>

namespace step_oracle::device {

// Page-aligned memory of at least n bytes, closed; null when the system has none. Only where g_protects.
void* protected_block(std::size_t n);
void release_protected(void* data);

}  // namespace step_oracle::device
