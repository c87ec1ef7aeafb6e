// The order of arrival as text: one text for one order, refusals, and how many orders there are.
#include "csrc/kernels/attention/dq_order.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "csrc/kernels/core/error.h"

namespace step_oracle::test {
namespace {

using attention::Mask;
using attention::MemBackward;

MemBackward call(std::int64_t tokens, Mask mask, std::int64_t splits, std::int64_t heads = 2) {
  MemBackward p;
  p.shape = {89, DType::kF32, 1, heads, tokens, tokens, 32, 32};
  p.mask = mask, p.key_splits = splits;
  return p;
}

std::string round_trip(const MemBackward& p, const std::string& text) {
  return attention::dq_order_text(p, attention::dq_order_of(p, text));
}

TEST(DqOrder, HasOneText) {
  const MemBackward p = call(256, Mask::kCausalTopLeft, 4);
  for (const char* text : {"in step", "0 1 2 3", "2 0 3 1", "0|0 1|1 0 2|3 0 1 2", "0|1 0|2 1 0|3 2 1 0|0|0 1|2 1 0|0 3 2 1"})
    EXPECT_EQ(round_trip(p, text), text);
  // Under the causal mask the blocks in step arrive with the later key tiles first.
  EXPECT_EQ(attention::dq_order_of(p, "in step"), attention::mem_default_order(p));
  for (const char* text : {"", "0 1 2", "0 1 2 4", "0 1 2 2", "0  1 2 3", "0 1 2 3 ", " 0 1 2 3", "00 1 2 3", "0,1,2,3",
                           "0 1 2 99999999999999999999", "-1 0 1 2", "3 2 1 0", "0|0 1|0 1 2|0 1 2 3", "0|0 1|0 1 2",
                           "0|1|0 1 2|0 1 2 3", "0|0 1|1 0 2|3 0 1 2|0|0 1|1 0 2|3 0 1 2", "in  step", "0 1 2 3|"})
    EXPECT_THROW(attention::dq_order_of(p, text), Error) << text;
}

TEST(DqOrder, ABlockTakesItsKeyTilesInAscendingOrder) {
  const MemBackward p = call(256, Mask::kNone, 2);  // block 0: tiles 0 and 2
  EXPECT_EQ(round_trip(p, "1 3 0 2"), "1 3 0 2");
  EXPECT_THROW(attention::dq_order_of(p, "2 0 1 3"), Error);
  EXPECT_THROW(attention::dq_order_of(p, "0 3 2 1"), Error);
}

TEST(DqOrder, AllOrdersOfFourBlocksAreTried) {
  const auto orders = attention::dq_orders(call(256, Mask::kCausalTopLeft, 4));
  EXPECT_EQ(orders.whole.size(), 24u);
  EXPECT_TRUE(orders.all);
  EXPECT_EQ(orders.whole.front(), "in step");
  ASSERT_EQ(orders.rows.size(), 4u);
  const std::size_t factorial[]{1, 2, 6, 24};
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(orders.rows[i].size(), factorial[i]);
    EXPECT_EQ(std::set<attention::DqOrder>(orders.rows[i].begin(), orders.rows[i].end()).size(), factorial[i]);
  }
  EXPECT_EQ(attention::dq_orders(call(256, Mask::kNone, 2)).rows[0].size(), 6u);  // of two blocks with two tiles each
  EXPECT_EQ(attention::dq_orders(call(256, Mask::kNone, 4)).whole.size(), 25u);   // in step is none of one row here
}

TEST(DqOrder, BeyondThemSomeAre) {
  const auto orders = attention::dq_orders(call(500, Mask::kCausalTopLeft, 8));
  EXPECT_EQ(orders.whole, (std::vector<std::string>{"in step", "0 1 2 3 4 5 6 7"}));
  EXPECT_FALSE(orders.all);
  ASSERT_EQ(orders.rows.size(), 8u);
  EXPECT_EQ(orders.rows[3].size(), 24u);
  EXPECT_EQ(orders.rows[4].size(), 2u + 4u);  // of five key tiles: two, and neighbours exchanged
  EXPECT_EQ(orders.rows[7].back(), (attention::DqOrder{7, 6, 5, 4, 3, 2, 0, 1}));
  const auto many = attention::dq_orders(call(64 * 300, Mask::kNone, 300, 1));
  EXPECT_EQ(many.whole.size(), 3u);
  EXPECT_EQ(many.rows[0].size(), 24u);
}

}  // namespace
}  // namespace step_oracle::test
