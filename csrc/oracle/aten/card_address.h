// The address of a tensor's first element as kernels see it, modulo 512: alignment enters the order of additions.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace step_oracle::aten {

// CUDA's caching allocator starts every storage at a multiple of 512 bytes [src c10/cuda/CUDACachingAllocator.cpp
// kMinBlockSize], so the byte offset in the storage decides.
inline std::uint64_t card_address(const at::TensorBase& t) {
  return static_cast<std::uint64_t>(t.storage_offset()) * t.itemsize() % 512;
}

}  // namespace step_oracle::aten
