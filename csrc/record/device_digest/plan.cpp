#include "csrc/record/device_digest/plan.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "csrc/kernels/core/error.h"
#include "csrc/record/device_digest/tree.h"

namespace step_oracle::device_digest {
namespace {

constexpr U32 kMostBlocks = std::numeric_limits<std::int32_t>::max();

Item dense(U64 data, U64 bytes) {
  Item item;
  item.data = data;
  item.bytes = bytes;
  if (data % 16 == 0 || bytes == 0) {
    item.fetch = kVectors;
  } else if (data % 4 == 0) {
    item.fetch = kWords;
  } else {
    item.fetch = kGather;
    item.itemsize = item.piece = data % 2 == 0 && bytes % 2 == 0 ? 2 : 1;
    item.dims = 1;
    item.sizes[0] = static_cast<I64>(bytes / item.piece);
    item.strides[0] = item.piece;
  }
  return item;
}

struct HostThreads {
  template <class N, class F>
  void each(N n, F&& f) {
    for (U64 i = 0; i < static_cast<U64>(n); ++i) f(i);
  }
};

}  // namespace

std::optional<Item> item_of(const StridedBytes& t) {
  const auto data = static_cast<U64>(reinterpret_cast<std::uintptr_t>(t.data));
  const Walk walk = plan_walk(t);
  if (walk.empty) return dense(data, 0);
  U64 bytes = t.itemsize;
  for (const std::int64_t n : walk.sizes) bytes *= static_cast<U64>(n);
  if (walk.sizes.empty() || (walk.sizes.size() == 1 && walk.strides[0] == 1)) return dense(data, bytes);
  if (walk.sizes.size() > kMostDims) return std::nullopt;
  Item item;
  item.data = data;
  item.bytes = bytes;
  item.fetch = kGather;
  item.itemsize = static_cast<U32>(t.itemsize);
  item.dims = static_cast<U32>(walk.sizes.size());
  U64 all = data | t.itemsize | 4;
  for (std::size_t d = 0; d < walk.sizes.size(); ++d) {
    item.sizes[d] = walk.sizes[d];
    item.strides[d] = walk.strides[d] * static_cast<I64>(t.itemsize);
    all |= static_cast<U64>(item.strides[d]);
  }
  item.piece = static_cast<U32>(all & (~all + 1));  // the lowest set bit
  return item;
}

Launch plan_launch(std::span<const Item> items, std::uint32_t first_output) {
  if (items.size() > kMostItems) throw Error(ErrorKind::kBadInput, "A launch digests at most 22 tensors.");
  Launch launch;
  U64 blocks = 0, groups = 0;
  for (std::size_t i = 0; i < items.size(); ++i) {
    Item& item = launch.batch.items[i] = items[i];
    const U64 own = groups_of(item.bytes);
    item.first_block = static_cast<U32>(blocks);
    item.output = first_output + static_cast<U32>(i);
    blocks += own;
    if (blocks > kMostBlocks) throw Error(ErrorKind::kBadInput, "A launch digests at most 256 TiB.");
    if (own < 2) continue;
    item.scratch = groups;
    groups += 2 * own;
    launch.tree = true;
  }
  launch.batch.count = static_cast<U32>(items.size());
  launch.blocks = static_cast<std::uint32_t>(blocks);
  launch.scratch_bytes = 32 * groups;
  return launch;
}

std::vector<Digest> digest_on_host(std::span<const Item> items) {
  std::vector<Digest> out(items.size());
  HostThreads threads;
  for (std::size_t i = 0; i < items.size(); i += kMostItems) {
    const auto some = items.subspan(i, std::min<std::size_t>(kMostItems, items.size() - i));
    Launch launch = plan_launch(some, static_cast<std::uint32_t>(i));
    std::vector<U32> scratch(launch.scratch_bytes / 4), output(8 * items.size());
    launch.batch.scratch = reinterpret_cast<std::uintptr_t>(scratch.data());
    launch.batch.output = reinterpret_cast<std::uintptr_t>(output.data());
    for (U32 block = 0; block < launch.blocks; ++block) {
      Shared shared;
      group_body(threads, shared, launch.batch, block);
    }
    for (U32 block = 0; launch.tree && block < launch.batch.count; ++block) tree_body(threads, launch.batch, block);
    for (std::size_t k = 0; k < some.size(); ++k) std::memcpy(out[i + k].bytes.data(), &output[8 * (i + k)], 32);
  }
  return out;
}

}  // namespace step_oracle::device_digest
