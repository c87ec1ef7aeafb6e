#include "tests/attention/vectors.h"

#include <fmt/format.h>

#include <cstring>
#include <fstream>
#include <stdexcept>

#include "csrc/kernels/arith/convert.h"
#include "csrc/kernels/core/bits.h"

namespace step_oracle::test {
namespace {

std::uint64_t mixed(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

std::int64_t product(const nlohmann::json& shape) {
  std::int64_t n = 1;
  for (const auto& s : shape) n *= s.get<std::int64_t>();
  return n;
}

}  // namespace

std::vector<float> generated(std::uint64_t seed, std::int64_t n) {
  std::vector<float> out(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < out.size(); ++i) {
    const auto word = [&](std::uint64_t k) {
      return mixed(seed * 0x2545F4914F6CDD1Du + (2 * i + k + 1) * 0x9E3779B97F4A7C15u);
    };
    const std::uint64_t a = word(0), b = word(1);
    std::int64_t sum = -131070;
    for (int j = 0; j < 4; ++j) sum += static_cast<std::int64_t>(a >> 16 * j & 0xffff);
    out[i] = static_cast<float>(static_cast<double>(sum * 65536 + static_cast<std::int64_t>(b & 0xffff)) * 0x1p-31);
  }
  return out;
}

float AttentionCase::from_bits(const char* key) const { return float_of(meta_[key].get<std::uint32_t>()); }

std::int64_t AttentionCase::numel(const char* array) const { return product(meta_["arrays"][array]["shape"]); }

std::vector<std::uint8_t> AttentionCase::input(const char* array) const {
  const std::string type = meta_["dtype"];
  std::vector<std::uint8_t> bytes;
  const auto put = [&](auto bits) {
    const auto* p = reinterpret_cast<const std::uint8_t*>(&bits);
    bytes.insert(bytes.end(), p, p + sizeof bits);
  };
  if (!meta_["generated"].contains(array)) {
    for (const auto& v : meta_["arrays"][array]["values"]) put(v.get<std::uint32_t>());
    return bytes;
  }
  const auto& g = meta_["generated"][array];
  for (const float x : generated(g["seed"], product(g["shape"]))) {
    if (type == "f32")
      put(bits_of(x));
    else
      put(type == "bf16" ? convert::to_bf16(x) : convert::to_fp16(x));
  }
  if (sha256(bytes.data(), bytes.size()) != g["sha256"])
    throw std::runtime_error(fmt::format("{}: the generated {} has another digest than the vector's", name(), array));
  return bytes;
}

::testing::AssertionResult AttentionCase::equals(const char* array, const void* data, std::size_t element) const {
  const auto& expected = meta_["arrays"][array];
  const std::size_t n = static_cast<std::size_t>(product(expected["shape"]));
  if (sha256(data, n * element) == expected["sha256"]) return ::testing::AssertionSuccess();
  const std::size_t every = expected["every"];
  std::size_t different = 0;
  std::string first;
  for (std::size_t i = 0; i < expected["values"].size(); ++i) {
    std::uint32_t is = 0;
    const std::uint32_t should = expected["values"][i];
    std::memcpy(&is, static_cast<const std::uint8_t*>(data) + i * every * element, element);
    if (is != should && different++ < 3)
      first += fmt::format(" [{}] expected 0x{:x}, actual 0x{:x}", i * every, should, is);
  }
  return ::testing::AssertionFailure() << name() << " " << array << ": digests differ; " << different << " of "
                                       << expected["values"].size() << " stored values differ" << first;
}

std::vector<AttentionCase> attention_cases(const std::string& file, const std::string& kernel) {
  const std::string path = std::string(STEP_ORACLE_TEST_DATA) + "/attention/" + file + ".json";
  std::ifstream stream(path);
  if (!stream) throw std::runtime_error("cannot open " + path);
  const auto index = nlohmann::json::parse(stream);
  std::vector<AttentionCase> cases;
  for (const auto& meta : index["cases"])
    if (meta["kernel"] == kernel) cases.emplace_back(meta);
  if (cases.empty()) throw std::runtime_error(path + ": no case of kernel " + kernel);
  return cases;
}

}  // namespace step_oracle::test
