// Matrix units by name: what one instruction of a card, a CPU or another maker's accelerator adds, chained over k.
//
// Shapes    D[m, n] = C[m, n] + sum over k of A[m, k] B[k, n], all row-major and dense; A and B hold values of the
// unit's
//           factor types, widened to float32; C (or +0) and D float32.
// Order     one accumulator an output, k ascending in steps of the unit's terms, the last step filled up with zeros.
//           Which kernel a library takes, and how that one cuts k, is a plan, not a unit.
// Rounding  see `arithmetic` of each row in units.cpp.
// NaN       NVIDIA units: 0x7fffffff. Others: 0x7fc00000, canonicalised here; the pattern that the hardware gives is
// not
//           stated.
// Errors    an unknown name, a factor that the unit's type does not hold: kBadInput.
// Source    named by each row. Evidence: docs/evidence.md, rows gemm units.
#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

namespace step_oracle::gemm {

enum class UnitFactors { kBf16, kFp16, kTf32, kF32, kE4m3, kE5m2, kE4m3Fnuz, kE5m2Fnuz };

struct MatrixUnit {
  const char* name;  // maker, architecture, type
  UnitFactors a, b;
  int terms;               // products a step
  const char* arithmetic;  // in words
  const char* grade;       // docs/evidence.md
  const char* source;
};

const std::vector<MatrixUnit>& all_units();
// Throws kBadInput, naming the known units.
const MatrixUnit& unit_by_name(std::string_view name);

// c may be null (+0) and may be d.
struct UnitParams {
  std::int64_t m = 0, n = 0, k = 0;
  const float* a = nullptr;
  const float* b = nullptr;
  const float* c = nullptr;
  float* d = nullptr;
};
void run(const MatrixUnit& unit, const UnitParams& params);

// One step: acc + the sum of a[i] b[i] for i < unit.terms.
float step(const MatrixUnit& unit, const float* a, const float* b, float acc);

}  // namespace step_oracle::gemm
