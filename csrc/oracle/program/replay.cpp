#include "csrc/oracle/program/replay.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/EmptyTensor.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <new>
#include <set>

#include "csrc/kernels/card/card.h"
#include "csrc/kernels/core/error.h"
#include "csrc/oracle/aten/races.h"
#include "csrc/oracle/device/device.h"
#include "csrc/oracle/program/divergence.h"
#include "csrc/oracle/program/host_ops.h"
#include "csrc/oracle/program/op_rules.h"
#include "csrc/oracle/program/scopes.h"
#include "csrc/oracle/program/switches.h"
#include "csrc/oracle/program/value.h"

namespace step_oracle::program {
namespace {

using rec::DigestState;

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

at::Tensor bytes_tensor(const std::vector<std::uint8_t>& bytes) {
  at::Tensor t = at::detail::empty_cpu({static_cast<std::int64_t>(bytes.size())}, at::kByte, std::nullopt, std::nullopt,
                                       std::nullopt, std::nullopt);
  std::memcpy(t.mutable_data_ptr(), bytes.data(), bytes.size());
  return t;
}

std::string hex(const std::vector<std::uint8_t>& bytes) {
  std::string out;
  for (auto b : bytes) out += fmt::format("{:02x}", b);
  return out;
}

class Runner {
 public:
  Runner(const Trace& trace, const Options& options) : trace_(trace), options_(options), store_(trace), search_(trace),
        choices_(trace, options.ties) {
    for (const auto& n : trace.names_end)
      if (n.tensor && n.tensor->storage) kept_.insert(n.tensor->storage);
  }

  std::size_t index() const { return index_; }

  Report run() {
    const auto begin = std::chrono::steady_clock::now();
    report_.mode = options_.mode;
    report_.card = options_.card.empty() ? card_of_trace(trace_) : card_by_name(options_.card).name;
    const CardScope cards(trace_, options_.card.empty() ? "" : report_.card);
    const PlanScope plans(options_.plans, report_.card);
    const plan::TallyScope products;
    aten::ChoiceScope given(options_.choices);
    given_ = &given;
    const SwitchScope switches(trace_.environment.switches);
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    for (index_ = 0; index_ < trace_.ops.size(); ++index_) {
      if (options_.progress && index_ % 16 == 0) options_.progress(index_, trace_.ops.size());
      const rec::OpT& op = trace_.ops[index_];
      store_.release(op.ticket, kept_);
      step(op);
    }
    if (options_.progress) options_.progress(trace_.ops.size(), trace_.ops.size());
    if (report_.outputs == 0 && report_.counts.unmodelled == 0 && report_.counts.mismatch == 0)
      throw Error(ErrorKind::kBadInput, fmt::format("{}: no op of it has a result to compare", trace_.path));
    finish();
    refuse_unused(given);
    for (ChoiceNote& n : choices_.notes) n.calls = given.calls(n.choice.op, n.choice.name);
    report_.choices = std::move(choices_.notes);
    report_.ties = std::move(choices_.ties);
    report_.tied = choices_.tied;
    report_.reads = store_.reads;
    report_.products = products.tally();
    report_.fitted = search_.found();
    for (const FittedPlan& f : report_.fitted)
      if (const auto it = report_.products.kinds.find(f.key); it != report_.products.kinds.end()) {
        report_.products.assumed -= it->second;  // it ran on the default first; its digest has decided since
        report_.products.kinds.erase(it);
      }
    report_.plan_table = search_.table();
    report_.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    return std::move(report_);
  }

 private:
  static void refuse_unused(const aten::ChoiceScope& given) {
    const auto times = given.times();
    for (std::size_t i = 0; i < times.size(); ++i)
      if (const aten::Choice& c = given.choices()[i]; times[i] == 0)
        throw Error(ErrorKind::kBadInput,
                    fmt::format("choices: no call takes {} of {}{}: a choice that decides nothing could say anything",
                                c.name, c.op, c.call < 0 ? std::string() : fmt::format(", call {}", c.call)));
  }

