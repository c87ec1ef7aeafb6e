// Reading a plan off the bytes: candidates for a product, computed and compared with what a card gave.
//
// A candidate that gives the recorded bytes is a match; several are a tie: this product's data do not tell them apart,
// another product's of the same shape may. None: the card's kernel is not in the vocabulary of kernels/gemm/plan.h, or
// its class is another one.
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "csrc/kernels/gemm/plan.h"

namespace step_oracle::plan {

struct Shape {
  std::int64_t k = 0;
  bool sixteen_bit = false;  // parts may be reduced in D's type
  bool bias = false;         // a bias in the epilogue has a place
  int terms = 0;             // of the adder; 0: an fma chain
  bool vector = false;       // one row or one column: the library's kernels for vectors come in
};

// The forms that cards have been seen to take, for this k, the likely ones first: from some dozens (float32, round k) to
// some hundreds (16-bit, odd k, a bias), none twice. candidates.cpp says where each comes from.
std::vector<gemm::Plan> candidates(const Shape& shape);
// The most plausible of them, sixty at most: what published steps took. A match among these may have ties beyond them.
std::vector<gemm::Plan> likely(const Shape& shape);
Shape shape_of(const gemm::Params& params);
Shape shape_of(const gemm::TensorCoreParams& params);

struct Fit {
  std::vector<gemm::Plan> matches;  // one: the plan; more: a tie; none
  int tried = 0;
  gemm::Plan nearest;        // without a match: the candidate with the most equal elements ..
  double nearest_equal = 0;  // .. their share, of the elements that were compared
  std::int64_t nearest_row = -1, nearest_col = -1;  // .. and the first that differs; -1 where only a digest is known
};

// Called after each candidate with the number done and the number of all; returns false to stop.
using Progress = std::function<bool(int done, int all)>;

// params.d holds the recorded result; it is only read. A corner of it rules most candidates out; what is left is
// compared whole. Candidates are shared out among the threads; progress is called on this one.
Fit fit(const gemm::Params& params, const std::vector<gemm::Plan>& plans, const Progress& progress = {});
Fit fit(const gemm::TensorCoreParams& params, const std::vector<gemm::Plan>& plans, const Progress& progress = {});

// Where only a digest was recorded: `is_it` judges a candidate's result, which has the strides of params.d. It is called
// on several threads at once.
using Judge = std::function<bool(const void* d)>;
Fit fit(const gemm::Params& params, const std::vector<gemm::Plan>& plans, const Judge& is_it,
        const Progress& progress = {});
Fit fit(const gemm::TensorCoreParams& params, const std::vector<gemm::Plan>& plans, const Judge& is_it,
        const Progress& progress = {});

}  // namespace step_oracle::plan
