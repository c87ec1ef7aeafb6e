#include "csrc/oracle/program/generators.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <fmt/format.h>

#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

#include "csrc/kernels/core/error.h"
#include "csrc/oracle/device/device.h"
#include "csrc/oracle/program/op_rules.h"
#include "csrc/oracle/program/value.h"

namespace step_oracle::program {
namespace {

using State = std::vector<std::uint8_t>;

State state_of(const at::Generator& generator) {
  const at::Tensor state = generator.get_state();
  const auto* p = static_cast<const std::uint8_t*>(state.const_data_ptr());
  return {p, p + state.nbytes()};
}

void set_state(at::Generator& generator, const State& state) {
  at::Tensor t = at::detail::empty_cpu({static_cast<std::int64_t>(state.size())}, at::kByte, std::nullopt, std::nullopt,
                                       std::nullopt, std::nullopt);
  std::memcpy(t.mutable_data_ptr(), state.data(), state.size());
  generator.set_state(t);
}

std::string hex(const State& state) {
  std::string out;
  for (auto b : state) out += fmt::format("{:02x}", b);
  return out;
}

// `see` gets each generator of a card with what is recorded of it, locked.
template <class See>
void each_of_a_card(const rec::OpT& op, See see) {
  for (const auto& g : op.generators) {
    if (!on_card(g->device)) continue;
    at::Generator generator = device::default_generator(mapped_device(g->device).index());
    std::lock_guard<std::mutex> lock(generator.mutex());
    see(*g, generator);
  }
}

}  // namespace

std::uint64_t Generators::set(const rec::OpT& op, std::uint64_t index) {
  std::uint64_t inputs = 0;
  each_of_a_card(op, [&](const rec::GeneratorUseT& g, at::Generator& generator) {
    if (g.before.size() != 16)
      throw Error(ErrorKind::kCorrupt,
                  fmt::format("op {}: a card's generator state has {} bytes, not 16", index, g.before.size()));
    // Between two ops only the program's owner moves a generator (manual_seed, set_rng_state): an input of the program.
    const bool input = seen_.insert(g.device).second || state_of(generator) != g.before;
    if (op_local_ || input) set_state(generator, g.before);
    inputs += input;
  });
  return inputs;
}

void check_generators(const rec::OpT& op,
                      const std::function<void(std::string expected, std::string actual)>& differs) {
  each_of_a_card(op, [&](const rec::GeneratorUseT& g, at::Generator& generator) {
    const State state = state_of(generator);
    if (state == g.after) return;
    differs(hex(g.after), hex(state));
    set_state(generator, g.after);
  });
}

std::function<void()> rewinding(const rec::OpT& op) {
  std::vector<std::pair<at::Generator, State>> before;
  each_of_a_card(op, [&](const rec::GeneratorUseT&, at::Generator& generator) {
    before.emplace_back(generator, state_of(generator));
  });
  return [before = std::move(before)]() mutable {
    for (auto& [generator, state] : before) {
      std::lock_guard<std::mutex> lock(generator.mutex());
      set_state(generator, state);
    }
  };
}

}  // namespace step_oracle::program
