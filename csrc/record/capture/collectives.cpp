// Collectives: the op is the launch; the digest of what it brought is taken when it is seen to be complete.
//
// The recorder does not wait for a collective of host tensors: that would order what the program did not order, and some
// of gloo's Works copy their result again at each wait(). It asks whether the collective is complete when an op touches
// its outputs, and at the end; a program's own wait() tells it too, because some Works never say that they are complete. For device tensors completion is a matter of
// streams, so the recorder lets the current stream wait (Work::wait), counts that, and the summary says so.
#include <ATen/core/ivalue.h>
#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <algorithm>

#include "csrc/record/capture/recording_call.h"

namespace step_oracle::capture {
namespace {

std::string reduce_name(c10d::ReduceOp::RedOpType op) {
  switch (op) {
    case c10d::ReduceOp::SUM: return "sum";
    case c10d::ReduceOp::AVG: return "avg";
    case c10d::ReduceOp::PRODUCT: return "product";
    case c10d::ReduceOp::MIN: return "min";
    case c10d::ReduceOp::MAX: return "max";
    case c10d::ReduceOp::BAND: return "band";
    case c10d::ReduceOp::BOR: return "bor";
    case c10d::ReduceOp::BXOR: return "bxor";
    case c10d::ReduceOp::PREMUL_SUM: return "premul_sum";
    default: return "unused";
  }
}

// "c10d::_allgather_base_" -> "allgather_base"
std::string kind_of(const std::string& name) {
  std::string kind = name.substr(name.find("::") + 2);
  while (!kind.empty() && kind.front() == '_') kind.erase(0, 1);
  while (!kind.empty() && kind.back() == '_') kind.pop_back();
  return kind;
}

// Whoever waits on the future goes on a moment before gloo marks the Work itself.
bool is_complete(c10d::Work& work, bool on_host) {
  if (work.isCompleted()) return true;
  if (!on_host) return false;  // a device's future is complete once it is enqueued
  try {
    const auto future = work.getFuture();
    return future && future->completed() && !future->hasError();
  } catch (const std::exception&) {  // a backend without futures
    return false;
  }
}

template <class T>
c10::intrusive_ptr<T> custom(const c10::IValue& v) {
  try {
    return v.toCustomClass<T>();
  } catch (const c10::Error&) {
    return {};
  }
}

}  // namespace

void Recording::describe_collective(Call& call) {
  if (!call.info.collective && !(call.info.functional_collective && !call.info.wait_tensor)) return;
  auto out = std::make_unique<rec::CollectiveT>();
  out->kind = kind_of(call.info.name);
  const std::size_t count = call.info.arguments;
  const c10::ArrayRef<c10::IValue> args(call.stack->data() + call.stack->size() - count, count);
  out->async = call.info.functional_collective;
  std::int64_t size = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const auto& name = call.op.schema().arguments()[i].name();
    const auto& v = args[i];
    if (name == "async_op" && v.isBool()) out->async = v.toBool();
    if ((name == "root_rank" || name == "src" || name == "dst") && v.isInt()) out->root = static_cast<int>(v.toInt());
    if (name == "reduce_op" && v.isString()) out->reduce = v.toStringRef();
    if (name == "group_size" && v.isInt()) size = v.toInt();
    if (name == "group_name" && v.isString()) out->group = v.toStringRef();
    if (!v.isCustomClass()) continue;
    if (name == "process_group") {
      if (const auto group = custom<c10d::ProcessGroup>(v)) {
        out->group = group->getGroupName();
        size = group->getSize();
      }
    } else if (name == "reduce_op") {
      if (const auto op = custom<c10d::ReduceOp>(v)) out->reduce = reduce_name(op->op_);
    }
  }
  for (int rank = 0; rank < size; ++rank) out->ranks.push_back(rank);
  if (call.info.name == "c10d::allreduce_" && !call.uses.empty() && call.uses[0].storage != nullptr) {
    const auto found = buckets_.find(call.uses[0].storage->id);
    if (found != buckets_.end()) {
      auto& bucket = found->second;
      if (bucket.index < 0 && !ddp_modules_.empty()) bucket.index = next_bucket_++;
      out->bucket = bucket.index;
      for (const auto& [offset, part] : bucket.parts) {
        out->bucket_parameters.push_back(part.first);
        out->bucket_sizes.push_back(part.second);
      }
    }
  }
  call.record->collective = std::move(out);
}

// Gradients that an accumulation (or DDP's hook behind it) puts into a storage: a bucket, if it is reduced later.
void Recording::note_gradients(Call& call) {
  const auto name = parameters_.find(call.accumulates);
  if (name == parameters_.end()) return;
  for (const auto& use : call.uses)
    if (use.declared && use.storage != nullptr)
      buckets_[use.storage->id].parts[use.tensor->storage_offset()] = {name->second, use.tensor->numel()};
}

void Recording::ddp_module(const std::string* name) {
  const Locked lock(mutex_);
  ddp_modules_.insert(name);
}

void Recording::ddp_forward() {
  const Locked lock(mutex_);
  next_bucket_ = 0;
  for (auto& [storage, bucket] : buckets_) bucket.index = -1;
}

