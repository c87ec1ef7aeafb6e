#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "csrc/kernels/arith/philox.h"
#include "csrc/kernels/core/error.h"
#include "csrc/kernels/random/random.h"

namespace step_oracle::random {
namespace {

// Stable, over key bits [0, bits): the order of cub's radix sort of signed keys (the sign bit is turned when it is one
// of the bits).
template <class Key>
void sort_pairs(std::vector<Key>& keys, std::vector<std::int64_t>& values, int bits) {
  const Key turn = bits == static_cast<int>(sizeof(Key) * 8) ? Key{1} << (bits - 1) : Key{0};
  std::vector<Key> keys_out(keys.size());
  std::vector<std::int64_t> values_out(values.size());
  for (int low = 0; low < bits; low += 8) {
    const Key mask = (Key{1} << std::min(8, bits - low)) - 1;
    std::size_t start[257] = {};
    for (Key k : keys) ++start[(((k ^ turn) >> low) & mask) + 1];
    for (int d = 0; d < 256; ++d) start[d + 1] += start[d];
    for (std::size_t i = 0; i < keys.size(); ++i) {
      const std::size_t at = start[((keys[i] ^ turn) >> low) & mask]++;
      keys_out[at] = keys[i];
      values_out[at] = values[i];
    }
    keys.swap(keys_out);
    values.swap(values_out);
  }
}

// Equal keys were drawn for positions [first, first + size): the thread of the first shuffles them.
void shuffle_island(const Stream& s, std::vector<std::int64_t>& values, std::size_t first, std::size_t size) {
  std::uint64_t drawn = 0;
  for (std::size_t i = size - 1; i > 0; --i, ++drawn) {
    const philox::Block b = philox::block(s.seed, first, s.offset / 4 + drawn / 4);
    std::swap(values[first + i], values[first + b.word[drawn % 4] % (i + 1)]);
  }
}

template <class Signed, class Key>
std::vector<std::int64_t> permutation(Stream s, std::int64_t n, int bits, DType dtype, std::uint64_t* advance) {
  std::vector<Key> keys(static_cast<std::size_t>(n));
  // random_(lowest, highest): the highest value itself is left out
  const std::uint64_t range = static_cast<std::uint64_t>(std::numeric_limits<Key>::max());
  *advance = random_from_to(s, {n, dtype, keys.data()}, range, std::numeric_limits<Signed>::min());
  std::vector<std::int64_t> values(static_cast<std::size_t>(n));
  for (std::int64_t i = 0; i < n; ++i) values[static_cast<std::size_t>(i)] = i;
  sort_pairs(keys, values, bits);
  s.offset += *advance;
  const Key mask = bits == static_cast<int>(sizeof(Key) * 8) ? ~Key{0} : (Key{1} << bits) - 1;
  const std::size_t count = keys.size();
  for (std::size_t i = 0; i + 1 < count;) {
    std::size_t size = 1;
    while (i + size < count && ((keys[i] ^ keys[i + size]) & mask) == 0) ++size;
    if (size > 1) shuffle_island(s, values, i, size);
    i += size;
  }
  *advance += (static_cast<std::uint64_t>(n) + 3) / 4 * 4;
  return values;
}

}  // namespace

std::uint64_t randperm(const Stream& s, const Fill& f) {
  if (f.n < 0) throw Error(ErrorKind::kBadInput, fmt::format("randperm: n is {}; it must not be negative", f.n));
  if (f.dtype != DType::kI64 && f.dtype != DType::kI32)
    throw Error(ErrorKind::kUnsupported,
                fmt::format("randperm of {} is not modelled; use int64 or int32", name_of(f.dtype)));
  if (f.n == 0) return 0;
  // Key bits for which two equal keys have a probability of at most 0.1: the logarithm to base 2, upwards, of
  // n - (6 n^2 + 1) / (12 log 0.9) [src Randperm.cu @2.13].
  const double nd = static_cast<double>(f.n), keys = nd - (6 * nd * nd + 1) / -0x1.43aae18c7b105p+0;
  int bits = 0;
  for (double power = 1.0; power < keys; power *= 2.0) ++bits;
  if (bits > 63)
    throw Error(ErrorKind::kUnsupported, fmt::format("randperm({}) needs 64-bit masks; ask for fewer", f.n));
  std::uint64_t advance = 0;
  const std::vector<std::int64_t> p =
      bits <= 32 ? permutation<std::int32_t, std::uint32_t>(s, f.n, bits, DType::kI32, &advance)
                 : permutation<std::int64_t, std::uint64_t>(s, f.n, bits, DType::kI64, &advance);
  for (std::int64_t i = 0; i < f.n; ++i) {
    if (f.dtype == DType::kI64)
      static_cast<std::int64_t*>(f.out)[i] = p[static_cast<std::size_t>(i)];
    else
      static_cast<std::int32_t*>(f.out)[i] = static_cast<std::int32_t>(p[static_cast<std::size_t>(i)]);
  }
  return advance;
}

}  // namespace step_oracle::random
