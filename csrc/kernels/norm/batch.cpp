#include "csrc/kernels/norm/batch.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "csrc/kernels/core/error.h"
#include "csrc/kernels/core/parallel.h"
#include "csrc/kernels/norm/batch_body.h"
#include "csrc/kernels/norm/batch_launch.h"

namespace step_oracle::norm {
namespace {

bool computes(DType t) { return t == DType::kF32 || t == DType::kBF16 || t == DType::kF16; }

void validate(const BatchShape& s) {
  if (!computes(s.type))
    throw Error(ErrorKind::kUnsupported,
                fmt::format("batch norm of {} is not modelled; use float32, bfloat16 or float16", name_of(s.type)));
  if (s.parameters != s.type && s.parameters != DType::kF32)
    throw Error(ErrorKind::kUnsupported,
                fmt::format("batch norm of {} with parameters of {} is not modelled; use {} or float32",
                            name_of(s.type), name_of(s.parameters), name_of(s.type)));
  if (s.n < 1 || s.channels < 1 || s.places < 1)
    throw Error(ErrorKind::kBadInput,
                fmt::format("batch norm: {} samples of {} channels x {} places; each must be positive", s.n, s.channels,
                            s.places));
  if (s.count() > std::numeric_limits<std::int32_t>::max() / s.channels)
    throw Error(ErrorKind::kUnsupported,
                fmt::format("batch norm of {} x {} x {} elements: from 2^31 on CUDA takes other kernels, which are not "
                            "modelled; use smaller batches",
                            s.n, s.channels, s.places));
}
std::int64_t grain(std::int64_t work) { return std::max<std::int64_t>(1, 16384 / std::max<std::int64_t>(1, work)); }
std::int64_t strips(const BatchShape& s) { return (s.channels + kBatchStrip - 1) / kBatchStrip; }

}  // namespace

void batch_statistics(const BatchStatistics& p) {
  validate(p.shape);
  const BatchShape& s = p.shape;
  if (p.rows)
    parallel_for(strips(s), grain(s.count() * kBatchStrip), [&](std::int64_t b, std::int64_t e) {
      SO_BODY(batch_body).statistics_rows(p, batch_rows(s.count(), s.channels), b, e);
    });
  else
    parallel_for(s.channels, grain(s.count()), [&](std::int64_t b, std::int64_t e) {
      SO_BODY(batch_body).statistics_planes(p, batch_plane(s.places), b, e);
    });
}

void batch_update(const BatchUpdate& p) {
  parallel_for(1, 1, [&](std::int64_t, std::int64_t) { SO_BODY(batch_body).update(p); });
}

void batch_invstd(DType type, std::int64_t channels, double eps, const void* var, float* invstd) {
  parallel_for(1, 1, [&](std::int64_t, std::int64_t) {
    SO_BODY(batch_body).invstd(type, channels, static_cast<float>(eps), var, invstd);
  });
}

void batch_forward(const BatchForward& p) {
  validate(p.shape);
  parallel_for(p.shape.n, grain(p.shape.channels * p.shape.places),
               [&](std::int64_t b, std::int64_t e) { SO_BODY(batch_body).forward(p, b, e); });
}

void batch_backward(const BatchBackward& p) {
  validate(p.shape);
  parallel_for(p.shape.channels, grain(p.shape.count()), [&](std::int64_t b, std::int64_t e) {
    SO_BODY(batch_body).backward(p, batch_plane(p.shape.places), b, e);
  });
}

void batch_sums(const BatchSums& p) {
  validate(p.shape);
  const BatchShape& s = p.shape;
  if (p.rows)
    parallel_for(strips(s), grain(s.count() * kBatchStrip), [&](std::int64_t b, std::int64_t e) {
      SO_BODY(batch_body).sums_rows(p, batch_rows(s.count(), s.channels), b, e);
    });
  else
    parallel_for(s.channels, grain(s.count()), [&](std::int64_t b, std::int64_t e) {
      SO_BODY(batch_body).sums_planes(p, batch_sum_plane(s.n, s.places), b, e);
    });
}

void batch_input(const BatchInput& p) {
  validate(p.shape);
  parallel_for(p.shape.n, grain(p.shape.channels * p.shape.places),
               [&](std::int64_t b, std::int64_t e) { SO_BODY(batch_body).input(p, b, e); });
}

}  // namespace step_oracle::norm
