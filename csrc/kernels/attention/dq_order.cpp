#include "csrc/kernels/attention/dq_order.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "csrc/kernels/core/error.h"

namespace step_oracle::attention {
namespace {

using Int = std::int64_t;
using Rows = std::vector<DqOrder>;
constexpr std::string_view kInStep = "in step";

Int tile_count(Int n, Int size) { return (n + size - 1) / size; }

struct Grid {
  Int heads, query_tiles, key_tiles;
};
Grid grid_of(const MemBackward& p) {
  const MemTiles tiles = mem_backward_tiles(p.shape, p.dropout.p > 0.0f);
  return {p.shape.batch * p.shape.heads, tile_count(p.shape.queries, tiles.queries),
          tile_count(p.shape.keys, tiles.keys)};
}

// The key tiles that reach each query tile, ascending.
Rows visitors(const MemBackward& p) {
  const Grid g = grid_of(p);
  Rows out(static_cast<std::size_t>(g.query_tiles));
  for (Int j = 0; j < g.key_tiles; ++j)
    for (Int step = 0; step < mem_query_tiles(p, j); ++step)
      out[static_cast<std::size_t>((mem_first_query_tile(p, j) + step) % g.query_tiles)].push_back(
          static_cast<std::int32_t>(j));
  return out;
}

// Whether every block's key tiles come in ascending order.
bool can_be(const MemBackward& p, const DqOrder& row) {
  std::vector<std::int32_t> last(static_cast<std::size_t>(p.key_splits), -1);
  for (const std::int32_t j : row) {
    std::int32_t& before = last[static_cast<std::size_t>(j % p.key_splits)];
    if (j < before) return false;
    before = j;
  }
  return true;
}

// Every order of these key tiles, in lexicographic order; nothing where there are more than kMostDqOrders.
Rows all_orders(const MemBackward& p, const DqOrder& ascending) {
  if (ascending.size() > static_cast<std::size_t>(kMostDqOrders)) return {};  // of two blocks at least
  Rows out;
  DqOrder row;
  const auto extend = [&](const auto& self) -> bool {
    if (row.size() == ascending.size()) {
      out.push_back(row);
      return out.size() <= static_cast<std::size_t>(kMostDqOrders);
    }
    for (const std::int32_t next : ascending) {
      if (std::find(row.begin(), row.end(), next) != row.end()) continue;
      const bool earlier_waits = std::any_of(ascending.begin(), ascending.end(), [&](std::int32_t j) {
        return j < next && (next - j) % p.key_splits == 0 && std::find(row.begin(), row.end(), j) == row.end();
      });
      if (earlier_waits) continue;
      row.push_back(next);
      const bool goes_on = self(self);
      row.pop_back();
      if (!goes_on) return false;
    }
    return true;
  };
  return extend(extend) ? out : Rows();
}

// A row with two key tiles that follow each other exchanged.
Rows neighbours_exchanged(const MemBackward& p, const DqOrder& row) {
  Rows out;
  for (std::size_t i = 0; i + 1 < row.size(); ++i) {
    DqOrder other = row;
    std::swap(other[i], other[i + 1]);
    if (can_be(p, other)) out.push_back(std::move(other));
  }
  return out;
}

// Key tiles, given in ascending order, in the order of another row.
DqOrder among(const DqOrder& ascending, const DqOrder& priority) {
  DqOrder out;
  for (const std::int32_t j : priority)
    if (std::binary_search(ascending.begin(), ascending.end(), j)) out.push_back(j);
  return out;
}

DqOrder order_from(const Grid& g, const Rows& rows) {
  DqOrder out;
  for (Int tile = 0; tile < g.heads * g.query_tiles; ++tile) {
    const DqOrder& row = rows[static_cast<std::size_t>(tile) % rows.size()];
    out.insert(out.end(), row.begin(), row.end());
    out.resize(static_cast<std::size_t>((tile + 1) * g.key_tiles), -1);
  }
  return out;
}

Rows rows_of(const Grid& g, const DqOrder& order) {
  Rows out;
  for (Int tile = 0; tile < g.heads * g.query_tiles; ++tile) {
    const auto begin = order.begin() + tile * g.key_tiles;
    out.emplace_back(begin, std::find(begin, begin + g.key_tiles, -1));
  }
  return out;
}

Rows parsed(std::string_view text, Int key_tiles) {
  Rows rows(1);
  std::int32_t number = -1;
  const auto close = [&](bool needed) {
    if (needed && number < 0) throw Error(ErrorKind::kBadInput, fmt::format("dq_order: '{:.200}' is no list of key tiles", text));
    if (number >= 0) rows.back().push_back(number);
    number = -1;
  };
  for (std::size_t i = 0; i <= text.size(); ++i) {
    const char c = i < text.size() ? text[i] : '|';
    if (c >= '0' && c <= '9') {
      number = 10 * std::max(number, 0) + (c - '0');
      if (number >= key_tiles)
        throw Error(ErrorKind::kBadInput, fmt::format("dq_order: '{:.200}' names a key tile of {}", text, key_tiles));
      continue;
    }
    if (c != ' ' && c != '|') throw Error(ErrorKind::kBadInput, fmt::format("dq_order: '{:.200}' has a '{}'", text, c));
    close(c == ' ' || !rows.back().empty());
    if (c == '|' && i < text.size()) rows.emplace_back();
  }
  return rows;
}

}  // namespace

std::string dq_row_text(const DqOrder& row) { return fmt::format("{}", fmt::join(row, " ")); }

std::string dq_order_text(const MemBackward& p, const DqOrder& order) {
  if (order == mem_default_order(p)) return std::string(kInStep);
  const Grid g = grid_of(p);
  Rows rows = rows_of(g, order);
  const Rows reach = visitors(p);
  const auto full = std::find_if(rows.begin(), rows.end(),
                                 [&](const DqOrder& row) { return static_cast<Int>(row.size()) == g.key_tiles; });
  if (full != rows.end()) {
    Rows alike;
    for (const DqOrder& row : reach) alike.push_back(among(row, *full));
    if (order_from(g, alike) == order) return dq_row_text(*full);
  }
  const Rows first(rows.begin(), rows.begin() + g.query_tiles);
  if (order_from(g, first) == order) rows = first;
  std::string out;
  for (std::size_t i = 0; i < rows.size(); ++i) out += (i ? "|" : "") + dq_row_text(rows[i]);
  return out;
}

DqOrder dq_order_of(const MemBackward& p, std::string_view text) {
  if (text == kInStep) return mem_default_order(p);
  const Grid g = grid_of(p);
  const Rows reach = visitors(p);
  Rows rows = parsed(text, g.key_tiles);
  const auto fail = [&](const std::string& why) {
    throw Error(ErrorKind::kBadInput, fmt::format("dq_order: '{:.200}' {}", text, why));
  };
  if (rows.size() == 1) {
    DqOrder sorted = rows[0];
    std::sort(sorted.begin(), sorted.end());
    DqOrder all(static_cast<std::size_t>(g.key_tiles));
    std::iota(all.begin(), all.end(), 0);
    if (sorted != all) fail(fmt::format("is no order of {} key tiles", g.key_tiles));
    const DqOrder priority = rows[0];
    rows.clear();
    for (const DqOrder& row : reach) rows.push_back(among(row, priority));
  } else if (static_cast<Int>(rows.size()) != g.query_tiles && static_cast<Int>(rows.size()) != g.heads * g.query_tiles) {
    fail(fmt::format("has {} rows; give one, {} or {}", rows.size(), g.query_tiles, g.heads * g.query_tiles));
  }
  for (std::size_t i = 0; i < rows.size(); ++i) {
    DqOrder sorted = rows[i];
    std::sort(sorted.begin(), sorted.end());
    const DqOrder& wanted = reach[i % reach.size()];
    if (sorted != wanted) fail(fmt::format("has a row {} that is no order of the key tiles {}", i, dq_row_text(wanted)));
    if (!can_be(p, rows[i])) fail(fmt::format("has a row {} that no {} thread blocks can give", i, p.key_splits));
  }
  const DqOrder order = order_from(g, rows);
  if (const std::string own = dq_order_text(p, order); own != text) fail(fmt::format("is written '{:.200}'", own));
  return order;
}

DqOrders dq_orders(const MemBackward& p) {
  const Grid g = grid_of(p);
  const Rows reach = visitors(p), in_step = rows_of(g, mem_default_order(p));
  DqOrders out;
  out.rows.resize(reach.size());
  const auto add = [&](const Rows& rows) {
    if (!std::all_of(rows.begin(), rows.end(), [&](const DqOrder& row) { return can_be(p, row); })) return;
    const std::string text = dq_order_text(p, order_from(g, rows));
    if (std::find(out.whole.begin(), out.whole.end(), text) == out.whole.end()) out.whole.push_back(text);
    for (std::size_t i = 0; i < rows.size(); ++i)
      if (auto& seen = out.rows[i]; std::find(seen.begin(), seen.end(), rows[i]) == seen.end()) seen.push_back(rows[i]);
  };
  const auto alike = [&](const DqOrder& priority) {
    Rows rows;
    for (const DqOrder& row : reach) rows.push_back(among(row, priority));
    return rows;
  };
  DqOrder ascending(static_cast<std::size_t>(g.key_tiles));
  std::iota(ascending.begin(), ascending.end(), 0);
  add(Rows(in_step.begin(), in_step.begin() + g.query_tiles));
  add(alike(ascending));
  add(alike(DqOrder(ascending.rbegin(), ascending.rend())));
  for (const DqOrder& priority : all_orders(p, ascending)) add(alike(priority));
  for (std::size_t i = 0; i < reach.size(); ++i) {
    Rows more = all_orders(p, reach[i]);
    out.all &= !more.empty();
    if (more.empty()) more = neighbours_exchanged(p, in_step[i]);
    for (const DqOrder& row : more)
      if (auto& seen = out.rows[i]; std::find(seen.begin(), seen.end(), row) == seen.end() &&
                                    seen.size() < static_cast<std::size_t>(kMostDqOrders))
        seen.push_back(row);
  }
  return out;
}

DqOrder dq_order_from(const MemBackward& p, const std::vector<const DqOrder*>& rows) {
  Rows all;
  for (const DqOrder* row : rows) all.push_back(*row);
  return order_from(grid_of(p), all);
}

}  // namespace step_oracle::attention
