// What the walks of k are made of: a kind's rounding, one accumulator, and the sums of several.
#pragma once
#include <initializer_list>
#include <utility>

#include "tests/plan/slow_forms.h"

namespace step_oracle::slow {

bool narrow(Kind kind);
bool on_tensor_cores(Kind kind);
// Nearest even to 8 (bfloat16) or 11 (float16, not below 2^-24) significant digits; the data keep clear of the large end.
float to_kind(Kind kind, float x);
// Of a value that to_kind has rounded.
std::uint16_t fp16_bits(float x);

// One accumulator that positions of k are added to.
class Acc {
 public:
  // `group`: products that the tensor core adds at once; 0: the kind's. `chain`: one FMA a position.
  Acc(const Problem& p, std::int64_t i, std::int64_t j, int group = 0, bool chain = false);
  void take(std::int64_t q);
  Acc& take(std::int64_t from, std::int64_t to) {
    for (std::int64_t q = from; q < to; ++q) take(q);
    return *this;
  }
  // The tensor core adds what is waiting.
  void cut();
  float value() {
    cut();
    return value_;
  }

 private:
  const Problem& p_;
  std::int64_t i_, j_;
  bool chain_;
  int group_;
  float value_ = 0.0f;
  std::vector<std::pair<float, float>> waiting_;
};

float bias_at(const Problem& p, std::int64_t j);
float with_bias(const Problem& p, std::int64_t j, float x);

// What a split-K kernel does with its partial sums.
float reduced(const Problem& p, const std::vector<float>& parts, gemm::Reduction how, float start, bool starts);
// Tiles of `tile` over [from, to), dealt to accumulators in turn.
std::vector<float> sliced(const Problem& p, std::int64_t i, std::int64_t j, std::int64_t from, std::int64_t to,
                          int slices, std::int64_t tile, bool chain = false);
// Sums of `block` positions, added up as they come.
float closed(const Problem& p, std::int64_t i, std::int64_t j, std::int64_t from, std::int64_t to, std::int64_t block,
             bool chain);
float in_order(const std::vector<float>& s);
// Lane l adds lane l + 16, then l + 8, ..: a shuffle down.
float butterfly(std::vector<float> s);

template <class T>
T pick(std::mt19937& gen, std::initializer_list<T> from) {
  return from.begin()[gen() % from.size()];
}

}  // namespace step_oracle::slow
