#include "csrc/kernels/arith/element.h"
#include "csrc/kernels/core/lanes.h"
#include "csrc/kernels/indexing/indexing_body.h"

SO_ISA_BEGIN
namespace {

using indexing::AccumulateParams;
using indexing::EmbeddingParams;

constexpr std::int64_t kTile = 256;    // columns of a segment at a time
constexpr std::int64_t kFew = 3072;    // [src Embedding.cu embedding_dense_backward_cuda]
constexpr std::int64_t kChunk = 32;    // [src Embedding.cu BLOCKDIMY] rows of a chunk
constexpr std::int64_t kPartial = 10;  // [src EmbeddingBackwardKernel.cu NROWS_PER_THREAD]

// Chunks of 32 rows: the first row's own value, the others in order; then onto the table.
template <class T>
void chunked(const EmbeddingParams& p, const Segments& s, std::int64_t segment, std::int64_t column, std::int64_t width,
             T* out) {
  const std::int64_t end = s.starts[segment + 1];
  float sum[kTile];
  for (std::int64_t i = s.starts[segment]; i < end;) {
    const std::int64_t chunk = s.order[i] / kChunk;
    const T* g = static_cast<const T*>(p.grad) + s.order[i] * p.width + column;
    for (std::int64_t j = 0; j < width; ++j) sum[j] = widen(g[j]);
    for (++i; i < end && s.order[i] / kChunk == chunk; ++i) {
      g = static_cast<const T*>(p.grad) + s.order[i] * p.width + column;
      for (std::int64_t j = 0; j < width; ++j) sum[j] = sum[j] + widen(g[j]);
    }
    for (std::int64_t j = 0; j < width; ++j) out[j] = narrow<T>(canonical(widen(out[j]) + widen(narrow<T>(sum[j]))));
  }
}

// Partial sums of 10 rows from 0, then the partial sums in order from 0.
template <class T>
void partial_sums(const EmbeddingParams& p, const Segments& s, std::int64_t segment, std::int64_t column,
                  std::int64_t width, T* out) {
  const std::int64_t begin = s.starts[segment], end = s.starts[segment + 1];
  const float scale = p.scale_by_frequency ? 1.0f / static_cast<float>(end - begin) : 1.0f;
  float total[kTile], sum[kTile];
  for (std::int64_t j = 0; j < width; ++j) total[j] = 0.0f;
  for (std::int64_t base = begin; base < end; base += kPartial) {
    for (std::int64_t j = 0; j < width; ++j) sum[j] = 0.0f;
    for (std::int64_t i = base; i < end && i < base + kPartial; ++i) {
      const T* g = static_cast<const T*>(p.grad) + s.order[i] * p.width + column;
      for (std::int64_t j = 0; j < width; ++j) sum[j] = fma(widen(g[j]), scale, sum[j]);
    }
    for (std::int64_t j = 0; j < width; ++j) total[j] = total[j] + sum[j];
  }
  for (std::int64_t j = 0; j < width; ++j) out[j] = narrow<T>(canonical(total[j]));
}

template <class T>
void embedding_typed(const EmbeddingParams& p, const Segments& s, std::int64_t begin, std::int64_t end) {
  const bool few = p.n <= kFew && !p.scale_by_frequency;
  for (std::int64_t segment = begin; segment < end; ++segment) {
    if (s.row[segment] == p.padding_index) continue;
    for (std::int64_t column = 0; column < p.width; column += kTile) {
      const std::int64_t width = p.width - column < kTile ? p.width - column : kTile;
      T* out = static_cast<T*>(p.out) + s.row[segment] * p.width + column;
      few ? chunked<T>(p, s, segment, column, width, out) : partial_sums<T>(p, s, segment, column, width, out);
    }
  }
}

// Slices wider than 32: one by one onto the destination.
template <class T>
void one_by_one(const AccumulateParams& p, const Segments& s, std::int64_t segment) {
  T* dest = static_cast<T*>(p.dest) + s.row[segment] * p.width;
  for (std::int64_t i = s.starts[segment]; i < s.starts[segment + 1]; ++i) {
    const T* g = static_cast<const T*>(p.values) + s.order[i] * p.width;
    for (std::int64_t j = 0; j < p.width; ++j) dest[j] = narrow<T>(canonical(widen(dest[j]) + widen(g[j])));
  }
}

// Up to 32: from 0 in order, then one addition. Width 1: whole passes of 32 lanes first, their shuffle tree, the rest.
template <class T>
void summed_first(const AccumulateParams& p, const Segments& s, std::int64_t segment) {
  T* dest = static_cast<T*>(p.dest) + s.row[segment] * p.width;
  float sum[kWarp];
  for (std::int64_t j = 0; j < p.width; ++j) sum[j] = 0.0f;
  std::int64_t i = s.starts[segment];
  const std::int64_t end = s.starts[segment + 1];
  if (p.width == 1 && end - i >= kWarp) {
    float lanes[kWarp];
    for (int l = 0; l < kWarp; ++l) lanes[l] = 0.0f;
    for (; end - i >= kWarp; i += kWarp)
      for (int l = 0; l < kWarp; ++l) lanes[l] = lanes[l] + widen(static_cast<const T*>(p.values)[s.order[i + l]]);
    sum[0] = fold_halves(lanes, kWarp, [](float a, float b) { return a + b; });
  }
  for (; i < end; ++i) {
    const T* g = static_cast<const T*>(p.values) + s.order[i] * p.width;
    for (std::int64_t j = 0; j < p.width; ++j) sum[j] = sum[j] + widen(g[j]);
  }
  for (std::int64_t j = 0; j < p.width; ++j) dest[j] = narrow<T>(canonical(widen(dest[j]) + sum[j]));
}

template <class T>
void accumulate_typed(const AccumulateParams& p, const Segments& s, std::int64_t begin, std::int64_t end) {
  for (std::int64_t segment = begin; segment < end; ++segment)
    p.width > kWarp || p.one_by_one ? one_by_one<T>(p, s, segment) : summed_first<T>(p, s, segment);
}

template <class U>
void accumulate_exact(const AccumulateParams& p, const Segments& s, std::int64_t begin, std::int64_t end) {
  for (std::int64_t segment = begin; segment < end; ++segment)
    for (std::int64_t i = s.starts[segment]; i < s.starts[segment + 1]; ++i)
      for (std::int64_t j = 0; j < p.width; ++j) {
        U& d = static_cast<U*>(p.dest)[s.row[segment] * p.width + j];
        d = static_cast<U>(d + static_cast<const U*>(p.values)[s.order[i] * p.width + j]);
      }
}

void embedding(const EmbeddingParams& p, const Segments& s, std::int64_t begin, std::int64_t end) {
  if (p.type == DType::kF32)
    embedding_typed<float>(p, s, begin, end);
  else if (p.type == DType::kBF16)
    embedding_typed<Bf16>(p, s, begin, end);
  else
    embedding_typed<F16>(p, s, begin, end);
}

void accumulate(const AccumulateParams& p, const Segments& s, std::int64_t begin, std::int64_t end) {
  switch (p.type) {
    case DType::kF32:
      accumulate_typed<float>(p, s, begin, end);
      break;
    case DType::kBF16:
      accumulate_typed<Bf16>(p, s, begin, end);
      break;
    case DType::kF16:
      accumulate_typed<F16>(p, s, begin, end);
      break;
    case DType::kI64:
      accumulate_exact<std::uint64_t>(p, s, begin, end);
      break;
    case DType::kI32:
      accumulate_exact<std::uint32_t>(p, s, begin, end);
      break;
    case DType::kI16:
      accumulate_exact<std::uint16_t>(p, s, begin, end);
      break;
    default:
      accumulate_exact<std::uint8_t>(p, s, begin, end);
      break;
  }
}

}  // namespace

extern const IndexingBody indexing_body;
const IndexingBody indexing_body = {&embedding, &accumulate};
SO_ISA_END
