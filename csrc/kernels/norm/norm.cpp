#include "csrc/kernels/norm/norm.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>

#include "csrc/kernels/core/error.h"
#include "csrc/kernels/core/parallel.h"
#include "csrc/kernels/norm/norm_body.h"
#include "csrc/kernels/norm/norm_tile.h"

namespace step_oracle::norm {
namespace {

void validate(DType type, std::int64_t rows, std::int64_t width, const char* name) {
  if (rows < 0 || width < 0)
    throw Error(ErrorKind::kBadInput,
                fmt::format("{}: {} rows of {} elements; neither may be negative", name, rows, width));
  if (rows > INT32_MAX || width > INT32_MAX)
    throw Error(ErrorKind::kUnsupported,
                fmt::format("{}: {} rows of {} elements; at most 2^31 - 1 of each are modelled", name, rows, width));
  if (type != DType::kF32 && type != DType::kBF16 && type != DType::kF16)
    throw Error(ErrorKind::kUnsupported,
                fmt::format("{} of {} is not modelled; use float32, bfloat16 or float16", name, name_of(type)));
}

std::int64_t grain(std::int64_t width) { return std::max<std::int64_t>(1, 8192 / std::max<std::int64_t>(1, width)); }

}  // namespace

bool forward_is_vectorised(const ForwardParams& p) {
  // [src layer_norm_kernel.cu LayerNormKernelImplInternal] groups of four, aligned; 2^24 counts are exact in a float.
  const std::uint64_t addresses =
      p.x_address | p.y_address | (p.gamma ? p.gamma_address : 0) | (p.beta ? p.beta_address : 0);
  return p.width <= (std::int64_t{1} << 24) && p.width % 4 == 0 && addresses % (4 * size_of(p.type)) == 0;
}

ParameterTile parameter_tile(const ParameterParams& p) {
  // [src layer_norm_kernel.cu LaunchGammaBetaBackwardCUDAKernel]
  if (p.rows > 64 * 1024 && p.width / 32 < p.sms / 2) {
    const std::int64_t columns = (p.width + 31) / 32;
    return {1, 32, std::min(std::int64_t{32768} / columns, (p.rows + 31) / 32)};
  }
  const int threads = p.rows < 64 ? 1 : p.rows < 128 ? 8 : p.rows < 256 ? 16 : 32;
  return {threads, 8, 1};
}

void forward(const ForwardParams& p) {
  validate(p.type, p.rows, p.width, p.rms ? "RMS norm" : "layer norm");
  if (p.rows == 0) return;
  const bool vectorised = forward_is_vectorised(p);
  parallel_for(p.rows, grain(p.width),
               [&](std::int64_t b, std::int64_t e) { SO_BODY(norm_body).forward(p, vectorised, b, e); });
}

void backward_input(const BackwardParams& p) {
  validate(p.type, p.rows, p.width, "layer norm backward");
  if (p.rows == 0 || p.width == 0) return;
  parallel_for(p.rows, grain(p.width),
               [&](std::int64_t b, std::int64_t e) { SO_BODY(norm_body).backward_input(p, b, e); });
}

void backward_parameters(const ParameterParams& p) {
  validate(p.type, p.rows, p.width, "layer norm backward");
  if (p.rows == 0)
    throw Error(ErrorKind::kBadInput, "layer norm backward: no rows; fill dgamma and dbeta with zeros instead");
  if (p.width == 0) return;
  const ParameterTile tile = parameter_tile(p);
  const auto& body = SO_BODY(norm_body);
  const std::int64_t columns = (p.width + 63) / 64;
  parallel_for(columns * tile.blocks, 1, [&](std::int64_t b, std::int64_t e) {
    for (std::int64_t i = b; i < e; ++i)
      body.parameters(p, tile, i / columns, i % columns * 64, std::min(p.width, i % columns * 64 + 64));
  });
}

std::int64_t parameter_blocks(const ParameterParams& p) { return parameter_tile(p).blocks; }

}  // namespace step_oracle::norm
