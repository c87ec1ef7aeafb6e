#include "csrc/oracle/program/replay.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <new>
#include <set>

#include "csrc/kernels/card/card.h"
#include "csrc/kernels/core/error.h"
#include "csrc/oracle/aten/races.h"
#include "csrc/oracle/device/device.h"
#include "csrc/oracle/program/divergence.h"
#include "csrc/oracle/program/generators.h"
#include "csrc/oracle/program/host_ops.h"
#include "csrc/oracle/program/op_rules.h"
#include "csrc/oracle/program/recorded_bytes.h"
#include "csrc/oracle/program/scopes.h"
#include "csrc/oracle/program/switches.h"
#include "csrc/oracle/program/value.h"

namespace step_oracle::program {
namespace {

using rec::DigestState;

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

// What is known of an op while it runs.
struct OpState {
  bool mismatch = false, computed = false;
  int plans_tried = 0;  // without a match
  std::string choice_taken;
  std::string uncompared;  // why a result was not compared
  std::vector<at::Tensor> tensors;
  std::vector<aten::Race> races;
  std::vector<aten::OpenChoice> opened;
  std::set<std::size_t> raced;  // tensors that a race names as its result
  std::size_t raced_bytes = 0;  // tensors taken from the recording for a race
};

class Runner {
 public:
  Runner(const Trace& trace, const Options& options)
      : trace_(trace), options_(options), store_(trace), recorded_(trace, store_, options.mode == Mode::kOpLocal),
        generators_(options.mode == Mode::kOpLocal), search_(trace), choices_(trace, options.ties) {
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
    now_ = {};
    std::string reason;
    Outcome outcome;
    check_devices(op);
    check_reads(op);
    if (!op.error.empty()) {  // it raised when it was recorded
      if (!wrote_and_raised(op)) return;
      reason = "it raised when it was recorded, after it had written";
      outcome = recorded_.carry(op, index_) && stays_on_host(op) ? Outcome::kCarried : Outcome::kUnmodelled;
    } else if (is_host_op(op) && !host_op_is_exact(op)) {
      reason = "an op of the host whose arithmetic is not the card's";
      outcome = recorded_.carry(op, index_) && stays_on_host(op) ? Outcome::kCarried : Outcome::kUnmodelled;
      if (outcome == Outcome::kUnmodelled) reason += ", and its result is not kept (record with keep=\"all\")";
    } else {
      outcome = compute(op, reason);
      if (outcome == Outcome::kUnmodelled && !now_.computed) recorded_.carry(op, index_);
    }
    if (now_.mismatch && (outcome == Outcome::kMatch || outcome == Outcome::kCarried)) outcome = Outcome::kMismatch;
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
          note(describe(op, fmt::format("tensor {} (read)", i), digest.hex(), t.before.hex(),
                        "written by something that the recorder did not see"));
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
        recorded_.lose(*t, index_);
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
      now_.tensors.assign(op.tensors.size(), at::Tensor());
      if (!recorded_.inputs_are_known(op, reason)) return Outcome::kUnmodelled;
      store_.reads.declared += generators_.set(op, index_);
      torch::jit::Stack stack;
      const Resolver resolver{
          [&](std::size_t i) { return tensor_at(op, i); },
          [](const std::string& d) { return device::default_generator(mapped_device(d).index()); }};
      for (std::size_t i = 0; i < op.args.size(); ++i)
        stack.push_back(to_ivalue(*op.args[i], schema.arguments()[i].type(), resolver));
      {
        const aten::RaceScope races(now_.races);
        const aten::OpenScope opened(now_.opened);
        call(*handle, op, stack);
      }
      check_results(op, stack, handle->hasTag(at::Tag::inplace_view));
      check_generators_of(op);
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
    now_.computed = true;
    if (now_.mismatch) return Outcome::kMismatch;
    if (!now_.uncompared.empty()) {
      reason = now_.uncompared;
      return Outcome::kUnmodelled;
    }
    if (now_.raced_bytes == 0) return Outcome::kMatch;
    reason = fmt::format("a race: '{}' {}{}{}", now_.races.front().op, now_.races.front().why,
                         now_.choice_taken.empty() ? "" : "; ", now_.choice_taken);
    return Outcome::kCarried;
  }

  // Whether tensor i of the op is what a race of it wrote.
  bool races(std::size_t i) const {
    return std::any_of(now_.races.begin(), now_.races.end(), [&](const aten::Race& race) {
      return race.results.empty() || now_.raced.count(i) != 0;
    });
  }

  // A racing result that came out in another order than the stand-in's: the recorded bytes, where they are kept.
  void take_race(std::size_t i, const rec::TensorT& t) {
    ++now_.raced_bytes;
    if (recorded_.take(t, index_)) return;
    now_.uncompared = fmt::format("tensor {} is a race's, and its bytes are not kept (record with keep=\"all\"): '{}' {}",
                                  i, now_.races.front().op, now_.races.front().why);
  }

