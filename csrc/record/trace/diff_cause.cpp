#include "csrc/record/trace/diff_cause.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <set>
#include <string_view>

namespace step_oracle::cause {
namespace {

std::string base_name(const rec::OpT& op) {
  const auto at = op.name.find("::");
  return at == std::string::npos ? op.name : op.name.substr(at + 2);
}

bool has(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

template <std::size_t N>
bool any_of(std::string_view name, const std::array<std::string_view, N>& parts) {
  return std::any_of(parts.begin(), parts.end(), [&](std::string_view p) { return has(name, p); });
}

constexpr std::array<std::string_view, 8> kProducts = {"mm",   "matmul", "addmv",     "linear",
                                                       "conv", "dot",    "attention", "einsum"};
// CUDA kernels that add with atomics [src aten/src/ATen/Context.cpp alertNotDeterministic callers@v2.13.0]
constexpr std::array<std::string_view, 7> kRaces = {"index_add", "scatter_add", "scatter_reduce",          "index_put",
                                                    "histc",     "bincount",    "embedding_dense_backward"};

const TraceFieldDifference* field(const std::vector<TraceFieldDifference>& list, std::string_view name) {
  const auto at = std::find_if(list.begin(), list.end(), [&](const auto& f) { return f.field == name; });
  return at == list.end() ? nullptr : &*at;
}

std::string both(const TraceFieldDifference& f) { return fmt::format("{} {} against {}", f.field, f.a, f.b); }

std::vector<const rec::PlanT*> plans_of(const Trace& t, const rec::OpT& op) {
  std::vector<const rec::PlanT*> out;
  for (const auto& p : t.plans)
    if (p.op == op.ticket) out.push_back(&p);
  return out;
}

// The first field in which the plans of the two ops differ.
std::string plan_difference(const Trace& a, const rec::OpT& oa, const Trace& b, const rec::OpT& ob) {
  const auto pa = plans_of(a, oa), pb = plans_of(b, ob);
  for (std::size_t i = 0; i < std::min(pa.size(), pb.size()); ++i) {
    for (const auto& f : pa[i]->fields)
      for (const auto& g : pb[i]->fields)
        if (f->key == g->key && f->value != g->value)
          return fmt::format("{} {} against {}", f->key, f->value, g->value);
    if (pa[i]->line != pb[i]->line) return fmt::format("'{}' against '{}'", pa[i]->line, pb[i]->line);
  }
  return {};
}

Cause of_collective(const rec::OpT& oa, const rec::OpT& ob) {
  return {"reduction order",
          fmt::format("reduction order: {} against {}. Other sizes are other chunk boundaries, so another "
                      "order of addition for each element; the local inputs are not to blame.",
                      describe(oa.collective.get(), oa), describe(ob.collective.get(), ob))};
}

Cause of_card(const std::string& op, const std::string& plan, const std::vector<TraceFieldDifference>& env) {
  const auto *sms = field(env, "sms"), *cc = field(env, "compute_capability"), *name = field(env, "card");
  const bool product = any_of(op, kProducts);
  const std::string cards = name ? fmt::format(" ({} against {})", name->a, name->b) : "";
  if (product && has(plan, "split"))
    return {"split-K", fmt::format("split-K: the cards{} run this product with {}.", cards, plan)};
  if (product && cc)
    return {"adder class",
            fmt::format("adder class: {}{}; tensor cores of another generation add in another way, and the "
                        "library chooses other tiles and splits.",
                        both(*cc), cards)};
  if (sms) return {"SM count", fmt::format("SM count: {}{}; grid sizes and split-K follow it.", both(*sms), cards)};
  if (cc) return {"card", fmt::format("card: {}{}; other kernels serve other generations.", both(*cc), cards)};
  return {"card", fmt::format("card: {}.", name ? both(*name) : both(env.front()))};
}

}  // namespace

bool is_collective(const rec::OpT& op) {
  return op.collective != nullptr || op.name.rfind("c10d", 0) == 0 || op.name.rfind("_c10d", 0) == 0;
}

std::string describe(const rec::CollectiveT* c, const rec::OpT& op) {
  if (!c)
    return fmt::format("{} over {}", op.name,
                       op.tensors.empty() ? "nothing" : fmt::format("[{}]", fmt::join(op.tensors[0]->sizes, ", ")));
  std::string out = c->kind + (c->group.empty() ? "" : " in group " + c->group);
  if (!c->ranks.empty()) out += fmt::format(" of {} ranks", c->ranks.size());
  if (c->bucket >= 0) out += fmt::format(", bucket {}", c->bucket);
  std::int64_t sum = 0;
  for (auto n : c->bucket_sizes) sum += n;
  if (!c->bucket_sizes.empty()) out += fmt::format(" with {} elements of {} parameters", sum, c->bucket_sizes.size());
  if (c->bucket_sizes.empty() && !op.tensors.empty())
    out += fmt::format(" over {} elements", rec::numel(op.tensors[0]->sizes));
  return out;
}

std::string not_seen(const Trace& a, const Trace& b, const std::string& word) {
  std::set<std::string> said;
  std::string out;
  for (const auto* t : {&a, &b})
    for (const auto& e : t->events)
      if ((e.kind == rec::EventKind::NotSeen || e.kind == rec::EventKind::Note) && has(e.text, word) &&
          (e.kind == rec::EventKind::NotSeen || !word.empty()) && said.insert(e.text).second)
        out += (out.empty() ? "" : " ") + e.text;
  return out;
}

bool overwrites_only(const rec::OpT& op) {
  static const std::set<std::string> kNames = {
      "fill_",        "zero_",       "uniform_",       "normal_",        "random_", "bernoulli_",
      "exponential_", "log_normal_", "cauchy_",        "geometric_",     "copy_",   "set_",
      "resize_",      "resize_as_",  "_foreach_zero_", "_foreach_copy_", "eye_",    "one_"};
  return kNames.contains(base_name(op)) || op.overload == "out" || has(op.overload, "_out");
}

bool reads_no_bytes(const rec::OpT& op) {
  const auto name = base_name(op);
  return name.rfind("new_", 0) == 0 || has(name, "_like") || name == "empty" || name == "record_stream" ||
         name == "is_pinned" || name == "_has_compatible_shallow_copy_type";
}

std::vector<TraceFieldDifference> environment(const rec::EnvironmentT& a, const rec::EnvironmentT& b) {
  std::vector<TraceFieldDifference> out;
  const auto add = [&](std::string name, std::string x, std::string y) {
    if (x != y) out.push_back({std::move(name), std::move(x), std::move(y)});
  };
  add("device", a.device, b.device);
  const rec::CardT none;
  const auto& ca = a.cards.empty() ? none : *a.cards[0];
  const auto& cb = b.cards.empty() ? none : *b.cards[0];
  add("card", ca.name, cb.name);
  add("sms", std::to_string(ca.sms), std::to_string(cb.sms));
  add("threads_per_sm", std::to_string(ca.threads_per_sm), std::to_string(cb.threads_per_sm));
  add("compute_capability", fmt::format("{}.{}", ca.cc_major, ca.cc_minor),
      fmt::format("{}.{}", cb.cc_major, cb.cc_minor));
  add("world", std::to_string(a.world), std::to_string(b.world));
  std::set<std::string> keys;
  std::map<std::string, std::string> sa, sb;
  for (const auto& f : a.switches) sa[f->key] = f->value, keys.insert(f->key);
  for (const auto& f : b.switches) sb[f->key] = f->value, keys.insert(f->key);
  for (const auto& k : keys) add("switch " + k, sa[k], sb[k]);
  add("threads", std::to_string(a.threads), std::to_string(b.threads));
  add("host_isa", a.host_isa, b.host_isa);
  add("cpu", a.cpu, b.cpu);
  for (const auto& [name, x, y] : {std::tuple("torch", &a.torch, &b.torch),
                                   {"torch_commit", &a.torch_commit, &b.torch_commit},
                                   {"cuda", &a.cuda, &b.cuda},
                                   {"cublaslt", &a.cublaslt, &b.cublaslt},
                                   {"cudnn", &a.cudnn, &b.cudnn},
                                   {"nccl", &a.nccl, &b.nccl},
                                   {"driver", &a.driver, &b.driver}})
    add(name, *x, *y);
  return out;
}

Cause of_root(const Trace& a, const rec::OpT& oa, const Trace& b, const rec::OpT& ob,
              const std::vector<TraceFieldDifference>& env) {
  if (is_collective(oa)) {
    const bool same = describe(oa.collective.get(), oa) == describe(ob.collective.get(), ob);
    if (same)
      return {"reduction order",
              "reduction order: the local inputs of this collective are equal and its result is "
              "not; other ranks sent other data, or added in another order."};
    return of_collective(oa, ob);
  }
  const bool host = oa.tensors.empty() || std::all_of(oa.tensors.begin(), oa.tensors.end(),
                                                      [](const auto& t) { return t->device.rfind("cpu", 0) == 0; });
  const std::string op = base_name(oa);
  const auto plan = plan_difference(a, oa, b, ob);
  if (!host && (field(env, "sms") || field(env, "compute_capability") || field(env, "card")))
    return of_card(op, plan, env);
  if (!plan.empty()) {
    const std::string kind = has(plan, "split") ? "split-K" : "plan";
    return {kind, fmt::format("{}: the library ran this product in another way: {}.", kind, plan)};
  }
  for (const auto& f : env)
    if (f.field.rfind("switch ", 0) == 0) return {"switch", fmt::format("switch: {}.", both(f))};
  if (const auto* f = field(env, "threads"); f && host)
    return {"threads",
            fmt::format("threads: {} on the host; a reduction is split over the threads, so the order of addition "
                        "follows their number.",
                        both(*f))};
  for (const char* name : {"host_isa", "cpu"})
    if (const auto* f = field(env, name); f && host)
      return {"host", fmt::format("host: {}; the host's kernels differ by instruction set.", both(*f))};
  for (const char* name : {"torch", "torch_commit", "cuda", "cublaslt", "cudnn", "nccl", "driver"})
    if (const auto* f = field(env, name)) return {"software", fmt::format("software: {}.", both(*f))};
  if (!host && any_of(op, kRaces)) return {"race", "race: this kernel adds with atomics, in the order of arrival."};
  return {"unknown",
          "unknown: inputs, arguments, generator and environment are equal and the results are not; the op did "
          "not repeat itself (a fault of the machine, or of a kernel)."};
}

}  // namespace step_oracle::cause