  enum class Outcome { kMatch, kMismatch, kUnmodelled, kCarried };

  void step(const rec::OpT& op) {
    mismatch_ = computed_ = false;
    plans_tried_ = 0;
    choice_taken_.clear();
    uncompared_.clear();
    races_.clear();
    opened_.clear();
    raced_.clear();
    raced_bytes_ = 0;
    std::string reason;
    Outcome outcome;
    check_devices(op);
    check_reads(op);
    if (!op.error.empty()) {  // it raised when it was recorded
      if (!wrote_and_raised(op)) return;
      reason = "it raised when it was recorded, after it had written";
      outcome = carry(op) && stays_on_host(op) ? Outcome::kCarried : Outcome::kUnmodelled;
    } else if (is_host_op(op) && !host_op_is_exact(op)) {
      reason = "an op of the host whose arithmetic is not the card's";
      outcome = carry(op) && stays_on_host(op) ? Outcome::kCarried : Outcome::kUnmodelled;
      if (outcome == Outcome::kUnmodelled) reason += ", and its result is not kept (record with keep=\"all\")";
    } else {
      outcome = compute(op, reason);
      if (outcome == Outcome::kUnmodelled && !computed_) carry(op);
    }
    if (mismatch_ && (outcome == Outcome::kMatch || outcome == Outcome::kCarried)) outcome = Outcome::kMismatch;
    remember_writes(op);
    switch (outcome) {
      case Outcome::kMatch: ++report_.counts.match; break;
      case Outcome::kMismatch: ++report_.counts.mismatch; break;
      case Outcome::kUnmodelled:
        ++report_.counts.unmodelled;
        report_.unmodelled.push_back({index_, rec::display_name(op), reason});
        break;
      case Outcome::kCarried:
        ++report_.counts.carried;
        report_.carried.push_back({index_, rec::display_name(op), reason});
        break;
    }
  }

  // A tensor is where its storage is: an op of the card cannot pass for one of the host.
  void check_devices(const rec::OpT& op) const {
    for (const auto& t : op.tensors)
      if (const StorageInfo* info = trace_.storage(t->storage, t->generation); info && info->record.device != t->device)
        throw Error(ErrorKind::kCorrupt,
                    fmt::format("op {} ({}) has a tensor on '{}' in storage {}, which is on '{}'", index_,
                                rec::display_name(op), t->device, t->storage, info->record.device));
  }

  // What an op read is what the trace says that an earlier op left there.
  void check_reads(const rec::OpT& op) {
    for (std::size_t i = 0; i < op.tensors.size(); ++i) {
      const rec::TensorT& t = *op.tensors[i];
      if (t.created || t.storage == 0 || t.before_state != DigestState::Known) continue;
      for (const auto& [left, digest] : left_[Store::key(t)])
        if (digest != t.before && same_geometry(*left, t)) {
          Divergence d = describe(op, fmt::format("tensor {} (read)", i));
          d.expected = digest.hex();
          d.actual = t.before.hex();
          d.cause = "written by something that the recorder did not see";
          note(std::move(d));
          store_.set_doubtful(Store::key(t), true);
        }
    }
  }

  void remember_writes(const rec::OpT& op) {
    for (const auto& t : op.tensors)
      if (t->mutated || t->undeclared) {
        left_.erase(Store::key(*t));
        store_.wrote(Store::key(*t));
      }
    for (const auto& t : op.tensors)
      if (t->storage && (t->created || t->mutated || t->undeclared) && t->after_state == DigestState::Known)
        left_[Store::key(*t)].emplace_back(t.get(), t->after);
  }

