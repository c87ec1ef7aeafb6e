#include "csrc/kernels/core/loop.h"

#include <utility>

namespace step_oracle {
namespace {

std::int64_t magnitude(std::int64_t x) { return x < 0 ? -x : x; }

void swap_dims(Loop& loop, int a, int b) {
  std::swap(loop.shape[a], loop.shape[b]);
  for (int k = 0; k < loop.operands; ++k) std::swap(loop.operand[k].stride[a], loop.operand[k].stride[b]);
}

void erase_dim(Loop& loop, int d) {
  for (int i = d; i + 1 < loop.ndim; ++i) swap_dims(loop, i, i + 1);
  --loop.ndim;
}

// Whether dimension d + 1 continues dimension d in every operand.
bool continues(const Loop& loop, int d) {
  for (int k = 0; k < loop.operands; ++k)
    if (loop.operand[k].stride[d + 1] != loop.operand[k].stride[d] * loop.shape[d]) return false;
  return true;
}

}  // namespace

Loop contiguous_loop(std::int64_t n, const Operand* operands, int count, unsigned once) {
  Loop loop;
  loop.ndim = 1;
  loop.shape[0] = n;
  loop.operands = count;
  for (int k = 0; k < count; ++k) {
    loop.operand[k].data = operands[k].data;
    loop.operand[k].dtype = operands[k].dtype;
    loop.operand[k].stride[0] = once >> k & 1 ? 0 : static_cast<std::int64_t>(size_of(operands[k].dtype));
  }
  return loop;
}

Loop coalesced(const Loop& given) {
  Loop loop = given;
  for (int d = loop.ndim - 1; d >= 0; --d)
    if (loop.shape[d] == 1) erase_dim(loop, d);
  for (int d = 1; d < loop.ndim; ++d)  // insertion sort: few dimensions, usually sorted already
    for (int i = d; i > 0 && magnitude(loop.operand[0].stride[i]) < magnitude(loop.operand[0].stride[i - 1]); --i)
      swap_dims(loop, i, i - 1);
  for (int d = 0; d + 1 < loop.ndim;) {
    if (!continues(loop, d)) {
      ++d;
      continue;
    }
    loop.shape[d] *= loop.shape[d + 1];
    erase_dim(loop, d + 1);
  }
  if (loop.ndim == 0) {
    loop.ndim = 1;
    loop.shape[0] = 1;
    for (int k = 0; k < loop.operands; ++k)
      loop.operand[k].stride[0] = static_cast<std::int64_t>(size_of(loop.operand[k].dtype));
  }
  // Runs of a few elements cost more than strided ones: walk the longest dimension instead.
  if (loop.shape[0] < 16) {
    int longest = 0;
    for (int d = 1; d < loop.ndim; ++d)
      if (loop.shape[d] > 4 * loop.shape[longest]) longest = d;
    if (longest != 0) swap_dims(loop, 0, longest);
  }
  return loop;
}

std::int64_t locate(const Loop& loop, std::int64_t index, char** data) {
  for (int k = 0; k < loop.operands; ++k) data[k] = static_cast<char*>(loop.operand[k].data);
  std::int64_t first = 0;
  for (int d = 0; d < loop.ndim; ++d) {
    const std::int64_t i = index % loop.shape[d];
    index /= loop.shape[d];
    if (d == 0) first = i;
    for (int k = 0; k < loop.operands; ++k) data[k] += i * loop.operand[k].stride[d];
  }
  return loop.shape[0] - first;
}

}  // namespace step_oracle
