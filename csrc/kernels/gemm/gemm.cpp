#include "csrc/kernels/gemm/gemm.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "csrc/kernels/core/error.h"
#include "csrc/kernels/core/parallel.h"
#include "csrc/kernels/core/workspace.h"
#include "csrc/kernels/gemm/gemm_body.h"
#include "csrc/kernels/gemm/sizes.h"

namespace step_oracle::gemm {
namespace {

void check(const Params& p) {
  check_sizes(p, p.d);
  if (p.epilogue.bias && p.epilogue.beta != 0.0f)
    throw Error(ErrorKind::kBadInput,
                fmt::format("gemm: a bias and beta {} at once; give one of them", p.epilogue.beta));
}

// fma does not tell its factors apart: D' = B' A' gives the same bytes with rows and columns exchanged.
Params transposed(const Params& p) {
  Params t = p;
  auto flip = [](auto matrix) {
    std::swap(matrix.row, matrix.col);
    return matrix;
  };
  std::swap(t.m, t.n);
  t.a = flip(p.b), t.b = flip(p.a), t.d = flip(p.d), t.epilogue.c = flip(p.epilogue.c);
  return t;
}

template <class Visit>
void for_each_output(const Params& p, Visit visit) {
  for (std::int64_t batch = 0; batch < p.batch; ++batch)
    for (std::int64_t i = 0; i < p.m; ++i)
      for (std::int64_t j = 0; j < p.n; ++j) visit(batch, i, j);
}

template <class M>
auto& at(const M& m, std::int64_t batch, std::int64_t i, std::int64_t j) {
  return m.data[batch * m.batch + i * m.row + j * m.col];
}

struct Span {
  std::uintptr_t begin, end;
};
template <class M>
Span span_of(const M& m, const Params& p) {
  std::int64_t low = 0, high = 0;
  for (auto [stride, size] : {std::pair{m.row, p.m}, std::pair{m.col, p.n}, std::pair{m.batch, p.batch}})
    (stride < 0 ? low : high) += stride * (size - 1);
  return {reinterpret_cast<std::uintptr_t>(m.data + low), reinterpret_cast<std::uintptr_t>(m.data + high + 1)};
}

// C may be D. Where the body would write D before it has read C, C is copied first.
void detach_c(Params& p, std::int64_t k_panel, std::vector<float>& copy) {
  Matrix& c = p.epilogue.c;
  const Span from = span_of(c, p), to = span_of(p.d, p);
  if (from.end <= to.begin || to.end <= from.begin) return;
  const bool same = c.data == p.d.data && c.row == p.d.row && c.col == p.d.col && c.batch == p.d.batch;
  if (same && p.k <= k_panel) return;
  copy.reserve(static_cast<std::size_t>(p.batch * p.m * p.n));
  for_each_output(p, [&](auto b, auto i, auto j) { copy.push_back(at(c, b, i, j)); });
  c = {copy.data(), p.n, 1, p.m * p.n};
}

void run(const Params& p, const GemmBody& body) {
  // Tasks are bands of one matrix, along its longer side in tiles; a range of tasks may span matrices.
  const std::int64_t row_tiles = (p.m + body.tile_rows - 1) / body.tile_rows;
  const std::int64_t col_tiles = (p.n + body.tile_cols - 1) / body.tile_cols;
  const bool by_rows = row_tiles >= col_tiles;
  const std::int64_t bands = by_rows ? row_tiles : col_tiles, edge = by_rows ? body.tile_rows : body.tile_cols;
  const std::int64_t work = std::max<std::int64_t>(1, p.m * p.n * std::max<std::int64_t>(p.k, 1) / bands);
  constexpr std::int64_t kWorkWorthAThread = 1 << 21;  // products: some 20 microseconds [probe tests/bench/gemm.py]
  parallel_for(p.batch * bands, (kWorkWorthAThread + work - 1) / work, [&](std::int64_t begin, std::int64_t end) {
    float* const space = static_cast<float*>(workspace(static_cast<std::size_t>(body.workspace) * sizeof(float)));
    while (begin < end) {
      const std::int64_t batch = begin / bands, band = begin % bands, count = std::min(end - begin, bands - band);
      const std::int64_t from = band * edge, to = (band + count) * edge;
      if (by_rows)
        body.fp32_chain(p, batch, from, std::min(to, p.m), 0, p.n, space);
      else
        body.fp32_chain(p, batch, 0, p.m, from, std::min(to, p.n), space);
      begin += count;
    }
  });
}

}  // namespace

void fp32_chain(const Params& params) {
  check(params);
  if (params.m == 0 || params.n == 0 || params.batch == 0) return;
  Params p = params;
  if (p.epilogue.bias) {
    p.epilogue.c = {p.epilogue.bias, 0, 1, 0};
    p.epilogue.beta = 1.0f;
    p.epilogue.bias = nullptr;
  }
  const GemmBody& body = SO_BODY(gemm_body);
  std::vector<float> c_copy, d_copy;
  if (p.epilogue.beta != 0.0f) detach_c(p, body.k_panel, c_copy);
  // A narrow D (a vector, above all) fills few lanes of a tile; on its side it fills them all.
  const bool narrow = p.n * 2 <= body.tile_cols && p.m >= body.tile_cols && p.k >= body.tile_cols;
  if (p.m == 1) p.d.row = 1;
  if (narrow || (p.d.col != 1 && p.d.row == 1)) p = transposed(p);
  if (p.n == 1) p.d.col = 1;
  if (p.d.col == 1) return run(p, body);
  const MutableMatrix d = p.d;
  d_copy.resize(static_cast<std::size_t>(p.batch * p.m * p.n));
  p.d = {d_copy.data(), p.n, 1, p.m * p.n};
  run(p, body);
  for_each_output(p, [&](auto b, auto i, auto j) { at(d, b, i, j) = at(p.d, b, i, j); });
}

}  // namespace step_oracle::gemm
