// What the attention kernels' parameters share.
#pragma once
#include <cstdint>

namespace step_oracle::attention {

// In elements, of a tensor [batch, position, head, dim]; dim is contiguous.
struct Strides {
  std::int64_t batch, position, head;
};

enum class Mask : std::uint8_t {
  kNone,
  kCausalTopLeft,      // key <= query
  kCausalBottomRight,  // key <= query + keys - queries
};

}  // namespace step_oracle::attention