  // An op that raised: false where it had written nothing yet. What it left is not known where only `after` is.
  bool wrote_and_raised(const rec::OpT& op) {
    bool wrote = false;
    for (const auto& t : op.tensors) {
      if (t->storage == 0 || !(t->mutated || t->undeclared)) continue;
      if (t->before_state == DigestState::Known) {
        wrote |= t->after_state == DigestState::Known && t->after != t->before;
      } else {
        unknown_[Store::key(*t)] = index_;
        left_.erase(Store::key(*t));
      }
    }
    return wrote;
  }

  Outcome compute(const rec::OpT& op, std::string& reason) {
    const auto handle = c10::Dispatcher::singleton().findSchema({op.name, op.overload});
    if (!handle) {
      reason = "this torch has no such operator";
      return Outcome::kUnmodelled;
    }
    const auto& schema = handle->schema();
    if (schema.arguments().size() != op.args.size() || schema.returns().size() != op.returns.size())
      throw Error(ErrorKind::kCorrupt, fmt::format("op {} ({}) has {} arguments and {} results; its schema has {} and {}",
                                                   index_, rec::display_name(op), op.args.size(), op.returns.size(),
                                                   schema.arguments().size(), schema.returns().size()));
    for (std::size_t i = 0; i < op.args.size(); ++i)
      if (const auto* alias = schema.arguments()[i].alias_info(); alias && alias->isWrite())
        each_tensor(*op.args[i], [&](std::size_t n) {
          if (!op.tensors.at(n)->mutated)
            throw Error(ErrorKind::kCorrupt,
                        fmt::format("op {} ({}) writes argument {}, and the trace says that it does not", index_,
                                    rec::display_name(op), i));
        });
    try {
      tensors_.assign(op.tensors.size(), at::Tensor());
      if (!inputs_are_known(op, reason)) return Outcome::kUnmodelled;
      set_generators(op);
      torch::jit::Stack stack;
      const Resolver resolver{
          [&](std::size_t i) { return tensor_at(op, i); },
          [](const std::string& d) { return device::default_generator(mapped_device(d).index()); }};
      for (std::size_t i = 0; i < op.args.size(); ++i)
        stack.push_back(to_ivalue(*op.args[i], schema.arguments()[i].type(), resolver));
      {
        const aten::RaceScope races(races_);
        const aten::OpenScope opened(opened_);
        call(*handle, op, stack);
      }
      check_results(op, stack, handle->hasTag(at::Tag::inplace_view));
      check_generators(op);
    } catch (const c10::NotImplementedError& e) {
      reason = first_line(e.what_without_backtrace());
      return Outcome::kUnmodelled;
    } catch (const Error& e) {
      if (e.kind() != ErrorKind::kUnsupported) throw;
      reason = e.what();
      return Outcome::kUnmodelled;
    } catch (const c10::Error& e) {
      reason = "it raised here and not when it was recorded: " + first_line(e.what_without_backtrace());
      return Outcome::kUnmodelled;
    }
    computed_ = true;
    if (mismatch_) return Outcome::kMismatch;
    if (!uncompared_.empty()) {
      reason = uncompared_;
      return Outcome::kUnmodelled;
    }
    if (raced_bytes_ == 0) return Outcome::kMatch;
    reason = fmt::format("a race: '{}' {}{}{}", races_.front().op, races_.front().why, choice_taken_.empty() ? "" : "; ",
                         choice_taken_);
    return Outcome::kCarried;
  }

  // Whether tensor i of the op is what a race of it wrote.
  bool races(std::size_t i) const {
    return std::any_of(races_.begin(), races_.end(), [&](const aten::Race& race) {
      return race.results.empty() || raced_.count(i) != 0;
    });
  }

  // A racing result that came out in another order than the stand-in's: the recorded bytes, where they are kept.
  void take_race(std::size_t i, const rec::TensorT& t) {
    ++raced_bytes_;
    const auto k = Store::key(t);
    if (trace_.has_blob(t.after)) {
      store_.carry(t, t.after);
      store_.set_doubtful(k, true);
      return;
    }
    unknown_[k] = index_;
    uncompared_ = fmt::format("tensor {} is a race's, and its bytes are not kept (record with keep=\"all\"): '{}' {}", i,
                              races_.front().op, races_.front().why);
  }

