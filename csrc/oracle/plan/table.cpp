#include "csrc/oracle/plan/table.h"

#include <fmt/format.h>

#include <atomic>

#include "csrc/kernels/card/card.h"
#include "csrc/kernels/core/error.h"
#include "csrc/oracle/plan/names.h"

namespace step_oracle::plan {

const Row* Table::find(const Key& key) const {
  const auto it = rows.find(key);
  if (it == rows.end()) return nullptr;
  std::atomic_ref(it->second.used).store(true, std::memory_order_relaxed);
  return &it->second;
}

Table Table::used() const {
  Table out = *this;
  std::erase_if(out.rows, [](const auto& row) { return !row.second.used; });
  return out;
}

std::string describe(const gemm::Plan& p) {
  std::string out;
  const auto add = [&](const std::string& text) {
    out += out.empty() ? "" : ", ";
    out += text;
  };
  if (p.splits > 1) {
    add(fmt::format("splits {}", p.splits));
    add(fmt::format("{} of {}",
                    p.deal == gemm::Deal::kChunks ? "chunks" : fmt::format("{} tiles", name_in(kDeals, p.deal)),
                    p.width));
    add(fmt::format("reduction {}", name_in(kReductions, p.reduction)));
    if (p.order != gemm::SumOrder::kAscending) add(fmt::format("{} order", name_in(kOrders, p.order)));
  }
  if (p.slices > 1)
    add(fmt::format("slices {} of {}, combined {}", p.slices, p.slice_width, name_in(kCombines, p.combine)));
  if (p.tail == gemm::Tail::kShortFirst)
    add(fmt::format("short tile of {} first", p.tail_width));
  else if (p.tail != gemm::Tail::kLast)
    add(fmt::format("tail of {} {}", p.tail_width, name_in(kTails, p.tail)));
  if (p.group) add(fmt::format("groups of {}", p.group));
  if (p.block) add(fmt::format("closed every {}", p.block));
  if (p.bias != gemm::BiasPlace::kLast) add(fmt::format("bias {}", name_in(kBiasPlaces, p.bias)));
  if (p.unit != gemm::Unit::kClass) add("fp32 chain on the CUDA cores");
  return out.empty() ? "single pass" : out;
}

std::string describe(const Key& key) {
  std::string out = fmt::format("{} {} {}{} m {} n {} k {}", name_in(kOps, key.op), name_in(kTypes, {key.dtype, key.tf32}),
                                key.a_transposed ? 't' : 'n', key.b_transposed ? 't' : 'n', key.m, key.n, key.k);
  if (key.batch != 1) out += fmt::format(" batch {}", key.batch);
  if (key.epilogue != EpilogueKind::kNone) out += fmt::format(" {}", name_in(kEpilogues, key.epilogue));
  if (!key.reduced_precision) out += " reduced_precision false";
  return out;
}

void check_distinct(const Table& a, const Table& b) {
  const Card &x = card_by_name(a.card), &y = card_by_name(b.card);
  if (a.card == b.card || x.sms == y.sms) return;
  constexpr std::size_t kFewest = 8;  // rows in common below this say nothing
  std::size_t common = 0, split = 0;
  for (const auto& [key, row] : a.rows) {
    const Row* other = b.find(key);
    if (!other) continue;
    if (!(other->plan == row.plan)) return;
    ++common;
    split += row.plan.splits > 1;
  }
  if (common < kFewest || split == 0) return;
  throw Error(
      ErrorKind::kBadInput,
      fmt::format("plan tables: {} ({} multiprocessors) and {} ({}) agree in all {} rows they share, {} of them "
                  "split; one was made from the other card's log",
                  a.card, x.sms, b.card, y.sms, common, split));
}

}  // namespace step_oracle::plan
