// Where an op stands: phase, module, autograd node, generator.
#include <ATen/Context.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include "csrc/record/capture/recording_call.h"

namespace step_oracle::capture {

ThreadPlace& thread_place() {
  static thread_local ThreadPlace place;
  return place;
}

namespace {

std::uint64_t owner_key(std::uint64_t thread, std::int64_t sequence) {
  return thread << 48 ^ static_cast<std::uint64_t>(sequence);
}

}  // namespace

void Recording::begin_thread() {
  auto& place = thread_place();
  place.session = session_;
  place.number = threads_.fetch_add(1);
  place.owned = newest_sequence();
  place.modules.clear();
}

void Recording::enter_module(const std::string* name) {
  if (thread_place().session != session_) begin_thread();
  thread_place().modules.push_back(name);
}

void Recording::leave_module(const std::string* name) {
  auto& place = thread_place();
  if (place.session != session_) return;
  for (auto i = place.modules.size(); i-- > 0;)
    if (place.modules[i] == name) return place.modules.resize(i);
}

std::string Recording::module() const {
  const auto& place = thread_place();
  return place.session == session_ && !place.modules.empty() ? *place.modules.back() : std::string();
}

const std::string* Recording::intern(const std::string& name) {
  const Locked lock(mutex_);
  return &*strings_.insert(name).first;
}

void Recording::locate(Call& call) {
  auto& place = thread_place();
  if (place.session != session_) begin_thread();
  auto& record = *call.record;
  record.thread = place.number;
  if (!place.modules.empty()) call.module = place.modules.back();
  // The first op seen with a new number is the one whose node took it.
  const std::int64_t newest = newest_sequence();
  if (newest > place.owned) {
    place.owned = newest;
    call.sequence = newest;
    record.sequence = newest;
  }
  const auto node = torch::autograd::get_current_node();
  if (node) {
    record.node = node->name();  // may take the GIL: never under the mutex
    if (node->sequence_nr() != kNoSequence) {
      record.node_sequence = static_cast<std::int64_t>(node->sequence_nr());
      call.node_thread = static_cast<std::int64_t>(node->thread_id());
    } else if (const auto* leaf = dynamic_cast<const torch::autograd::AccumulateGrad*>(node.get())) {
      call.accumulates = leaf->variable.unsafeGetTensorImpl();
    }
    const bool again = c10::GradMode::is_enabled() && creating_graph_.load() == 0;
    record.phase = again ? rec::Phase::Recompute : rec::Phase::Backward;
  } else if (in_optimizer_.load() > 0) {
    record.phase = rec::Phase::Optimizer;
  } else if (call.module != nullptr || call.sequence >= 0) {
    record.phase = rec::Phase::Forward;
  }
}

// Under the mutex: the forward op and the module that a node belongs to.
void Recording::link(Call& call) {
  auto& record = *call.record;
  if (record.node_sequence >= 0) {
    const auto it = owners_.find(owner_key(static_cast<std::uint64_t>(call.node_thread), record.node_sequence));
    if (it != owners_.end()) {
      if (call.module == nullptr) call.module = it->second;
    } else {
      record.node_sequence = -1;  // a node from before the recording
    }
  }
  if (call.module != nullptr) record.module_ = *call.module;
  if (call.sequence >= 0) owners_[owner_key(at::RecordFunction::currentThreadId(), call.sequence)] = call.module;
}

void Recording::look_up_generator(Call& call) {
  if (!call.info.random) return;
  if (!call.generator.defined()) {
    c10::Device device(c10::kCPU);
    bool found = false;
    for (const auto& use : call.uses)
      if (!found || device.is_cpu()) device = use.tensor->device(), found = true;
    if (!found) {
      const auto& args = call.record->args;
      for (const auto& v : args)
        if (v->kind == rec::ValueKind::Device) device = c10::Device(v->text);
    }
    if (device.type() == c10::kMeta) return;
    try {
      call.generator = at::globalContext().defaultGenerator(device);
    } catch (const c10::Error&) {
      return;  // a device without a generator
    }
  }
  if (options_.cuda && call.generator.device().is_cuda()) refuse_capture(call.generator.device().index(), call.info.name);
  auto use = std::make_unique<rec::GeneratorUseT>();
  use->device = call.generator.device().str();
  read_generator(call.generator, use->before, use->before_digest);
  call.record->generators.push_back(std::move(use));
}

void Recording::read_generator(const at::Generator& generator, std::vector<std::uint8_t>& bytes, Digest& digest) {
  constexpr std::size_t kShort = 16;  // CUDA's Philox: seed and offset
  const OwnCalls own;
  at::Tensor state;
  {
    at::Generator g = generator;
    std::lock_guard lock(g.mutex());
    state = g.get_state();
  }
  const auto* data = static_cast<const std::uint8_t*>(state.const_data_ptr());
  const std::size_t size = state.nbytes();
  digest = blake3(data, size);
  if (size <= kShort) {
    bytes.assign(data, data + size);
  } else if (options_.keep != Keep::kDigests && !sink_->has_blob(digest)) {
    const std::int64_t length = static_cast<std::int64_t>(size), step = 1;
    keep_bytes(digest, {data, {&length, 1}, {&step, 1}, 1});
  }
}

}  // namespace step_oracle::capture
