// A norm of any order: the powers first, where the elements lie, then their sum by the generic reduction, then its
// root. The card's kernel takes each power as it adds it; the sum's geometry follows from strides and addresses in
// elements, and a sum of float32 joins as a norm of any type does (vectors of four).
#include <fmt/format.h>

#include <vector>

#include "csrc/kernels/arith/element.h"
#include "csrc/kernels/core/error.h"
#include "csrc/kernels/core/parallel.h"
#include "csrc/kernels/reduce/power_body.h"
#include "csrc/kernels/reduce/reduce.h"

namespace step_oracle::reduce {
namespace {

using I = std::int64_t;

template <class T>
void store(void* y, I at, float v) {
  *reinterpret_cast<T*>(static_cast<char*>(y) + at) = narrow<T>(v);
}

}  // namespace

void power_norm(const Params& p, float order) {
  if (p.in != DType::kF32 && p.in != DType::kBF16 && p.in != DType::kF16)
    throw Error(ErrorKind::kUnsupported,
                fmt::format("linalg_vector_norm: order {} of {} is not modelled; use float32, bfloat16 or "
                            "float16",
                            order, name_of(p.in)));
  const auto size = static_cast<I>(size_of(p.in));
  I span = 1;
  for (int d = 0; d < p.iter.dims; ++d) span += (p.iter.shape[d] - 1) * p.iter.in_stride[d] / size;
  std::vector<float> powers(static_cast<std::size_t>(span));
  parallel_for(span, 4096, [&](I begin, I end) {
    SO_BODY(power_body)
        .powers(p.in, static_cast<const char*>(p.x) + begin * size, end - begin, order,
                &powers[static_cast<std::size_t>(begin)]);
  });
  // The sum, into float32 results side by side.
  Params sum = p;
  sum.op = Op::kSum;
  sum.in = sum.out = DType::kF32;
  sum.x = powers.data();
  sum.address = p.address / static_cast<std::uint64_t>(size) * 4 % 512;
  I outputs = 1;
  for (int d = 0; d < p.iter.dims; ++d) {
    sum.iter.in_stride[d] = p.iter.in_stride[d] / size * 4;
    if (d < p.iter.reduced) continue;
    sum.iter.out_stride[d] = outputs * 4;
    outputs *= p.iter.shape[d];
  }
  std::vector<float> sums(static_cast<std::size_t>(outputs));
  sum.y = sums.data();
  run(sum);
  std::vector<float> roots(sums.size());
  parallel_for(outputs, 4096, [&](I begin, I end) {
    SO_BODY(power_body)
        .powers(DType::kF32, &sums[static_cast<std::size_t>(begin)], end - begin, 1.0f / order,
                &roots[static_cast<std::size_t>(begin)]);
  });
  for (I o = 0; o < outputs; ++o) {
    I at = 0, rest = o;
    for (int d = p.iter.reduced; d < p.iter.dims; ++d) {
      at += rest % p.iter.shape[d] * p.iter.out_stride[d];
      rest /= p.iter.shape[d];
    }
    const float v = roots[static_cast<std::size_t>(o)];
    p.out == DType::kF32    ? store<float>(p.y, at, v)
    : p.out == DType::kBF16 ? store<Bf16>(p.y, at, v)
                            : store<F16>(p.y, at, v);
  }
}

}  // namespace step_oracle::reduce
