// The two kernels' bodies, for a block of threads that runs `each(n, f)`: f(0) ... f(n - 1), then everyone waits.
// On the card the threads share them; on the host, in tests, one thread does them all.
#pragma once
#include "csrc/record/device_digest/blake3.h"

namespace step_oracle::device_digest {

// Chaining values in a block's shared memory, word by word so that neighbours lie in neighbouring banks.
struct Shared {
  U32 even[8][kGroup];
  U32 odd[8][kGroup / 2];
};

template <U32 kWidth>
SO_DIGEST_FN Cv get(const U32 (&from)[8][kWidth], U32 i) {
  Cv cv;
  SO_DIGEST_UNROLL
  for (int w = 0; w < 8; ++w) cv.w[w] = from[w][i];
  return cv;
}

template <U32 kWidth>
SO_DIGEST_FN void put(U32 (&to)[8][kWidth], U32 i, const Cv& cv) {
  SO_DIGEST_UNROLL
  for (int w = 0; w < 8; ++w) to[w][i] = cv.w[w];
}

SO_DIGEST_FN Cv get(U64 from, U64 i) {
  Cv cv;
  SO_DIGEST_UNROLL
  for (int w = 0; w < 8; ++w) cv.w[w] = at<U32>(from)[8 * i + static_cast<U64>(w)];
  return cv;
}

SO_DIGEST_FN void put(U64 to, U64 i, const Cv& cv) {
  auto* words = const_cast<U32*>(at<U32>(to)) + 8 * i;
  SO_DIGEST_UNROLL
  for (int w = 0; w < 8; ++w) words[w] = cv.w[w];
}

// One level: `n` values of `from` become (n + 1) / 2 of `to`.
template <class Threads, class From, class To>
SO_DIGEST_FN void join(Threads& threads, const From& from, To&& to, U64 n, bool root, U32 one) {
  threads.each((n + 1) / 2, [&](auto i) {
    const bool alone = 2 * i + 1 == n;
    put(to, i, alone ? get(from, 2 * i) : parent(get(from, 2 * i), get(from, 2 * i + 1), root, one));
  });
}

// Kernel 1: the chunks of one group and their tree. The digest where the tensor has no more than this group.
template <class Threads>
SO_DIGEST_FN void group_body(Threads& threads, Shared& shared, const Batch& batch, U32 block) {
  U32 which = 0;
  while (which + 1 < batch.count && batch.items[which + 1].first_block <= block) ++which;
  const Item& t = batch.items[which];
  const U64 group = block - t.first_block, chunks = chunks_of(t.bytes), first = group * kGroup;
  U32 n = static_cast<U32>(chunks - first < kGroup ? chunks - first : kGroup);
  const bool whole = chunks <= kGroup;
  threads.each(n, [&](auto i) { put(shared.even, static_cast<U32>(i), chunk(t, first + i, batch.one)); });
  bool even = true;
  for (; n > 1; n = (n + 1) / 2, even = !even) {
    const bool root = whole && n == 2;
    threads.each((n + 1) / 2, [&](auto index) {
      const U32 i = static_cast<U32>(index);
      const bool alone = 2 * i + 1 == n;
      const Cv left = even ? get(shared.even, 2 * i) : get(shared.odd, 2 * i);
      Cv up = left;
      if (!alone) up = parent(left, even ? get(shared.even, 2 * i + 1) : get(shared.odd, 2 * i + 1), root, batch.one);
      if (even) {
        put(shared.odd, i, up);
      } else {
        put(shared.even, i, up);
      }
    });
  }
  threads.each(1, [&](auto) {
    const Cv cv = even ? get(shared.even, 0u) : get(shared.odd, 0u);
    if (whole) {
      put(batch.output, t.output, cv);
    } else {
      put(batch.scratch, t.scratch + group, cv);
    }
  });
}

// Kernel 2: the tree above one tensor's groups, where it has several.
template <class Threads>
SO_DIGEST_FN void tree_body(Threads& threads, const Batch& batch, U32 block) {
  const Item& t = batch.items[block];
  U64 n = groups_of(t.bytes);
  if (n < 2) return;
  U64 from = batch.scratch + 32 * t.scratch, to = from + 32 * n;
  for (; n > 1; n = (n + 1) / 2) {
    join(threads, from, to, n, n == 2, batch.one);
    const U64 other = from;
    from = to;
    to = other;
  }
  threads.each(1, [&](auto) { put(batch.output, t.output, get(from, U64{0})); });
}

}  // namespace step_oracle::device_digest
