#include "csrc/record/capture/recording.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <unistd.h>

#include <bit>

#include "csrc/kernels/core/error.h"
#include "csrc/record/capture/recording_call.h"

namespace step_oracle::capture {
namespace {

std::uint64_t next_session() {
  static std::atomic<std::uint64_t> sessions{0};
  return ++sessions;
}

Hashing::Options hashing_options(const RecordingOptions& o) {
  Hashing::Options h;
  h.workers = o.paranoid ? 0 : o.workers;
  return h;
}

Geometry geometry_of(const at::Tensor& t) {
  return Geometry::of(t.sizes(), t.strides(), t.storage_offset(), static_cast<std::int64_t>(t.itemsize()));
}

const std::string kHostDigests = "Digests were taken on the host, which waits for the card at every op. ";

const std::string& device_name(c10::Device device) {
  static thread_local std::vector<std::pair<c10::Device, std::string>> names;
  for (const auto& [d, name] : names)
    if (d == device) return name;
  return names.emplace_back(device, device.str()).second;
}

}  // namespace

at::Tensor on_host(const at::Tensor& t) {
  const OwnCalls own;
  auto host = at::empty(t.sizes(), at::TensorOptions().dtype(t.dtype()).device(c10::kCPU));
  at::Tensor plain = t;
  if (t.is_conj()) plain._set_conj(false);
  return host.copy_(plain);
}

Recording::Recording(std::unique_ptr<Sink> sink, RecordingOptions options)
    : options_(options),
      sink_(std::move(sink)),
      hashing_(std::make_unique<Hashing>(
          hashing_options(options), [this](const Digest& d, const StridedBytes& b) { keep_bytes(d, b); })),
      outbox_(std::make_unique<Outbox>(*sink_, *hashing_)),
      storages_(*hashing_),
      session_(next_session()),
      pid_(getpid()),
      begun_(std::chrono::steady_clock::now()) {
  if (!options_.cuda) return;
  lt_log_ = LtLog::switch_on();
  if (!options_.digests || options_.paranoid || !options_.card_digests) return;
  std::string why;
  cards_ = CardDigests::open(why);
  if (!cards_) event(rec::EventKind::Note, kHostDigests + why);
}

Recording::~Recording() {
  if (getpid() == pid_) {
    if (lt_log_) LtLog::switch_off();
    return;
  }
  // A forked child, where the threads behind these are not: they are left as they are.
  (void)outbox_.release();
  (void)hashing_.release();
  (void)cards_.release();
  (void)sink_.release();
}

void Recording::keep_bytes(const Digest& digest, const StridedBytes& bytes) noexcept {
  {
    std::lock_guard lock(keep_mutex_);
    if (keep_error_) return;
  }
  try {
    sink_->blob(digest, bytes);
  } catch (...) {
    std::lock_guard lock(keep_mutex_);
    if (!keep_error_) keep_error_ = std::current_exception();
  }
}

void Recording::run(const c10::OperatorHandle& op, const OpInfo& info, c10::DispatchKeySet next,
                    torch::jit::Stack* stack) {
  using Clock = std::chrono::steady_clock;
  const auto entered = Clock::now();
  Call call(op, info, stack);
  call.record = std::make_unique<rec::OpT>();
  read_arguments(call);
  if (call.has_meta && !call.has_real) {  // FakeTensor's own work, or tensors without bytes
    ++fakes_;
    op.redispatchBoxed(next, stack);
    return;
  }
  call.record->name = info.name;
  call.record->overload = info.overload;
  call.record->ticket = tickets_.fetch_add(1);
  if (options_.cuda) refuse_capture(call);
  locate(call);
  look_up_generator(call);
  find_completed(call);
  begin(call);
  const auto begun = Clock::now();
  auto ended = begun;
  try {
    std::optional<LtLog> log;
    if (lt_log_) log.emplace(call.log_lines);
    op.redispatchBoxed(next, stack);
    ended = Clock::now();
  } catch (const std::exception& e) {
    const std::string text = e.what();
    finish(call, text.substr(0, text.find('\n')).c_str());
    throw;
  } catch (...) {
    finish(call, "an exception that is not a std::exception");
    throw;
  }
  finish(call, nullptr);
  overhead_ns_.fetch_add(std::chrono::nanoseconds((begun - entered) + (Clock::now() - ended)).count(),
                         std::memory_order_relaxed);
}

void Recording::begin(Call& call) {
  const Locked lock(mutex_);
  auto& record = *call.record;
  for (auto& flight : call.done) settle(*flight, call.ticket(), true);
  call.done.clear();
  if (call.info.session != session_) {
    call.info.session = session_;
    rec::SchemaT schema;
    schema.name = rec::schema_key(record);
    schema.text = fmt::format("{}", c10::str(call.op.schema()));
    outbox_->put(std::move(schema));
  }
  link(call);
  record.tensors.reserve(call.uses.size() + call.info.returns);
  for (std::size_t i = 0; i < call.uses.size(); ++i) {
    auto& use = call.uses[i];
    auto tensor = std::make_unique<rec::TensorT>();
    use.storage = describe(*use.tensor, *tensor, call.ticket(), false);
    tensor->mutated = use.declared;
    record.tensors.push_back(std::move(tensor));
    ask_before(call, i);
  }
  for (auto& [value, storage] : call.storages) {
    Storages::Seen seen;
    value->i = static_cast<std::int64_t>(storages_.of(*storage.unsafeGetStorageImpl(), &seen).id);
  }
  flush_cards();
  describe_collective(call);
  if (call.accumulates != nullptr) note_gradients(call);
  if (call.info.geometry_only) return;
  for (auto& use : call.uses)
    if (use.writes() && use.storage != nullptr) storages_.before_write(*use.storage, geometry_of(*use.tensor));
}

// What stands in the trace of a tensor, and its storage; null where it has no bytes.
StorageState* Recording::describe(const at::Tensor& t, rec::TensorT& out, std::uint64_t ticket, bool made) {
  out.device = device_name(t.device());
  out.dtype = static_cast<rec::DType>(t.scalar_type());
  out.layout = static_cast<rec::Layout>(t.layout());
  out.requires_grad = t.requires_grad();
  out.wrapped_number = t.unsafeGetTensorImpl()->is_wrapped_number();
  const auto sizes = t.is_nested() ? c10::IntArrayRef{} : t.sizes();
  out.sizes.assign(sizes.begin(), sizes.end());
  if (t.layout() != at::kStrided || t.is_nested() || is_wrapper(t) || !t.has_storage()) return nullptr;
  out.strides.assign(t.strides().begin(), t.strides().end());
  out.offset = t.storage_offset();
  out.conj = t.is_conj();
  out.neg = t.is_neg();
  if (t.is_meta()) return nullptr;
  Storages::Seen seen = Storages::Seen::kKnown;
  auto& s = storages_.of(*t.storage().unsafeGetStorageImpl(), &seen);
  out.storage = s.id;
  out.generation = s.generation;
  out.version = s.version;
  if (seen == Storages::Seen::kKnown) return &s;
  if (seen == Storages::Seen::kNew) s.entered = !made;
  announce(s, out.device, ticket);
  if (seen == Storages::Seen::kNew && s.entered) enter(s, t);
  if (storages_.wants_sweep()) {
    storages_.sweep([&](std::uint64_t id) {
      rec::FreedT freed;
      freed.id = id;
      freed.ticket = ticket;
      outbox_->put(std::move(freed));
    });
  }
  return &s;
}

void Recording::announce(const StorageState& s, const std::string& device, std::uint64_t ticket) {
  rec::StorageT storage;
  storage.id = s.id;
  storage.generation = s.generation;
  storage.device = device;
  storage.nbytes = static_cast<std::uint64_t>(s.nbytes);
  storage.first_seen = ticket;
  storage.entered = s.entered && s.generation == 0;
  outbox_->put(std::move(storage));
}

// The whole of a storage that the program did not make, as it was before the program touched it.
void Recording::enter(StorageState& s, const at::Tensor& t) {
  rec::StorageInitT init;
  init.id = s.id;
  init.generation = s.generation;
  const auto view = static_cast<std::int64_t>(t.nbytes());
  std::vector<Blank> blanks;
  if (options_.digests && s.data != nullptr &&
      (s.nbytes <= options_.whole_storage_bytes || s.nbytes / 4 <= view)) {
    const Geometry whole = Geometry::whole(s.nbytes);
    const bool keep = options_.keep != Keep::kDigests;
    SlotPtr slot;
    if (s.direct) {
      slot = storages_.digest(s, whole, keep);
    } else {
      const OwnCalls own;
      const auto elements = s.nbytes / static_cast<std::int64_t>(t.itemsize());
      slot = digest(s, t.as_strided({elements}, {1}, 0), whole, keep);
    }
    init.state = rec::DigestState::Known;
    blanks.push_back({0, Blank::kOnly, std::move(slot)});
    s.kept = keep;
  }
  outbox_->put(std::move(init), std::move(blanks));
}

SlotPtr Recording::digest(StorageState& s, const at::Tensor& t, bool keep) {
  return digest(s, t, geometry_of(t), keep);
}

SlotPtr Recording::digest(StorageState& s, const at::Tensor& t, const Geometry& g, bool keep) {
  if (options_.paranoid) std::erase_if(s.digests, [&](const auto& d) { return d.geometry == g; });
  if (s.direct || g.bytes == 0) return storages_.digest(s, g, keep);
  for (auto& d : s.digests)
    if (d.geometry == g && (!keep || d.slot->keeps())) return d.slot;
  if (cards_ && !keep && t.is_cuda()) {
    const std::int64_t size = g.bytes, step = 1;
    const auto* first = static_cast<const std::byte*>(s.data) + g.first;
    const StridedBytes bytes = g.contiguous() ? StridedBytes{first, {&size, 1}, {&step, 1}, 1}
                                              : StridedBytes{first, g.sizes, g.strides, static_cast<std::size_t>(g.itemsize)};
    if (auto asked = cards_->ask(t.device().index(), bytes)) {
      auto slot = hashing_->submit(g, std::move(*asked));
      s.digests.push_back({g, slot});
      return slot;
    }
  }
  const at::Tensor host = on_host(t);
  auto& storage = *host.storage().unsafeGetStorageImpl();
  auto slot = hashing_->submit(Geometry::whole(g.bytes), storage.data(), hold_of(storage), keep);
  s.digests.push_back({g, slot});
  return slot;
}

rec::DigestState Recording::ask(std::vector<Blank>& blanks, std::size_t index, Blank::Field field, const at::Tensor& t,
                                StorageState* s, bool keep) {
  if (!options_.digests) return rec::DigestState::Absent;
  if (s == nullptr || (s->data == nullptr && t.numel() != 0)) return rec::DigestState::Unreadable;
  const Geometry g = geometry_of(t);
  if (g.low < 0 || g.high > s->nbytes) return rec::DigestState::Unreadable;  // the storage was shrunk under the view
  if (!s->is_written(g)) return rec::DigestState::NeverWritten;
  // expand() can make a view of any size over a few bytes.
  constexpr std::int64_t kMuch = 256ll << 20;
  if (g.bytes > kMuch && g.bytes / 16 > s->nbytes) return rec::DigestState::Absent;
  blanks.push_back({static_cast<std::uint32_t>(index), field, digest(*s, t, g, keep)});
  return rec::DigestState::Known;
}

void Recording::ask_before(Call& call, std::size_t index) {
  auto& use = call.uses[index];
  auto& tensor = *call.record->tensors[index];
  StorageState* s = use.storage;
  if (s != nullptr && s->in_flight != 0 && !call.info.wait_tensor && !call.info.view && !program_waits(*s)) {
    tensor.before_state = rec::DigestState::Unreadable;
    add_event(rec::EventKind::Note, call.ticket(),
              fmt::format("op {} ({}) {} storage {} while the collective of op {} was in flight: what it found there "
                          "depends on timing.",
                          call.ticket(), rec::schema_key(*call.record), use.writes() ? "writes" : "reads", s->id,
                          s->in_flight - 1));
    return;
  }
  if (s != nullptr && s->in_flight != 0) {
    tensor.before_state = rec::DigestState::Pending;
    return;
  }
  const bool keep = options_.keep != Keep::kDigests && s != nullptr && s->entered && !s->kept;
  tensor.before_state = ask(call.blanks, index, Blank::kBefore, *use.tensor, s, keep);
  if (tensor.before_state == rec::DigestState::NeverWritten && ddp_modules_.count(call.module) > 0 && !use.declared) {
    s->filled = true;  // DDP's reducer writes its bucket indices through a pointer
    tensor.before_state = ask(call.blanks, index, Blank::kBefore, *use.tensor, s, keep);
  }
  const bool reads = !call.info.view && !call.info.collective && !call.info.fills_views && !(use.declared && call.info.overwrites);
  if (tensor.before_state == rec::DigestState::NeverWritten && reads) {
    add_event(rec::EventKind::Note, call.ticket(),
              fmt::format("op {} ({}) reads storage {}, which was never written: its bytes are whatever the memory held.",
                          call.ticket(), rec::schema_key(*call.record), s->id));
  }
  if (options_.paranoid) {
    call.before.resize(call.uses.size());
    if (tensor.before_state == rec::DigestState::Known) call.before[index] = call.blanks.back().slot;
  }
}

void Recording::finish(Call& call, const char* error) {
  auto& record = *call.record;
  if (error != nullptr) record.error = error;
  if (!record.generators.empty())
    read_generator(call.generator, record.generators[0]->after, record.generators[0]->after_digest);
  if (error == nullptr) {
    const std::size_t count = call.info.returns;
    const c10::ArrayRef<c10::IValue> results(call.stack->data() + call.stack->size() - count, count);
    for (const auto& v : results) {
      if (v.isCustomClass() && call.info.collective) {
        try {
          call.work = v.toCustomClass<c10d::Work>();
        } catch (const c10::Error&) {  // another class
        }
      }
      record.returns.push_back(result_of(v, call));
    }
    if (call.uses.empty() && !call.results.empty() && call.results[0].is_meta()) {
      ++fakes_;
      return;
    }
  }
  const Locked lock(mutex_);
  if (call.info.wait_tensor) arrived(call);
  if (call.work || (call.info.functional_collective && !call.info.wait_tensor)) {
    launch(call);
  } else {
    write_arguments(call);
    take_results(call);
  }
  if (options_.paranoid) compare(call);
  ++recorded_;
  flush_cards();
  const auto ticket = call.ticket();
  outbox_->put(std::move(call.record), std::move(call.blanks));
  for (auto& line : call.log_lines) {
    rec::PlanT plan;
    plan.op = ticket;
    plan.library = "cublaslt";
    plan.line = std::move(line);
    outbox_->put(std::move(plan));
  }
}

// What was asked of the cards since the last call, on their current streams.
void Recording::flush_cards() {
  if (!cards_) return;
  cards_->flush();
  const std::string trouble = cards_->trouble();
  if (!trouble.empty()) add_event(rec::EventKind::Note, tickets_.load(), kHostDigests + trouble);
}

void Recording::refuse_capture(const Call& call) {
  for (const auto& use : call.uses)
    if (use.tensor->is_cuda()) return refuse_capture(use.tensor->device().index(), call.info.name);
}

void Recording::refuse_capture(c10::DeviceIndex device, const std::string& op) {
  if (is_capturing(device)) {
    incomplete("A CUDA graph was captured inside the recording: its ops did not run.");
    TORCH_CHECK_NOT_IMPLEMENTED(false, "step-oracle: ", op, " runs inside the capture of a CUDA graph, where ops "
                                "are noted down and do not run: record the step without CUDA graphs (torch.cuda.graph, "
                                "torch.compile's mode=\"reduce-overhead\"), or end the recording before the capture.");
  }
}

// A card's program starts from what the host draws too (a batch made on the CPU): a replay cannot draw it again.
bool Recording::keeps_result(const Call& call, const at::Tensor& t) const {
  if (options_.keep != Keep::kState) return options_.keep == Keep::kAll;
  if (!options_.on_card || !call.info.random || !t.is_cpu()) return false;
  const auto& tensors = call.record->tensors;  // the arguments come first
  return std::all_of(tensors.begin(), tensors.begin() + static_cast<std::ptrdiff_t>(call.uses.size()),
                     [](const auto& u) { return u->device == "cpu"; });
}

void Recording::write_arguments(Call& call) {
  if (call.info.geometry_only) return;
  for (std::size_t i = 0; i < call.uses.size(); ++i) {
    auto& use = call.uses[i];
    if (!use.writes() || use.storage == nullptr) continue;
    Storages::Seen seen = Storages::Seen::kKnown;
    use.storage = &storages_.of(*use.kept.storage().unsafeGetStorageImpl(), &seen);
    if (seen == Storages::Seen::kNewGeneration) {  // out= was resized
      auto& tensor = *call.record->tensors[i];
      announce(*use.storage, tensor.device, call.ticket());
      tensor.generation = use.storage->generation;
      tensor.sizes.assign(use.kept.sizes().begin(), use.kept.sizes().end());
      tensor.strides.assign(use.kept.strides().begin(), use.kept.strides().end());
    }
    storages_.after_write(*use.storage, geometry_of(use.kept), true);
  }
  for (std::size_t i = 0; i < call.uses.size(); ++i) {
    auto& use = call.uses[i];
    if (!use.writes()) continue;
    auto& tensor = *call.record->tensors[i];
    tensor.undeclared = use.undeclared;
    tensor.after_state = ask(call.blanks, i, Blank::kAfter, use.kept, use.storage, keeps_result(call, use.kept));
  }
}

void Recording::take_results(Call& call) {
  const bool unfilled = call.info.fills == Fills::kNo;
  for (std::size_t i = 0; i < call.results.size(); ++i) {
    const at::Tensor& t = call.results[i];
    auto tensor = std::make_unique<rec::TensorT>();
    const auto before = storages_.count();
    StorageState* s = describe(t, *tensor, call.ticket(), true);
    tensor->created = true;
    const bool fresh = s != nullptr && s->id > before;
    if (call.info.fills_views && i == 0 && s != nullptr) storages_.after_write(*s, geometry_of(t), true);
    const auto among = [i](const std::vector<std::uint8_t>& list) {
      return std::find(list.begin(), list.end(), i) != list.end();
    };
    const bool noise = call.info.fills == Fills::kByFlags &&
                       (among(call.info.never_filled) || (!call.draws && among(call.info.unfilled)));
    if (fresh && (unfilled || noise))
      s->filled = s->nbytes == 0;
    const std::size_t index = call.uses.size() + i;
    tensor->after_state = s != nullptr && s->in_flight != 0
                              ? rec::DigestState::Pending
                              : ask(call.blanks, index, Blank::kAfter, t, s, keeps_result(call, t));
    call.record->tensors[index] = std::move(tensor);
  }
}

// Paranoid: an argument that no one said would be written is digested again.
void Recording::compare(Call& call) {
  for (std::size_t i = 0; i < call.before.size(); ++i) {
    auto& use = call.uses[i];
    if (call.before[i] == nullptr || use.writes() || use.storage == nullptr || use.storage->in_flight != 0) continue;
    const Digest before = call.before[i]->value();
    SlotPtr after = digest(*use.storage, use.kept, false);
    if (after->value() == before) continue;
    auto& tensor = *call.record->tensors[i];
    bool excused = false;  // another argument over the same storage was written
    for (const auto& other : call.uses) excused |= other.writes() && other.storage == use.storage;
    if (excused) continue;
    tensor.undeclared = true;
    tensor.after_state = rec::DigestState::Known;
    call.blanks.push_back({static_cast<std::uint32_t>(i), Blank::kAfter, after});
    add_event(rec::EventKind::Note, call.ticket(),
              fmt::format("op {} ({}) wrote its tensor {} and its schema does not say so.", call.ticket(),
                          rec::schema_key(*call.record), i));
  }
}

void Recording::add_event(rec::EventKind kind, std::uint64_t ticket, std::string text, std::int64_t value) {
  if (!outbox_) throw Error(ErrorKind::kBadInput, "This recording has ended: write notes inside its block.");
  rec::EventT event;
  event.ticket = ticket;
  event.kind = kind;
  event.text = std::move(text);
  event.value = value;
  outbox_->put(std::move(event));
}

void Recording::event(rec::EventKind kind, std::string text, std::int64_t value) {
  const Locked lock(mutex_);
  add_event(kind, tickets_.load(), std::move(text), value);
}

void Recording::incomplete(std::string reason) {
  const Locked lock(mutex_);
  add_event(rec::EventKind::NotSeen, tickets_.load(), reason);
  if (reason_.empty()) reason_ = std::move(reason);
}

void Recording::unseen_op(const char* name) {
  const Locked lock(mutex_);
  if (unseen_.size() < 8) unseen_.insert(name);
}

void Recording::names(rec::Moment moment, const std::vector<Named>& entries) {
  const Locked lock(mutex_);
  rec::NamesT names;
  names.moment = moment;
  std::vector<Blank> blanks;
  const bool start = moment == rec::Moment::Start;
  for (const auto& entry : entries) {
    auto name = std::make_unique<rec::NameT>();
    name->name = entry.name;
    name->role = entry.role;
    if (entry.role == rec::NameRole::Parameter && entry.tensor.defined())
      parameters_.emplace(entry.tensor.unsafeGetTensorImpl(), entry.name);
    if (entry.tensor.defined()) {
      name->tensor = std::make_unique<rec::TensorT>();
      StorageState* s = describe(entry.tensor, *name->tensor, tickets_.load(), false);
      const bool keep = start ? options_.keep != Keep::kDigests && s != nullptr && !s->kept : options_.keep == Keep::kAll;
      auto& state = start ? name->tensor->before_state : name->tensor->after_state;
      if (start && s != nullptr && s->version > 0) {  // a name learnt late: what it held at the start is gone
        names.entries.push_back(std::move(name));
        continue;
      }
      state = ask(blanks, names.entries.size(), start ? Blank::kBefore : Blank::kAfter, entry.tensor, s, keep);
    } else if (entry.value) {
      name->value = entry.value->isInt() ? rec::int_value(entry.value->toInt()) : rec::float_value(entry.value->toDouble());
    }
    names.entries.push_back(std::move(name));
  }
  flush_cards();
  if (outbox_) outbox_->put(std::move(names), std::move(blanks));
}

void Recording::know_all() {
  const Locked lock(mutex_);
  flush_cards();
  storages_.each([&](StorageState& s) {
    for (auto& d : s.digests) hashing_->finish(*d.slot);
  });
}

void Recording::doubt_all() {
  const Locked lock(mutex_);
  storages_.each([](StorageState& s) {
    ++s.version;
    s.filled = true;
    s.digests.clear();
  });
}

void Recording::loss(const std::string& name, const at::Tensor& t) {
  std::int64_t value = 0;
  if (!is_wrapper(t) && !t.is_meta() && t.layout() == at::kStrided) {
    const OwnCalls own;
    value = std::bit_cast<std::int64_t>(on_host(t.detach()).item().toDouble());
  }
  Named named{name, rec::NameRole::Loss, t, {}};
  names(rec::Moment::End, {named});
  event(rec::EventKind::Loss, name, value);
}

Summary Recording::summary() const {
  Summary s;
  s.ops = recorded_.load();
  s.fakes = fakes_.load();
  s.waits = waits_.load();
  s.digests = hashing_->digests();
  s.hashed = hashing_->bytes_hashed();
  s.card_launches = cards_ ? cards_->launches() : launches_;
  s.storages = storages_.count();
  s.file_bytes = sink_->bytes();
  s.seconds = stopped_ ? seconds_ : std::chrono::duration<double>(std::chrono::steady_clock::now() - begun_).count();
  s.overhead_seconds = static_cast<double>(overhead_ns_.load()) * 1e-9;
  s.complete = reason_.empty();
  s.reason = reason_;
  return s;
}

Summary Recording::stop() {
  seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - begun_).count();
  finish_flights();
  if (!unseen_.empty()) {
    std::string list;
    for (const auto& name : unseen_) list += (list.empty() ? "" : ", ") + name;
    incomplete("Ops ran in a thread that was not watched (" + list + "): they are not in the trace.");
  }
  if (fakes_.load() > 0)
    event(rec::EventKind::Note, fmt::format("{} ops on meta or fake tensors are not recorded: they have no bytes.", fakes_.load()));
  if (waits_.load() > 0)
    event(rec::EventKind::Note, fmt::format("The recorder waited for {} collectives that the program had not waited for.", waits_.load()));
  hashing_->wake();
  std::exception_ptr failed;  // the threads end, whatever happened to the sink or the card
  try {
    outbox_->drain();
  } catch (...) {
    failed = std::current_exception();
  }
  outbox_.reset();
  hashing_->join();
  if (cards_) launches_ = cards_->launches();
  cards_.reset();
  stopped_ = true;
  if (failed) std::rethrow_exception(failed);
  if (keep_error_) std::rethrow_exception(keep_error_);
  rec::EndT end;
  end.complete = reason_.empty();
  end.reason = reason_;
  end.seconds = seconds_;
  end.hashed = hashing_->bytes_hashed();
  sink_->close(std::move(end));
  return summary();
}

}  // namespace step_oracle::capture
