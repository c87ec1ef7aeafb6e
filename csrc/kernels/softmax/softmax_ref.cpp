// The definition: thread by thread, as PersistentSoftmax.cuh and SoftMax.cu have them. A row's threads meet in shared
// memory or shuffles only, so one row is one block here.
#include <vector>

#include "csrc/kernels/arith/libdevice.h"
#include "csrc/kernels/arith/typed_element.h"
#include "csrc/kernels/softmax/softmax.h"

namespace step_oracle::softmax::ref {
namespace {

using Values = std::vector<float>;
float& at(Values& v, std::int64_t i) { return v[static_cast<std::size_t>(i)]; }

using typed::load;

void store(DType type, void* data, std::int64_t i, float value) { typed::store(type, data, i, canonical(value)); }

float plus(float a, float b) { return a + b; }
float larger(float a, float b) { return a < b ? b : a; }

// Every lane ends with the result; the lanes' order is the xor of their numbers.
float butterfly(Values v, int lanes, float (*op)(float, float)) {
  for (int offset = lanes / 2; offset > 0; offset /= 2) {
    const Values before = v;
    for (int l = 0; l < lanes; ++l)
      at(v, l) = op(before[static_cast<std::size_t>(l)], before[static_cast<std::size_t>(l ^ offset)]);
  }
  return v[0];
}

float shuffle_down(Values v, float (*op)(float, float)) {
  for (int offset = 16; offset > 0; offset /= 2) {
    const Values before = v;
    for (int l = 0; l < 32; ++l)
      at(v, l) =
          op(before[static_cast<std::size_t>(l)], before[static_cast<std::size_t>(l + offset < 32 ? l + offset : l)]);
  }
  return v[0];
}

// BlockReduce of block_reduce.cuh.
float block_fold(const Values& v, int threads, float identity, float (*op)(float, float)) {
  Values leaders(32, identity);
  for (int w = 0; w < threads / 32; ++w)
    at(leaders, w) = shuffle_down(Values(v.begin() + w * 32, v.begin() + w * 32 + 32), op);
  return shuffle_down(leaders, op);
}

// blockReduce of SoftMax.cu.
float serial_fold(const Values& v, int threads, float start, float (*op)(float, float)) {
  float total = start;
  for (int w = 0; w < threads / 32; ++w) {
    float warp = start;
    for (int i = 0; i < 32; ++i) warp = op(warp, v[static_cast<std::size_t>(w * 32 + i)]);
    total = op(total, warp);
  }
  return total;
}

// The elements of thread t in the order in which it takes them.
std::vector<std::int64_t> elements(const Plan& plan, std::int64_t n, std::int64_t shift, int t) {
  std::vector<std::int64_t> out;
  const std::int64_t threads = plan.threads, vector = plan.vector;
  if (plan.kernel == Kernel::kShared) {
    for (std::int64_t v = t; v < n / vector; v += threads)
      for (std::int64_t j = 0; j < vector; ++j) out.push_back(v * vector + j);
    return out;
  }
  if (plan.kernel != Kernel::kGeneral) {
    for (std::int64_t i = t; i < n; i += threads) out.push_back(i);
    return out;
  }
  std::int64_t data = 0, size = n, offset = t;
  if (shift > 0) {
    data -= shift;
    size += shift;
    if (t >= shift && data + offset < n) out.push_back(data + offset);
    size -= threads;
    data += threads;
  }
  const std::int64_t last = size % (vector * threads);
  for (; offset * vector < size - last; offset += threads)
    for (std::int64_t j = 0; j < vector; ++j) out.push_back(data + offset * vector + j);
  for (offset = size - last + t; offset < size; offset += threads) out.push_back(data + offset);
  return out;
}

template <class Value>
Values thread_sums(const Plan& plan, std::int64_t n, std::int64_t shift, Value value) {
  Values sums(static_cast<std::size_t>(plan.threads));
  for (int t = 0; t < plan.threads; ++t) {
    float sum = 0.0f;
    for (const std::int64_t i : elements(plan, n, shift, t)) sum = sum + value(i);
    // The warp kernel's padding up to a power of two: exp(-inf - max) or a zero gradient.
    at(sums, t) = sum;
  }
  return sums;
}

// Shared-memory halves over the threads of the dimension.
float halves(Values v) {
  for (std::size_t offset = v.size() / 2; offset > 0; offset /= 2)
    for (std::size_t i = 0; i < offset; ++i) v[i] = v[i] + v[i + offset];
  return v[0];
}

float sum_of(const Plan& plan, const Values& sums, bool backward) {
  switch (plan.kernel) {
    case Kernel::kWarp:
      return butterfly(sums, plan.threads, plus);
    case Kernel::kSpatial:
      return halves(sums);
    case Kernel::kGeneral:
      return backward ? serial_fold(sums, plan.threads, 0.0f, plus) : block_fold(sums, plan.threads, 0.0f, plus);
    default:
      return block_fold(sums, plan.threads, 0.0f, plus);
  }
}

std::int64_t shift_of(std::uint64_t address, std::int64_t row, std::int64_t n, DType type) {
  const auto size = static_cast<std::int64_t>(size_of(type));
  return (static_cast<std::int64_t>(address) + row * n * size) % 16 / size;
}

}  // namespace

void forward(const Params& p) {
  const Plan plan = plan_forward(p);
  for (std::int64_t outer = 0; outer < p.outer; ++outer)
    for (std::int64_t inner = 0; inner < p.inner; ++inner) {
      const std::int64_t base = outer * p.n * p.inner + inner;
      const auto x = [&](std::int64_t i) { return load(p.in, p.x, base + i * p.inner); };
      const std::int64_t shift = shift_of(p.x_address, outer, p.n, p.in);
      float max = -__builtin_inff();
      for (std::int64_t i = 0; i < p.n; ++i) max = larger(max, x(i));  // a choice: no order changes the results
      const float sum = sum_of(
          plan, thread_sums(plan, p.n, shift, [&](std::int64_t i) { return libdevice::expf(x(i) - max); }), false);
      for (std::int64_t i = 0; i < p.n; ++i)
        store(p.out, p.y, base + i * p.inner,
              p.log ? (x(i) - max) - libdevice::logf(sum) : libdevice::expf(x(i) - max) / sum);
    }
}

void backward(const BackwardParams& p) {
  const Plan plan = plan_backward(p);
  for (std::int64_t outer = 0; outer < p.outer; ++outer)
    for (std::int64_t inner = 0; inner < p.inner; ++inner) {
      const std::int64_t base = outer * p.n * p.inner + inner;
      const auto g = [&](std::int64_t i) { return load(p.in, p.grad, base + i * p.inner); };
      const auto y = [&](std::int64_t i) { return load(p.in, p.y, base + i * p.inner); };
      const float sum = sum_of(plan, thread_sums(plan, p.n, shift_of(p.grad_address, outer, p.n, p.in), g), true);
      for (std::int64_t i = 0; i < p.n; ++i)
        store(p.out, p.dx, base + i * p.inner, p.log ? fma(-libdevice::expf(y(i)), sum, g(i)) : fma(-sum, y(i), g(i)));
    }
}

}  // namespace step_oracle::softmax::ref