void Recording::launch(Call& call) {
  auto flight = std::make_shared<InFlight>();
  flight->ticket = call.ticket();
  flight->work = call.work;
  flight->op = call.info.name;
  const auto begin = [&](std::uint32_t index, const at::Tensor& t, StorageState* s) {
    auto& tensor = *call.record->tensors[index];
    if (s == nullptr) {
      tensor.after_state = rec::DigestState::Unreadable;
      return;
    }
    tensor.after_state = rec::DigestState::Pending;
    s->in_flight = call.ticket() + 1;
    s->digests.clear();
    flight->on_host &= s->direct;
    flight->outputs.emplace_back(index, t);
  };
  for (std::size_t i = 0; i < call.uses.size(); ++i) {
    auto& use = call.uses[i];
    if (!use.writes()) continue;
    call.record->tensors[i]->undeclared = use.undeclared;
    begin(static_cast<std::uint32_t>(i), use.kept, use.storage);
  }
  for (std::size_t i = 0; i < call.results.size(); ++i) {
    const auto index = static_cast<std::uint32_t>(call.uses.size() + i);
    auto tensor = std::make_unique<rec::TensorT>();
    StorageState* s = describe(call.results[i], *tensor, call.ticket(), true);
    tensor->created = true;
    call.record->tensors[index] = std::move(tensor);
    begin(index, call.results[i], s);
  }
  if (flight->outputs.empty()) return;
  flights_.push_back(std::move(flight));
  ++flights_pending_;
}

// Before the lock: which collectives that this op touches are complete. A Work may be Python's, so it is asked without
// the mutex.
void Recording::find_completed(Call& call) {
  if (flights_pending_.load() == 0 || call.info.wait_tensor) return;
  std::vector<std::shared_ptr<InFlight>> touched;
  {
    const Locked lock(mutex_);
    for (const auto& use : call.uses) {
      if (!use.tensor->has_storage() || is_wrapper(*use.tensor)) continue;
      const auto* s = storages_.find(*use.tensor->storage().unsafeGetStorageImpl());
      if (s == nullptr || s->in_flight == 0) continue;
      for (const auto& flight : flights_)
        if (flight->ticket == s->in_flight - 1 && flight->work &&
            std::find(touched.begin(), touched.end(), flight) == touched.end())
          touched.push_back(flight);
    }
  }
  for (auto& flight : touched) {
    bool done = flight->waited || is_complete(*flight->work, flight->on_host);
    if (!done && !flight->on_host) {
      flight->work->wait();
      ++waits_;
      done = true;
    }
    if (done) call.done.push_back(flight);
  }
}

// Under the mutex.
void Recording::settle(InFlight& flight, std::uint64_t ticket, bool finished) {
  const auto it = std::find_if(flights_.begin(), flights_.end(), [&](const auto& f) { return f.get() == &flight; });
  if (it == flights_.end()) return;  // another thread was first
  const std::shared_ptr<InFlight> alive = *it;
  flights_.erase(it);
  --flights_pending_;
  rec::SettledT settled;
  settled.op = flight.ticket;
  settled.ticket = ticket;
  std::vector<Blank> blanks;
  for (auto& [index, tensor] : flight.outputs) {
    auto out = std::make_unique<rec::SettledTensorT>();
    out->index = index;
    StorageState* s = storages_.find(*tensor.storage().unsafeGetStorageImpl());
    if (s != nullptr && s->in_flight == flight.ticket + 1) s->in_flight = 0;
    if (s == nullptr || !finished) {
      out->state = rec::DigestState::Unreadable;
    } else {
      storages_.after_write(*s, Geometry::of(tensor.sizes(), tensor.strides(), tensor.storage_offset(),
                                             static_cast<std::int64_t>(tensor.itemsize())), true);
      out->state = ask(blanks, settled.tensors.size(), Blank::kOnly, tensor, s, options_.keep == Keep::kAll);
    }
    settled.tensors.push_back(std::move(out));
  }
  outbox_->put(std::move(settled), std::move(blanks));
}

void Recording::waits(const c10d::Work* work, bool begins) {
  const Locked lock(mutex_);
  for (auto& flight : flights_) {
    if (flight->work.get() != work) continue;
    flight->waiting = begins;
    flight->waited |= !begins;
  }
}

// Some of gloo's Works copy their result within wait(): those ops are the collective's own.
bool Recording::program_waits(const StorageState& s) const {
  return std::any_of(flights_.begin(), flights_.end(),
                     [&](const auto& f) { return f->waiting && f->ticket + 1 == s.in_flight; });
}

// wait_tensor came back: its argument has arrived.
void Recording::arrived(Call& call) {
  for (auto& use : call.uses) {
    if (use.storage == nullptr || use.storage->in_flight == 0) continue;
    for (const auto& flight : flights_)
      if (flight->ticket == use.storage->in_flight - 1) {
        settle(*flight, call.ticket(), true);
        break;
      }
  }
}

void Recording::finish_flights() {
  std::vector<std::shared_ptr<InFlight>> left;
  {
    const Locked lock(mutex_);
    left = flights_;
  }
  for (auto& flight : left) {
    bool done = false;
    if (flight->work) {
      done = flight->waited || is_complete(*flight->work, flight->on_host);
      if (!done && !flight->on_host) {
        flight->work->wait();
        ++waits_;
        done = true;
      }
    }
    if (!done)
      event(rec::EventKind::Note, fmt::format("The collective of op {} ({}) had not finished when the recording ended: "
                                              "what it brought is not digested.", flight->ticket, flight->op));
    const Locked lock(mutex_);
    settle(*flight, tickets_.load(), done);
    flush_cards();
  }
}

}  // namespace step_oracle::capture
