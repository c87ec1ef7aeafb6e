// Seeded inputs of the adders' tests; make_adder_digests.py and make_unit_digests.py make the same.
#pragma once
#include <algorithm>
#include <cstdint>

namespace step_oracle {

enum Kind { kAnyBits, kOrdinary, kWide, kSubnormal, kHuge, kSparse, kCancelling, kSpecial, kSpread };

inline std::uint64_t mix(std::uint64_t x) {  // the finalizer of splitmix64
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// A floating-point pattern without its sign; `top` is the exponent field of infinity.
inline std::uint64_t pattern(std::uint64_t r, int kind, int fraction, std::int64_t bias, std::int64_t top) {
  std::uint64_t digits = r & ((1u << fraction) - 1);
  const auto choice = static_cast<std::int64_t>(r >> 32);
  std::int64_t field = bias - 6 + choice % 9;
  switch (kind) {
    case kAnyBits:
      return r & ((static_cast<std::uint64_t>(top + 1) << fraction) - 1);
    case kWide:
      field = 1 + choice % (top - 1);
      break;
    case kSubnormal:
      field = choice % 3;
      break;
    case kHuge:
      field = top - 1 - choice % 3;
      break;
    case kSparse:
      if (choice % 4 != 0) return 0;
      break;
    case kCancelling:
      field = bias + choice % 2;
      digits &= 1u << (fraction - 1);
      break;
    case kSpecial:
      if (choice % 16 == 0) {
        field = top;
        if (choice % 32 < 16) digits = 0;
      }
      break;
    case kSpread:
      field = std::clamp<std::int64_t>(bias - 20 + choice % 40, 1, top - 1);
      break;
    default:
      break;
  }
  return static_cast<std::uint64_t>(field) << fraction | digits;
}

}  // namespace step_oracle
