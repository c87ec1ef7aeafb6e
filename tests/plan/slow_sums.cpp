#include "tests/plan/slow_sums.h"

#include <algorithm>
#include <cmath>

namespace step_oracle::slow {

using gemm::Reduction;

namespace {

int exponent_of(double x) { return x == 0.0 ? -1000 : std::ilogb(x); }

// Products and the accumulator, cut below 2^(largest exponent - fraction bits), added, cut to float32. Every value here
// has fewer than 53 digits, so that double is exact.
float tensor_core_step(Kind kind, const std::vector<std::pair<float, float>>& products, float acc) {
  const int fraction = kind == Kind::kBf16Hopper ? 25 : 24;
  int largest = acc == 0.0f ? -132 : exponent_of(acc);
  for (auto [x, y] : products)
    if (x != 0.0f && y != 0.0f) largest = std::max(largest, exponent_of(x) + exponent_of(y));
  const double unit = std::ldexp(1.0, largest - fraction);
  double sum = std::trunc(static_cast<double>(acc) / unit);
  for (auto [x, y] : products) sum += std::trunc(static_cast<double>(x) * y / unit);
  if (sum == 0.0) return 0.0f;
  const double value = sum * unit, last = std::ldexp(1.0, exponent_of(value) - 23);
  return static_cast<float>(std::trunc(value / last) * last);
}

}  // namespace

bool narrow(Kind kind) { return kind != Kind::kFloat32; }
bool on_tensor_cores(Kind kind) { return narrow(kind) && kind != Kind::kBf16Chain; }

float to_kind(Kind kind, float x) {
  if (!narrow(kind) || x == 0.0f) return x;
  const bool half = kind == Kind::kFp16Turing;
  const int last = half ? std::max(exponent_of(x) - 10, -24) : exponent_of(x) - 7;
  return static_cast<float>(std::ldexp(std::nearbyint(std::ldexp(static_cast<double>(x), -last)), last));
}

std::uint16_t fp16_bits(float x) {
  const std::uint16_t sign = std::signbit(x) ? 0x8000 : 0;
  const int exponent = std::max(exponent_of(x), -14);
  const auto digits = static_cast<int>(std::ldexp(std::fabs(x), 10 - exponent));  // 1024.. where normal
  return static_cast<std::uint16_t>(sign | (digits + ((exponent + 14) << 10)));
}

Acc::Acc(const Problem& p, std::int64_t i, std::int64_t j, int group, bool chain)
    : p_(p), i_(i), j_(j), chain_(chain || !on_tensor_cores(p.kind)), group_(group) {
  if (!group_) group_ = p.kind == Kind::kBf16Hopper ? 16 : 8;
}

void Acc::take(std::int64_t q) {
  const float x = p_.a[static_cast<std::size_t>(i_ * p_.k + q)], y = p_.b[static_cast<std::size_t>(q * p_.n + j_)];
  if (chain_) {
    value_ = std::fma(x, y, value_);
    return;
  }
  waiting_.emplace_back(x, y);
  if (static_cast<int>(waiting_.size()) == group_) cut();
}

void Acc::cut() {
  if (!waiting_.empty()) value_ = tensor_core_step(p_.kind, waiting_, value_);
  waiting_.clear();
}

float bias_at(const Problem& p, std::int64_t j) { return p.bias.empty() ? 0.0f : p.bias[static_cast<std::size_t>(j)]; }
float with_bias(const Problem& p, std::int64_t j, float x) { return p.bias.empty() ? x : x + bias_at(p, j); }

float reduced(const Problem& p, const std::vector<float>& parts, Reduction how, float start, bool starts) {
  const auto to_d = [&](float x) { return p.wide ? x : to_kind(p.kind, x); };
  float total = start;
  for (std::size_t s = 0; s < parts.size(); ++s) {
    const float part = how == Reduction::kOutputType ? to_d(parts[s]) : parts[s];
    total = s == 0 && !starts ? part : total + part;
    if (how == Reduction::kInPlace) total = to_d(total);
  }
  return total;
}

std::vector<float> sliced(const Problem& p, std::int64_t i, std::int64_t j, std::int64_t from, std::int64_t to,
                          int slices, std::int64_t tile, bool chain) {
  std::vector<Acc> accs(static_cast<std::size_t>(slices), Acc(p, i, j, 0, chain));
  int next = 0;
  for (std::int64_t q = from; q < to; q += tile, next = (next + 1) % slices) {
    accs[static_cast<std::size_t>(next)].take(q, std::min(to, q + tile));
    accs[static_cast<std::size_t>(next)].cut();
  }
  std::vector<float> out;
  for (Acc& a : accs) out.push_back(a.value());
  return out;
}

float closed(const Problem& p, std::int64_t i, std::int64_t j, std::int64_t from, std::int64_t to, std::int64_t block,
             bool chain) {
  float total = 0.0f;
  for (std::int64_t q = from; q < to; q += block) {
    const float part = Acc(p, i, j, 0, chain).take(q, std::min(to, q + block)).value();
    total = q == from ? part : total + part;
  }
  return total;
}

float in_order(const std::vector<float>& s) {
  float total = s[0];
  for (std::size_t i = 1; i < s.size(); ++i) total = total + s[i];
  return total;
}

float butterfly(std::vector<float> s) {
  for (std::size_t half = s.size() / 2; half; half /= 2)
    for (std::size_t l = 0; l < half; ++l) s[l] = s[l] + s[l + half];
  return s[0];
}

}  // namespace step_oracle::slow
