// Memory of a thread, handed out in pieces of whole cache lines. With no base it only counts.
#pragma once
#include <cstddef>
#include <cstdint>

#include "csrc/kernels/core/isa_namespace.h"

SO_ISA_BEGIN
struct Arena {
  std::byte* base;
  std::size_t used = 0;
  template <class T>
  T* take(std::int64_t n) {
    const std::size_t at = used;
    used += (static_cast<std::size_t>(n) * sizeof(T) + 63) / 64 * 64;
    return base ? reinterpret_cast<T*>(base + at) : nullptr;
  }
};
SO_ISA_END
