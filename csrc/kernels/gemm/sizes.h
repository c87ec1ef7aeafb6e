// What every class of products asks of its sizes and of where the result lies.
#pragma once
#include <fmt/format.h>

#include "csrc/kernels/core/error.h"

namespace step_oracle::gemm {

// Params: m, n, k, batch. Strides: row, col, batch, of the result.
template <class Params, class Strides>
void check_sizes(const Params& p, const Strides& d) {
  if (p.m < 0 || p.n < 0 || p.k < 0 || p.batch < 0)
    throw Error(ErrorKind::kBadInput,
                fmt::format("gemm: m {} n {} k {} batch {}; give sizes of 0 or more", p.m, p.n, p.k, p.batch));
  if ((p.m > 1 && d.row == 0) || (p.n > 1 && d.col == 0) || (p.batch > 1 && d.batch == 0))
    throw Error(ErrorKind::kBadInput,
                fmt::format("gemm: the result's strides are {} {} {} (row, column, batch); give strides that keep its "
                            "elements apart",
                            d.row, d.col, d.batch));
}

}  // namespace step_oracle::gemm
