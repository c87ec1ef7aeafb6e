#include "tests/support/vectors.h"

#include <zstd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>

namespace step_oracle::test {
namespace fs = std::filesystem;

namespace {
const std::string kEnding = ".safetensors.zst";
fs::path folder() { return fs::path(STEP_ORACLE_TEST_DATA) / "witness"; }

std::vector<std::uint8_t> unpacked(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw std::runtime_error("no vectors at " + path.string());
  const std::vector<char> packed((std::istreambuf_iterator<char>(in)), {});
  const auto size = ZSTD_getFrameContentSize(packed.data(), packed.size());
  if (size == ZSTD_CONTENTSIZE_ERROR || size == ZSTD_CONTENTSIZE_UNKNOWN || size > (1u << 30))
    throw std::runtime_error("not a zstd frame of known size: " + path.string());
  std::vector<std::uint8_t> out(size);
  if (ZSTD_decompress(out.data(), out.size(), packed.data(), packed.size()) != size)
    throw std::runtime_error("damaged: " + path.string());
  return out;
}
}  // namespace

std::int64_t Array::numel() const {
  std::int64_t n = 1;
  for (auto d : shape) n *= d;
  return n;
}

const Array& VectorFile::in(const std::string& n) const { return arrays.at("in_" + n); }

const Array& VectorFile::out(const std::string& n, const std::string& arch) const {
  const auto it = arrays.find("out_" + n + "@" + arch);
  return it != arrays.end() ? it->second : arrays.at("out_" + n);
}

VectorFile load_vectors(const std::string& file) {
  const auto bytes = unpacked(folder() / (file + kEnding));
  std::uint64_t header = 0;
  std::memcpy(&header, bytes.data(), 8);
  const auto json = nlohmann::json::parse(bytes.begin() + 8, bytes.begin() + 8 + static_cast<std::ptrdiff_t>(header));
  VectorFile out;
  out.name = file;
  for (const auto& [key, value] : json.items()) {
    if (key == "__metadata__") {
      out.meta = nlohmann::json::parse(value.at("meta").get<std::string>());
      continue;
    }
    Array a;
    a.dtype = value.at("dtype").get<std::string>();
    a.shape = value.at("shape").get<std::vector<std::int64_t>>();
    const auto offsets = value.at("data_offsets").get<std::vector<std::uint64_t>>();
    const auto base = bytes.begin() + 8 + static_cast<std::ptrdiff_t>(header);
    a.bytes.assign(base + static_cast<std::ptrdiff_t>(offsets[0]), base + static_cast<std::ptrdiff_t>(offsets[1]));
    out.arrays.emplace(key, std::move(a));
  }
  return out;
}

std::vector<std::string> vector_names(const std::string& prefix) {
  std::vector<std::string> out;
  for (const auto& entry : fs::directory_iterator(folder())) {
    std::string name = entry.path().filename().string();
    if (name.size() <= kEnding.size() || name.substr(name.size() - kEnding.size()) != kEnding) continue;
    name.resize(name.size() - kEnding.size());
    if (name.rfind(prefix, 0) == 0) out.push_back(name);
  }
  std::sort(out.begin(), out.end());
  return out;
}

}  // namespace step_oracle::test
