#include "csrc/record/trace/digest.h"

#include <blake3.h>

#include <algorithm>
#include <memory>
#include <new>

#include "csrc/kernels/core/error.h"

namespace step_oracle {
namespace {

constexpr std::size_t kPiece = 64 << 10;  // bytes copied out at a time: stays in the second-level cache

template <std::size_t kItem>
void gather(std::byte* to, const std::byte* from, std::int64_t n, std::int64_t step_bytes) {
  for (std::int64_t i = 0; i < n; ++i) std::memcpy(to + i * kItem, from + i * step_bytes, kItem);
}

void gather(std::size_t item, std::byte* to, const std::byte* from, std::int64_t n, std::int64_t step_bytes) {
  switch (item) {
    case 1:
      return gather<1>(to, from, n, step_bytes);
    case 2:
      return gather<2>(to, from, n, step_bytes);
    case 4:
      return gather<4>(to, from, n, step_bytes);
    case 8:
      return gather<8>(to, from, n, step_bytes);
    case 16:
      return gather<16>(to, from, n, step_bytes);
    default:
      for (std::int64_t i = 0; i < n; ++i) std::memcpy(to + i * item, from + i * step_bytes, item);
  }
}

}  // namespace

Walk plan_walk(const StridedBytes& t) {
  Walk w;
  for (std::size_t d = 0; d < t.sizes.size(); ++d) {
    const std::int64_t n = t.sizes[d], s = t.strides[d];
    if (n == 0) w.empty = true;
    if (n == 1) continue;
    if (!w.sizes.empty() && w.strides.back() == n * s) {
      w.sizes.back() *= n;
      w.strides.back() = s;
    } else {
      w.sizes.push_back(n);
      w.strides.push_back(s);
    }
  }
  return w;
}

std::string Digest::hex() const {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  for (std::uint8_t b : bytes) {
    out += kDigits[b >> 4];
    out += kDigits[b & 15];
  }
  return out;
}

Digest Digest::from_hex(std::string_view text) {
  Digest out;
  bool good = text.size() == 64;
  for (std::size_t i = 0; good && i < 64; ++i) {
    const char c = text[i];
    const int v = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
    good = v >= 0;
    if (good) out.bytes[i / 2] = static_cast<std::uint8_t>(out.bytes[i / 2] << 4 | v);
  }
  if (!good)
    throw Error(ErrorKind::kBadInput,
                "'" + std::string(text) + "' is not a digest: give 64 lower-case hexadecimal digits.");
  return out;
}

Hasher::Hasher() {
  static_assert(sizeof(blake3_hasher) <= kStateBytes && alignof(blake3_hasher) <= 8);
  blake3_hasher_init(new (state_) blake3_hasher);
}

void Hasher::update(const void* data, std::size_t size) {
  if (size) blake3_hasher_update(reinterpret_cast<blake3_hasher*>(state_), data, size);
}

Digest Hasher::finish() const {
  Digest out;
  blake3_hasher_finalize(reinterpret_cast<const blake3_hasher*>(state_), out.bytes.data(), out.bytes.size());
  return out;
}

Digest blake3(const void* data, std::size_t size) {
  Hasher h;
  h.update(data, size);
  return h.finish();
}

bool is_row_major(const StridedBytes& t) {
  const Walk w = plan_walk(t);
  return w.empty || w.sizes.empty() || (w.sizes.size() == 1 && w.strides[0] == 1);
}

void for_each_piece(const StridedBytes& t, const std::function<void(const void*, std::size_t)>& use) {
  Walk w = plan_walk(t);
  if (w.empty) return;
  const auto* base = static_cast<const std::byte*>(t.data);
  const auto item = static_cast<std::int64_t>(t.itemsize);
  if (w.sizes.empty()) return use(base, t.itemsize);
  if (w.sizes.size() == 1 && w.strides[0] == 1) return use(base, static_cast<std::size_t>(w.sizes[0] * item));

  const std::int64_t inner = w.sizes.back(), step = w.strides.back() * item;
  const std::size_t outer_dims = w.sizes.size() - 1;
  const auto buffer = std::make_unique<std::byte[]>(kPiece);
  const std::int64_t room = static_cast<std::int64_t>(kPiece) / item;
  std::int64_t filled = 0;
  std::vector<std::int64_t> at(outer_dims, 0);
  const std::byte* row = base;
  for (;;) {
    for (std::int64_t i = 0; i < inner;) {
      const std::int64_t n = std::min(inner - i, room - filled);
      gather(t.itemsize, buffer.get() + filled * item, row + i * step, n, step);
      i += n;
      filled += n;
      if (filled == room) {
        use(buffer.get(), static_cast<std::size_t>(filled * item));
        filled = 0;
      }
    }
    std::size_t d = outer_dims;
    while (d > 0) {
      --d;
      row += w.strides[d] * item;
      if (++at[d] < w.sizes[d]) break;
      row -= w.sizes[d] * w.strides[d] * item;
      at[d] = 0;
      if (d == 0) {
        if (filled) use(buffer.get(), static_cast<std::size_t>(filled * item));
        return;
      }
    }
    if (outer_dims == 0) {
      if (filled) use(buffer.get(), static_cast<std::size_t>(filled * item));
      return;
    }
  }
}

Digest blake3(const StridedBytes& t) {
  Hasher h;
  for_each_piece(t, [&](const void* data, std::size_t size) { h.update(data, size); });
  return h.finish();
}

}  // namespace step_oracle
