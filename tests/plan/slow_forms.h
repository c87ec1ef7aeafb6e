// The walks of k that cards take, each written out from its definition for one output at a time: nothing of
// kernels/gemm is used here, so that a plan and its form can be wrong only apart.
#pragma once
#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "csrc/kernels/gemm/plan.h"

namespace step_oracle::slow {

enum class Kind { kFloat32, kBf16Turing, kBf16Hopper, kFp16Turing, kBf16Chain };  // kBf16Chain: without tensor cores
inline constexpr Kind kKinds[] = {Kind::kFloat32, Kind::kBf16Turing, Kind::kBf16Hopper, Kind::kFp16Turing,
                                  Kind::kBf16Chain};
const char* name_of(Kind kind);

// a[m, k] b[k, n] (+ bias[n]); the values are the kind's.
struct Problem {
  Kind kind = Kind::kFloat32;
  std::int64_t m = 0, n = 0, k = 0;
  std::vector<float> a, b, bias;  // bias: empty, or n values
  bool wide = false;              // 16-bit factors, float32 results
};

struct Case {
  gemm::Plan plan;                                                      // how the product calls it
  std::function<float(const Problem&, std::int64_t, std::int64_t)> at;  // one output, before its rounding to D's type
};

struct Form {
  std::string name;
  std::string source;
  std::vector<Kind> kinds;
  bool vector = false;  // one row
  bool bias = false;    // the form says where a bias goes
  // Draws the form's free choices for a product; it may change p.k to one that the form can occur with.
  std::function<Case(std::mt19937&, Problem&)> draw;
};
const std::vector<Form>& forms();
// Forms that no plan is: the fitter must say so.
const std::vector<Form>& strangers();

// A product of odd sizes, drawn; `form` may restrict them. Its result, as bytes of D's type in row-major order.
struct Drawn {
  Problem problem;
  gemm::Plan plan;
  std::vector<std::uint8_t> d;
};
Drawn draw(const Form& form, Kind kind, std::mt19937& gen);

}  // namespace step_oracle::slow
