#include "csrc/oracle/program/divergence.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <bit>
#include <cstring>

#include "csrc/record/trace/digest.h"

namespace step_oracle::program {
namespace {

std::uint64_t element(const std::uint8_t* p, std::size_t size) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, p, std::min<std::size_t>(size, 8));
  return bits;
}

// Position of a floating-point pattern on the number line: neighbours differ by one, -0 and +0 coincide.
std::int64_t ordinal(std::uint64_t bits, std::size_t size) {
  const std::uint64_t sign = std::uint64_t{1} << (size * 8 - 1);
  const auto magnitude = static_cast<std::int64_t>(bits & (sign - 1));
  return bits & sign ? -magnitude : magnitude;
}

bool starts_with_any(const std::string& text, std::initializer_list<const char*> names) {
  for (const char* n : names)
    if (text.rfind(n, 0) == 0) return true;
  return false;
}

}  // namespace

std::vector<std::uint8_t> logical_bytes(const at::Tensor& t) {
  std::vector<std::uint8_t> out;
  out.reserve(static_cast<std::size_t>(t.numel()) * t.itemsize());
  StridedBytes bytes;
  bytes.sizes = {t.sizes().data(), t.sizes().size()};
  bytes.strides = {t.strides().data(), t.strides().size()};
  bytes.itemsize = t.itemsize();
  bytes.data = static_cast<const char*>(t.storage().data()) + t.storage_offset() * static_cast<std::int64_t>(t.itemsize());
  for_each_piece(bytes, [&](const void* p, std::size_t n) {
    const auto* b = static_cast<const std::uint8_t*>(p);
    out.insert(out.end(), b, b + n);
  });
  return out;
}

void compare_elements(const std::vector<std::uint8_t>& recorded, const at::Tensor& actual, Divergence& out) {
  const std::vector<std::uint8_t> own = logical_bytes(actual);
  if (own.size() != recorded.size()) return;
  const std::size_t size = actual.itemsize();
  const auto n = static_cast<std::size_t>(actual.numel());
  std::size_t first = n;
  out.differing = 0;
  out.elements = static_cast<std::int64_t>(n);
  for (std::size_t i = 0; i < n; ++i)
    if (std::memcmp(recorded.data() + i * size, own.data() + i * size, size) != 0) {
      if (first == n) first = i;
      ++out.differing;
    }
  if (first == n) return;
  std::size_t rest = first;
  out.coordinates.assign(static_cast<std::size_t>(actual.dim()), 0);
  for (std::size_t d = out.coordinates.size(); d-- > 0;) {
    const auto extent = static_cast<std::size_t>(actual.size(static_cast<std::int64_t>(d)));
    out.coordinates[d] = static_cast<std::int64_t>(rest % extent);
    rest /= extent;
  }
  const std::uint64_t was = element(recorded.data() + first * size, size), is = element(own.data() + first * size, size);
  out.expected = fmt::format("0x{:0{}x}", was, size * 2);
  out.actual = fmt::format("0x{:0{}x}", is, size * 2);
  if (actual.is_floating_point() && size <= 8) out.ulps = ordinal(is, size) - ordinal(was, size);
}

std::string other_layout(const rec::TensorT& t, const at::Tensor& actual) {
  if (actual.sizes() != at::IntArrayRef(t.sizes)) return fmt::format("shape {}", fmt::join(actual.sizes(), "x"));
  if (actual.numel() == 0) return "";
  for (std::int64_t d = 0; d < actual.dim(); ++d)
    if (actual.size(d) > 1 && actual.stride(d) != t.strides[static_cast<std::size_t>(d)])
      return fmt::format("strides {} and not {}", fmt::join(actual.strides(), ","), fmt::join(t.strides, ","));
  if (actual.storage_offset() == t.offset) return "";
  return fmt::format("storage offset {} and not {}", actual.storage_offset(), t.offset);
}

std::optional<std::uint64_t> number_bits(const c10::IValue& v) {
  if (v.isDouble()) return std::bit_cast<std::uint64_t>(v.toDouble());
  if (v.isInt()) return static_cast<std::uint64_t>(v.toInt());
  if (v.isBool()) return v.toBool();
  return std::nullopt;
}

std::string likely_cause(const std::string& op, const Divergence& d) {
  const auto pattern = [](const std::string& hex) { return std::stoull(hex, nullptr, 16); };
  if (d.differing == 1 && d.expected.rfind("0x", 0) == 0 &&
      std::has_single_bit(pattern(d.expected) ^ pattern(d.actual)))
    return "one bit";
  if (starts_with_any(op, {"aten.mm", "aten.addmm", "aten.bmm", "aten.baddbmm", "aten.addmv", "aten.dot"}))
    return "GEMM class or plan";
  if (starts_with_any(op, {"aten.native_dropout", "aten.normal", "aten.uniform", "aten.bernoulli", "aten.random",
                           "aten.exponential", "aten.randperm"}))
    return "generator or SM count";
  if (starts_with_any(op, {"aten.sum", "aten.mean", "aten.linalg_vector_norm", "aten._foreach_norm", "aten.var", "aten.std"}))
    return "order of addition (SM count, kernel choice)";
  if (starts_with_any(op, {"aten.native_layer_norm", "aten._softmax", "aten._log_softmax", "aten.embedding_dense_backward"}))
    return "order of addition (kernel choice)";
  return "arithmetic of the kernel";
}

}  // namespace step_oracle::program
