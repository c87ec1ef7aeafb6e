// BLAKE3-256 of the logical bytes of a tensor: row-major, little endian. Dtype and shape stand beside it in the trace.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace step_oracle {

struct Digest {
  std::array<std::uint8_t, 32> bytes{};
  bool operator==(const Digest&) const = default;
  auto operator<=>(const Digest&) const = default;
  std::string hex() const;
  // 64 hexadecimal digits; throws Error{kBadInput}.
  static Digest from_hex(std::string_view text);
};

Digest blake3(const void* data, std::size_t size);

// The same in pieces.
class Hasher {
 public:
  Hasher();
  void update(const void* data, std::size_t size);
  Digest finish() const;

 private:
  static constexpr std::size_t kStateBytes = 1912;  // sizeof(blake3_hasher), checked where it is used
  alignas(8) std::byte state_[kStateBytes];
};

// A tensor's memory: `data` is its first element (offset applied), strides are in elements and may be 0 or negative.
struct StridedBytes {
  const void* data = nullptr;
  std::span<const std::int64_t> sizes;
  std::span<const std::int64_t> strides;
  std::size_t itemsize = 0;
};

// Dimensions of size 1 dropped, neighbours that are one run of memory joined: what is left is walked.
struct Walk {
  std::vector<std::int64_t> sizes, strides;
  bool empty = false;
};
Walk plan_walk(const StridedBytes& t);

// True where the logical bytes lie in one piece in row-major order (dimensions of size 1 are ignored).
bool is_row_major(const StridedBytes& t);
// The logical bytes in row-major order, in pieces of at most 64 KiB that are copied out where they have to be.
void for_each_piece(const StridedBytes& t, const std::function<void(const void* data, std::size_t size)>& use);
Digest blake3(const StridedBytes& t);

}  // namespace step_oracle

template <>
struct std::hash<step_oracle::Digest> {
  std::size_t operator()(const step_oracle::Digest& d) const noexcept {
    std::size_t h;
    std::memcpy(&h, d.bytes.data(), sizeof h);
    return h;
  }
};

// What the FlatBuffers object API needs to keep a Digest where the schema says Digest32.
namespace step_oracle::rec {
struct Digest32;
}
namespace flatbuffers {
step_oracle::rec::Digest32 Pack(const step_oracle::Digest& d);
step_oracle::Digest UnPack(const step_oracle::rec::Digest32& d);
}  // namespace flatbuffers
