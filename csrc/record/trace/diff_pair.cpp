#include "csrc/record/trace/diff_pair.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "csrc/record/trace/diff_cause.h"
#include "csrc/record/trace/diff_elements.h"

namespace step_oracle {
namespace {

using diff_state::is_view;
using diff_state::is_written;
using diff_state::key_of;
using diff_state::Taint;
using elements::Side;

constexpr std::size_t kMostNotes = 100, kMostRoots = 1000;

void add_note(std::vector<TraceOpNote>& list, std::size_t i, const rec::OpT& op, std::string text) {
  if (list.size() < kMostNotes)
    list.push_back({static_cast<std::int64_t>(i), rec::display_name(op), op.module_, std::move(text)});
}

// "argument 2", or "argument 1 [3]" for the fourth of a list; "tensor 5" where no argument holds it.
std::string argument_name(const rec::OpT& op, std::size_t tensor) {
  const auto is = [&](const rec::ValueT& v) {
    return v.kind == rec::ValueKind::Tensor && v.i == static_cast<std::int64_t>(tensor);
  };
  for (std::size_t i = 0; i < op.args.size(); ++i) {
    if (is(*op.args[i])) return fmt::format("argument {}", i);
    for (std::size_t j = 0; j < op.args[i]->list.size(); ++j)
      if (is(*op.args[i]->list[j])) return fmt::format("argument {} [{}]", i, j);
  }
  return fmt::format("tensor {}", tensor);
}

std::string output_name(const rec::OpT& op, std::size_t tensor) {
  if (!op.tensors[tensor]->created) return argument_name(op, tensor) + " (written)";
  for (std::size_t i = 0; i < op.returns.size(); ++i) {
    const auto& v = *op.returns[i];
    if (v.kind == rec::ValueKind::Tensor && v.i == static_cast<std::int64_t>(tensor))
      return fmt::format("result {}", i);
    for (std::size_t j = 0; j < v.list.size(); ++j)
      if (v.list[j]->i == static_cast<std::int64_t>(tensor)) return fmt::format("result {} [{}]", i, j);
  }
  return fmt::format("tensor {}", tensor);
}

bool other_layout(const rec::TensorT& a, const rec::TensorT& b) {
  if (a.sizes != b.sizes || a.strides.size() != b.strides.size()) return false;
  for (std::size_t d = 0; d < a.sizes.size(); ++d)
    if (a.sizes[d] > 1 && a.strides[d] != b.strides[d]) return true;
  return false;
}

bool is_whole_number(rec::DType t) {
  using D = rec::DType;
  return t == D::Int32 || t == D::Int64 || t == D::Int16 || t == D::Int8 || t == D::UInt8 || t == D::Bool;
}

std::string number_text(const rec::ValueT& v) {
  using K = rec::ValueKind;
  switch (v.kind) {
    case K::None:
      return "None";
    case K::Bool:
      return v.i ? "True" : "False";
    case K::Float:
      return fmt::format("{}", rec::float_of(v));
    case K::Complex:
      return fmt::format("{}+{}j", rec::float_bits_re(v), rec::float_bits_im(v));
    case K::DType:
      return rec::name_of(static_cast<rec::DType>(v.i));
    case K::String:
      return "'" + v.text + "'";
    case K::List:
      return fmt::format("a list of {}", v.list.size());
    case K::Tensor:
      return "a tensor";
    default:
      return std::to_string(v.i);
  }
}

// Where two values differ as numbers, text or length; empty where they do not. Tensors, devices and handles are left
// out.
std::string value_difference(const rec::ValueT& a, const rec::ValueT& b) {
  using K = rec::ValueKind;
  const auto other = [&] { return fmt::format("{} in a and {} in b", number_text(a), number_text(b)); };
  if (a.kind != b.kind) return other();
  switch (a.kind) {
    case K::None:
    case K::Tensor:
    case K::Device:
    case K::Generator:
    case K::Storage:
    case K::Unknown:
      return {};
    case K::String:
      return a.text == b.text ? "" : other();
    case K::List:
      if (a.list.size() != b.list.size()) return other();
      for (std::size_t i = 0; i < a.list.size(); ++i)
        if (auto d = value_difference(*a.list[i], *b.list[i]); !d.empty()) return fmt::format("[{}] {}", i, d);
      return {};
    default:
      return a.i == b.i && a.j == b.j ? "" : other();
  }
}

std::string generator_text(const std::vector<std::uint8_t>& bytes, const Digest& d) {
  if (bytes.size() != 16) return d.hex().substr(0, 16);
  std::uint64_t seed = 0, offset = 0;
  std::memcpy(&seed, bytes.data(), 8);
  std::memcpy(&offset, bytes.data() + 8, 8);
  return fmt::format("seed {} offset {}", seed, offset);
}

}  // namespace

struct PairWalk::Current {
  std::size_t i, j;
  const rec::OpT &oa, &ob;
  bool rooted = false;  // this pair is a root already
  bool input_differs = false, shape_differs = false, output_differs = false;
  bool cuts_otherwise = false;  // a view or an allocation with other numbers
  std::string layout;           // what is laid out in another way, if anything
  std::string never_written;    // what is read though nobody wrote it
};

TraceDivergence PairWalk::begin(const Current& c) const {
  TraceDivergence d;
  d.index = static_cast<std::int64_t>(c.i);
  d.index_b = static_cast<std::int64_t>(c.j);
  d.op = rec::display_name(c.oa);
  d.module = c.oa.module_;
  return d;
}

void PairWalk::root(Current& c, TraceDivergence d) {
  c.rooted = true;
  if (out_.roots.size() < kMostRoots) out_.roots.push_back(std::move(d));
}

void PairWalk::alone(diff_state::Walk& side, std::size_t i) {
  const auto& op = side.trace.ops[i];
  Taint taint = Taint::kProgram;
  for (const auto& t : op.tensors)
    if (!t->created) taint = std::max(taint, side.of(*t).taint);
  for (const auto& t : op.tensors) {
    auto& m = side.memory[key_of(*t)];
    m.cut_otherwise = true;
    if (!is_written(op, *t)) continue;
    m.writer = static_cast<std::int64_t>(i);
    m.taint = std::max(m.taint, taint);
  }
  for (const auto& g : op.generators) {
    auto& state = side.generators[g->device];
    state.after = diff_state::state_text(g->after, g->after_digest);
    state.drawn_alone = static_cast<std::int64_t>(i);
  }
}

void PairWalk::pair(std::size_t i, std::size_t j) {
  Current c{i, j, a_.trace.ops[i], b_.trace.ops[j], false, false, false, false, false, {}, {}};
  if (c.oa.tensors.size() != c.ob.tensors.size()) {
    auto d = begin(c);
    d.kind = "program";
    d.cause = fmt::format("program: this op takes and makes {} tensors in a and {} in b.", c.oa.tensors.size(),
                          c.ob.tensors.size());
    c.output_differs = true;
    root(c, std::move(d));
    settle(c);
    return;
  }
  for (std::size_t k = 0; k < c.oa.tensors.size(); ++k)
    if (!c.oa.tensors[k]->created) input(c, k);
  generators(c);
  arguments(c);
  outputs(c);
  settle(c);
}

void PairWalk::input(Current& c, std::size_t k) {
  const auto &ta = *c.oa.tensors[k], &tb = *c.ob.tensors[k];
  const bool looks = !diff_state::is_view_op(c.oa) && !cause::reads_no_bytes(c.oa);
  const bool reads = looks && !(ta.mutated && cause::overwrites_only(c.oa));
  alias(c, k);
  notes(c, k, reads);
  auto difference = elements::difference(ta, tb, Side::kBefore);
  const bool shape = ta.dtype != tb.dtype || ta.sizes != tb.sizes;
  if (shape) c.shape_differs = true;
  if (difference.empty() || !looks || (!reads && !shape)) return;
  c.input_differs = true;
  if (!c.rooted || (a_.unwritten(ta) && b_.unwritten(tb))) classify(c, k, difference);  // data that enter are all named
}

void PairWalk::notes(Current& c, std::size_t k, bool reads) {
  const auto &ta = *c.oa.tensors[k], &tb = *c.ob.tensors[k];
  if (other_layout(ta, tb)) {
    const auto text = fmt::format("{} has strides [{}] in a and [{}] in b", argument_name(c.oa, k),
                                  fmt::join(ta.strides, ", "), fmt::join(tb.strides, ", "));
    if (c.layout.empty()) c.layout = text;
    add_note(out_.layouts, c.i, c.oa, text);
  }
  if (!reads) return;
  const auto never = [&](const rec::TensorT& t, const rec::OpT& op, std::size_t at, std::vector<TraceOpNote>& list) {
    if (t.before_state != rec::DigestState::NeverWritten || rec::numel(t.sizes) == 0) return;
    c.never_written = fmt::format("{} (storage {})", argument_name(op, k), t.storage);
    add_note(list, at, op,
             fmt::format("{} reads memory that nobody wrote: {}", rec::display_name(op), c.never_written));
  };
  never(ta, c.oa, c.i, out_.never_written_a);
  never(tb, c.ob, c.j, out_.never_written_b);
}

void PairWalk::classify(Current& c, std::size_t k, const std::string& difference) {
  const auto &ta = *c.oa.tensors[k], &tb = *c.ob.tensors[k];
  const auto taint = std::max(a_.of(ta).taint, b_.of(tb).taint);
  auto d = begin(c);
  d.input = argument_name(c.oa, k);
  d.expected = elements::geometry(ta);
  d.actual = elements::geometry(tb);
  if (a_.unwritten(ta) && b_.unwritten(tb)) return entered_data(c, k, difference, std::move(d));
  if (taint == Taint::kDiffers) return;  // knock-on
  if (cause::is_collective(c.oa)) {
    const auto why = cause::of_root(a_.trace, c.oa, b_.trace, c.ob, out_.environment);
    d.kind = why.kind;
    d.cause = why.text;
    return root(c, std::move(d));
  }
  other_writers(c, k, difference, std::move(d));
}

// The tensor was there before the recording, and nothing that was recorded has written it.
void PairWalk::entered_data(Current& c, std::size_t k, const std::string& difference, TraceDivergence d) {
  const auto &ta = *c.oa.tensors[k], &tb = *c.ob.tensors[k];
  if (told_data_.contains({key_of(ta), key_of(tb)})) return;  // knock-on of what is reported already
  const auto *sa = a_.trace.storage(ta.storage, ta.generation), *sb = b_.trace.storage(tb.storage, tb.generation);
  const bool known = sa && sb && sa->init.state == rec::DigestState::Known && sb->init.state == rec::DigestState::Known;
  const bool same_memory = known ? sa->init.digest == sb->init.digest : ta.sizes != tb.sizes;
  if (same_memory && (a_.of(ta).cut_otherwise || b_.of(tb).cut_otherwise)) {
    d.kind = "program";
    d.cause = fmt::format(
        "program: the data that enter are the same, and this op gets another part or view of them ({}); no "
        "kernel is to blame.",
        difference);
    return root(c, std::move(d));
  }
  told_data_.insert({key_of(ta), key_of(tb)});
  const auto relation = elements::compare(a_.trace, ta, b_.trace, tb, Side::kBefore, true, d);
  const auto name = names_of(a_.trace, key_of(ta));
  d.kind = "input data";
  d.cause = fmt::format(
      "input data: what enters the recorded region differs: {}{}, {}{}; no op is to blame. What made it was not "
      "seen: it ran before the recording, or in worker processes.",
      d.input, name.empty() ? "" : " = " + name, difference, relation.empty() ? "" : " (" + relation + ")");
  if (const auto unseen = cause::not_seen(a_.trace, b_.trace, "worker"); !unseen.empty()) d.cause += " " + unseen;
  root(c, std::move(d));
}

// The tensor was written by ops that do not belong together, or by nobody who was seen.
void PairWalk::other_writers(Current& c, std::size_t k, const std::string& difference, TraceDivergence d) {
  const auto &ta = *c.oa.tensors[k], &tb = *c.ob.tensors[k];
  const auto ma = a_.of(ta), mb = b_.of(tb);
  const auto writer = [](const diff_state::Walk& side, std::int64_t op) {
    return op < 0 ? std::string("what entered")
                  : fmt::format("op {} ({})", op, rec::display_name(side.trace.ops[static_cast<std::size_t>(op)]));
  };
  d.minor = is_whole_number(ta.dtype) && (c.oa.name == "aten::copy_" || cause::is_collective(c.oa));
  auto stale = stale_copy(a_, ta, c.i, "a");
  if (stale.empty()) stale = stale_copy(b_, tb, c.j, "b");
  if (!stale.empty()) {
    d.kind = "stale copy";
    d.cause = fmt::format("stale copy: {}; {} comes from {} in a and from {} in b.", stale, d.input,
                          writer(a_, ma.writer), writer(b_, mb.writer));
  } else if (ma.taint == Taint::kProgram || mb.taint == Taint::kProgram || (ma.writer < 0) != (mb.writer < 0) ||
             ma.cut_otherwise || mb.cut_otherwise) {
    d.kind = "program";
    d.cause = fmt::format("program: {} comes from {} in a and from {} in b ({}); no kernel is to blame.", d.input,
                          writer(a_, ma.writer), writer(b_, mb.writer), difference);
  } else {
    d.kind = "not seen";
    d.cause = fmt::format(
        "not seen: {} was equal after {} and differs now ({}), so something wrote it that was not recorded. {}",
        d.input, writer(a_, ma.writer), difference, cause::not_seen(a_.trace, b_.trace));
  }
  root(c, std::move(d));
}

// The tensor is a cast made before the last write to its source: autocast's cache outlives an update.
std::string PairWalk::stale_copy(const diff_state::Walk& side, const rec::TensorT& t, std::size_t now,
                                 const char* name) const {
  const auto m = side.of(t);
  if (m.writer < 0) return {};
  const auto& cast = side.trace.ops[static_cast<std::size_t>(m.writer)];
  if (cast.name != "aten::_to_copy" && cast.name != "aten::to" && cast.name != "aten::clone") return {};
  if (cast.tensors.empty()) return {};
  const auto source = side.of(*cast.tensors[0]);
  if (source.writer <= m.writer || source.writer >= static_cast<std::int64_t>(now)) return {};
  return fmt::format("in {} the copy that op {} ({}) made of storage {} is older than its last write, op {} ({})", name,
                     m.writer, rec::display_name(cast), cast.tensors[0]->storage, source.writer,
                     rec::display_name(side.trace.ops[static_cast<std::size_t>(source.writer)]));
}

std::string PairWalk::names_of(const Trace& t, const diff_state::Key& key) const {
  std::string out;
  for (const auto& n : t.names_start)
    if (n.tensor && key_of(*n.tensor) == key) out += (out.empty() ? "" : ", ") + n.name;
  return out;
}

// Memory that entered, holds the same bytes, and is one storage in one trace and two in the other. It matters where
// something writes it.
void PairWalk::alias(Current& c, std::size_t k) {
  const auto &ta = *c.oa.tensors[k], &tb = *c.ob.tensors[k];
  if (!a_.entered(ta) || !b_.entered(tb)) return;
  const auto ka = key_of(ta), kb = key_of(tb);
  const auto pa = partner_of_a_.emplace(ka, kb).first->second, pb = partner_of_b_.emplace(kb, ka).first->second;
  if ((pa == kb && pb == ka) || c.rooted || told_aliases_.contains(ka)) return;
  const bool same = ta.before_state == rec::DigestState::Known && tb.before_state == rec::DigestState::Known &&
                    ta.before == tb.before && ta.sizes == tb.sizes;
  const bool matters =
      a_.mutated.contains(ka) || b_.mutated.contains(kb) || b_.mutated.contains(pa) || a_.mutated.contains(pb);
  if (!same || !matters) return;
  told_aliases_.insert(ka);
  const bool shared_in_a = pa != kb;
  auto d = begin(c);
  d.input = argument_name(c.oa, k);
  d.expected = shared_in_a ? "one storage" : "two storages";
  d.actual = shared_in_a ? "two storages" : "one storage";
  const auto names = names_of(shared_in_a ? a_.trace : b_.trace, shared_in_a ? ka : kb);
  d.kind = "alias";
  d.cause = fmt::format(
      "alias: {} of this op and a tensor that an earlier op used share a storage{} in {} and not in {}; what is "
      "written to one is written to both only there.",
      d.input, names.empty() ? "" : " (" + names + ")", shared_in_a ? "a" : "b", shared_in_a ? "b" : "a");
  root(c, std::move(d));
}

void PairWalk::generators(Current& c) {
  for (std::size_t g = 0; g < std::min(c.oa.generators.size(), c.ob.generators.size()); ++g) {
    const auto &ga = *c.oa.generators[g], &gb = *c.ob.generators[g];
    const auto before_a = diff_state::state_text(ga.before, ga.before_digest);
    const auto before_b = diff_state::state_text(gb.before, gb.before_digest);
    auto &sa = a_.generators[ga.device], &sb = b_.generators[gb.device];
    const bool goes_on = sa.differs && sa.after == before_a && sb.after == before_b;  // nobody set it in between
    sa.differs = before_a != before_b;
    if (sa.differs) c.input_differs = true;
    if (sa.differs && !goes_on && !c.rooted) {
      auto d = begin(c);
      d.input = "generator " + ga.device;
      d.expected = generator_text(ga.before, ga.before_digest);
      d.actual = generator_text(gb.before, gb.before_digest);
      d.kind = "generator";
      d.cause = fmt::format("generator: the state of {} before this draw differs ({} against {}).", ga.device,
                            d.expected, d.actual);
      if (sa.drawn_alone >= 0 || sb.drawn_alone >= 0)
        d.cause +=
            fmt::format(" {} drew from it in {} only.",
                        rec::display_name(sa.drawn_alone >= 0 ? a_.trace.ops[static_cast<std::size_t>(sa.drawn_alone)]
                                                              : b_.trace.ops[static_cast<std::size_t>(sb.drawn_alone)]),
                        sa.drawn_alone >= 0 ? "a" : "b");
      else
        d.cause += " Restore the generator (torch.set_rng_state, or a checkpoint that preserves it) before the step.";
      root(c, std::move(d));
    }
    sa.after = diff_state::state_text(ga.after, ga.after_digest);
    sb.after = diff_state::state_text(gb.after, gb.after_digest);
    sa.drawn_alone = sb.drawn_alone = -1;
  }
}

void PairWalk::arguments(Current& c) {
  std::string text;
  for (std::size_t k = 0; k < std::min(c.oa.args.size(), c.ob.args.size()) && text.empty(); ++k)
    if (const auto d = value_difference(*c.oa.args[k], *c.ob.args[k]); !d.empty())
      text = fmt::format("argument {} is {}", k, d);
  if (text.empty()) return;
  add_note(out_.arguments, c.i, c.oa, text);
  if (diff_state::is_view_op(c.oa) || cause::reads_no_bytes(c.oa)) {
    c.cuts_otherwise = true;  // no byte differs here, but what is read through the view may
    return;
  }
  if (c.rooted || c.shape_differs || (number_differs_ && c.input_differs)) return;
  c.input_differs = true;
  if (number_differs_) return;  // the number may have been read from a tensor that differs
  auto d = begin(c);
  d.input = text.substr(0, text.find(" is "));
  d.kind = "argument";
  d.cause = "argument: " + text + ".";
  root(c, std::move(d));
}

void PairWalk::outputs(Current& c) {
  for (std::size_t k = 0; k < c.oa.tensors.size(); ++k) {
    const auto &ta = *c.oa.tensors[k], &tb = *c.ob.tensors[k];
    if (!is_written(c.oa, ta)) continue;
    const auto difference = elements::difference(ta, tb, Side::kAfter);
    if (difference.empty()) continue;
    if (ta.after_state == rec::DigestState::NeverWritten && tb.after_state == rec::DigestState::NeverWritten) {
      c.cuts_otherwise = true;  // memory of another size: no bytes yet
      continue;
    }
    c.output_differs = true;
    if (c.rooted || c.input_differs) continue;
    auto d = begin(c);
    d.output = output_name(c.oa, k);
    d.expected = ta.after_state == rec::DigestState::Known ? ta.after.hex() : elements::geometry(ta);
    d.actual = tb.after_state == rec::DigestState::Known ? tb.after.hex() : elements::geometry(tb);
    const auto relation = elements::compare(a_.trace, ta, b_.trace, tb, Side::kAfter, false, d);
    cause::Cause why;
    if (!c.never_written.empty()) {
      why = {"never written",
             fmt::format("never written: this op reads memory that nobody wrote, {}.", c.never_written)};
    } else if (ta.dtype != tb.dtype || ta.sizes != tb.sizes) {
      why = {"dtype", fmt::format("dtype: the result's {}.", difference)};
    } else if (!c.layout.empty()) {
      why = {"layout",
             fmt::format("layout: the inputs' values are equal and {}; the kernel walks memory in another order.",
                         c.layout)};
    } else {
      why = cause::of_root(a_.trace, c.oa, b_.trace, c.ob, out_.environment);
    }
    d.kind = why.kind;
    d.minor = !c.never_written.empty();
    d.cause = why.text + (relation.empty() ? "" : fmt::format(" {} differ.", relation));
    root(c, std::move(d));
  }
  for (std::size_t k = 0; k < std::min(c.oa.returns.size(), c.ob.returns.size()); ++k)
    if (!value_difference(*c.oa.returns[k], *c.ob.returns[k]).empty()) number_differs_ = c.output_differs = true;
}

// What is known of memory after this pair, and the counts.
void PairWalk::settle(Current& c) {
  const bool differs = c.output_differs;
  const auto mark = [&](diff_state::Walk& side, const rec::OpT& op, std::size_t at) {
    for (const auto& t : op.tensors) {
      if (!is_written(op, *t)) continue;
      auto& m = side.memory[key_of(*t)];
      const auto* s = side.trace.storage(t->storage, t->generation);
      const auto n = static_cast<std::uint64_t>(std::max<std::int64_t>(rec::numel(t->sizes), 0));
      const bool whole = s && n * rec::size_of(t->dtype) >= s->record.nbytes;
      const bool compared = t->after_state == rec::DigestState::Known;
      m.writer = static_cast<std::int64_t>(at);
      if (whole) m.taint = Taint::kNone;
      if (differs || (!compared && c.input_differs)) m.taint = Taint::kDiffers;
    }
  };
  for (std::size_t k = 0; k < std::min(c.oa.tensors.size(), c.ob.tensors.size()); ++k) {
    const auto &ta = *c.oa.tensors[k], &tb = *c.ob.tensors[k];
    const bool reshaped = is_view(c.oa, ta) && (ta.sizes != tb.sizes || ta.dtype != tb.dtype);
    if (!reshaped && !c.cuts_otherwise) continue;
    a_.memory[key_of(ta)].cut_otherwise = true;
    b_.memory[key_of(tb)].cut_otherwise = true;
  }
  mark(a_, c.oa, c.i);
  mark(b_, c.ob, c.j);
  if (!c.rooted && differs) ++out_.knock_on;
  if (!c.rooted && !differs && !c.input_differs) ++out_.equal_ops;
}

}  // namespace step_oracle
