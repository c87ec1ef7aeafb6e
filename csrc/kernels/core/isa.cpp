#include "csrc/kernels/core/isa.h"

#include <atomic>
#include <cstdlib>

#include <fmt/format.h>

#include "csrc/kernels/core/error.h"

namespace step_oracle {
namespace {

bool cpu_runs(Isa isa) {
#if defined(__x86_64__)
  switch (isa) {
    case Isa::avx512:
      return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") && cpu_runs(Isa::avx2);
    case Isa::avx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2") &&
             __builtin_cpu_supports("f16c");
    default:
      return true;
  }
#else
  (void)isa;
  return true;
#endif
}

std::string names(const std::vector<Isa>& isas) {
  std::string out;
  for (Isa isa : isas) out += (out.empty() ? "" : ", ") + std::string(isa_name(isa));
  return out;
}

Isa checked(Isa isa) {
  if (!cpu_runs(isa))
    throw Error(ErrorKind::kBadInput, fmt::format("this CPU cannot run the instruction set '{}'; it runs: {}",
                                                  isa_name(isa), names(usable_isas())));
  return isa;
}

Isa initial() {
  const char* wanted = std::getenv("STEP_ORACLE_ISA");
  return wanted && *wanted ? checked(isa_from_name(wanted)) : usable_isas().back();
}

std::atomic<int>& active() {
  static std::atomic<int> isa{static_cast<int>(initial())};
  return isa;
}

}  // namespace

const std::vector<Isa>& compiled_isas() {
  static const std::vector<Isa> all{
#define SO_X(isa) Isa::isa,
      SO_FOR_EACH_ISA(SO_X)
#undef SO_X
  };
  return all;
}

std::vector<Isa> usable_isas() {
  std::vector<Isa> out;
  for (Isa isa : compiled_isas())
    if (cpu_runs(isa)) out.push_back(isa);
  return out;
}

Isa active_isa() { return static_cast<Isa>(active().load(std::memory_order_relaxed)); }

void set_active_isa(Isa isa) { active().store(static_cast<int>(checked(isa))); }

const char* isa_name(Isa isa) {
  switch (isa) {
#define SO_X(name) \
  case Isa::name:  \
    return #name;
    SO_FOR_EACH_ISA(SO_X)
#undef SO_X
  }
  return "?";
}

Isa isa_from_name(const std::string& name) {
  for (Isa isa : compiled_isas())
    if (name == isa_name(isa)) return isa;
  throw Error(ErrorKind::kBadInput,
              fmt::format("unknown instruction set '{}'; this build has: {}", name, names(compiled_isas())));
}

}  // namespace step_oracle
