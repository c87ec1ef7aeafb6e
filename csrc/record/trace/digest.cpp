#include "csrc/record/trace/digest.h"

#include <blake3.h>

namespace step_oracle {

std::string Digest::hex() const {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  for (std::uint8_t b : bytes) {
    out += kDigits[b >> 4];
    out += kDigits[b & 15];
  }
  return out;
}

Digest blake3(const void* data, std::size_t size) {
  blake3_hasher hasher;
  blake3_hasher_init(&hasher);
  blake3_hasher_update(&hasher, data, size);
  Digest out;
  blake3_hasher_finalize(&hasher, out.bytes.data(), out.bytes.size());
  return out;
}

}  // namespace step_oracle