  void call(const c10::OperatorHandle& handle, const rec::OpT& op, torch::jit::Stack& stack) {
    const ChoiceSearch::Caller caller{[&] { return has_recorded_inputs(op); }, rewinding(op), [&] {
                                        if (options_.progress) options_.progress(index_, trace_.ops.size());
                                      }};
    const torch::jit::Stack args = stack;
    if (options_.fit_plans) plan::take_asked();
    given_->take_taken();  // of an op that raised
    handle.callBoxed(stack);
    if (options_.fit_plans) plans_tried_ = search_.refine(handle, args, stack, op, index_, caller.tick);
    for (aten::Choice& c : given_->take_taken()) {
      choice_taken_ = fmt::format("the given {}, '{:.80}'", c.name, c.value);
      choices_.notes.push_back({index_, std::move(c), true});
    }
    for (const aten::OpenChoice& open : std::exchange(opened_, {})) {
      const bool settled = choices_.settle(handle, args, stack, op, index_, open, caller);
      if (settled && open.race) races_.clear();
      if (settled || choices_.tried < 2) continue;
      choice_taken_ = fmt::format("none of {} variants of {} gives these bytes", choices_.tried, open.choice.name);
      if (!choices_.by_parts || !open.all) continue;
      choice_taken_ += ", and there are no others";
      if (open.race) races_.clear();  // no order of arrival gave the recorded bytes: they are wrong, and not a race's
    }
  }

  bool has_recorded_inputs(const rec::OpT& op) {
    for (std::size_t i = 0; i < op.tensors.size(); ++i) {
      const rec::TensorT& t = *op.tensors[i];
      if (t.created || t.storage == 0 || t.before_state != DigestState::Known) continue;
      if (digest_of(tensor_at(op, i)) != t.before) return false;
    }
    return true;
  }

  // Puts the op's generators where they stand now.
  std::function<void()> rewinding(const rec::OpT& op) const {
    std::vector<std::pair<at::Generator, std::vector<std::uint8_t>>> before;
    for (const auto& g : op.generators)
      if (on_card(g->device)) {
        at::Generator generator = device::default_generator(mapped_device(g->device).index());
        std::lock_guard<std::mutex> lock(generator.mutex());
        before.emplace_back(generator, state_of(generator));
      }
    return [before = std::move(before)]() mutable {
      for (auto& [generator, state] : before) {
        std::lock_guard<std::mutex> lock(generator.mutex());
        generator.set_state(bytes_tensor(state));
      }
    };
  }

  at::Tensor tensor_at(const rec::OpT& op, std::size_t i) {
    if (i >= op.tensors.size())
      throw Error(ErrorKind::kCorrupt, fmt::format("op {} names tensor {} of {}", index_, i, op.tensors.size()));
    if (!tensors_[i].defined()) tensors_[i] = store_.tensor(*op.tensors[i]);
    return tensors_[i];
  }

  // Op-local: puts back inputs that an earlier op got wrong. False where an input cannot be known.
  bool inputs_are_known(const rec::OpT& op, std::string& reason) {
    for (const auto& t : op.tensors) {
      if (t->created || t->storage == 0) continue;
      const auto k = Store::key(*t);
      if (const auto it = unknown_.find(k); it != unknown_.end() && t->before_state == DigestState::Known) {
        if (options_.mode == Mode::kOpLocal && trace_.has_blob(t->before)) {
          store_.carry(*t, t->before);
          unknown_.erase(it);
          store_.set_doubtful(k, true);
        } else {
          reason = fmt::format("an input comes from op {}, which was not computed, and its bytes are not kept", it->second);
          return false;
        }
      }
      if (options_.mode != Mode::kOpLocal || !store_.doubtful(k) || t->before_state != DigestState::Known) continue;
      if (digest_of(store_.tensor(*t)) == t->before) continue;
      if (!trace_.has_blob(t->before)) {
        reason = "an input differs from the recorded one, whose bytes are not kept (record with keep=\"all\")";
        return false;
      }
      store_.restore(*t, t->before);
      ++store_.reads.inputs;
    }
    return true;
  }

