// Sums at an index: checks, the stable order, segments over threads.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "csrc/kernels/core/error.h"
#include "csrc/kernels/core/parallel.h"
#include "csrc/kernels/indexing/indexing.h"
#include "csrc/kernels/indexing/indexing_body.h"

namespace step_oracle::indexing {
namespace {

struct Sorted {
  std::vector<std::int64_t> row, starts, order;
  Segments view() const { return {row.data(), starts.data(), order.data()}; }
  std::int64_t count() const { return static_cast<std::int64_t>(row.size()); }
};

void check(std::int64_t index, std::int64_t rows, std::int64_t at, const char* name) {
  if (index < 0 || index >= rows)
    throw Error(ErrorKind::kBadInput,
                fmt::format("{}: index {} at position {} is outside [0, {}) (a card stops here with a "
                            "device-side assertion)",
                            name, index, at, rows));
}

// A stable counting sort: rows are dense in the tables of a training step.
Sorted sorted(const std::vector<std::int64_t>& index, std::int64_t rows) {
  const auto n = static_cast<std::int64_t>(index.size());
  Sorted s;
  s.order.resize(index.size());
  if (rows <= 8 * n + 1024) {
    std::vector<std::int64_t> at(static_cast<std::size_t>(rows) + 1, 0);
    for (const std::int64_t i : index) ++at[static_cast<std::size_t>(i) + 1];
    for (std::size_t r = 0; r + 1 < at.size(); ++r) {
      if (at[r + 1]) {
        s.row.push_back(static_cast<std::int64_t>(r));
        s.starts.push_back(at[r]);
      }
      at[r + 1] += at[r];
    }
    for (std::int64_t i = 0; i < n; ++i)
      s.order[static_cast<std::size_t>(at[static_cast<std::size_t>(index[static_cast<std::size_t>(i)])]++)] = i;
  } else {
    std::iota(s.order.begin(), s.order.end(), std::int64_t{0});
    std::stable_sort(s.order.begin(), s.order.end(), [&](std::int64_t a, std::int64_t b) {
      return index[static_cast<std::size_t>(a)] < index[static_cast<std::size_t>(b)];
    });
    for (std::int64_t i = 0; i < n; ++i) {
      const std::int64_t row = index[static_cast<std::size_t>(s.order[static_cast<std::size_t>(i)])];
      if (!s.row.empty() && s.row.back() == row) continue;
      s.row.push_back(row);
      s.starts.push_back(i);
    }
  }
  s.starts.push_back(n);
  return s;
}

bool is_float(DType t) { return t == DType::kF32 || t == DType::kBF16 || t == DType::kF16; }

std::int64_t grain(std::int64_t width) { return std::max<std::int64_t>(1, 16384 / std::max<std::int64_t>(1, width)); }

}  // namespace

bool embedding_atomic_is_chosen(const EmbeddingParams& p, int sms) {
  // [src EmbeddingBackwardKernel.cu embedding_backward_cuda_kernel; MAX_BLOCK_SIZE 1024, 4 blocks a multiprocessor]
  if ((p.n <= 3072 && !p.scale_by_frequency) || p.n == 0) return false;
  const auto up = [](std::int64_t a, std::int64_t b) { return (a + b - 1) / b; };
  const std::int64_t segments = std::min(p.n, p.table_rows), warped = up(p.width, 32) * 32;
  const std::int64_t block = std::min<std::int64_t>(warped, 1024);
  const std::int64_t grid = up(segments * warped, block), partials = p.n / 10 + segments;
  return grid < std::int64_t{sms} * 4 && partials > grid * 4;
}

void embedding_backward(const EmbeddingParams& p) {
  if (p.n < 0 || p.width < 0 || p.table_rows < 0)
    throw Error(ErrorKind::kBadInput,
                fmt::format("embedding backward: {} indices, width {}, {} rows; none may be negative", p.n, p.width,
                            p.table_rows));
  if (!is_float(p.type) || (p.index_type != DType::kI64 && p.index_type != DType::kI32))
    throw Error(ErrorKind::kUnsupported,
                fmt::format("embedding backward of {} with indices of {} is not modelled; use float32, "
                            "bfloat16 or float16 and int64 or int32",
                            name_of(p.type), name_of(p.index_type)));
  std::vector<std::int64_t> index(static_cast<std::size_t>(p.n));
  for (std::int64_t i = 0; i < p.n; ++i) {
    index[static_cast<std::size_t>(i)] = p.index_type == DType::kI64 ? static_cast<const std::int64_t*>(p.index)[i]
                                                                     : static_cast<const std::int32_t*>(p.index)[i];
    check(index[static_cast<std::size_t>(i)], p.table_rows, i, "embedding backward");
  }
  const auto row_bytes = static_cast<std::size_t>(p.width) * size_of(p.type);
  parallel_for(p.table_rows, grain(p.width), [&](std::int64_t b, std::int64_t e) {
    std::memset(static_cast<char*>(p.out) + static_cast<std::size_t>(b) * row_bytes, 0,
                static_cast<std::size_t>(e - b) * row_bytes);
  });
  const Sorted s = sorted(index, p.table_rows);
  parallel_for(s.count(), grain(p.width),
               [&](std::int64_t b, std::int64_t e) { SO_BODY(indexing_body).embedding(p, s.view(), b, e); });
}

void accumulate(const AccumulateParams& p) {
  if (p.n < 0 || p.width < 0 || p.dest_rows < 0)
    throw Error(ErrorKind::kBadInput, fmt::format("index_put: {} indices, width {}, {} rows; none may be negative", p.n,
                                                  p.width, p.dest_rows));
  if (p.type == DType::kF64 || p.type == DType::kBool)
    throw Error(
        ErrorKind::kUnsupported,
        fmt::format("accumulating index_put of {} is not modelled; use float32 or an integer type", name_of(p.type)));
  for (std::int64_t i = 0; i < p.n; ++i) check(p.index[i], p.dest_rows, i, "index_put");
  const Sorted s = sorted(std::vector<std::int64_t>(p.index, p.index + p.n), p.dest_rows);
  parallel_for(s.count(), grain(p.width),
               [&](std::int64_t b, std::int64_t e) { SO_BODY(indexing_body).accumulate(p, s.view(), b, e); });
}

}  // namespace step_oracle::indexing