  void call(const c10::OperatorHandle& handle, const rec::OpT& op, torch::jit::Stack& stack) {
    const ChoiceSearch::Caller caller{[&] { return has_recorded_inputs(op); }, rewinding(op), [&] {
                                        if (options_.progress) options_.progress(index_, trace_.ops.size());
                                      }};
    const torch::jit::Stack args = stack;
    if (options_.fit_plans) plan::take_asked();
    given_->take_taken();  // of an op that raised
    handle.callBoxed(stack);
    if (options_.fit_plans) now_.plans_tried = search_.refine(handle, args, stack, op, index_, caller.tick);
    for (aten::Choice& c : given_->take_taken()) {
      now_.choice_taken = fmt::format("the given {}, '{:.80}'", c.name, c.value);
      choices_.notes.push_back({index_, std::move(c), true});
    }
    for (const aten::OpenChoice& open : std::exchange(now_.opened, {})) {
      const bool settled = choices_.settle(handle, args, stack, op, index_, open, caller);
      if (settled && open.race) now_.races.clear();
      if (settled || choices_.tried < 2) continue;
      now_.choice_taken = fmt::format("none of {} variants of {} gives these bytes", choices_.tried, open.choice.name);
      if (!choices_.by_parts || !open.all) continue;
      now_.choice_taken += ", and there are no others";
      if (open.race) now_.races.clear();  // no order of arrival gave the recorded bytes: they are wrong, and not a race's
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

  at::Tensor tensor_at(const rec::OpT& op, std::size_t i) {
    if (i >= op.tensors.size())
      throw Error(ErrorKind::kCorrupt, fmt::format("op {} names tensor {} of {}", index_, i, op.tensors.size()));
    if (!now_.tensors[i].defined()) now_.tensors[i] = store_.tensor(*op.tensors[i]);
    return now_.tensors[i];
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
            now_.tensors[i] = actual;
            for (const aten::Race& race : now_.races)
              if (std::find(race.results.begin(), race.results.end(), r) != race.results.end()) now_.raced.insert(i);
            if (t.storage == 0) {
              if (actual.numel() && !actual.is_meta())
                now_.uncompared = fmt::format("no digest of {} was recorded", output);
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
          now_.uncompared = fmt::format("no digest of tensor {}, which it wrote, was recorded", i);
        continue;
      }
      if (!written && !t.created) continue;
      if (!written && store_.partial(Store::key(t))) continue;  // a view of bytes that come in when they are read
      check_bytes(op, i, t);
    }
  }

  void check_bytes(const rec::OpT& op, std::size_t i, const rec::TensorT& t) {
    const at::Tensor& actual = now_.tensors[i].defined() ? now_.tensors[i] : tensor_at(op, i);
    ++report_.outputs;
    const Digest own = digest_of(actual);
    if (own == t.after) return;
    if (races(i)) return take_race(i, t);
    const std::string output = fmt::format("tensor {} ({})", i, t.created ? "new" : "written");
    Divergence d = describe(op, output, t.after.hex(), own.hex());
    if (trace_.has_blob(t.after)) compare_elements(trace_.blob(t.after), actual, d);
    d.cause = likely_cause(d.op, d);
    if (!now_.choice_taken.empty()) d.cause += (d.cause.empty() ? "" : ": ") + now_.choice_taken;
    if (now_.plans_tried) d.cause += fmt::format(": none of {} plans gives these bytes", now_.plans_tried);
    note(std::move(d));
    store_.set_doubtful(Store::key(t), true);
  }

  void check_geometry(const rec::OpT& op, const std::string& output, const rec::TensorT& t, const at::Tensor& actual) {
    if (actual.scalar_type() != scalar_type(t.dtype))
      return note(describe(op, output, rec::name_of(t.dtype), c10::toString(actual.scalar_type()), "dtype"));
    if (const std::string layout = other_layout(t, actual); !layout.empty()) note_layout(op, output, layout);
  }

  void check_scalar(const rec::OpT& op, const c10::IValue& actual, const rec::ValueT& recorded, const std::string& output) {
    const auto own = number_bits(actual);
    if (!own) return;
    ++report_.outputs;
    const auto was = static_cast<std::uint64_t>(recorded.i);
    if (*own == was) return;
    note(describe(op, output, fmt::format("0x{:016x}", was), fmt::format("0x{:016x}", *own), "a number read by the host"));
  }

  void check_generators_of(const rec::OpT& op) {
    check_generators(op, [&](std::string expected, std::string actual) {
      note(describe(op, "generator", std::move(expected), std::move(actual), "generator or SM count"));
    });
  }

  Divergence describe(const rec::OpT& op, std::string output, std::string expected, std::string actual,
                      std::string cause = "") const {
    Divergence d;
    d.index = index_;
    d.op = rec::display_name(op);
    d.module = op.module_;
    d.output = std::move(output);
    d.expected = std::move(expected);
    d.actual = std::move(actual);
    d.cause = std::move(cause);
    return d;
  }

  void note_layout(const rec::OpT& op, const std::string& output, const std::string& what) {
    note(describe(op, output, "as recorded", what, "layout"));
  }

  void note(Divergence d) {
    const bool first_of_op = !now_.mismatch;
    now_.mismatch = true;
    if (!report_.divergence) report_.divergence = d;
    if (first_of_op && report_.mismatches.size() < 1000) report_.mismatches.push_back(std::move(d));
  }

  // The program's final tensors by name, and their digests against the recorded ones.
  void finish() {
    for (const auto& n : trace_.names_end) {
      if (!n.tensor || n.tensor->storage == 0) continue;
      const rec::TensorT& t = *n.tensor;
      if (recorded_.unknown(t)) continue;
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
  RecordedBytes recorded_;
  Generators generators_;
  PlanSearch search_;
  ChoiceSearch choices_;
  aten::ChoiceScope* given_ = nullptr;
  Report report_;
  std::size_t index_ = 0;
  OpState now_;                   // of the op at index_
  std::set<std::uint64_t> kept_;  // ids of storages that have a name at the end
  std::map<Store::Key, std::vector<std::pair<const rec::TensorT*, Digest>>> left_;  // what the trace says ops left
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