  void set_generators(const rec::OpT& op) {
    for (const auto& g : op.generators) {
      if (!on_card(g->device)) continue;
      if (g->before.size() != 16)
        throw Error(ErrorKind::kCorrupt, fmt::format("op {}: a card's generator state has {} bytes, not 16", index_, g->before.size()));
      at::Generator generator = device::default_generator(mapped_device(g->device).index());
      std::lock_guard<std::mutex> lock(generator.mutex());
      const bool first = seen_generators_.insert(g->device).second;
      const bool moved = state_of(generator) != g->before;
      // Between two ops only the program's owner moves a generator (manual_seed, set_rng_state): an input of the program.
      if (options_.mode == Mode::kOpLocal || first || moved) {
        generator.set_state(bytes_tensor(g->before));
        if (first || moved) ++store_.reads.declared;
      }
    }
  }

  static std::vector<std::uint8_t> state_of(const at::Generator& generator) {
    const at::Tensor state = generator.get_state();
    const auto* p = static_cast<const std::uint8_t*>(state.const_data_ptr());
    return {p, p + state.nbytes()};
  }

  void check_generators(const rec::OpT& op) {
    for (const auto& g : op.generators) {
      if (!on_card(g->device)) continue;
      at::Generator generator = device::default_generator(mapped_device(g->device).index());
      std::lock_guard<std::mutex> lock(generator.mutex());
      const auto state = state_of(generator);
      if (state == g->after) continue;
      Divergence d = describe(op, "generator");
      d.expected = hex(g->after);
      d.actual = hex(state);
      d.cause = "generator or SM count";
      note(std::move(d));
      generator.set_state(bytes_tensor(g->after));
    }
  }

  void check_results(const rec::OpT& op, const torch::jit::Stack& stack, bool geometry_only) {
    std::vector<bool> fresh(op.tensors.size(), false);
    for (std::size_t r = 0; r < op.returns.size(); ++r) {
      const std::string output = fmt::format("result {}", r);
      check_scalar(op, stack[r], *op.returns[r], output);
      pair_tensors(
          stack[r], *op.returns[r],
          [&](const at::Tensor& actual, std::size_t i) {
            const rec::TensorT& t = *op.tensors.at(i);
            tensors_[i] = actual;
            for (const aten::Race& race : races_)
              if (std::find(race.results.begin(), race.results.end(), r) != race.results.end()) raced_.insert(i);
            if (t.storage == 0) {
              if (actual.numel() && !actual.is_meta())
                uncompared_ = fmt::format("no digest of {} was recorded", output);
              return;
            }
            if (!store_.live(Store::key(t))) {
              store_.adopt(t, actual);
              fresh[i] = true;
            } else if (store_.storage(Store::key(t)).unsafeGetStorageImpl() != actual.storage().unsafeGetStorageImpl() &&
                       actual.numel() > 0) {
              note_layout(op, output, "shares no memory with the tensor it was recorded to share");
            }
            check_geometry(op, output, t, actual);
          },
          [&](const std::string& what) { note_layout(op, output, what); });
    }
    for (std::size_t i = 0; i < op.tensors.size(); ++i) {
      const rec::TensorT& t = *op.tensors[i];
      const bool written = fresh[i] || t.mutated || t.undeclared;
      if (t.storage == 0) continue;
      if (t.after_state != DigestState::Known) {
        const bool noise = t.after_state == DigestState::NeverWritten && leaves_noise(op);
        if (written && !geometry_only && !noise && rec::numel(t.sizes) && t.device != "meta")
          uncompared_ = fmt::format("no digest of tensor {}, which it wrote, was recorded", i);
        continue;
      }
      if (!written && !t.created) continue;
      if (!written && store_.partial(Store::key(t))) continue;  // a view of bytes that come in when they are read
      check_bytes(op, i, t);
    }
  }

