// Plan tables: from a card's matrix products to the plans it takes for them. docs/plan-table.md describes the file.
#pragma once
#include <compare>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "csrc/kernels/core/dtype.h"
#include "csrc/kernels/gemm/plan.h"

namespace step_oracle::plan {

enum class Op : std::uint8_t { kMm, kAddmm, kBmm, kBaddbmm, kAddmv };
enum class EpilogueKind : std::uint8_t { kNone, kBias, kBeta };

// A product in torch's words: D[m, n] = A[m, k] B[k, n], row-major; a transposed factor is one whose rows are not
// contiguous. (cuBLAS is asked for the column-major product D' = B' A': its m and n are exchanged, its letters too.)
struct Key {
  Op op = Op::kMm;
  DType dtype = DType::kF32;
  bool tf32 = false;  // float32 factors, read by tensor cores as TF32: torch's switch allows it, and the card has it
  bool a_transposed = false, b_transposed = false;
  EpilogueKind epilogue = EpilogueKind::kNone;
  bool reduced_precision = true;  // torch's switch for 16-bit split-K sums; true for float32
  std::int64_t m = 0, n = 0, k = 0, batch = 1;
  auto operator<=>(const Key&) const = default;
};

struct Row {
  gemm::Plan plan;
  std::string source;
  mutable bool used = false;  // a product has taken it: set by find()
};

struct Table {
  std::string card;     // a name of card.h
  std::string library;  // the cuBLASLt that takes these plans, as its version is written
  std::string source;   // of rows that name none of their own
  bool pinned = false;  // what has no row is known to be a single pass, not assumed: the program's owner forced it
  std::map<Key, Row> rows;
  // Null where the table has no row: the class default is assumed then.
  const Row* find(const Key& key) const;
  Table used() const;  // with the rows that find() has given
};

// Throw kBadInput with the row's number and what is wrong: an unknown, missing or mistyped field, an unknown card, a
// plan that contradicts itself or does not cover its k, a row given twice.
Table parse(std::string_view json);
// Sorted by key, fields at their defaults left out: one table, one text.
std::string write(const Table& table);
// The object of a row's field 'plan'.
std::string text_of(const gemm::Plan& plan);

// One line: "splits 3, chunks of 1024, reduction in_place".
std::string describe(const gemm::Plan& plan);
std::string describe(const Key& key);

// Throws kBadInput where tables of different cards agree in every row that two cards of different multiprocessors
// share: the mark of a table derived from the wrong card's log.
void check_distinct(const Table& a, const Table& b);

}  // namespace step_oracle::plan
