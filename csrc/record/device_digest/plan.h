// What the kernels are given for a list of tensors: no torch, no CUDA.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "csrc/record/device_digest/blake3.h"
#include "csrc/record/trace/digest.h"

namespace step_oracle::device_digest {

// None where the tensor has more than kMostDims runs of dimensions: it is copied to the host and digested there.
std::optional<Item> item_of(const StridedBytes& t);

struct Launch {
  Batch batch;               // scratch and output addresses are the caller's to fill in
  std::uint32_t blocks = 0;  // of kernel 1
  bool tree = false;         // kernel 2 is needed, with batch.count blocks
  std::uint64_t scratch_bytes = 0;
};
// One launch for at most kMostItems tensors, whose digests go to outputs `first_output`, + 1, ...
Launch plan_launch(std::span<const Item> items, std::uint32_t first_output);

// The kernels' own code run by the host, one thread after the other: for tests.
std::vector<Digest> digest_on_host(std::span<const Item> items);

}  // namespace step_oracle::device_digest
