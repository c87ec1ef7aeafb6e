#include "csrc/kernels/softmax/softmax.h"

#include <fmt/format.h>

#include <algorithm>

#include "csrc/kernels/core/error.h"
#include "csrc/kernels/core/parallel.h"
#include "csrc/kernels/softmax/softmax_body.h"

namespace step_oracle::softmax {
namespace {

constexpr std::int64_t kSharedBytes = 48 * 1024;  // [spec CUDA C++ Programming Guide, shared memory a block]
constexpr int kMaxThreads = 1024;                 // [src SoftMax.cu max_threads]

bool half(DType t) { return t == DType::kBF16 || t == DType::kF16; }

std::int64_t power_above(std::int64_t n) {
  std::int64_t p = 1;
  while (p < n) p *= 2;
  return p;
}

// [src SoftMax.cu SpatialSoftMax_getBlockSize]
int spatial_threads(std::int64_t n, std::int64_t inner) {
  const std::int64_t across = std::min<std::int64_t>(inner, kMaxThreads);
  std::int64_t threads = 1;
  if (across <= 64 && n >= 64) {
    while (across * threads <= kMaxThreads && threads <= n) threads *= 2;
    threads /= 2;
  }
  return static_cast<int>(threads);
}

Plan warp_plan(std::int64_t n) {
  return {Kernel::kWarp, static_cast<int>(std::min<std::int64_t>(32, power_above(n))), 1};
}

// A row and the warps' partial values fit, and every row of every tensor is aligned to 16 bytes.
bool fits_shared(std::int64_t n, std::int64_t size, int threads, int vector, std::uint64_t addresses) {
  return n < (kSharedBytes - threads / 32 * 4) / size && addresses % 16 == 0 && n % vector == 0;
}

void validate(std::int64_t outer, std::int64_t n, std::int64_t inner, const char* name) {
  if (outer < 0 || n < 0 || inner < 0)
    throw Error(ErrorKind::kBadInput,
                fmt::format("{}: sizes {} x {} x {}; none may be negative", name, outer, n, inner));
  if (n > INT32_MAX)
    throw Error(ErrorKind::kUnsupported,
                fmt::format("{}: {} elements in the dimension; at most 2^31 - 1 are modelled", name, n));
}

}  // namespace

Plan plan_forward(const Params& p) {
  if (p.inner != 1) return {Kernel::kSpatial, spatial_threads(p.n, p.inner), 1};
  const auto size = static_cast<std::int64_t>(size_of(p.in));
  const bool mixed = p.in != p.out;
  const std::int64_t most = mixed ? 1024 : 2048;  // [src SoftMax.cu host_softmax]
  if (p.n <= most && p.n * size <= most * 4) return warp_plan(p.n);
  const int vector = static_cast<int>(16 / size);
  const auto threads = static_cast<int>(std::min<std::int64_t>((p.n + 31) / 32 * 32, kMaxThreads));
  if (!mixed && (p.n + threads - 1) / threads < 10) return {Kernel::kRegister, threads, vector};
  if (fits_shared(p.n, size, threads, vector, p.x_address | p.y_address)) return {Kernel::kShared, threads, vector};
  return {Kernel::kGeneral, threads, vector};
}

Plan plan_backward(const BackwardParams& p) {
  if (p.inner != 1) return {Kernel::kSpatial, spatial_threads(p.n, p.inner), 1};
  // [src SoftMax.cu host_softmax_backward]
  if (p.n <= 1024 && p.n * static_cast<std::int64_t>(size_of(p.out)) <= 4096) return warp_plan(p.n);
  const auto size = static_cast<std::int64_t>(size_of(p.in));
  const int vector = static_cast<int>(16 / size);
  // [src SoftMax.cu SoftMax_getBlockSize]
  const std::int64_t half_block = std::min<std::int64_t>(p.n / vector, kMaxThreads) / 2;
  const int threads = static_cast<int>(std::max<std::int64_t>(power_above(half_block), 32));
  if (fits_shared(p.n, size, threads, vector, p.grad_address | p.y_address | p.dx_address))
    return {Kernel::kShared, threads, vector};
  return {Kernel::kGeneral, threads, vector};
}

void forward(const Params& p) {
  validate(p.outer, p.n, p.inner, "softmax");
  const bool known = p.in == p.out ? half(p.in) || p.in == DType::kF32 : half(p.in) && p.out == DType::kF32;
  if (!known)
    throw Error(ErrorKind::kUnsupported,
                fmt::format("softmax of {} to {} is not modelled; use float32, bfloat16 or float16", name_of(p.in),
                            name_of(p.out)));
  if (p.outer * p.n * p.inner == 0) return;
  const Plan plan = plan_forward(p);
  parallel_for(p.outer, std::max<std::int64_t>(1, 4096 / (p.n * p.inner)),
               [&](std::int64_t b, std::int64_t e) { SO_BODY(softmax_body).forward(p, plan, b, e); });
}

void backward(const BackwardParams& p) {
  validate(p.outer, p.n, p.inner, "softmax backward");
  const bool known = p.in == p.out ? half(p.in) || p.in == DType::kF32 : half(p.out) && p.in == DType::kF32;
  if (!known)
    throw Error(ErrorKind::kUnsupported,
                fmt::format("softmax backward of {} to {} is not modelled; use float32, bfloat16 or float16",
                            name_of(p.in), name_of(p.out)));
  if (p.outer * p.n * p.inner == 0) return;
  const Plan plan = plan_backward(p);
  parallel_for(p.outer, std::max<std::int64_t>(1, 4096 / (p.n * p.inner)),
               [&](std::int64_t b, std::int64_t e) { SO_BODY(softmax_body).backward(p, plan, b, e); });
}

}  // namespace step_oracle::softmax
