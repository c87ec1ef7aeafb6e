// Would the tests notice? Each mutant is the definition with one rule changed; data of the kinds that the tests draw
// must tell it from the definition. The score is printed; a survivor fails.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "csrc/kernels/arith/convert.h"
#include "csrc/kernels/arith/dot_add.h"
#include "csrc/kernels/gemm/gemm.h"
#include "csrc/kernels/gemm/tensor_core.h"
#include "tests/gemm/adder_inputs.h"
#include "tests/support/same_bytes.h"

namespace step_oracle::gemm {
namespace {

// --- the fp32 chain and its epilogue, one rule each ---

struct ChainRules {
  bool fused = true, ascending = true, from_zero = true, canonical_nan = true;
  bool beta_rounded = true, alpha_fused = true, bias_fused = true, reads_c_for_beta_0 = false;
  int accumulators = 1;
};

float chain_output(const ChainRules& r, const Params& p, std::int64_t i, std::int64_t j) {
  std::vector<float> acc(static_cast<std::size_t>(r.accumulators), r.from_zero ? 0.0f : -0.0f);
  for (std::int64_t s = 0; s < p.k; ++s) {
    const std::int64_t q = r.ascending ? s : p.k - 1 - s;
    const float x = p.a.data[i * p.a.row + q * p.a.col], y = p.b.data[q * p.b.row + j * p.b.col];
    float& to = acc[static_cast<std::size_t>(s % r.accumulators)];
    const float product = x * y;
    to = r.fused ? fma(x, y, to) : product + to;
  }
  float sum = acc[0];
  for (std::size_t a = 1; a < acc.size(); ++a) sum = sum + acc[a];
  const Epilogue& e = p.epilogue;
  float out;
  if (e.bias) {
    const float scaled = e.alpha * sum;
    out = r.bias_fused ? fma(e.alpha, sum, e.bias[j]) : scaled + e.bias[j];
  } else if (e.beta == 0.0f && !r.reads_c_for_beta_0) {
    out = e.alpha * sum;
  } else {
    const float c = e.c.data[i * e.c.row + j * e.c.col], scaled = e.alpha * sum;
    const float rest = e.beta * c;
    if (!r.alpha_fused)
      out = scaled + rest;
    else
      out = r.beta_rounded ? fma(e.alpha, sum, rest) : fma(e.beta, c, scaled);
  }
  return r.canonical_nan ? canonical(out) : out;
}

int count_differences(const ChainRules& rules) {
  std::mt19937 gen(1);
  std::normal_distribution<float> normal;
  int differences = 0;
  for (int round = 0; round < 60; ++round) {
    const std::int64_t m = 3, n = 5, k = 1 + gen() % 40;
    std::vector<float> a(m * k), b(k * n), c(m * n), bias(n), d(m * n);
    for (auto* v : {&a, &b, &c, &bias})
      for (float& x : *v) {
        x = normal(gen);
        if (round % 3 == 1 && gen() % 30 == 0) x = float_of(gen() % 2 ? 0x7fc00001u : 0xff800000u);
        if (round % 5 == 2) x = gen() % 2 ? -0.0f : 0.0f;
      }
    Params p;
    p.m = m, p.n = n, p.k = k;
    p.a = {a.data(), k, 1, 0}, p.b = {b.data(), n, 1, 0}, p.d = {d.data(), n, 1, 0};
    p.epilogue.c = {c.data(), n, 1, 0};
    switch (round % 4) {
      case 0:
        p.epilogue.alpha = 0.3f, p.epilogue.beta = -0.7f;
        break;
      case 1:
        p.epilogue.bias = bias.data(), p.epilogue.alpha = 0.3f;
        break;
      case 2:
        p.epilogue.beta = 1.0f;
        break;
      default:
        std::fill(c.begin(), c.end(), card_nan());
        break;  // beta 0: it must not reach the result
    }
    fp32_chain(p);
    for (std::int64_t i = 0; i < m; ++i)
      for (std::int64_t j = 0; j < n; ++j)
        differences += bits_of(chain_output(rules, p, i, j)) != bits_of(d[static_cast<std::size_t>(i * n + j)]);
  }
  return differences;
}

// Every mutant gives other bytes than the product.
template <class Mutants>
void expect_noticed(const char* what, const Mutants& mutants) {
  int killed = 0;
  for (const auto& [name, rules] : mutants) {
    const int differences = count_differences(rules);
    EXPECT_GT(differences, 0) << "survives: " << name;
    killed += differences > 0;
  }
  std::printf("%s: %d of %zu mutants noticed\n", what, killed, std::size(mutants));
}

TEST(Mutants, OfTheFp32Chain) {
  ASSERT_EQ(count_differences({}), 0) << "the transcription with every rule kept";
  const std::pair<const char*, ChainRules> mutants[] = {
      {"two roundings instead of fma", {.fused = false}},
      {"k descending", {.ascending = false}},
      {"starts from -0", {.from_zero = false}},
      {"NaN keeps its payload", {.canonical_nan = false}},
      {"beta * C not rounded", {.beta_rounded = false}},
      {"alpha * acc rounded", {.alpha_fused = false}},
      {"bias added after a rounding", {.bias_fused = false}},
      {"C read for beta 0", {.reads_c_for_beta_0 = true}},
      {"two accumulators", {.accumulators = 2}},
  };
  expect_noticed("the fp32 chain", mutants);
}

// --- the chain of narrow factors: bfloat16 where no tensor core takes it ---

struct NarrowRules {
  bool ascending = true, from_zero = true, rounds_once = true, nearest = true, beta_rounded = true;
  bool alpha_fused = true, bias_in_float = true, reads_c_for_beta_0 = false, fused = true;
  std::uint16_t nan = 0x7fff;
  int accumulators = 1;
};

float read_as(DType type, const void* v, std::int64_t at) {
  return type == DType::kF32 ? static_cast<const float*>(v)[at]
                             : convert::from_bf16(static_cast<const std::uint16_t*>(v)[at]);
}

std::uint32_t narrow_output(const NarrowRules& r, const TensorCoreParams& p, std::int64_t i, std::int64_t j) {
  const auto rounded = [&](float x) { return convert::from_bf16(convert::to_bf16(x)); };
  std::vector<float> acc(static_cast<std::size_t>(r.accumulators), r.from_zero ? 0.0f : -0.0f);
  for (std::int64_t s = 0; s < p.k; ++s) {
    const std::int64_t q = r.ascending ? s : p.k - 1 - s;
    const float x = read_as(p.factors, p.a, i * p.a_strides.row + q);
    const float y = read_as(p.factors, p.b, q * p.b_strides.row + j);
    float& to = acc[static_cast<std::size_t>(s % r.accumulators)];
    const float product = x * y;
    to = r.fused ? fma(x, y, to) : product + to;
    if (!r.rounds_once) to = rounded(to);
  }
  float sum = acc[0];
  for (std::size_t a = 1; a < acc.size(); ++a) sum = sum + acc[a];
  const float scaled = p.alpha * sum;
  float out = scaled;
  if (p.bias) {
    const float bias = read_as(p.results, p.bias, j);
    out = r.bias_in_float ? fma(p.alpha, sum, bias) : rounded(scaled) + bias;
  } else if (p.beta != 0.0f || r.reads_c_for_beta_0) {
    const float c = read_as(p.results, p.c, i * p.c_strides.row + j), rest = p.beta * c;
    out = !r.alpha_fused ? scaled + rest : r.beta_rounded ? fma(p.alpha, sum, rest) : fma(p.beta, c, scaled);
  }
  if (p.results == DType::kF32) return bits_of(canonical(out));
  if (out != out) return r.nan;
  return r.nearest ? convert::to_bf16(out) : bits_of(out) >> 16;
}

int count_differences(const NarrowRules& rules) {
  std::mt19937 gen(1);
  std::normal_distribution<float> normal;
  int differences = 0;
  for (int round = 0; round < 120; ++round) {
    const std::int64_t m = 3, n = 5, k = 1 + gen() % 40;
    const bool wide = round % 8 >= 4;  // float32 results show each rounding of the epilogue
    std::vector<std::uint16_t> a(m * k), b(k * n);
    std::vector<std::uint32_t> c(m * n), bias(n), d(m * n);
    const auto factor = [&](bool first) -> std::uint16_t {
      if (round % 3 == 1 && gen() % 30 == 0) return gen() % 2 ? 0x7f80 : gen() % 2 ? 0xff80 : 0xffc1;
      if (round % 5 == 2) return first ? 0x8000 : 0;
      if (round % 7 == 3) return gen() % 2 ? 0x7f40 : 0xff40;  // products beyond the range
      return convert::to_bf16(normal(gen));
    };
    for (auto* v : {&a, &b})
      for (auto& x : *v) x = factor(v == &a);
    for (auto* v : {&c, &bias})
      for (auto& x : *v) x = wide ? bits_of(normal(gen)) : convert::to_bf16(normal(gen)) * 0x10001u;
    TensorCoreParams p;
    p.adder = AdderClass::kFmaChain, p.m = m, p.n = n, p.k = k, p.results = wide ? DType::kF32 : DType::kBF16;
    p.a = a.data(), p.b = b.data(), p.d = d.data();
    p.a_strides = {k, 1, 0}, p.b_strides = p.c_strides = p.d_strides = {n, 1, 0};
    if (round % 4 == 0) p.alpha = 0.3f, p.beta = -0.7f;
    if (round % 4 == 1) p.bias = bias.data(), p.alpha = 0.3f;
    if (round % 4 == 2) p.beta = 1.0f;
    if (round % 4 == 3) std::fill(c.begin(), c.end(), 0x7fff7fff);  // beta 0: it must not reach the result
    p.c = c.data();
    tensor_core(p);
    for (std::int64_t i = 0; i < m; ++i)
      for (std::int64_t j = 0; j < n; ++j) {
        const std::int64_t at = i * n + j;
        const std::uint32_t word = wide ? d[static_cast<std::size_t>(at)]
                                        : reinterpret_cast<const std::uint16_t*>(d.data())[at];
        differences += narrow_output(rules, p, i, j) != word;
      }
  }
  return differences;
}

TEST(Mutants, OfTheNarrowChain) {
  ASSERT_EQ(count_differences(NarrowRules{}), 0) << "the transcription with every rule kept";
  const std::pair<const char*, NarrowRules> mutants[] = {
      {"k descending", {.ascending = false}},
      {"starts from -0", {.from_zero = false}},
      {"the sum rounded at each step", {.rounds_once = false}},
      {"the result cut", {.nearest = false}},
      {"beta * C not rounded", {.beta_rounded = false}},
      {"alpha * acc rounded", {.alpha_fused = false}},
      {"bias added to the rounded result", {.bias_in_float = false}},
      {"C read for beta 0", {.reads_c_for_beta_0 = true}},
      {"products rounded", {.fused = false}},
      {"the NaN of torch's own conversion", {.nan = 0x7fc0}},
      {"two accumulators", {.accumulators = 2}},
  };
  expect_noticed("the chain of narrow factors", mutants);
}

// --- the adder ---

struct AdderRules {
  int terms = 8, fraction_bits = 24, zero_exponent = -132;
  bool normalised_products = false, rounds_terms = false, rounds_result = false, keeps_sign_of_zero = false;
  bool floor_terms = false, accumulator_apart = false;
};

// Doubles lose nothing here: a cut term has fewer than 30 bits.
float adder_output(const AdderRules& r, const std::vector<std::uint16_t>& a, const std::vector<std::uint16_t>& b,
                   float acc) {
  for (std::size_t q = 0; q < a.size(); q += static_cast<std::size_t>(r.terms)) {
    std::vector<std::pair<double, int>> parts;
    bool negative_zeros = acc == 0.0f;
    int largest = r.zero_exponent;
    const auto part = [&](double value, int exponent) {
      if (value == 0.0) return;
      parts.emplace_back(value, exponent);
      largest = std::max(largest, exponent);
    };
    const auto exponent_of = [&](float x) {
      int e;
      std::frexp(x, &e);
      return std::max(e - 1, -126);
    };
    for (std::size_t s = q; s < std::min(a.size(), q + static_cast<std::size_t>(r.terms)); ++s) {
      const float x = convert::from_bf16(a[s]), y = convert::from_bf16(b[s]);
      const double product = static_cast<double>(x) * y;
      int e = x == 0 || y == 0 ? r.zero_exponent : exponent_of(x) + exponent_of(y);
      if (r.normalised_products && product != 0) std::frexp(product, &e), --e;
      negative_zeros &= product == 0.0 && std::signbit(product);
      part(product, e);
    }
    if (!r.accumulator_apart) part(acc, exponent_of(acc));
    double sum = 0;
    const double place = std::ldexp(1.0, largest - r.fraction_bits);
    for (const auto& [value, e] : parts) {
      const double scaled = value / place;
      sum += r.rounds_terms ? std::nearbyint(scaled) : r.floor_terms ? std::floor(scaled) : std::trunc(scaled);
    }
    sum *= place;
    if (r.accumulator_apart) sum += acc;
    float out = static_cast<float>(sum);
    if (!r.rounds_result && std::abs(static_cast<double>(out)) > std::abs(sum)) out = std::nextafter(out, 0.0f);
    acc = sum == 0.0 ? (r.keeps_sign_of_zero && negative_zeros ? -0.0f : 0.0f) : out;
  }
  return acc;
}

int count_differences(const AdderRules& rules, AdderClass adder) {
  int differences = 0;
  for (const int kind : {kOrdinary, kSparse, kCancelling, kSpread, kSubnormal})
    for (std::uint64_t index = 0; index < 3000; ++index) {
      std::vector<std::uint16_t> a(32), b(32);
      for (std::size_t s = 0; s < 64; ++s) {
        const std::uint64_t r = mix(mix(index * 64 + s) + static_cast<std::uint64_t>(kind));
        (s < 32 ? a[s] : b[s - 32]) = static_cast<std::uint16_t>(pattern(r, kind, 7, 127, 255) | r >> 63 << 15);
      }
      if (kind == kSubnormal)  // beside ordinary ones: sums that float32 holds
        for (auto& y : b) y = static_cast<std::uint16_t>((y & 0x807fu) | (0x3f80u + 0x80u * (y & 1u)));
      if (index % 50 == 0)
        for (std::size_t s = 0; s < 32; ++s) a[s] = 0x8000, b[s] = 0x3f80;
      float d = -1;
      TensorCoreParams p;
      p.m = p.n = 1, p.k = 32, p.adder = adder, p.results = DType::kF32;
      p.a = a.data(), p.b = b.data(), p.d = &d;
      p.a_strides = {32, 1, 0}, p.b_strides = {1, 1, 0}, p.d_strides = {1, 1, 0};
      tensor_core(p);
      differences += bits_of(adder_output(rules, a, b, 0.0f)) != bits_of(d);
    }
  return differences;
}

TEST(Mutants, OfTheTensorCoreAdder) {
  int killed = 0, all = 0;
  for (const AdderClass adder : {AdderClass::kTuring, AdderClass::kHopper}) {
    const bool turing = adder == AdderClass::kTuring;
    const AdderRules kept = turing ? AdderRules{8, 24, -132} : AdderRules{16, 25, -133};
    ASSERT_EQ(count_differences(kept, adder), 0) << "the transcription with every rule kept";
    const auto with = [&](auto change) {
      AdderRules r = kept;
      change(r);
      return r;
    };
    const std::pair<const char*, AdderRules> mutants[] = {
        {"half the terms", with([](AdderRules& r) { r.terms /= 2; })},
        {"twice the terms", with([](AdderRules& r) { r.terms *= 2; })},
        {"one bit less", with([](AdderRules& r) { --r.fraction_bits; })},
        {"one bit more", with([](AdderRules& r) { ++r.fraction_bits; })},
        {"products normalised before they are aligned", with([](AdderRules& r) { r.normalised_products = true; })},
        {"terms rounded to nearest", with([](AdderRules& r) { r.rounds_terms = true; })},
        {"terms cut downwards", with([](AdderRules& r) { r.floor_terms = true; })},
        {"the result rounded to nearest", with([](AdderRules& r) { r.rounds_result = true; })},
        {"-0 kept", with([](AdderRules& r) { r.keeps_sign_of_zero = true; })},
        {"the accumulator added apart", with([](AdderRules& r) { r.accumulator_apart = true; })},
    };
    for (const auto& [name, rules] : mutants) {
      const int differences = count_differences(rules, adder);
      EXPECT_GT(differences, 0) << "survives: " << name << (turing ? ", 8 terms" : ", 16 terms");
      killed += differences > 0, ++all;
    }
  }
  std::printf("the adder: %d of %d mutants noticed\n", killed, all);
}

}  // namespace
}  // namespace step_oracle::gemm