  void check_bytes(const rec::OpT& op, std::size_t i, const rec::TensorT& t) {
    const at::Tensor& actual = tensors_[i].defined() ? tensors_[i] : tensor_at(op, i);
    ++report_.outputs;
    const Digest own = digest_of(actual);
    if (own == t.after) return;
    if (races(i)) return take_race(i, t);
    Divergence d = describe(op, t.created ? fmt::format("tensor {} (new)", i) : fmt::format("tensor {} (written)", i));
    d.expected = t.after.hex();
    d.actual = own.hex();
    if (trace_.has_blob(t.after)) compare_elements(trace_.blob(t.after), actual, d);
    d.cause = likely_cause(d.op, d);
    if (!choice_taken_.empty()) d.cause += (d.cause.empty() ? "" : ": ") + choice_taken_;
    if (plans_tried_) d.cause += fmt::format(": none of {} plans gives these bytes", plans_tried_);
    note(std::move(d));
    store_.set_doubtful(Store::key(t), true);
  }

  void check_geometry(const rec::OpT& op, const std::string& output, const rec::TensorT& t, const at::Tensor& actual) {
    if (actual.scalar_type() != scalar_type(t.dtype)) {
      Divergence d = describe(op, output);
      d.expected = rec::name_of(t.dtype);
      d.actual = c10::toString(actual.scalar_type());
      d.cause = "dtype";
      return note(std::move(d));
    }
    if (actual.sizes() != at::IntArrayRef(t.sizes)) return note_layout(op, output, fmt::format("shape {}", fmt::join(actual.sizes(), "x")));
    if (actual.numel() == 0) return;
    for (std::int64_t d = 0; d < actual.dim(); ++d)
      if (actual.size(d) > 1 && actual.stride(d) != t.strides[static_cast<std::size_t>(d)])
        return note_layout(op, output, fmt::format("strides {} and not {}", fmt::join(actual.strides(), ","), fmt::join(t.strides, ",")));
    if (actual.storage_offset() != t.offset)
      note_layout(op, output, fmt::format("storage offset {} and not {}", actual.storage_offset(), t.offset));
  }

  void check_scalar(const rec::OpT& op, const c10::IValue& actual, const rec::ValueT& recorded, const std::string& output) {
    std::uint64_t own = 0;
    const auto was = static_cast<std::uint64_t>(recorded.i);
    if (actual.isDouble()) {
      const double v = actual.toDouble();
      std::memcpy(&own, &v, 8);
    } else if (actual.isInt()) {
      own = static_cast<std::uint64_t>(actual.toInt());
    } else if (actual.isBool()) {
      own = actual.toBool();
    } else {
      return;
    }
    ++report_.outputs;
    if (own == was) return;
    Divergence d = describe(op, output);
    d.expected = fmt::format("0x{:016x}", was);
    d.actual = fmt::format("0x{:016x}", own);
    d.cause = "a number read by the host";
    note(std::move(d));
  }

  Divergence describe(const rec::OpT& op, std::string output) const {
    Divergence d;
    d.index = index_;
    d.op = rec::display_name(op);
    d.module = op.module_;
    d.output = std::move(output);
    return d;
  }

  void note_layout(const rec::OpT& op, const std::string& output, const std::string& what) {
    Divergence d = describe(op, output);
    d.expected = "as recorded";
    d.actual = what;
    d.cause = "layout";
    note(std::move(d));
  }

  void note(Divergence d) {
    const bool first_of_op = !mismatch_;
    mismatch_ = true;
    if (!report_.divergence) report_.divergence = d;
    if (first_of_op && report_.mismatches.size() < 1000) report_.mismatches.push_back(std::move(d));
  }

