// Planes whose elements are copies of another plane's, and the gradient: upsampling by nearest neighbours, padding by
// reflection and replication.
//
// Shapes    in: planes x height x width, out: planes x out_height x out_width, by strides of planes and elements.
// Types     a copy: any; the gradient: float32, bfloat16, float16.
// Order     the gradient's addends row by row, as `Sources` lists them.
// Rounding  the gradient: in float32, rounded once (nearest neighbours), or after each addition (a card's atomics).
// NaN       0x7fffffff of a sum; a copy keeps payloads.
// Source    UpSampleNearest{1d,2d}.cu, UpSample.h, ReflectionPad.cu, ReplicationPadding.cu. Places: vectors nearest_*.
// Evidence  docs/evidence.md, rows pool.
#pragma once
#include <cstdint>
#include <vector>

#include "csrc/kernels/core/dtype.h"

namespace step_oracle::pool {

// Of one axis: for each output the input it copies.
using Copies = std::vector<std::int64_t>;
// Of one axis: for each input the outputs that add to its gradient, ascending.
using Sources = std::vector<std::vector<std::int64_t>>;

struct Planes {
  std::int64_t samples, channels;
  std::int64_t in[4], out[4];  // strides in elements: sample, channel, row, column
};

struct Copy {
  std::size_t element;  // bytes: 1, 2, 4, 8
  Planes planes;
  const Copies &rows, &columns;
  const void* x;
  void* y;
};
struct CopyBackward {
  DType type;
  Planes planes;  // `in`: of dx; `out`: of dy
  const Sources &rows, &columns;
  bool rounds_each;
  const void* dy;
  void* dx;
};
void copy_planes(const Copy& params);
void copy_planes_backward(const CopyBackward& params);

// Where a card's nearest neighbour lies; scale in float, from the sizes or as the caller gave it.
Copies nearest(std::int64_t in, std::int64_t out, float scale, bool exact);
// The ranges its backward kernel adds; scale is the inverse one.
Sources nearest_sources(std::int64_t in, std::int64_t out, float scale, bool exact);
// Padding by reflection or replication; negative pads cut.
Copies padded(std::int64_t in, std::int64_t before, std::int64_t after, bool reflects);
Sources sources_of(const Copies& copies, std::int64_t in);
// An element with more than two addends: their order is not defined where they are added atomically.
bool sums_race(const Sources& rows, const Sources& columns);

namespace ref {
void copy_planes(const Copy& params);
void copy_planes_backward(const CopyBackward& params);
}  // namespace ref

}  // namespace step_oracle::pool
