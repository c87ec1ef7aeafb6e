// Torch's side of the fake card: device guard, hooks, allocator, a generator, and every op by the host's kernel over the
// same memory. Before an op runs, what the stream still holds runs: the order that a stream gives.
#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/Generator.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/view_native.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <c10/core/Allocator.h>
#include <c10/core/impl/FakeGuardImpl.h>
#include <torch/library.h>

#include <cstdlib>
#include <cstring>
#include <vector>

#include "tests/fake_card/fake_queue.h"

namespace {

const c10::Device kCard(c10::kCUDA, 0);

C10_REGISTER_GUARD_IMPL(CUDA, c10::impl::FakeGuardImpl<c10::DeviceType::CUDA>);

// Seed and offset, as CUDA's: 16 bytes of state.
struct FakeGenerator final : c10::GeneratorImpl {
  FakeGenerator() : c10::GeneratorImpl(kCard, c10::DispatchKeySet(c10::DispatchKey::CUDA)) {}
  void set_current_seed(std::uint64_t seed) override { seed_ = seed; }
  void set_offset(std::uint64_t offset) override { offset_ = offset; }
  std::uint64_t get_offset() const override { return offset_; }
  std::uint64_t current_seed() const override { return seed_; }
  std::uint64_t seed() override { return seed_; }
  void set_state(const c10::TensorImpl&) override {}
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    auto state = at::detail::empty_cpu({16}, c10::kByte, std::nullopt, std::nullopt, std::nullopt, std::nullopt);
    const std::uint64_t words[] = {seed_, offset_};
    std::memcpy(state.mutable_data_ptr(), words, 16);
    return state.getIntrusivePtr();
  }
  FakeGenerator* clone_impl() const override { return new FakeGenerator(*this); }
  std::uint64_t seed_ = 7, offset_ = 0;

 private:
  FakeGenerator(const FakeGenerator& o) : FakeGenerator() { seed_ = o.seed_, offset_ = o.offset_; }
};

struct FakeHooks : at::CUDAHooksInterface {
  explicit FakeHooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    static const at::Generator generator = at::make_generator<FakeGenerator>();
    return generator;
  }
};

void free_in_order(void* p) {
  fake_card::push([p] { std::free(p); });
}

struct FakeAllocator final : c10::Allocator {
  c10::DataPtr allocate(std::size_t n) override {
    void* p = n == 0 ? nullptr : std::aligned_alloc(512, (n + 511) / 512 * 512);
    return {p, p, &free_in_order, kCard};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_in_order; }
  void copy_data(void* to, const void* from, std::size_t n) const override { std::memcpy(to, from, n); }
} g_allocator;

struct Aliases {
  std::vector<std::pair<at::Tensor, at::Tensor>> pairs;  // host alias, the card's tensor
  at::Tensor host(const at::Tensor& t) {
    if (!t.defined() || !t.is_cuda()) return t;
    for (auto& [alias, own] : pairs)
      if (own.is_same(t)) return alias;
    auto alias = at::from_blob(t.numel() == 0 ? nullptr : const_cast<void*>(t.const_data_ptr()), t.sizes(), t.strides(), [](void*) {},
                               t.options().device(c10::kCPU), c10::Device(c10::kCPU));
    return pairs.emplace_back(alias, t).first;
  }
  at::Tensor card(const at::Tensor& t) {
    if (!t.defined()) return t;
    for (auto& [alias, own] : pairs)
      if (alias.is_same(t)) return own;
    return at::from_blob(const_cast<void*>(t.const_data_ptr()), t.sizes(), t.strides(),
                         [t](void*) { fake_card::push([t] {}); }, t.options().device(kCard), kCard);
  }
};

void run_on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  fake_card::drain();
  Aliases aliases;
  const auto count = op.schema().arguments().size();
  bool makes_host = op.schema().name() == "aten::_local_scalar_dense";
  const c10::ArrayRef<c10::IValue> arguments(stack->data() + stack->size() - count, count);
  torch::jit::Stack host(stack->begin(), stack->end() - static_cast<std::ptrdiff_t>(count));
  for (const auto& v : arguments) {
    if (v.isTensor()) {
      host.emplace_back(aliases.host(v.toTensor()));
    } else if (v.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& t : v.toTensorVector()) list.push_back(aliases.host(t));
      host.emplace_back(list);
    } else if (v.isDevice()) {
      host.emplace_back(c10::Device(c10::kCPU));
    } else {
      host.push_back(v);
    }
  }
  {
    const c10::impl::ExcludeDispatchKeyGuard no_autograd(c10::autograd_dispatch_keyset_with_ADInplaceOrView);
    op.callBoxed(&host);
  }
  if (op.schema().name() == "aten::addmm") fake_card::log_line("cublasLtMatmul", "m=2 n=3 algo=[algoId=66 tile=MATMUL_TILE_64x64]");
  torch::jit::drop(*stack, count);
  for (std::size_t i = stack->size(); i < host.size(); ++i) {
    const auto& v = host[i];
    if (v.isTensor() && !makes_host) {
      stack->emplace_back(aliases.card(v.toTensor()));
    } else {
      stack->push_back(v);
    }
  }
}

at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                 std::optional<at::Device>, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(size, &g_allocator, c10::DispatchKeySet(c10::DispatchKey::CUDA),
                                   dtype.value_or(at::kFloat), format);
}
at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(size, stride, &g_allocator, c10::DispatchKeySet(c10::DispatchKey::CUDA),
                                           dtype.value_or(at::kFloat));
}
// Not a distribution: the generator's offset, and how it moves.
at::Tensor& uniform_(at::Tensor& self, double, double, std::optional<at::Generator>) {
  fake_card::drain();
  auto generator = at::globalContext().defaultGenerator(kCard);
  auto* g = generator.get<FakeGenerator>();
  auto* data = static_cast<float*>(self.data_ptr());
  for (std::int64_t i = 0; i < self.numel(); ++i) data[i] = static_cast<float>(g->offset_) + static_cast<float>(i);
  g->offset_ += 4;
  return self;
}

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("uniform_", &uniform_);
  m.impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  m.impl("view", TORCH_FN(at::native::view));
  m.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  for (const char* name : {"copy_", "_copy_from", "_local_scalar_dense"})
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&run_on_host>());
}
TORCH_LIBRARY_IMPL(_, CUDA, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_host>()); }

const bool g_set = [] {
  c10::SetAllocator(c10::kCUDA, &g_allocator, 100);
  return true;
}();

}  // namespace

namespace at {
C10_REGISTER_CLASS(CUDAHooksRegistry, CUDAHooks, FakeHooks)
}
