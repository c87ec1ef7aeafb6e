// The product's maps on contiguous operands.
#pragma once
#include "csrc/kernels/core/loop.h"
#include "csrc/kernels/pointwise/pointwise.h"

namespace step_oracle::exhaustive {

struct Map {
  const char* row;
  double s = 0, t = 0;  // the map's numbers
};

// out = map(x) or map(x, y); `once`: x is one number for all.
inline void run_map(const Map& map, DType type, DType out_type, std::int64_t n, void* out, const void* x,
                    const void* y = nullptr, bool once = false) {
  Operand operands[3];
  operands[0].data = out, operands[0].dtype = out_type;
  operands[1].data = const_cast<void*>(x), operands[1].dtype = type;
  operands[2].data = const_cast<void*>(y), operands[2].dtype = type;
  pointwise::Params p;
  p.row = &pointwise::row(map.row, type);
  p.common = type;
  p.loop = contiguous_loop(n, operands, y ? 3 : 2, once ? 2u : 0u);
  p.scalars = pointwise::Scalars::of(map.s, map.t);
  pointwise::map(p);
}

}  // namespace step_oracle::exhaustive
