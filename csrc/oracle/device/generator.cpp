// Generators with CUDA's state: a 64-bit seed and a 64-bit Philox offset, a multiple of 4. [src
// aten/src/ATen/cuda/CUDAGeneratorImpl.cpp]
#include <ATen/EmptyTensor.h>
#include <ATen/core/Generator.h>
#include <c10/core/GeneratorImpl.h>

#include <array>
#include <cstring>
#include <mutex>

#include "csrc/kernels/core/error.h"
#include "csrc/oracle/device/device.h"

namespace step_oracle::device {
namespace {

constexpr std::int64_t kStateBytes = 16;

class OracleGenerator final : public c10::GeneratorImpl {
 public:
  explicit OracleGenerator(c10::DeviceIndex index)
      : GeneratorImpl({kOracle, index}, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)) {}

  void set_current_seed(std::uint64_t seed) override {
    state_.seed = seed;
    state_.offset = 0;
  }
  std::uint64_t current_seed() const override { return state_.seed; }
  void set_offset(std::uint64_t offset) override {
    TORCH_CHECK(offset % 4 == 0, "offset must be a multiple of 4");
    state_.offset = offset;
  }
  std::uint64_t get_offset() const override { return state_.offset; }
  std::uint64_t seed() override {
    set_current_seed(c10::detail::getNonDeterministicRandom(/*is_cuda=*/true));
    return state_.seed;
  }

  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    const at::TensorBase bytes = at::detail::empty_cpu({kStateBytes}, at::kByte);
    std::memcpy(bytes.mutable_data_ptr(), &state_, kStateBytes);
    return bytes.getIntrusivePtr();
  }
  void set_state(const c10::TensorImpl& bytes) override {
    at::detail::check_rng_state(bytes);
    // A state of 8 bytes, the seed alone, is one of CUDA's older formats.
    TORCH_CHECK(bytes.numel() == kStateBytes || bytes.numel() == kStateBytes / 2, "RNG state is wrong size: ",
                bytes.numel(), " bytes, and the virtual card's is 16 (seed, offset), as CUDA's");
    Philox read{0, 0};
    std::memcpy(&read, bytes.data(), static_cast<std::size_t>(bytes.numel()));
    set_current_seed(read.seed);
    set_offset(read.offset);
  }

  Philox take(std::uint64_t increment) {
    const Philox start = state_;
    state_.offset += (increment + 3) / 4 * 4;
    return start;
  }

 private:
  OracleGenerator* clone_impl() const override {
    auto* copy = new OracleGenerator(device().index());
    copy->state_ = state_;
    return copy;
  }

  Philox state_{c10::default_rng_seed_val, 0};
};
static_assert(sizeof(Philox) == kStateBytes);

}  // namespace

const at::Generator& default_generator(c10::DeviceIndex index) {
  static std::mutex& mutex = *new std::mutex;
  static auto& generators = *new std::array<at::Generator, kMaxCards>;
  const c10::DeviceIndex i = resolve(index);
  std::lock_guard lock(mutex);
  if (!generators[i].defined()) {
    generators[i] = at::make_generator<OracleGenerator>(i);
    generators[i].seed();  // an unseeded script draws other numbers in every run, as on CUDA
  }
  return generators[i];
}

at::Generator new_generator(c10::DeviceIndex index) { return at::make_generator<OracleGenerator>(resolve(index)); }

Philox take_philox(const at::Generator& generator, std::uint64_t increment) {
  auto* mine = dynamic_cast<OracleGenerator*>(generator.unsafeGetGeneratorImpl());
  if (mine == nullptr) {
    throw Error(ErrorKind::kBadInput, "the generator is of device " + generator.device().str() +
                                          ", and the tensor is of device oracle; make it with "
                                          "torch.Generator(device='oracle')");
  }
  std::lock_guard lock(mine->mutex_);
  return mine->take(increment);
}

}  // namespace step_oracle::device
