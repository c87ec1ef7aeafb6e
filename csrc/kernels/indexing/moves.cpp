// Moves by index: bytes are copied, nothing is computed.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "csrc/kernels/core/error.h"
#include "csrc/kernels/core/parallel.h"
#include "csrc/kernels/indexing/indexing.h"

namespace step_oracle::indexing {
namespace {

[[noreturn]] void outside(const char* name, std::int64_t index, std::int64_t size) {
  throw Error(ErrorKind::kBadInput,
              fmt::format("{}: index {} is out of bounds for a dimension of size {} (a card stops here "
                          "with a device-side assertion)",
                          name, index, size));
}

// Coordinates of a linear index, the last dimension fastest.
struct Point {
  int dims;
  const std::int64_t* shape;
  std::int64_t at[kMaxDims];
  Point(int d, const std::int64_t* s, std::int64_t index) : dims(d), shape(s), at{} {
    for (int k = dims - 1; k >= 0; --k) {
      at[k] = index % shape[k];
      index /= shape[k];
    }
  }
  void next() {
    for (int k = dims - 1; k >= 0; --k) {
      if (++at[k] < shape[k]) return;
      at[k] = 0;
    }
  }
  std::int64_t offset(const std::int64_t* stride) const {
    std::int64_t sum = 0;
    for (int k = 0; k < dims; ++k) sum += at[k] * stride[k];
    return sum;
  }
};

std::int64_t numel(int dims, const std::int64_t* shape) {
  std::int64_t n = 1;
  for (int k = 0; k < dims; ++k) n *= shape[k];
  return n;
}

void copy_item(void* to, const void* from, int size) {
  switch (size) {
    case 1:
      std::memcpy(to, from, 1);
      break;
    case 2:
      std::memcpy(to, from, 2);
      break;
    case 4:
      std::memcpy(to, from, 4);
      break;
    case 8:
      std::memcpy(to, from, 8);
      break;
    default:
      std::memcpy(to, from, static_cast<std::size_t>(size));
  }
}

bool is_set(const void* at, DType type) {
  const auto* b = static_cast<const std::uint8_t*>(at);
  const std::size_t n = size_of(type);
  const bool floats = type == DType::kF32 || type == DType::kF64 || type == DType::kF16 || type == DType::kBF16;
  std::uint8_t any = floats ? b[n - 1] & 0x7f : b[n - 1];  // -0 counts as zero
  for (std::size_t i = 0; i + 1 < n; ++i) any |= b[i];
  return any != 0;
}

}  // namespace

void gather_rows(const RowsParams& p) {
  const std::int64_t grain = std::max<std::int64_t>(1, 65536 / std::max<std::int64_t>(1, p.row_bytes));
  parallel_for(p.rows, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t index = p.index_type == DType::kI64
                                     ? static_cast<const std::int64_t*>(p.index)[i * p.index_stride]
                                     : static_cast<const std::int32_t*>(p.index)[i * p.index_stride];
      if (index < 0 || index >= p.table_rows) outside("index_select", index, p.table_rows);
      std::memcpy(static_cast<char*>(p.out) + i * p.row_bytes,
                  static_cast<const char*>(p.table) + index * p.table_stride, static_cast<std::size_t>(p.row_bytes));
    }
  });
}

void points(const PointsParams& p) {
  const std::int64_t n = numel(p.dims, p.shape);
  // Writes keep the order of points, so that the last of equal ones stays: one thread.
  parallel_for(n, p.put ? n : 8192, [&](std::int64_t begin, std::int64_t end) {
    Point at(p.dims, p.shape, begin);
    for (std::int64_t i = begin; i < end; ++i, at.next()) {
      std::int64_t offset = at.offset(p.data_stride);
      for (int k = 0; k < p.indices; ++k) {
        std::int64_t index = *reinterpret_cast<const std::int64_t*>(reinterpret_cast<const char*>(p.index[k]) +
                                                                    at.offset(p.index_stride[k]));
        const std::int64_t size = p.indexed_size[k];
        if (index >= size || index < (p.wrap ? -size : 0)) outside(p.put ? "index_put" : "index", index, size);
        if (index < 0) index += size;
        offset += index * p.indexed_stride[k];
      }
      char* data = static_cast<char*>(p.data) + offset;
      char* value = static_cast<char*>(p.values) + at.offset(p.values_stride);
      p.put ? copy_item(data, value, p.itemsize) : copy_item(value, data, p.itemsize);
    }
  });
}

std::int64_t count_nonzero(const NonzeroParams& p) {
  const std::int64_t n = numel(p.dims, p.shape);
  std::int64_t count = 0;
  Point at(p.dims, p.shape, 0);
  for (std::int64_t i = 0; i < n; ++i, at.next())
    count += is_set(static_cast<const char*>(p.data) + at.offset(p.stride), p.type);
  return count;
}

void list_nonzero(const NonzeroParams& p, std::int64_t* out, std::int64_t row_stride, std::int64_t col_stride) {
  const std::int64_t n = numel(p.dims, p.shape);
  Point at(p.dims, p.shape, 0);
  for (std::int64_t i = 0; i < n; ++i, at.next()) {
    if (!is_set(static_cast<const char*>(p.data) + at.offset(p.stride), p.type)) continue;
    for (int k = 0; k < p.dims; ++k) out[k * col_stride] = at.at[k];
    out += row_stride;
  }
}

}  // namespace step_oracle::indexing
