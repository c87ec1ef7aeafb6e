#include "csrc/record/trace/diff_elements.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>

#include "csrc/kernels/core/error.h"

namespace step_oracle::elements {
namespace {

constexpr std::int64_t kMostElements = 1 << 26;  // beyond that the digests have to do

std::string pattern(const std::uint8_t* element, std::size_t size) {
  std::string out = "0x";
  for (std::size_t i = size; i-- > 0;) out += fmt::format("{:02x}", element[i]);
  return out;
}

// Steps between two values of one binary format, counted through zero; none for NaN and for what is no such format.
std::optional<std::uint64_t> ulps(rec::DType t, const std::uint8_t* a, const std::uint8_t* b) {
  int bits = 0, fraction = 0;
  switch (t) {
    case rec::DType::Float64:
      bits = 64, fraction = 52;
      break;
    case rec::DType::Float32:
      bits = 32, fraction = 23;
      break;
    case rec::DType::Float16:
      bits = 16, fraction = 10;
      break;
    case rec::DType::BFloat16:
      bits = 16, fraction = 7;
      break;
    default:
      return {};
  }
  const std::uint64_t sign = 1ull << (bits - 1), infinity = (sign - 1) >> fraction << fraction;
  const auto place = [&](const std::uint8_t* from, std::int64_t& out) {
    std::uint64_t v = 0;
    std::memcpy(&v, from, static_cast<std::size_t>(bits / 8));
    const auto magnitude = static_cast<std::int64_t>(v & (sign - 1));
    out = v & sign ? -magnitude : magnitude;
    return static_cast<std::uint64_t>(magnitude) <= infinity;
  };
  std::int64_t x = 0, y = 0;
  if (!place(a, x) || !place(b, y)) return {};
  return x > y ? static_cast<std::uint64_t>(x) - static_cast<std::uint64_t>(y)
               : static_cast<std::uint64_t>(y) - static_cast<std::uint64_t>(x);
}

bool same_multiset(const std::vector<std::uint8_t>& a, const std::vector<std::uint8_t>& b, std::size_t item) {
  const auto sorted = [item](const std::vector<std::uint8_t>& bytes) {
    std::vector<std::string_view> out;
    for (std::size_t i = 0; i < bytes.size(); i += item)
      out.emplace_back(reinterpret_cast<const char*>(&bytes[i]), item);
    std::sort(out.begin(), out.end());
    return out;
  };
  return sorted(a) == sorted(b);
}

std::optional<std::vector<std::uint8_t>> blob_of(const Trace& trace, const Digest& digest) {
  try {
    if (trace.has_blob(digest)) return trace.blob(digest);
  } catch (const Error&) {  // damaged bytes cannot explain anything; `trace check` names them
  }
  return {};
}

}  // namespace

std::optional<std::vector<std::uint8_t>> bytes_of(const Trace& trace, const rec::TensorT& t, Side side,
                                                  bool unwritten) {
  const auto state = side == Side::kBefore ? t.before_state : t.after_state;
  const std::int64_t n = rec::numel(t.sizes);
  const auto item = rec::size_of(t.dtype);
  if (state != rec::DigestState::Known || n > kMostElements) return {};
  auto out = blob_of(trace, side == Side::kBefore ? t.before : t.after);
  const auto expected = static_cast<std::uint64_t>(n) * item;
  if (out) return out->size() == expected ? out : std::nullopt;
  const auto* storage = trace.storage(t.storage, t.generation);
  if (side != Side::kBefore || !unwritten || !storage || storage->init.state != rec::DigestState::Known) return {};
  const auto whole = blob_of(trace, storage->init.digest);
  if (!whole || whole->size() != storage->record.nbytes) return {};  // the geometry was checked against nbytes
  std::vector<std::uint8_t> cut;
  cut.reserve(expected);
  const StridedBytes view{whole->data() + static_cast<std::size_t>(t.offset) * item, t.sizes, t.strides, item};
  for_each_piece(view, [&](const void* data, std::size_t size) {
    const auto* from = static_cast<const std::uint8_t*>(data);
    cut.insert(cut.end(), from, from + size);
  });
  return cut;
}

std::string compare(const Trace& a, const rec::TensorT& ta, const Trace& b, const rec::TensorT& tb, Side side,
                    bool unwritten, TraceDivergence& out) {
  if (ta.dtype != tb.dtype || ta.sizes != tb.sizes) return {};
  const auto x = bytes_of(a, ta, side, unwritten), y = bytes_of(b, tb, side, unwritten);
  if (!x || !y || x->size() != y->size()) return {};
  const auto item = rec::size_of(ta.dtype);
  std::size_t count = 0, first = 0;
  for (std::size_t i = 0; i < x->size(); i += item)
    if (std::memcmp(&(*x)[i], &(*y)[i], item) != 0 && count++ == 0) first = i;
  if (count == 0) return {};
  out.expected = pattern(&(*x)[first], item);
  out.actual = pattern(&(*y)[first], item);
  out.ulps = ulps(ta.dtype, &(*x)[first], &(*y)[first]);
  out.has_coordinates = true;
  out.coordinates.resize(ta.sizes.size());
  auto rest = static_cast<std::int64_t>(first / item);
  for (std::size_t d = ta.sizes.size(); d-- > 0;) {
    out.coordinates[d] = rest % ta.sizes[d];
    rest /= ta.sizes[d];
  }
  if (same_multiset(*x, *y, item)) return "the same values in another order";
  return fmt::format("{} of {} elements", count, x->size() / item);
}

std::string geometry(const rec::TensorT& t) {
  return fmt::format("{}[{}]", rec::name_of(t.dtype), fmt::join(t.sizes, ", "));
}

std::string difference(const rec::TensorT& ta, const rec::TensorT& tb, Side side) {
  if (ta.dtype != tb.dtype && ta.sizes == tb.sizes)
    return fmt::format("dtype {} against {}", rec::name_of(ta.dtype), rec::name_of(tb.dtype));
  if (ta.dtype != tb.dtype || ta.sizes != tb.sizes)
    return fmt::format("shape {} against {}", geometry(ta), geometry(tb));
  const bool before = side == Side::kBefore;
  const auto sa = before ? ta.before_state : ta.after_state, sb = before ? tb.before_state : tb.after_state;
  if (sa != rec::DigestState::Known || sb != rec::DigestState::Known) return {};
  const Digest &da = before ? ta.before : ta.after, &db = before ? tb.before : tb.after;
  if (da == db) return {};
  return fmt::format("values, digest {} against {}", da.hex().substr(0, 16), db.hex().substr(0, 16));
}

}  // namespace step_oracle::elements
