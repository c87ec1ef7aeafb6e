#include "tests/attention/vectors.h"

#include <fmt/format.h>

#include <array>
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

std::uint32_t rotated(std::uint32_t x, int n) { return x >> n | x << (32 - n); }

// [spec FIPS 180-4, 4.2.2]: the first 32 bits of the fractions of the cube roots of the first 64 primes.
constexpr std::array<std::uint32_t, 64> kRounds{
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

void add_block(std::array<std::uint32_t, 8>& h, const std::uint8_t* block) {
  std::array<std::uint32_t, 64> w;
  for (int i = 0; i < 16; ++i)
    w[i] = std::uint32_t{block[4 * i]} << 24 | std::uint32_t{block[4 * i + 1]} << 16 |
           std::uint32_t{block[4 * i + 2]} << 8 | block[4 * i + 3];
  for (int i = 16; i < 64; ++i)
    w[i] = w[i - 16] + (rotated(w[i - 15], 7) ^ rotated(w[i - 15], 18) ^ w[i - 15] >> 3) + w[i - 7] +
           (rotated(w[i - 2], 17) ^ rotated(w[i - 2], 19) ^ w[i - 2] >> 10);
  auto v = h;
  for (int i = 0; i < 64; ++i) {
    const std::uint32_t s1 = rotated(v[4], 6) ^ rotated(v[4], 11) ^ rotated(v[4], 25);
    const std::uint32_t t1 = v[7] + s1 + ((v[4] & v[5]) ^ (~v[4] & v[6])) + kRounds[i] + w[i];
    const std::uint32_t s0 = rotated(v[0], 2) ^ rotated(v[0], 13) ^ rotated(v[0], 22);
    const std::uint32_t t2 = s0 + ((v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]));
    v = {t1 + t2, v[0], v[1], v[2], v[3] + t1, v[4], v[5], v[6]};
  }
  for (int i = 0; i < 8; ++i) h[i] += v[i];
}

}  // namespace

std::string sha256(const void* data, std::size_t n) {
  std::array<std::uint32_t, 8> h{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  const auto* from = static_cast<const std::uint8_t*>(data);
  std::size_t done = 0;
  for (; done + 64 <= n; done += 64) add_block(h, from + done);
  std::array<std::uint8_t, 128> tail{};
  const std::size_t rest = n - done, end = rest < 56 ? 64 : 128;
  if (rest) std::memcpy(tail.data(), from + done, rest);
  tail[rest] = 0x80;
  for (int i = 0; i < 8; ++i) tail[end - 1 - i] = static_cast<std::uint8_t>(static_cast<std::uint64_t>(n) * 8 >> 8 * i);
  for (std::size_t at = 0; at < end; at += 64) add_block(h, tail.data() + at);
  std::string text;
  for (const std::uint32_t word : h) text += fmt::format("{:08x}", word);
  return text;
}

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
