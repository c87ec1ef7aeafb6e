#include "csrc/record/trace/nan.h"

#include <cstring>
#include <map>
#include <utility>

namespace step_oracle {
namespace {

// Any element of `bytes` whose magnitude is above infinity's.
template <class Bits>
bool has_nan(const std::vector<std::uint8_t>& bytes, Bits infinity) {
  constexpr Bits kSign = Bits(Bits(1) << (8 * sizeof(Bits) - 1));
  for (std::size_t i = 0; i + sizeof(Bits) <= bytes.size(); i += sizeof(Bits)) {
    Bits v;
    std::memcpy(&v, &bytes[i], sizeof v);
    if (Bits(v & ~kSign) > infinity) return true;
  }
  return false;
}

class Finder {
 public:
  explicit Finder(const Trace& trace) : trace_(trace) {}

  bool has(const Digest& digest, rec::DigestState state, rec::DType dtype) {
    using D = rec::DType;
    if (dtype != D::Float32 && dtype != D::Float64 && dtype != D::Float16 && dtype != D::BFloat16) return false;
    if (state != rec::DigestState::Known || !trace_.has_blob(digest)) return false;
    const auto [at, fresh] = known_.emplace(std::pair(digest, dtype), false);
    if (!fresh) return at->second;
    const auto bytes = trace_.blob(digest);
    at->second = dtype == D::Float32   ? has_nan<std::uint32_t>(bytes, 0x7f800000u)
                 : dtype == D::Float64 ? has_nan<std::uint64_t>(bytes, 0x7ff0000000000000ull)
                 : dtype == D::Float16 ? has_nan<std::uint16_t>(bytes, 0x7c00u)
                                       : has_nan<std::uint16_t>(bytes, 0x7f80u);
    return at->second;
  }

 private:
  const Trace& trace_;
  std::map<std::pair<Digest, rec::DType>, bool> known_;
};

}  // namespace

std::optional<NanSite> first_nan(const Trace& trace) {
  Finder finder(trace);
  for (std::size_t i = 0; i < trace.ops.size(); ++i) {
    const auto& tensors = trace.ops[i].tensors;
    for (std::size_t k = 0; k < tensors.size(); ++k)
      if (finder.has(tensors[k]->before, tensors[k]->before_state, tensors[k]->dtype)) return NanSite{i, k, true};
    for (std::size_t k = 0; k < tensors.size(); ++k)
      if (finder.has(tensors[k]->after, tensors[k]->after_state, tensors[k]->dtype)) return NanSite{i, k, false};
  }
  return {};
}

}  // namespace step_oracle
