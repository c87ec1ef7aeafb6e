// A sweep: a function of the product over every input, beside the same results from an independent route.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "tests/exhaustive/vendor.h"

namespace step_oracle::exhaustive {

constexpr int kBlock = 1 << 16;  // inputs computed at a time

// Writes the results of the inputs [first, first + n), n <= kBlock, `size` bytes each: the product's and the expected
// (want may be null: the product's alone).
using Run = void (*)(const struct Sweep& sweep, std::uint64_t first, int n, void* got, void* want);

struct Sweep {
  std::string name;
  const char* against;  // what the expected results are computed with
  std::uint64_t inputs;
  int size;  // bytes of a result
  Run run;
  const void* row;  // of the table that made it
  bool vendor;      // whether `run` calls the vendor's functions
};

void add_functions(std::vector<Sweep>& all);  // float32 functions, 2^32 inputs
void add_halves(std::vector<Sweep>& all);     // 16-bit unary and binary operators

}  // namespace step_oracle::exhaustive
