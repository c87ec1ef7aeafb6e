// Describing the first element that differs.
#pragma once
#include "csrc/oracle/program/replay.h"

namespace step_oracle::program {

// The bytes that a digest covers: the elements in row-major order.
std::vector<std::uint8_t> logical_bytes(const at::Tensor& t);

// Fills coordinates, patterns, ulps and counts from the recorded bytes (row-major) and the replayed tensor.
void compare_elements(const std::vector<std::uint8_t>& recorded, const at::Tensor& actual, Divergence& out);

// One or two words for why an op's bytes can differ, from the kind of op and the shape of the difference.
std::string likely_cause(const std::string& op, const Divergence& d);

}  // namespace step_oracle::program