  // Takes an op's results from the recording. False (and the results unknown) where the trace does not keep them.
  bool carry(const rec::OpT& op) {
    bool all = true;
    for (const auto& t : op.tensors) {
      if (t->storage == 0 || !(t->created || t->mutated || t->undeclared)) continue;
      const auto k = Store::key(*t);
      const StorageInfo* info = trace_.storage(t->storage, t->generation);
      const bool is_view = t->created && !t->mutated && (store_.live(k) || (info && info->record.first_seen < op.ticket));
      if (is_view) continue;
      const bool empty = t->after_state == DigestState::NeverWritten;
      if (t->after_state == DigestState::Known && trace_.has_blob(t->after) &&
          (options_.mode == Mode::kOpLocal || stays_on_host(op))) {
        store_.carry(*t, t->after);
        unknown_.erase(k);
        store_.set_doubtful(k, true);
      } else if (!empty) {
        unknown_[k] = index_;
        all = false;
      }
    }
    return all;
  }

  // The program's final tensors by name, and their digests against the recorded ones.
  void finish() {
    for (const auto& n : trace_.names_end) {
      if (!n.tensor || n.tensor->storage == 0) continue;
      const rec::TensorT& t = *n.tensor;
      if (unknown_.count(Store::key(t))) continue;
      const at::Tensor actual = store_.tensor(t);
      report_.final_state.emplace(n.name, actual);
      if (t.after_state != DigestState::Known) continue;
      ++report_.outputs;
      const Digest own = digest_of(actual);
      if (own == t.after || report_.divergence) continue;
      Divergence d;
      d.index = trace_.ops.size();
      d.op = "end of the program";
      d.output = n.name;
      d.expected = t.after.hex();
      d.actual = own.hex();
      d.cause = "written by something that the recorder did not see";
      report_.divergence = std::move(d);
    }
  }

  const Trace& trace_;
  const Options& options_;
  Store store_;
  PlanSearch search_;
  ChoiceSearch choices_;
  aten::ChoiceScope* given_ = nullptr;
  Report report_;
  std::size_t index_ = 0;
  bool mismatch_ = false, computed_ = false;     // of the op at index_
  int plans_tried_ = 0;                          // of the op at index_: without a match
  std::string choice_taken_;                     // of the op at index_
  std::string uncompared_;                       // of the op at index_: why a result of it was not compared
  std::vector<at::Tensor> tensors_;             // of the op at index_
  std::vector<aten::Race> races_;               // of the op at index_
  std::vector<aten::OpenChoice> opened_;        // of the op at index_
  std::set<std::size_t> raced_;                 // of the op at index_: tensors that a race names as its result
  std::size_t raced_bytes_ = 0;                 // of the op at index_: tensors taken from the recording for a race
  std::map<Store::Key, std::uint64_t> unknown_;  // storages whose bytes are not known -> the op that did not make them
  std::set<std::uint64_t> kept_;                 // ids of storages that have a name at the end
  std::map<Store::Key, std::vector<std::pair<const rec::TensorT*, Digest>>> left_;  // what the trace says ops left
  std::set<std::string> seen_generators_;
};

}  // namespace

std::string card_of_trace(const Trace& trace) {
  if (trace.environment.cards.empty()) throw Error(ErrorKind::kUnsupported, "the trace's header names no card");
  return profile_of(*trace.environment.cards.front());
}

Report replay(const Trace& trace, const Options& options) {
  const OneReplay one;
  refuse_what_is_no_program(trace);
  Runner runner(trace, options);
  try {
    return runner.run();
  } catch (const c10::Error& e) {
    throw Error(ErrorKind::kUnsupported,
                fmt::format("op {}: {}", runner.index(), first_line(e.what_without_backtrace())));
  } catch (const std::bad_alloc&) {
    throw Error(ErrorKind::kUnsupported,
                fmt::format("op {}: this machine has too little memory for it", runner.index()));
  }
}

}  // namespace step_oracle::program
