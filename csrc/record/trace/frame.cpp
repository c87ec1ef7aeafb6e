#include "csrc/record/trace/frame.h"

#include <zstd.h>

#include <algorithm>
#include <memory>

#include "csrc/kernels/core/error.h"

namespace step_oracle::frame {
namespace {

constexpr std::array<std::uint8_t, 4> kFrameMagic = {'S', 'O', 'F', 'R'};

template <class T>
void store(std::uint8_t* to, T value) {
  for (std::size_t i = 0; i < sizeof(T); ++i) to[i] = static_cast<std::uint8_t>(value >> (8 * i));
}

std::uint64_t header_check(View header, const Digest& chain) {
  Hasher h;
  h.update(chain.bytes.data(), chain.bytes.size());
  h.update(header.data(), kChecked);
  return load_u64(h.finish().bytes.data());
}

struct FreeDctx {
  void operator()(ZSTD_DCtx* c) const { ZSTD_freeDCtx(c); }
};
struct FreeCctx {
  void operator()(ZSTD_CCtx* c) const { ZSTD_freeCCtx(c); }
};

}  // namespace

std::uint64_t load_u64(const std::uint8_t* from) {
  std::uint64_t v = 0;
  for (int i = 0; i < 8; ++i) v |= static_cast<std::uint64_t>(from[i]) << (8 * i);
  return v;
}

std::array<std::uint8_t, kFileHeader> file_header(const std::array<std::uint8_t, 16>& file_id) {
  std::array<std::uint8_t, kFileHeader> out{};
  std::copy(kMagic.begin(), kMagic.end(), out.begin());
  store(out.data() + 8, kVersion);
  std::copy(file_id.begin(), file_id.end(), out.begin() + 16);
  return out;
}

Digest first_chain(View header) { return blake3(header.data(), header.size()); }

Digest next_chain(View header, const Digest& chain, View payload) {
  Hasher h;
  h.update(chain.bytes.data(), chain.bytes.size());
  h.update(header.data(), kChecked);
  h.update(payload.data(), payload.size());
  return h.finish();
}

std::array<std::uint8_t, kHeader> encode(Type type, Codec codec, std::uint64_t sequence, std::uint64_t raw,
                                         View payload, Digest& chain) {
  std::array<std::uint8_t, kHeader> out{};
  std::copy(kFrameMagic.begin(), kFrameMagic.end(), out.begin());
  out[4] = static_cast<std::uint8_t>(type);
  out[5] = static_cast<std::uint8_t>(codec);
  store(out.data() + 8, sequence);
  store(out.data() + 16, static_cast<std::uint64_t>(payload.size()));
  store(out.data() + 24, raw);
  store(out.data() + 32, header_check(out, chain));
  chain = next_chain(out, chain, payload);
  std::copy(chain.bytes.begin(), chain.bytes.end(), out.begin() + 40);
  return out;
}

std::optional<Header> decode(View header, const Digest& chain) {
  if (!std::equal(kFrameMagic.begin(), kFrameMagic.end(), header.begin()) || header[6] || header[7]) return {};
  Header out{
      header[4], header[5], load_u64(&header[8]), load_u64(&header[16]), load_u64(&header[24]), load_u64(&header[32]),
      {}};
  std::copy(header.begin() + 40, header.begin() + 72, out.chain.bytes.begin());
  if (out.check != header_check(header, chain)) return {};
  return out;
}

Bytes blob_head(const Digest& digest, std::uint64_t total, std::uint64_t offset) {
  Bytes out(kBlobHead);
  std::copy(digest.bytes.begin(), digest.bytes.end(), out.begin());
  store(out.data() + 32, total);
  store(out.data() + 40, offset);
  return out;
}

Packed pack(View head, View data, int level, std::uint64_t max_expansion) {
  static thread_local std::unique_ptr<ZSTD_CCtx, FreeCctx> context(ZSTD_createCCtx());
  Packed out;
  out.bytes.resize(head.size() + ZSTD_compressBound(data.size()));
  std::copy(head.begin(), head.end(), out.bytes.begin());
  const std::size_t n = ZSTD_compressCCtx(context.get(), out.bytes.data() + head.size(), out.bytes.size() - head.size(),
                                          data.data(), data.size(), level);
  if (ZSTD_isError(n)) throw Error(ErrorKind::kInternal, std::string("zstd cannot compress: ") + ZSTD_getErrorName(n));
  if (n < data.size() && (max_expansion == 0 || data.size() / n < max_expansion)) {
    out.codec = Codec::kZstd;
    out.bytes.resize(head.size() + n);
  } else {
    std::copy(data.begin(), data.end(), out.bytes.begin() + static_cast<std::ptrdiff_t>(head.size()));
    out.bytes.resize(head.size() + data.size());
  }
  return out;
}

bool unpack(Codec codec, View stored, std::uint64_t raw, Bytes& out) {
  if (codec == Codec::kRaw) {
    if (stored.size() != raw) return false;
    out.assign(stored.begin(), stored.end());
    return true;
  }
  static thread_local std::unique_ptr<ZSTD_DCtx, FreeDctx> context(ZSTD_createDCtx());
  out.resize(raw);
  const std::size_t n = ZSTD_decompressDCtx(context.get(), out.data(), out.size(), stored.data(), stored.size());
  return !ZSTD_isError(n) && n == raw;
}

}  // namespace step_oracle::frame
