// Scratch memory of a thread, kept for the thread's lifetime: a step has thousands of products.
#pragma once
#include <cstddef>
#include <memory>
#include <new>

namespace step_oracle {

// Aligned to 64 bytes, contents undefined. The next call on the same thread takes it back.
inline void* workspace(std::size_t bytes) {
  constexpr std::align_val_t kAlign{64};
  struct Free {
    void operator()(std::byte* p) const { ::operator delete(p, kAlign); }
  };
  thread_local std::unique_ptr<std::byte, Free> buffer;
  thread_local std::size_t size = 0;
  if (size < bytes) {
    buffer.reset(static_cast<std::byte*>(::operator new(bytes, kAlign)));
    size = bytes;
  }
  return buffer.get();
}

}  // namespace step_oracle
