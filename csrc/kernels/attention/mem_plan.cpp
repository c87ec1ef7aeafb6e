// Which build of the kernels a call takes, and the order in which its thread blocks meet.
#include <algorithm>

#include "csrc/kernels/attention/mem_efficient.h"

namespace step_oracle::attention {
namespace {

using Int = std::int64_t;

Int tile_count(Int n, Int size) { return (n + size - 1) / size; }

// Shared memory a block may ask for: 99 KiB there, 163 KiB and more on the others [spec CUDA C++ Programming Guide,
// "Technical Specifications per Compute Capability"].
bool small_shared_memory(int cc) { return cc == 86 || cc == 89 || cc == 120; }

}  // namespace

// [src kernels/cutlassF.h dispatch_cutlassF_*: the first entry whose widest head fits]
MemTiles mem_forward_tiles(const MemShape& s) {
  const Int widest = std::max(s.head_dim, s.value_dim);
  if (widest <= 64) return {64, 64, true};
  if (widest <= 128) return s.compute_capability >= 80 ? MemTiles{64, 128, true} : MemTiles{32, 128, true};
  return {32, 128, false};
}

// [src kernels/cutlassB.h dispatch_cutlassB_*: the first entry whose widest head and shared memory fit]. Of the 128-row
// tiles with 128 or more keys or float32 elements the operands of one product alone exceed 99 KiB.
MemTiles mem_backward_tiles(const MemShape& s, bool dropout) {
  const Int widest = std::max(s.head_dim, s.value_dim);
  const bool small = small_shared_memory(s.compute_capability);
  if (widest <= 64) return {64, 64, true};
  if (s.type == DType::kF32) {
    if (s.compute_capability < 80 || small) return {64, 64, true};
    return {128, 64, true};
  }
  if (s.compute_capability < 80) return {128, 64, true};
  if (widest <= 96 && small && !dropout) return {128, 64, true};
  if (widest <= 128) return small ? MemTiles{64, 64, true} : MemTiles{128, 128, true};
  return {128, 64, true};
}

// [src kernel_backward.h getSmallestQueryForKey, getQueryStartShift]
Int mem_first_query_tile(const MemBackward& p, Int key_tile) {
  const MemShape& s = p.shape;
  const MemTiles tiles = mem_backward_tiles(s, p.dropout.p > 0.0f);
  const Int query_tiles = tile_count(s.queries, tiles.queries);
  if (p.mask == Mask::kNone) return key_tile % p.key_splits % query_tiles;
  const Int shift = p.mask == Mask::kCausalBottomRight ? s.keys - s.queries : 0;
  const Int first = key_tile * tiles.keys - shift;
  return first >= s.queries ? query_tiles : std::max<Int>(first, 0) / tiles.queries;
}

Int mem_query_tiles(const MemBackward& p, Int key_tile) {
  const MemTiles tiles = mem_backward_tiles(p.shape, p.dropout.p > 0.0f);
  const Int query_tiles = tile_count(p.shape.queries, tiles.queries);
  return p.mask == Mask::kNone ? query_tiles : query_tiles - mem_first_query_tile(p, key_tile);
}

std::vector<std::int32_t> mem_default_order(const MemBackward& p) {
  const MemTiles tiles = mem_backward_tiles(p.shape, p.dropout.p > 0.0f);
  const Int query_tiles = tile_count(p.shape.queries, tiles.queries), key_tiles = tile_count(p.shape.keys, tiles.keys);
  struct Arrival {
    Int time, key_tile;
  };
  std::vector<std::vector<Arrival>> arrivals(static_cast<std::size_t>(query_tiles));
  for (Int split = 0; split < p.key_splits; ++split) {
    Int time = 0;
    for (Int j = split; j < key_tiles; j += p.key_splits) {
      const Int first = mem_first_query_tile(p, j), count = mem_query_tiles(p, j);
      for (Int step = 0; step < count; ++step)
        arrivals[static_cast<std::size_t>((first + step) % query_tiles)].push_back({time++, j});
    }
  }
  std::vector<std::int32_t> one(static_cast<std::size_t>(query_tiles * key_tiles), -1);
  for (Int i = 0; i < query_tiles; ++i) {
    auto& a = arrivals[static_cast<std::size_t>(i)];
    std::sort(a.begin(), a.end(), [](const Arrival& x, const Arrival& y) {
      return x.time != y.time ? x.time < y.time : x.key_tile < y.key_tile;
    });
    for (std::size_t turn = 0; turn < a.size(); ++turn)
      one[static_cast<std::size_t>(i * key_tiles) + turn] = static_cast<std::int32_t>(a[turn].key_tile);
  }
  std::vector<std::int32_t> all;
  for (Int head = 0; head < p.shape.batch * p.shape.heads; ++head) all.insert(all.end(), one.begin(), one.end());
  return all;
}

bool mem_is_race(const MemBackward& p) {
  const MemTiles tiles = mem_backward_tiles(p.shape, p.dropout.p > 0.0f);
  const Int query_tiles = tile_count(p.shape.queries, tiles.queries), key_tiles = tile_count(p.shape.keys, tiles.keys);
  if (p.key_splits < 2 || key_tiles < 2) return false;
  if (key_tiles > 2) return true;
  const Int visits = std::min(mem_query_tiles(p, 0), mem_query_tiles(p, 1));
  return visits > 0 && (query_tiles == 1 || mem_first_query_tile(p, 0) == mem_first_query_tile(p, 1));
}

// The widest head of the build that is taken against its query tile.
bool mem_keeps_grads_in_workspace(const MemShape& s, bool dropout) {
  if (s.type == DType::kF32) return false;
  const Int widest = std::max(s.head_dim, s.value_dim);
  const MemTiles tiles = mem_backward_tiles(s, dropout);
  const bool narrow_build = tiles.queries == 128 && tiles.keys == 64 && s.compute_capability >= 80;
  const Int build = widest <= 32                   ? 32
                    : widest <= 64                 ? 64
                    : widest <= 96 && narrow_build ? 96
                    : widest <= 128                ? 128
                                                   : 65536;
  return build > tiles.queries;
}

}  // namespace step_oracle::attention
