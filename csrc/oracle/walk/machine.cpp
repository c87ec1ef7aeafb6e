#include "csrc/oracle/walk/machine.h"

#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <optional>

#include "csrc/kernels/core/error.h"
#include "csrc/oracle/device/device.h"
#include "csrc/oracle/device/noise.h"
#include "csrc/oracle/program/scopes.h"
#include "csrc/oracle/program/switches.h"
#include "csrc/oracle/program/value.h"

namespace step_oracle::walk {
namespace {

c10::Storage blank(bool card, std::size_t nbytes) {
  c10::Allocator* allocator = card ? device::allocator() : c10::GetAllocator(c10::kCPU);
  return c10::Storage(c10::Storage::use_byte_size_t(), nbytes, allocator->allocate(nbytes), allocator, true);
}

at::Tensor over(const c10::Storage& storage, const Geometry& g) {
  const bool card = storage.device().type() == device::kOracle;
  if (bytes_of(g) > storage.nbytes())
    throw Error(ErrorKind::kBadInput, fmt::format("a tensor needs {} bytes of a storage of {}", bytes_of(g), storage.nbytes()));
  auto t = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(storage), c10::DispatchKeySet(card ? c10::DispatchKey::PrivateUse1 : c10::DispatchKey::CPU),
      c10::scalarTypeToTypeMeta(program::scalar_type(g.dtype)));
  auto* impl = t.unsafeGetTensorImpl();
  impl->set_storage_offset(g.offset);
  impl->set_sizes_and_strides(g.sizes, g.strides);
  if (g.wrapped) impl->set_wrapped_number(true);
  return t;
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

bool same_strides(const at::Tensor& t, const Geometry& g) {
  for (std::int64_t d = 0; d < t.dim(); ++d)
    if (t.size(d) > 1 && t.stride(d) != g.strides[static_cast<std::size_t>(d)]) return false;
  return true;
}

class Runner {
 public:
  Runner(Program& program, const Step& step) : program_(program), step_(step), storages_(program.slots.size()) {}

  Outcome run() {
    const c10::OptionalDeviceGuard guard(c10::Device(device::kOracle, 0));
    enter();
    for (index_ = 0; index_ < program_.ops.size(); ++index_) {
      if (step_.between_ops && index_ % 16 == 0) step_.between_ops();
      const Op& op = program_.ops[index_];
      call(op);
      release(op);
    }
    Outcome out;
    for (const auto& [name, use] : program_.state) out.state.emplace(name, tensor(use));
    if (program_.loss) out.loss = tensor(*program_.loss);
    return out;
  }

  std::string where() const {
    return index_ < program_.ops.size() ? fmt::format("op {} ({})", index_, rec::display_name(program_.ops[index_].record))
                                        : std::string("the program's state");
  }

 private:
  at::Tensor tensor(const Use& u) const { return over(storages_[u.slot].value(), u.geometry); }

  void enter() {
    index_ = program_.ops.size();
    for (const auto& [key, places] : program_.terms) {
      const auto it = step_.terms.find(key);
      if (it == step_.terms.end()) throw Error(ErrorKind::kBadInput, fmt::format("the program needs the term '{}', which nothing computes", key));
      for (rec::ValueT* v : places) std::memcpy(&v->i, &it->second, 8);
    }
    for (std::size_t i = 0; i < program_.slots.size(); ++i) {
      const Slot& s = program_.slots[i];
      switch (s.kind) {
        case SlotKind::kState: storages_[i] = given(step_.state, s, "state").storage(); break;
        case SlotKind::kBatch: fill(i, given(step_.batch, s, "batch").const_data_ptr(), s.nbytes); break;
        case SlotKind::kBytes: fill(i, s.bytes.data(), s.nbytes); break;
        case SlotKind::kTerm: fill(i, &step_.terms.at(s.name), s.nbytes); break;
        case SlotKind::kMade: break;
      }
    }
  }

  static const at::Tensor& given(const Tensors& from, const Slot& s, const char* what) {
    const auto it = from.find(s.name);
    if (it == from.end()) throw Error(ErrorKind::kBadInput, fmt::format("the program reads the {} '{}', which is not there", what, s.name));
    const at::Tensor& t = it->second;
    const bool card = t.device().type() == device::kOracle;
    const bool batch = s.kind == SlotKind::kBatch;
    if (t.scalar_type() != program::scalar_type(s.geometry.dtype) || t.sizes() != at::IntArrayRef(s.geometry.sizes) ||
        !same_strides(t, s.geometry) || t.storage_offset() != 0 || (batch ? card : card != s.card) || t.storage().nbytes() < s.nbytes)
      throw Error(ErrorKind::kBadInput,
                  fmt::format("the {} '{}' is {}[{}] on {}, and the program's is {}[{}] on the {}", what, s.name,
                              c10::toString(t.scalar_type()), fmt::join(t.sizes(), ","), t.device().str(),
                              rec::name_of(s.geometry.dtype), fmt::join(s.geometry.sizes, ","), s.card ? "card" : "host"));
    return t;
  }

