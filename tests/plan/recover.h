// The fitter against the slow forms: a product's factors and the digest of its result, nothing else.
#pragma once
#include <algorithm>
#include <string>

#include "csrc/kernels/arith/convert.h"
#include "csrc/oracle/plan/fit.h"
#include "tests/plan/slow_forms.h"
#include "tests/support/sha256.h"

namespace step_oracle::slow {

struct Recovered {
  bool right = false;  // the plan is among the matches
  int matches = 0, tried = 0;
};

inline plan::Fit fit_from_digest(const Drawn& drawn) {
  const Problem& p = drawn.problem;
  const std::string digest = test::sha256(drawn.d.data(), drawn.d.size());
  const auto is_it = [&](const void* d) { return test::sha256(d, drawn.d.size()) == digest; };
  if (p.kind == Kind::kFloat32) {
    gemm::Params q;
    q.m = p.m, q.n = p.n, q.k = p.k;
    q.a = {p.a.data(), p.k, 1, 0}, q.b = {p.b.data(), p.n, 1, 0}, q.d = {nullptr, p.n, 1, 0};
    if (!p.bias.empty()) q.epilogue.bias = p.bias.data();
    return plan::fit(q, plan::candidates(plan::shape_of(q)), is_it);
  }
  gemm::TensorCoreParams q;
  q.factors = p.kind == Kind::kFp16Turing ? DType::kF16 : DType::kBF16;
  q.results = p.wide ? DType::kF32 : q.factors;
  q.adder = p.kind == Kind::kBf16Hopper  ? gemm::AdderClass::kHopper
            : p.kind == Kind::kBf16Chain ? gemm::AdderClass::kFmaChain
                                         : gemm::AdderClass::kTuring;
  const auto narrowed = [&](const std::vector<float>& from) {
    std::vector<std::uint16_t> out;
    for (float x : from) out.push_back(q.factors == DType::kF16 ? convert::to_fp16(x) : convert::to_bf16(x));
    return out;
  };
  const auto a = narrowed(p.a), b = narrowed(p.b), bias = narrowed(p.bias);
  q.m = p.m, q.n = p.n, q.k = p.k, q.a = a.data(), q.b = b.data();
  q.a_strides = {p.k, 1, 0}, q.b_strides = {p.n, 1, 0}, q.d_strides = {p.n, 1, 0};
  if (!p.bias.empty()) q.bias = p.wide ? static_cast<const void*>(p.bias.data()) : bias.data();
  return plan::fit(q, plan::candidates(plan::shape_of(q)), is_it);
}

inline Recovered recover(const Drawn& drawn) {
  const plan::Fit found = fit_from_digest(drawn);
  Recovered out;
  out.right = std::find(found.matches.begin(), found.matches.end(), drawn.plan) != found.matches.end();
  out.matches = static_cast<int>(found.matches.size()), out.tried = found.tried;
  return out;
}

}  // namespace step_oracle::slow
