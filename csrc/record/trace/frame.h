// The container of docs/trace-format.md: a file header, then frames, each bound to all that stand before it.
// All numbers are little endian.
//
//   file header, 32 bytes: magic 8 | version u32 | zero u32 | file id 16
//   frame, 72 bytes + payload:
//     0 magic "SOFR" | 4 type u8 | 5 codec u8 | 6 zero u16 | 8 sequence u64 | 16 stored u64 | 24 raw u64
//     32 header check u64 | 40 chain 32 | payload, `stored` bytes
//   chain(-1) = BLAKE3(file header); check(n) = first 8 bytes of BLAKE3(chain(n-1), bytes 0..32);
//   chain(n) = BLAKE3(chain(n-1), bytes 0..32, payload)
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "csrc/record/trace/digest.h"

namespace step_oracle::frame {

constexpr std::array<std::uint8_t, 8> kMagic = {0x89, 'S', 'O', 'T', 'R', '\r', '\n', 0x1a};
constexpr std::uint32_t kVersion = 1;
constexpr std::size_t kFileHeader = 32, kHeader = 72, kChecked = 32;
constexpr std::size_t kBlobHead = 48;               // digest 32 | total u64 | offset u64, never compressed
constexpr std::uint64_t kMaxRecords = 64ull << 20;  // raw bytes of a Records frame
constexpr std::uint64_t kMaxBlobPart = 4ull << 20;  // raw bytes of a Blob frame, its head left out
constexpr std::uint64_t kMaxExpansion = 512;        // raw / stored of a Records frame; denser ones are stored raw

enum class Type : std::uint8_t { kRecords = 1, kBlob = 2 };
enum class Codec : std::uint8_t { kRaw = 0, kZstd = 1 };

struct Header {
  std::uint8_t type = 0, codec = 0;
  std::uint64_t sequence = 0, stored = 0, raw = 0, check = 0;
  Digest chain;
};

using Bytes = std::vector<std::uint8_t>;
using View = std::span<const std::uint8_t>;

std::array<std::uint8_t, kFileHeader> file_header(const std::array<std::uint8_t, 16>& file_id);
Digest first_chain(View file_header);

// The bytes of a whole frame's header; `chain` goes on to the next frame.
std::array<std::uint8_t, kHeader> encode(Type type, Codec codec, std::uint64_t sequence, std::uint64_t raw,
                                         View payload, Digest& chain);
// Empty where the magic, the zeros or the check do not hold.
std::optional<Header> decode(View header, const Digest& chain);
Digest next_chain(View header, const Digest& chain, View payload);

// A blob's frame without its header: what a Blob payload starts with.
Bytes blob_head(const Digest& digest, std::uint64_t total, std::uint64_t offset);

struct Packed {
  Codec codec = Codec::kRaw;
  Bytes bytes;
};
// zstd where that is smaller (and, with max_expansion, not denser than that), else as it is. `head` goes before, raw.
Packed pack(View head, View data, int level, std::uint64_t max_expansion = 0);
// Exactly `raw` bytes; false where the stored bytes are not that.
bool unpack(Codec codec, View stored, std::uint64_t raw, Bytes& out);

std::uint64_t load_u64(const std::uint8_t* from);

}  // namespace step_oracle::frame
