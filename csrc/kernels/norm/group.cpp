#include "csrc/kernels/norm/group.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "csrc/kernels/core/error.h"
#include "csrc/kernels/core/parallel.h"
#include "csrc/kernels/norm/group_body.h"

namespace step_oracle::norm {
namespace {

void validate(const GroupShape& s) {
  if (s.n < 0 || s.channels < 1 || s.groups < 1 || s.places < 1 || s.channels % s.groups != 0)
    throw Error(ErrorKind::kBadInput,
                fmt::format("group norm: {} samples of {} channels x {} places in {} groups; channels must be a "
                            "multiple of groups",
                            s.n, s.channels, s.places, s.groups));
  if (s.type != DType::kF32 && s.type != DType::kBF16 && s.type != DType::kF16)
    throw Error(ErrorKind::kUnsupported, fmt::format("group norm of {} is not modelled; use float32, bfloat16 or "
                                                     "float16",
                                                     name_of(s.type)));
}
std::int64_t grain(std::int64_t work) { return std::max<std::int64_t>(1, 16384 / std::max<std::int64_t>(1, work)); }

}  // namespace

void group_forward(const GroupForward& p) {
  validate(p.shape);
  parallel_for(p.shape.n * p.shape.groups, grain(p.shape.per_group() * p.shape.places),
               [&](std::int64_t b, std::int64_t e) { SO_BODY(group_body).forward(p, b, e); });
}

void group_backward(const GroupBackward& p) {
  validate(p.shape);
  const auto channels = static_cast<std::size_t>(p.shape.n * p.shape.channels),
             groups = static_cast<std::size_t>(p.shape.n * p.shape.groups);
  std::vector<float> ds(channels), db(channels), c2(groups), c3(groups);
  const GroupSums s{ds.data(), db.data(), c2.data(), c3.data()};
  const auto& body = SO_BODY(group_body);
  if (p.shape.places > 1)
    parallel_for(p.shape.n * p.shape.channels, grain(p.shape.places),
                 [&](std::int64_t b, std::int64_t e) { body.sums(p, s, b, e); });
  if (p.dx)
    parallel_for(p.shape.n * p.shape.groups, grain(p.shape.per_group() * p.shape.places),
                 [&](std::int64_t b, std::int64_t e) { body.input(p, s, b, e); });
  if (p.dgamma || p.dbeta)
    parallel_for(p.shape.channels, grain(p.shape.n),
                 [&](std::int64_t b, std::int64_t e) { body.parameters(p, s, b, e); });
}

}  // namespace step_oracle::norm
