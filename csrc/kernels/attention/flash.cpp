#include "csrc/kernels/attention/flash.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "csrc/kernels/attention/flash_body.h"
#include "csrc/kernels/attention/flash_rules.h"
#include "csrc/kernels/core/error.h"
#include "csrc/kernels/core/parallel.h"
#include "csrc/kernels/core/workspace.h"

namespace step_oracle::attention {
namespace {

// Bytes of shared memory a block may opt in to, and of a multiprocessor.
// [spec CUDA C++ Programming Guide, "Technical Specifications per Compute Capability"]
struct SharedMemory {
  std::int64_t block, multiprocessor;
};
SharedMemory shared_memory(int compute_capability) {
  switch (compute_capability) {
    case 80:
      return {163 * 1024, 164 * 1024};
    case 86:
    case 89:
      return {99 * 1024, 100 * 1024};
    case 90:
    case 100:
      return {227 * 1024, 228 * 1024};
    default:
      throw Error(
          ErrorKind::kUnsupported,
          fmt::format("attention: FlashAttention-2 on compute capability {}.{} is not modelled; known are 8.0, 8.6, "
                      "8.9, 9.0 and 10.0. Choose such a card, or the math path",
                      compute_capability / 10, compute_capability % 10));
  }
}

void check(const FlashShape& s) {
  if (s.batch < 0 || s.queries < 0 || s.keys < 0 || s.heads < 0 || s.key_heads < 0)
    throw Error(ErrorKind::kBadInput, fmt::format("attention: batch {} queries {} keys {} heads {} key heads {}; give "
                                                  "sizes of 0 or more",
                                                  s.batch, s.queries, s.keys, s.heads, s.key_heads));
  if (s.head_dim <= 0 || s.head_dim > 256 || s.head_dim % 8 != 0)
    throw Error(ErrorKind::kBadInput,
                fmt::format("attention: head dimension {}; give a multiple of 8, at most 256", s.head_dim));
  if (s.heads != 0 && (s.key_heads == 0 || s.heads % s.key_heads != 0))
    throw Error(ErrorKind::kBadInput,
                fmt::format("attention: {} heads of queries and {} of keys; give a multiple", s.heads, s.key_heads));
  if (s.type != DType::kBF16 && s.type != DType::kF16)
    throw Error(
        ErrorKind::kUnsupported,
        fmt::format("attention: FlashAttention-2 has no kernel for {}; give bfloat16 or float16", name_of(s.type)));
  shared_memory(s.compute_capability);
}
void check(float p) {
  if (!(p >= 0.0f && p < 1.0f))
    throw Error(ErrorKind::kBadInput, fmt::format("attention: dropout with p {}; give 0 or more and less than 1", p));
}

bool ada_like(int cc) { return cc == 86 || cc == 89; }  // [src flash_fwd_launch_template.h is_sm8x]

std::int64_t tiles_of(std::int64_t n, std::int64_t tile) { return (n + tile - 1) / tile; }

}  // namespace

// [src flash_fwd_launch_template.h run_mha_fwd_hdim*]
FlashTiles flash_forward_tiles(const FlashShape& s, bool dropout) {
  const bool narrow = ada_like(s.compute_capability);
  const SharedMemory memory = shared_memory(s.compute_capability);
  switch (flash::head_class(s.head_dim)) {
    case 32:
      return {128, 128};
    case 64:
      return dropout ? FlashTiles{128, 64} : FlashTiles{128, 128};
    case 96:
      return narrow && s.causal ? FlashTiles{64, 64} : FlashTiles{128, 64};
    case 128:
      if (dropout) return {128, 32};
      if (!narrow) return {128, 64};
      return s.causal ? FlashTiles{64, 64} : FlashTiles{128, 32};
    case 192:
      return dropout ? FlashTiles{64, 64} : FlashTiles{128, 64};
    default: {
      const bool two = memory.block >= 2 * 256 * (128 + 2 * 64) && memory.multiprocessor < 4 * 256 * (64 + 2 * 64);
      return two ? FlashTiles{128, 64} : FlashTiles{64, 64};
    }
  }
}

// [src flash_fwd_launch_template.h run_mha_fwd_splitkv_dispatch]
FlashTiles flash_split_tiles(const FlashShape& s) {
  return {64, s.head_dim <= 64 ? 256 : s.head_dim <= 128 ? 128 : 64};
}

// [src flash_bwd_launch_template.h run_mha_bwd_hdim*]
FlashTiles flash_backward_tiles(const FlashShape& s, bool dropout) {
  const bool large = shared_memory(s.compute_capability).block >= 144 * 1024;
  switch (flash::head_class(s.head_dim)) {
    case 32:
      return {128, 128};
    case 64:
      return large ? FlashTiles{128, 128} : FlashTiles{64, 128};
    case 96:
      return {64, 128};
    case 128:
      return large ? FlashTiles{64, 128} : FlashTiles{64, 64};
    case 192:
      return {64, 64};
    default:
      if (large) return {64, 64};
      if (dropout)
        throw Error(
            ErrorKind::kUnsupported,
            fmt::format("attention: the backward of FlashAttention-2 with dropout and head dimension {} launches "
                        "nothing on compute capability {}.{}; train without dropout, or on another card",
                        s.head_dim, s.compute_capability / 10, s.compute_capability % 10));
      return {64, 32};
  }
}

// [src flash_api.cpp num_splits_heuristic, set_params_splitkv]
std::int64_t flash_key_splits(const FlashShape& s, int sms) {
  const int slots = 2 * sms;
  const std::int64_t key_tiles = tiles_of(s.keys, flash_split_tiles(s).keys);
  const std::int64_t blocks = s.batch * s.heads * tiles_of(s.queries, 64);
  if (static_cast<float>(blocks) >= 0.8f * static_cast<float>(slots)) return 1;
  const std::int64_t most = std::min<std::int64_t>({128, slots, key_tiles});
  const auto eligible = [&](std::int64_t n) { return n == 1 || tiles_of(key_tiles, n) != tiles_of(key_tiles, n - 1); };
  float best = 0.0f;
  std::vector<float> efficiency;
  for (std::int64_t n = 1; n <= most; ++n) {
    const float waves = static_cast<float>(blocks * n) / static_cast<float>(slots);
    efficiency.push_back(eligible(n) ? waves / std::ceil(waves) : 0.0f);
    best = std::max(best, efficiency.back());
  }
  for (std::int64_t n = 1; n <= most; ++n)
    if (eligible(n) && efficiency[n - 1] >= 0.85 * best) return n;
  return 1;
}

// [src flash_api.cpp mha_bwd nsplits]
std::int64_t flash_dq_buffers(const FlashShape& s, int sms) {
  return s.batch * s.heads == 0 ? 1 : tiles_of(sms, s.batch * s.heads);
}

bool flash_races(const FlashShape& s, bool dropout) {
  return s.queries > 0 && s.batch * s.heads > 0 && tiles_of(s.keys, flash_backward_tiles(s, dropout).keys) > 2;
}

void flash_forward(const FlashForward& p) {
  const FlashShape& s = p.shape;
  check(s);
  check(p.dropout.p);
  if (p.key_splits < 1 || (p.key_splits > 1 && p.dropout.p > 0.0f))
    throw Error(ErrorKind::kBadInput,
                fmt::format("attention: {} key splits with dropout {}; the kernel with splits has "
                            "no dropout",
                            p.key_splits, p.dropout.p));
  const FlashBody& body = SO_BODY(flash_body);
  const std::int64_t heads = s.batch * s.heads;
  const bool splits = p.key_splits > 1;
  const FlashTiles t = splits ? flash_split_tiles(s) : flash_forward_tiles(s, p.dropout.p > 0.0f);
  const std::int64_t tasks = heads * tiles_of(s.queries, t.queries);
  std::vector<float> logsumexp, out;
  FlashParts parts{};
  if (splits) {
    logsumexp.resize(static_cast<std::size_t>(p.key_splits * heads * s.queries));
    out.resize(logsumexp.size() * static_cast<std::size_t>(s.head_dim));
    parts = {p.split_logsumexp ? p.split_logsumexp : logsumexp.data(), out.data()};
  }
  const std::size_t bytes = body.forward_workspace(p, t);
  parallel_for(tasks, 1,
               [&](std::int64_t begin, std::int64_t end) { body.forward(p, t, parts, begin, end, workspace(bytes)); });
  if (splits)
    parallel_for(heads * s.queries, 64,
                 [&](std::int64_t begin, std::int64_t end) { body.combine(p, parts, begin, end); });
}

void flash_backward(const FlashBackward& p) {
  const FlashShape& s = p.shape;
  check(s);
  check(p.dropout.p);
  if (p.dq_buffers < 1)
    throw Error(ErrorKind::kBadInput, fmt::format("attention: {} buffers of dQ; give 1 or more", p.dq_buffers));
  const FlashBody& body = SO_BODY(flash_body);
  const FlashTiles t = flash_backward_tiles(s, p.dropout.p > 0.0f);
  const std::size_t bytes = body.backward_workspace(p, t);
  parallel_for(s.batch * s.heads, 1,
               [&](std::int64_t begin, std::int64_t end) { body.backward(p, t, begin, end, workspace(bytes)); });
}

}  // namespace step_oracle::attention
