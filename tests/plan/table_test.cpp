#include "csrc/oracle/plan/table.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>

#include "csrc/kernels/core/error.h"
#include "csrc/oracle/plan/active.h"

namespace step_oracle::plan {
namespace {

std::string file(const std::string& rows, const std::string& card = "l4") {
  return "{\"format\": \"step-oracle plan table 1\", \"card\": \"" + card +
         "\", \"library\": \"x\", \"source\": \"test\", \"rows\": [" + rows + "]}";
}
const std::string kRow =
    R"({"op":"mm","dtype":"bfloat16","layout":"nt","m":64,"n":32,"k":96,"plan":{"splits":3,"width":32}})";

// The message of the refusal; empty where the text is accepted.
std::string refusal(const std::string& text) {
  try {
    parse(text);
    return "";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kBadInput);
    return e.what();
  }
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const auto at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(PlanTable, ReadsAndFinds) {
  const Table table = parse(file(kRow));
  Key key;
  key.dtype = DType::kBF16, key.b_transposed = true, key.m = 64, key.n = 32, key.k = 96;
  for (const bool reduced : {true, false}) {
    key.reduced_precision = reduced;
    ASSERT_NE(table.find(key), nullptr) << "a row without the switch holds for both settings";
    EXPECT_EQ(table.find(key)->plan.splits, 3);
    EXPECT_EQ(table.find(key)->source, "test");
  }
  key.k = 97;
  EXPECT_EQ(table.find(key), nullptr);
}

TEST(PlanTable, RefusalsNameTheRowAndTheField) {
  EXPECT_EQ(refusal(file(kRow)), "");
  const auto expect = [](const std::string& text, const std::string& part) {
    EXPECT_NE(refusal(text).find(part), std::string::npos) << refusal(text) << " lacks: " << part;
  };
  expect("{", "not JSON");
  expect("[]", "give an object");
  expect(file(kRow, "l5"), "l5");
  expect(replaced(file(kRow), "table 1", "table 9"), "this version reads");
  expect(file(kRow + "," + kRow), "row 2 repeats mm bfloat16 nt m 64 n 32 k 96");
  expect(file(replaced(kRow, "\"m\":64,", "")), "row 1 has no field 'm'");
  expect(file(replaced(kRow, "64", "0")), "whole number");
  expect(file(replaced(kRow, "64", "6.5")), "whole number");
  expect(file(replaced(kRow, "\"nt\"", "\"nx\"")), "nn, nt, tn or tt");
  expect(file(replaced(kRow, "\"mm\"", "\"mn\"")), "give one of: mm");
  expect(file(replaced(kRow, "\"k\":96", "\"k\":96,\"K\":96")), "'K' that is not known");
  expect(file(replaced(kRow, "\"splits\":3", "\"splits\":3,\"spilts\":3")), "'spilts' that is not known");
  expect(file(replaced(kRow, ",\"width\":32", "")), "is no plan");
  expect(file(replaced(kRow, "\"width\":32", "\"width\":31")), "do not fit");
  expect(file(replaced(kRow, "\"width\":32", "\"width\":48")), "do not fit");
}

TEST(PlanTable, WrittenTextReadsBackEqual) {
  std::mt19937 gen(1);
  std::string rows;
  for (int i = 0; i < 40; ++i) {
    std::ostringstream row;
    row << (i ? "," : "") << R"({"op":")" << (gen() % 2 ? "mm" : "addmm") << R"(","dtype":")"
        << (gen() % 2 ? "bfloat16" : "float32") << R"(","layout":"tn","m":)" << 64 + i << R"(,"n":32,"k":)" << 96 << ','
        << (gen() % 3 == 0 ? R"("source":"other",)" : "") << R"("plan":{"slices":4,"slice_width":16,"bias":"first")"
        << (gen() % 2 ? R"(,"splits":2,"deal":"round_robin","width":8)" : R"(,"tail":"dropped","tail_width":32)")
        << "}}";
    rows += row.str();
  }
  const Table table = parse(file(rows));
  const std::string text = write(table);
  const Table again = parse(text);
  EXPECT_EQ(write(again), text);
  ASSERT_EQ(again.rows.size(), table.rows.size());
  for (const auto& [key, row] : table.rows) {
    ASSERT_NE(again.find(key), nullptr);
    EXPECT_EQ(again.find(key)->plan, row.plan);
    EXPECT_EQ(again.find(key)->source, row.source);
  }
}

TEST(PlanTable, DamagedTextIsRefusedOrReads) {
  std::mt19937 gen(2);
  const std::string whole = file(kRow);
  for (int i = 0; i < 3000; ++i) {
    std::string text = whole;
    for (int n = 1 + static_cast<int>(gen() % 3); n; --n) text[gen() % text.size()] = static_cast<char>(gen());
    if (gen() % 4 == 0) text.resize(gen() % text.size());
    try {
      parse(text);
    } catch (const Error&) {
    }
  }
}

TEST(PlanTable, ShippedTablesReadAndCardsDiffer) {
  std::vector<Table> tables;
  for (const auto& entry : std::filesystem::directory_iterator(STEP_ORACLE_PLANS)) {
    std::ifstream in(entry.path());
    std::stringstream text;
    text << in.rdbuf();
    tables.push_back(parse(text.str()));
    EXPECT_EQ(tables.back().card + ".json", entry.path().filename().string());
    EXPECT_EQ(write(tables.back()), text.str()) << entry.path() << " is not in the written form";
  }
  EXPECT_GE(tables.size(), 3u);
  for (const Table& a : tables)
    for (const Table& b : tables) EXPECT_NO_THROW(check_distinct(a, b));
}

TEST(PlanTable, ATableUnderTwoCardsNamesIsRefused) {
  std::string rows;
  for (int i = 0; i < 8; ++i) rows += (i ? "," : "") + replaced(kRow, "\"m\":64", "\"m\":" + std::to_string(i + 1));
  EXPECT_THROW(check_distinct(parse(file(rows, "l4")), parse(file(rows, "l40"))), Error);
  EXPECT_NO_THROW(check_distinct(parse(file(rows, "l40")), parse(file(rows, "l40s"))));
}

TEST(PlanTable, ActiveTablesAreOnePerCard) {
  set_active(3, std::make_shared<Table>(parse(file(kRow))));
  EXPECT_EQ(active(3)->card, "l4");
  EXPECT_EQ(active(2), nullptr);
  EXPECT_EQ(active(99), nullptr);
  set_active(3, nullptr);
  EXPECT_EQ(active(3), nullptr);
}

}  // namespace
}  // namespace step_oracle::plan
