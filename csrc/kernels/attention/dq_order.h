// The order in which thread blocks add to a query's gradient in the memory-efficient backward, as text, and what it can
// be. A tile is a (batch, head, query tile); a block takes its key tiles in ascending order.
//
// Text      "in step": mem_default_order. Else rows separated by "|"; a row is key tiles in the order of their arrival,
//           separated by spaces. One row: all key tiles, each tile has those that the mask leaves it in this order. Or a
//           row for each query tile, all heads alike. Or a row for each tile, counted over batch, head, query tile. An
//           order has one text: the first of these forms that says it.
// Errors    a text that is no order's, or not the order's text.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "csrc/kernels/attention/mem_efficient.h"

namespace step_oracle::attention {

using DqOrder = std::vector<std::int32_t>;  // MemBackward::dq_order, or a row of it

DqOrder dq_order_of(const MemBackward& params, std::string_view text);
std::string dq_order_text(const MemBackward& params, const DqOrder& order);
std::string dq_row_text(const DqOrder& row);

// All orders of four key tiles of four blocks: recordings of a T4 and an L4 had no others
// [fit "The step oracle", section 3.7].
inline constexpr int kMostDqOrders = 24;

struct DqOrders {
  std::vector<std::string> whole;           // one for all tiles: in step, ascending, descending; then every order of the
                                            // key tiles, where they have at most kMostDqOrders
  std::vector<std::vector<DqOrder>> rows;   // of a query tile: the same, each once; where it has too many orders, in
                                            // step with two neighbours exchanged, up to kMostDqOrders
  bool all = true;                          // every order of every query tile is there
};
DqOrders dq_orders(const MemBackward& params);

// Puts one row for each tile together.
DqOrder dq_order_from(const MemBackward& params, const std::vector<const DqOrder*>& rows);

}  // namespace step_oracle::attention
