#include "csrc/record/trace/diff.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <unordered_map>

#include "csrc/record/trace/diff_align.h"
#include "csrc/record/trace/diff_cause.h"
#include "csrc/record/trace/diff_elements.h"
#include "csrc/record/trace/diff_pair.h"

namespace step_oracle {
namespace {

constexpr std::size_t kMostNotes = 100;

TraceOpNote note_of(const Trace& t, std::size_t i, std::string text = {}) {
  const auto& op = t.ops[i];
  return {static_cast<std::int64_t>(i), rec::display_name(op), op.module_, std::move(text)};
}

// By name, module and phase where that pairs nearly as many ops as the name alone does; else by name.
align::Pairs align_ops(const Trace& a, const Trace& b) {
  const auto pairs = [&](bool places) {
    std::unordered_map<std::string, std::uint32_t> numbers;
    const auto keys = [&](const Trace& t) {
      std::vector<std::uint32_t> out;
      for (const auto& op : t.ops) {
        std::string key = rec::schema_key(op);
        if (places) key += '\n' + op.module_ + '\n' + rec::name_of(op.phase);
        out.push_back(numbers.emplace(std::move(key), static_cast<std::uint32_t>(numbers.size())).first->second);
      }
      return out;
    };
    const auto ka = keys(a), kb = keys(b);
    return align::common(ka, kb);
  };
  auto with_places = pairs(true);
  if (with_places.size() == a.ops.size() && with_places.size() == b.ops.size()) return with_places;
  auto names_only = pairs(false);
  return with_places.size() * 10 >= names_only.size() * 9 ? with_places : names_only;
}

// Two names that share a storage in one trace and not in the other. Gradients tell tied parameters from two parameters
// over one storage.
void alias_of_names(const Trace& a, const Trace& b, bool shared_in_a, TraceDiff& out, std::set<diff_state::Key>& told) {
  using List = const std::vector<rec::NameT>&;
  const auto look = [&](List one, List other) {
    std::unordered_map<std::string, diff_state::Key> there;
    for (const auto& n : other)
      if (n.tensor && n.tensor->storage) there.emplace(n.name, diff_state::key_of(*n.tensor));
    std::map<diff_state::Key, const rec::NameT*> owner;
    for (const auto& n : one) {
      if (!n.tensor || !n.tensor->storage) continue;
      const auto key = diff_state::key_of(*n.tensor);
      const auto [at, fresh] = owner.emplace(key, &n);
      if (fresh || !there.contains(n.name) || !there.contains(at->second->name)) continue;
      if (there.at(n.name) == there.at(at->second->name)) continue;
      TraceDivergence d;
      d.input = n.name;
      d.kind = "alias";
      d.cause = fmt::format("alias: {} and {} share a storage in {} and not in {}.", at->second->name, n.name,
                            shared_in_a ? "a" : "b", shared_in_a ? "b" : "a");
      if (n.role == rec::NameRole::Gradient)
        d.cause += " The parameters are tied in the one, and two parameters in the other.";
      d.expected = shared_in_a ? "one storage" : "two storages";
      d.actual = shared_in_a ? "two storages" : "one storage";
      out.roots.push_back(std::move(d));
      told.insert(shared_in_a ? key : there.at(n.name));
    }
  };
  const Trace &one = shared_in_a ? a : b, &other = shared_in_a ? b : a;
  look(one.names_start, other.names_start);
  if (out.roots.empty()) look(one.names_end, other.names_end);
}

std::string value_text(const rec::ValueT& v) {
  if (v.kind == rec::ValueKind::Float) return fmt::format("{}", rec::float_of(v));
  return v.kind == rec::ValueKind::Int || v.kind == rec::ValueKind::Bool ? std::to_string(v.i) : v.text;
}

TraceStateComparison compare_names(const std::vector<rec::NameT>& a, const std::vector<rec::NameT>& b) {
  using elements::Side;
  TraceStateComparison out;
  std::unordered_map<std::string, const rec::NameT*> there;
  for (const auto& n : b) there.emplace(n.name, &n);
  for (const auto& n : a) {
    const auto at = there.find(n.name);
    std::string text;
    if (at == there.end()) {
      text = "only in a";
    } else if (n.tensor && at->second->tensor) {
      const auto& t = *n.tensor;
      const bool before = t.before_state == rec::DigestState::Known;
      text = elements::difference(t, *at->second->tensor, before ? Side::kBefore : Side::kAfter);
    } else if (n.value && at->second->value &&
               (n.value->i != at->second->value->i || n.value->text != at->second->value->text)) {
      text = value_text(*n.value) + " against " + value_text(*at->second->value);
    }
    ++out.compared;
    if (text.empty())
      ++out.equal;
    else if (out.different.size() < kMostNotes)
      out.different.push_back({n.name, text});
    if (at != there.end()) there.erase(at);
  }
  for (const auto& n : b)
    if (there.contains(n.name)) {
      ++out.compared;
      if (out.different.size() < kMostNotes) out.different.push_back({n.name, "only in b"});
    }
  return out;
}

// The first op that only one of the traces has, where nothing else explains a difference.
TraceDivergence other_program(const Trace& a, const Trace& b, const TraceDiff& d) {
  TraceDivergence out;
  const bool in_a = !d.only_a.empty() && (d.only_b.empty() || d.only_a[0].index <= d.only_b[0].index);
  const auto& note = in_a ? d.only_a[0] : d.only_b[0];
  (in_a ? out.index : out.index_b) = note.index;
  out.op = note.op;
  out.module = note.module;
  out.expected = in_a ? note.op : "no such op";
  out.actual = in_a ? "no such op" : note.op;
  const auto unseen = cause::not_seen(a, b, "inductor");
  out.kind = unseen.empty() ? "program" : "compiled code";
  out.cause = unseen.empty()
                  ? fmt::format("program: {} ops only in a, {} only in b (first: {} in {}); no kernel is to blame.",
                                d.only_a_count, d.only_b_count, note.op, in_a ? "a" : "b")
                  : fmt::format("compiled code: {} The cause lies inside it.", unseen);
  return out;
}

void finish(const Trace& a, const Trace& b, TraceDiff& d) {
  if (d.roots.empty() && d.only_a_count + d.only_b_count > 0) d.roots.push_back(other_program(a, b, d));
  if (d.roots.empty() && d.end.compared != d.end.equal) {
    TraceDivergence last;
    last.output = d.end.different[0].name;
    last.kind = "not seen";
    last.cause = fmt::format(
        "not seen: no recorded op differs, and {} ends with other {}; it was written where the recorder "
        "does not look. {}",
        last.output, d.end.different[0].text, cause::not_seen(a, b));
    d.roots.push_back(std::move(last));
  }
  const auto major = std::find_if(d.roots.begin(), d.roots.end(), [](const auto& r) { return !r.minor; });
  if (!d.roots.empty()) d.first = major == d.roots.end() ? d.roots.front() : *major;
  for (const auto* t : {&a, &b})
    if (!t->complete) d.not_complete.push_back(fmt::format("'{}' is not complete: {}", t->path, t->reason));
  d.equal =
      d.roots.empty() && d.not_complete.empty() && d.start.compared == d.start.equal && d.end.compared == d.end.equal;
}

}  // namespace

TraceDiff diff(const Trace& a, const Trace& b) {
  TraceDiff out;
  out.environment = cause::environment(a.environment, b.environment);
  out.start = compare_names(a.names_start, b.names_start);
  out.end = compare_names(a.names_end, b.names_end);
  PairWalk walk(a, b, out);
  alias_of_names(a, b, true, out, walk.told_aliases());
  alias_of_names(a, b, false, out, walk.told_aliases());

  const auto pairs = align_ops(a, b);
  out.aligned = pairs.size();
  std::size_t i = 0, j = 0;
  const auto alone = [&](std::size_t to_i, std::size_t to_j) {
    for (; i < to_i; ++i) {
      walk.only_in_a(i);
      if (++out.only_a_count <= kMostNotes) out.only_a.push_back(note_of(a, i));
    }
    for (; j < to_j; ++j) {
      walk.only_in_b(j);
      if (++out.only_b_count <= kMostNotes) out.only_b.push_back(note_of(b, j));
    }
  };
  for (const auto& [pi, pj] : pairs) {
    alone(pi, pj);
    walk.pair(i++, j++);
  }
  alone(a.ops.size(), b.ops.size());
  finish(a, b, out);
  return out;
}

}  // namespace step_oracle
