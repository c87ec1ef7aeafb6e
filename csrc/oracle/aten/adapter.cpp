#include "csrc/oracle/aten/adapter.h"

#include <ATen/Context.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/empty_strided.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include "csrc/oracle/aten/structured.h"

namespace step_oracle::aten {

void refuse(std::string_view op, std::string_view reason, std::string_view remedy) {
  throw Error(ErrorKind::kUnsupported, fmt::format("oracle: '{}' {}. {}.", op, reason, remedy));
}

void unsupported_dtype(std::string_view op, at::ScalarType type) {
  refuse(op, fmt::format("has no {} kernel on the virtual card", c10::toString(type)),
         "Use a type that docs/evidence.md lists for it; no host kernel takes its place");
}

DType dtype_of(at::ScalarType type, std::string_view op) {
  switch (type) {
    case at::kFloat: return DType::kF32;
    case at::kDouble: return DType::kF64;
    case at::kHalf: return DType::kF16;
    case at::kBFloat16: return DType::kBF16;
    case at::kChar: return DType::kI8;
    case at::kByte: return DType::kU8;
    case at::kShort: return DType::kI16;
    case at::kInt: return DType::kI32;
    case at::kLong: return DType::kI64;
    case at::kBool: return DType::kBool;
    default: unsupported_dtype(op, type);
  }
}

void require_dtype(const at::TensorBase& t, at::ScalarType type, std::string_view op, std::string_view argument) {
  if (t.scalar_type() == type) return;
  refuse(op, fmt::format("computes {} only on the virtual card, and '{}' is {}", c10::toString(type), argument,
                         c10::toString(t.scalar_type())),
         fmt::format("Cast the argument to {}; no host kernel takes its place", c10::toString(type)));
}

device::Philox take_philox(const std::optional<at::Generator>& generator, std::uint64_t increment) {
  if (generator && generator->defined()) return device::take_philox(*generator, increment);
  return device::take_philox(device::default_generator(-1), increment);
}

NumericSwitches numeric_switches() {
  const at::Context& context = at::globalContext();
  return {
      .allow_tf32 = context.allowTF32CuBLAS(),
      .allow_bf16_reduced_precision = context.allowBF16ReductionCuBLAS() == at::CuBLASReductionOption::AllowReducedPrecisionWithSplitK,
      .allow_fp16_reduced_precision = context.allowFP16ReductionCuBLAS() == at::CuBLASReductionOption::AllowReducedPrecisionWithSplitK,
      .allow_fp16_accumulation = context.allowFP16AccumulationCuBLAS(),
      .deterministic = context.deterministicAlgorithms(),
  };
}

void rethrow_as_torch(const Error& error) {
  switch (error.kind()) {
    case ErrorKind::kBadInput: TORCH_CHECK_VALUE(false, error.what());
    case ErrorKind::kUnsupported: TORCH_CHECK_NOT_IMPLEMENTED(false, error.what());
    default: TORCH_CHECK(false, "StepOracleError: ", error.what());
  }
}

void rethrow_fork() {
  try {
    device::refuse_fork();
  } catch (const Error& error) {
    rethrow_as_torch(error);
  }
}

void detail::DeviceScan::mixed(c10::Device other) const {
  TORCH_CHECK(false, "Expected all tensors to be on the same device, but found at least two devices, ",
              found_ ? device_ : c10::Device(kOracle, 0), " and ", other, "!");
}

void resize_structured_output(const at::Tensor& out, at::IntArrayRef sizes, at::IntArrayRef strides,
                              const at::TensorOptions& options) {
  TORCH_CHECK(options.dtype() == out.dtype(), "Expected out tensor to have dtype ", options.dtype(), ", but got ",
              out.dtype(), " instead");
  TORCH_CHECK(options.device() == out.device(), "Expected out tensor to have device ", options.device(),
              ", but got ", out.device(), " instead");
  if (!at::native::resize_output(out, sizes)) return;
  if (!strides.empty()) {
    out.as_strided_(sizes, strides);
  } else if (options.memory_format_opt().has_value()) {
    out.unsafeGetTensorImpl()->empty_tensor_restride(*options.memory_format_opt());
  }
}

std::optional<at::Tensor> proxy_output(const at::Tensor& out, at::IntArrayRef sizes, at::IntArrayRef strides,
                                       const at::TensorOptions& options) {
  if (out.strides() == strides) return std::nullopt;
  return at::empty_strided(sizes, strides, options);
}

void copy_proxy(const at::Tensor& proxy, const at::Tensor& out) { out.copy_(proxy); }

}  // namespace step_oracle::aten
