// Describing in what a result differs from the recorded one.
#pragma once
#include <ATen/core/ivalue.h>

#include "csrc/oracle/program/replay.h"

namespace step_oracle::program {

// The bytes that a digest covers: the elements in row-major order.
std::vector<std::uint8_t> logical_bytes(const at::Tensor& t);

// Fills coordinates, patterns, ulps and counts from the recorded bytes (row-major) and the replayed tensor.
void compare_elements(const std::vector<std::uint8_t>& recorded, const at::Tensor& actual, Divergence& out);

// In what the geometry of a tensor is not the recorded one; empty where it is.
std::string other_layout(const rec::TensorT& t, const at::Tensor& actual);

// Of a number that an op returns to the host; none of anything else.
std::optional<std::uint64_t> number_bits(const c10::IValue& v);

// One or two words for why an op's bytes can differ, from the kind of op and the shape of the difference.
std::string likely_cause(const std::string& op, const Divergence& d);

}  // namespace step_oracle::program
