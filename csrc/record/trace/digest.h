// BLAKE3-256 of the logical bytes of a tensor: row-major, little endian. Dtype and shape stand beside it in the trace.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace step_oracle {

struct Digest {
  std::array<std::uint8_t, 32> bytes{};
  bool operator==(const Digest&) const = default;
  std::string hex() const;
};

Digest blake3(const void* data, std::size_t size);

}  // namespace step_oracle
