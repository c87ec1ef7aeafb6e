// Copies, casts, selections by a mask, arange, triangles.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "csrc/kernels/core/error.h"
#include "csrc/kernels/pointwise/pointwise_body.h"

namespace step_oracle::pointwise {
namespace {

constexpr std::int64_t kBlock = 1024;

int log2_size(DType t) { return __builtin_ctz(static_cast<unsigned>(size_of(t))); }

void convert_run(const PointwiseBody& body, const Loop& loop, char* const* data, const std::int64_t* stride,
                 std::int64_t n, std::uint16_t nan) {
  const DType to = loop.operand[0].dtype, from = loop.operand[1].dtype;
  const auto fn = body.convert[static_cast<int>(from)][static_cast<int>(to)];
  const bool dense_in = stride[1] == static_cast<std::int64_t>(size_of(from));
  const bool dense_out = stride[0] == static_cast<std::int64_t>(size_of(to));
  const bool widens = from == DType::kF16 && to == DType::kF32;  // an addition to zero: a NaN becomes the card's
  if (dense_in && dense_out) {
    fn(data[1], data[0], n, nan);
    if (widens) body.canonical(reinterpret_cast<float*>(data[0]), n);
    return;
  }
  std::array<std::uint64_t, kBlock> a, b;
  for (std::int64_t i = 0; i < n; i += kBlock) {
    const std::int64_t m = std::min(kBlock, n - i);
    const void* in = data[1] + i * stride[1];
    if (!dense_in) {
      body.gather[log2_size(from)](in, stride[1], a.data(), m);
      in = a.data();
    }
    char* out = data[0] + i * stride[0];
    fn(in, dense_out ? static_cast<void*>(out) : b.data(), m, nan);
    if (widens) body.canonical(dense_out ? reinterpret_cast<float*>(out) : reinterpret_cast<float*>(b.data()), m);
    if (!dense_out) body.scatter[log2_size(to)](b.data(), out, stride[0], m);
  }
}

void move_run(const PointwiseBody& body, int log2, char* const* data, const std::int64_t* stride, std::int64_t n) {
  const std::int64_t size = std::int64_t{1} << log2;
  if (stride[0] == size && stride[1] == size) {
    if (data[0] != data[1]) std::memmove(data[0], data[1], static_cast<std::size_t>(n * size));
  } else if (stride[0] == size) {
    body.gather[log2](data[1], stride[1], data[0], n);
  } else if (stride[1] == size) {
    body.scatter[log2](data[1], data[0], stride[0], n);
  } else {
    body.move[log2](data[1], stride[1], data[0], stride[0], n);
  }
}

// The dimension along which the input is contiguous while the output is so along dimension 0; 0 when there is none.
int transposed_dim(const Loop& loop) {
  constexpr std::int64_t kWorthwhile = 8;  // shorter sides gain nothing from tiles
  const auto size = static_cast<std::int64_t>(size_of(loop.operand[0].dtype));
  if (loop.operand[0].stride[0] != size || loop.shape[0] < kWorthwhile) return 0;
  for (int d = 1; d < loop.ndim; ++d)
    if (loop.operand[1].stride[d] == size && loop.shape[d] >= kWorthwhile) return d;
  return 0;
}

// Same type; dimensions 0 and d are a matrix and its transpose, the others a batch.
void copy_transposed(const PointwiseBody& body, const Loop& loop, int d, int log2) {
  constexpr std::int64_t kRows = 64;
  Loop batch = loop;  // one index a strip of kRows rows of the output
  const std::int64_t strips = (loop.shape[d] + kRows - 1) / kRows, cols = loop.shape[0];
  batch.shape[0] = 1;
  batch.shape[d] = strips;
  for (int k = 0; k < 2; ++k) batch.operand[k].stride[d] *= kRows;
  parallel_for(
      batch.numel(), std::max<std::int64_t>(1, kGrain / (kRows * cols)), [&](std::int64_t begin, std::int64_t end) {
        char* data[kMaxOperands];
        for (std::int64_t i = begin; i < end; ++i) {
          locate(batch, i, data);
          std::int64_t rest = i, strip = 0;
          for (int dim = 0; dim <= d; ++dim) {
            strip = rest % batch.shape[dim];
            rest /= batch.shape[dim];
          }
          const std::int64_t rows = std::min(kRows, loop.shape[d] - strip * kRows);
          body.transpose[log2](data[1], loop.operand[1].stride[0], data[0], loop.operand[0].stride[d], rows, cols);
        }
      });
}

void require_operands(const Loop& loop, int wanted, const char* what) {
  if (loop.operands != wanted)
    throw Error(ErrorKind::kInternal, fmt::format("{}: {} operands; it takes {}", what, loop.operands, wanted));
}

}  // namespace

void copy(const Loop& loop, std::uint16_t bf16_nan) {
  require_operands(loop, 2, "copy");
  const auto& body = SO_BODY(pointwise_body);
  const bool same = loop.operand[0].dtype == loop.operand[1].dtype;
  const int log2 = log2_size(loop.operand[0].dtype);
  if (same && loop.numel() > 0) {
    const Loop dense = coalesced(loop);
    if (const int d = transposed_dim(dense); d != 0) return copy_transposed(body, dense, d, log2);
  }
  for_each_run(loop, [&](char* const* data, const std::int64_t* stride, std::int64_t n) {
    if (same)
      move_run(body, log2, data, stride, n);
    else
      convert_run(body, loop, data, stride, n, bf16_nan);
  });
}

void select(const Loop& loop) {
  require_operands(loop, 4, "select");
  const DType type = loop.operand[0].dtype;
  if (loop.operand[2].dtype != type || loop.operand[3].dtype != type || size_of(loop.operand[1].dtype) != 1)
    throw Error(
        ErrorKind::kBadInput,
        fmt::format("select: output {}, mask {}, choices {} and {}; the mask must be bool and the others one type",
                    name_of(type), name_of(loop.operand[1].dtype), name_of(loop.operand[2].dtype),
                    name_of(loop.operand[3].dtype)));
  const auto& body = SO_BODY(pointwise_body);
  const auto fn = body.select[log2_size(type)];
  for_each_run(loop, fn);
}

void arange(void* out, DType dtype, std::int64_t n, const Scalars& v) {
  const auto& body = SO_BODY(pointwise_body);
  const auto size = static_cast<std::int64_t>(size_of(dtype));
  parallel_for(n, kGrain, [&](std::int64_t begin, std::int64_t end) {
    std::array<std::uint64_t, kBlock> buffer;
    for (std::int64_t i = begin; i < end; i += kBlock) {
      const std::int64_t m = std::min(kBlock, end - i);
      char* to = static_cast<char*>(out) + i * size;
      DType made = DType::kF32;
      if (dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16) {
        body.arange_f32(reinterpret_cast<float*>(buffer.data()), i, m, v.f[0], v.f[1]);
      } else if (dtype == DType::kF64) {
        made = DType::kF64;
        auto* d = reinterpret_cast<double*>(buffer.data());
        for (std::int64_t k = 0; k < m; ++k) d[k] = __builtin_fma(v.d[1], static_cast<double>(i + k), v.d[0]);
      } else {
        made = DType::kI64;
        auto* d = reinterpret_cast<std::int64_t*>(buffer.data());
        for (std::int64_t k = 0; k < m; ++k) d[k] = v.i[0] + v.i[1] * (i + k);
      }
      if (made == dtype)
        std::memcpy(to, buffer.data(), static_cast<std::size_t>(m * size));
      else
        body.convert[static_cast<int>(made)][static_cast<int>(dtype)](buffer.data(), to, m, 0x7fff);
    }
  });
}

void triangle(const Triangle& p) {
  const int log2 = __builtin_ctz(static_cast<unsigned>(p.element));
  const auto& body = SO_BODY(pointwise_body);
  const std::uint64_t zero = 0;
  parallel_for(p.batch * p.rows, std::max<std::int64_t>(1, kGrain / std::max<std::int64_t>(1, p.cols)),
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t k = begin; k < end; ++k) {
                   const std::int64_t b = k / p.rows, row = k % p.rows;
                   const char* in = static_cast<const char*>(p.in) + b * p.in_batch + row * p.in_row;
                   char* out = static_cast<char*>(p.out) + b * p.out_batch + row * p.out_row;
                   // Columns [0, split) are at or below the diagonal (lower) or strictly below it (upper).
                   const std::int64_t edge = row + p.diagonal + (p.upper ? 0 : 1);
                   const std::int64_t split = std::clamp<std::int64_t>(edge, 0, p.cols);
                   const std::int64_t keep = p.upper ? split : 0, kept = p.upper ? p.cols - split : split;
                   const std::int64_t blank = p.upper ? 0 : split, blanks = p.cols - kept;
                   if (in != out || p.in_col != p.out_col)
                     body.move[log2](in + keep * p.in_col, p.in_col, out + keep * p.out_col, p.out_col, kept);
                   body.move[log2](&zero, 0, out + blank * p.out_col, p.out_col, blanks);
                 }
               });
}

}  // namespace step_oracle::pointwise
