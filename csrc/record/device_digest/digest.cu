// The digest of tensors on the card: kernel 1, then kernel 2 where a tensor has more than one group. Compiled by nvcc into
// the extension, or by NVRTC when it is loaded. Nothing is returned but 32 bytes a tensor, into the host's pinned memory.
#include "csrc/record/device_digest/tree.h"

namespace step_oracle::device_digest {

struct CardThreads {
  template <class F>
  __device__ __forceinline__ void each(U64 n, F&& f) {
    for (U64 i = threadIdx.x; i < n; i += kThreads) f(i);
    __syncthreads();
  }
  template <class F>
  __device__ __forceinline__ void each(U32 n, F&& f) {
    if (threadIdx.x < n) f(threadIdx.x);
    __syncthreads();
  }
  template <class F>
  __device__ __forceinline__ void each(int n, F&& f) {
    each(static_cast<U32>(n), f);
  }
};

}  // namespace step_oracle::device_digest

extern "C" __global__ void __launch_bounds__(128)
    step_oracle_digest_groups(const __grid_constant__ step_oracle::device_digest::Batch batch) {
  __shared__ step_oracle::device_digest::Shared shared;
  step_oracle::device_digest::CardThreads threads;
  step_oracle::device_digest::group_body(threads, shared, batch, blockIdx.x);
}

extern "C" __global__ void __launch_bounds__(128)
    step_oracle_digest_tree(const __grid_constant__ step_oracle::device_digest::Batch batch) {
  step_oracle::device_digest::CardThreads threads;
  step_oracle::device_digest::tree_body(threads, batch, blockIdx.x);
}