  void fill(std::size_t slot, const void* bytes, std::size_t n) {
    storages_[slot] = blank(program_.slots[slot].card, n);
    if (n) std::memcpy(storages_[slot]->mutable_data(), bytes, n);
  }

  void call(const Op& op) {
    torch::jit::Stack stack;
    const program::Resolver resolver{[&](std::size_t i) { return tensor(op.uses.at(i)); },
                                     [](const std::string&) { return device::default_generator(0); }};
    const auto& arguments = op.handle->schema().arguments();
    for (std::size_t i = 0; i < arguments.size(); ++i)
      stack.push_back(program::to_ivalue(*op.record.args[i], arguments[i].type(), resolver));
    {
      std::optional<device::NoiseScope> noise;  // not for every op: it costs a pass over what the op takes
      if (op.leaves_noise) noise.emplace();
      op.handle->callBoxed(stack);
    }
    std::size_t result = 0;
    for (const c10::IValue& v : stack) adopt(op, v, result);
    if (result != op.results.size())
      throw Error(ErrorKind::kBadInput, fmt::format("{} has {} results, and the program states {}", where(), result, op.results.size()));
  }

  void adopt(const Op& op, const c10::IValue& v, std::size_t& result) {
    if (v.isList() || v.isTuple()) {
      const auto each = [&](const auto& items) {
        for (const c10::IValue& item : items) adopt(op, item, result);
      };
      return v.isList() ? each(v.toListRef()) : each(v.toTupleRef().elements());
    }
    if (!v.isTensor()) return;
    const std::size_t i = result++;
    const at::Tensor& t = v.toTensor();
    if (i >= op.results.size() || !op.results[i]) return;
    const Slot& s = program_.slots[*op.results[i]];
    if (!t.defined() || t.scalar_type() != program::scalar_type(s.geometry.dtype) || t.sizes() != at::IntArrayRef(s.geometry.sizes) ||
        !same_strides(t, s.geometry) || t.storage_offset() != 0 || (t.device().type() == device::kOracle) != s.card)
      throw Error(ErrorKind::kBadInput,
                  fmt::format("result {} of {} is {}, and the program states {}[{}] with strides [{}] on the {}", i, where(),
                              t.defined() ? fmt::format("{}[{}] with strides [{}] on {}", c10::toString(t.scalar_type()),
                                                        fmt::join(t.sizes(), ","), fmt::join(t.strides(), ","), t.device().str())
                                          : std::string("nothing"),
                              rec::name_of(s.geometry.dtype), fmt::join(s.geometry.sizes, ","), fmt::join(s.geometry.strides, ","),
                              s.card ? "card" : "host"));
    storages_[*op.results[i]] = t.storage();
    if (!s.card && op.leaves_noise && !draws(op))  // the card's is noise from the start
      device::fill_with_noise(storages_[*op.results[i]]->mutable_data(), s.nbytes);
  }

  static bool draws(const Op& op) {
    const auto& arguments = op.handle->schema().arguments();
    for (std::size_t i = 0; i < arguments.size(); ++i)
      if (arguments[i].name() == "dropout_p")
        return op.record.args[i]->kind != rec::ValueKind::Float || rec::float_of(*op.record.args[i]) != 0.0;
    return false;
  }

  // What no later op uses is given back at once: memory stays near the live set.
  void release(const Op& op) {
    for (const Use& u : op.uses)
      if (program_.slots[u.slot].last_use <= index_) storages_[u.slot].reset();
    for (const auto& r : op.results)
      if (r && program_.slots[*r].last_use <= index_) storages_[*r].reset();
  }

  Program& program_;
  const Step& step_;
  std::vector<std::optional<c10::Storage>> storages_;
  std::size_t index_ = 0;
};

}  // namespace

Outcome run(Program& program, const Step& step) {
  const program::OneReplay one;
  std::vector<std::unique_ptr<rec::FieldT>> switches;
  for (const auto& [key, value] : step.switches) {
    switches.push_back(std::make_unique<rec::FieldT>());
    switches.back()->key = key, switches.back()->value = value;
  }
  const program::SwitchScope scope(switches);
  const aten::ChoiceScope choices(step.choices);
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  Runner runner(program, step);
  try {
    Outcome out = runner.run();
    out.taken = choices.times();
    return out;
  } catch (const Error& e) {
    throw Error(e.kind(), fmt::format("{}: {}", runner.where(), e.what()));
  } catch (const c10::ValueError& e) {
    throw Error(ErrorKind::kBadInput, fmt::format("{}: {}", runner.where(), first_line(e.what_without_backtrace())));
  } catch (const c10::Error& e) {
    throw Error(ErrorKind::kUnsupported, fmt::format("{}: {}", runner.where(), first_line(e.what_without_backtrace())));
  } catch (const std::bad_alloc&) {
    throw Error(ErrorKind::kUnsupported, fmt::format("{}: this machine has too little memory for it", runner.where()));
  }
}

}  // namespace step_oracle::walk
