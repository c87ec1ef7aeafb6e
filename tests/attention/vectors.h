// Golden vectors of the attention kernels: tests/data/attention/*.json (made by scripts/import_attention_vectors).
#pragma once
#include <gtest/gtest.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/sha256.h"

namespace step_oracle::test {

// The documented generator of the vectors' inputs, as float32; its bits are checked against the vector's digest.
std::vector<float> generated(std::uint64_t seed, std::int64_t n);

class AttentionCase {
 public:
  explicit AttentionCase(nlohmann::json meta) : meta_(std::move(meta)) {}
  const nlohmann::json& meta() const { return meta_; }
  std::string name() const { return meta_["name"]; }
  std::int64_t integer(const char* key) const { return meta_[key]; }
  float from_bits(const char* key) const;
  int compute_capability() const { return std::stoi(meta_["arch"].get<std::string>().substr(3)); }
  bool has(const char* array) const { return meta_["arrays"].contains(array); }
  std::int64_t numel(const char* array) const;
  // The bytes of an input in the case's type: generated from its seed, or stored whole.
  std::vector<std::uint8_t> input(const char* array) const;
  // Compares all bytes by digest; a failure prints the stored values that differ.
  ::testing::AssertionResult equals(const char* array, const void* data, std::size_t element) const;

 private:
  nlohmann::json meta_;
};

// All cases of a file whose "kernel" is this one; at least one, or an exception.
std::vector<AttentionCase> attention_cases(const std::string& file, const std::string& kernel);

}  // namespace step_oracle::test
