// Damaged and forged traces: refused in one sentence, or read as the same or a shorter trace; no crash, no hang.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <random>

#include "csrc/kernels/core/error.h"
#include "csrc/record/trace/diff.h"
#include "csrc/record/trace/frame.h"
#include "csrc/record/trace/reader.h"
#include "tests/trace/sample.h"

namespace step_oracle {
namespace {

using Bytes = std::vector<std::uint8_t>;
using Random = std::mt19937_64;

struct Frame {
  std::size_t at, size;  // in the file, header included
};

std::vector<Frame> frames_of(const Bytes& file) {
  std::vector<Frame> out;
  for (std::size_t at = frame::kFileHeader; at < file.size();) {
    const std::size_t size = frame::kHeader + frame::load_u64(&file[at + 16]);
    out.push_back({at, size});
    at += size;
  }
  return out;
}

Bytes packed(const rec::OpT& op) {
  flatbuffers::FlatBufferBuilder b;
  b.Finish(rec::Op::Pack(b, &op));
  return {b.GetBufferPointer(), b.GetBufferPointer() + b.GetSize()};
}

struct Outcome {
  bool read = false, complete = false;
  std::size_t ops = 0;
  std::string message;
};

// Opens, checks the blobs, and walks everything that a reader would.
Outcome outcome_of(const std::string& path, const Trace* original) {
  Outcome out;
  try {
    const auto trace = Trace::open(path);
    check_blobs(*trace);
    out = {true, trace->complete, trace->ops.size(), trace->reason};
    if (original) {
      EXPECT_LE(trace->ops.size(), original->ops.size());
      for (std::size_t i = 0; i < std::min(trace->ops.size(), original->ops.size()); ++i) {
        // A collective whose completion was cut off is still pending: only that may differ.
        if (trace->ops[i].collective) continue;
        EXPECT_EQ(packed(trace->ops[i]), packed(original->ops[i]));
      }
    }
    static_cast<void>(diff(*trace, *trace));
  } catch (const Error& e) {
    out.message = e.what();
  }
  EXPECT_EQ(out.message.find('\n'), std::string::npos);
  EXPECT_FALSE(!out.read && out.message.size() < 20) << "a sentence: " << out.message;
  return out;
}

std::size_t below(Random& r, std::size_t n) { return std::uniform_int_distribution<std::size_t>(0, n - 1)(r); }

Bytes mutated(const Bytes& whole, const Bytes& other, Random& r) {
  auto frames = frames_of(whole);
  Bytes out = whole;
  const auto piece = [&](const Frame& f) { return Bytes(whole.begin() + f.at, whole.begin() + f.at + f.size); };
  const auto rebuild = [&](const std::vector<Frame>& order) {
    Bytes b(whole.begin(), whole.begin() + frame::kFileHeader);
    for (const auto& f : order) {
      const auto p = piece(f);
      b.insert(b.end(), p.begin(), p.end());
    }
    return b;
  };
  switch (below(r, 9)) {
    case 0:  // one bit
      out[below(r, out.size())] ^= static_cast<std::uint8_t>(1u << below(r, 8));
      return out;
    case 1:  // some bytes
      for (std::size_t n = 1 + below(r, 16); n-- > 0;) out[below(r, out.size())] = static_cast<std::uint8_t>(r());
      return out;
    case 2:  // cut
      out.resize(below(r, out.size()));
      return out;
    case 3: {  // a length
      const auto& f = frames[below(r, frames.size())];
      const std::uint64_t lengths[] = {0, 1, ~0ull, 1ull << 63, 1ull << 32, r(), r() & 0xffff};
      const std::uint64_t v = lengths[below(r, 7)];
      std::memcpy(&out[f.at + (below(r, 2) ? 16 : 24)], &v, 8);
      return out;
    }
    case 4:  // two frames change places
      std::swap(frames[below(r, frames.size())], frames[below(r, frames.size())]);
      return rebuild(frames);
    case 5:  // one is missing
      frames.erase(frames.begin() + static_cast<std::ptrdiff_t>(below(r, frames.size())));
      return rebuild(frames);
    case 6: {  // one stands twice
      const auto f = frames[below(r, frames.size())];
      frames.insert(frames.begin() + static_cast<std::ptrdiff_t>(below(r, frames.size() + 1)), f);
      return rebuild(frames);
    }
    case 7: {  // one of another trace
      const auto theirs = frames_of(other);
      const auto n = below(r, std::min(theirs.size(), frames.size()));
      Bytes b(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(frames[n].at));
      b.insert(b.end(), other.begin() + static_cast<std::ptrdiff_t>(theirs[n].at),
               other.begin() + static_cast<std::ptrdiff_t>(theirs[n].at + theirs[n].size));
      b.insert(b.end(), whole.begin() + static_cast<std::ptrdiff_t>(frames[n].at + frames[n].size), whole.end());
      return b;
    }
    default:  // bytes behind the end, zeros or not
      for (std::size_t n = 1 + below(r, 200), zero = below(r, 2); n-- > 0;)
        out.push_back(zero ? 0 : static_cast<std::uint8_t>(r()));
      return out;
  }
}

TEST(Mutation, TwoThousandDamagedFiles) {
  const auto path = test::sample_file("original"), damaged = test::temporary_path("damaged");
  test::SampleOptions options;
  options.seed = 2;
  const auto whole = test::read_file(path), other = test::read_file(test::sample_file("other_trace", options));
  const auto original = Trace::open(path);
  Random random(20261129);
  std::size_t refused = 0, shorter = 0, same = 0;
  for (int i = 0; i < 2000; ++i) {
    const auto bytes = mutated(whole, other, random);
    test::write_file(damaged, bytes);
    const auto got = outcome_of(damaged, original.get());
    const bool changed = bytes != whole;
    ++(!got.read ? refused : changed ? shorter : same);
    EXPECT_FALSE(got.read && changed && got.complete) << "mutation " << i;
    if (HasFailure()) FAIL() << "mutation " << i;
  }
  std::printf("[ 2000 mutations ] %zu refused, %zu read as a shorter trace, %zu unchanged\n", refused, shorter, same);
  EXPECT_GT(refused, 1000u);
  EXPECT_GT(shorter, 100u);
}

// A forger who knows the format: frames are taken apart, changed and chained again, so that only what the records say
// can be wrong.
class Forge {
 public:
  explicit Forge(const Bytes& file) : header_(file.begin(), file.begin() + frame::kFileHeader) {
    for (const auto& f : frames_of(file)) {
      const auto h = file.begin() + static_cast<std::ptrdiff_t>(f.at);
      Part part{h[4], {}, {}};
      const Bytes stored(h + frame::kHeader, h + static_cast<std::ptrdiff_t>(f.size));
      const std::size_t head = part.type == 2 ? frame::kBlobHead : 0;
      part.head.assign(stored.begin(), stored.begin() + static_cast<std::ptrdiff_t>(head));
      if (!frame::unpack(static_cast<frame::Codec>(h[5]), frame::View(stored).subspan(head), frame::load_u64(&h[24]),
                         part.data))
        throw std::runtime_error("not a whole trace");
      parts.push_back(std::move(part));
    }
  }

  Bytes file() const {
    Bytes out = header_;
    Digest chain = frame::first_chain(header_);
    std::uint64_t n = 0;
    for (const auto& p : parts) {
      const auto packed = frame::pack(p.head, p.data, 1, p.type == 1 ? frame::kMaxExpansion : 0);
      const auto h =
          frame::encode(static_cast<frame::Type>(p.type), packed.codec, n++, p.data.size(), packed.bytes, chain);
      out.insert(out.end(), h.begin(), h.end());
      out.insert(out.end(), packed.bytes.begin(), packed.bytes.end());
    }
    return out;
  }

  // Rewrites the records of frame n.
  void rewrite(std::size_t n, const std::function<void(rec::RecordsT&)>& change) {
    rec::RecordsT r;
    rec::GetRecords(parts[n].data.data())->UnPackTo(&r);
    change(r);
    flatbuffers::FlatBufferBuilder b;
    b.Finish(rec::Records::Pack(b, &r));
    parts[n].data.assign(b.GetBufferPointer(), b.GetBufferPointer() + b.GetSize());
  }
  // The first frame whose records hold ops, changed.
  void first_op(const std::function<void(rec::OpT&)>& change) {
    for (std::size_t n = 0; n < parts.size(); ++n) {
      if (parts[n].type != 1 || !rec::GetRecords(parts[n].data.data())->ops()) continue;
      return rewrite(n, [&](rec::RecordsT& r) { change(*r.ops.at(0)); });
    }
  }

  struct Part {
    std::uint8_t type;
    Bytes head, data;
  };
  std::vector<Part> parts;

 private:
  Bytes header_;
};

TEST(Mutation, ForgedPayloads) {
  const auto whole = test::read_file(test::sample_file("forged"));
  const auto path = test::temporary_path("forged_now");
  Random random(7);
  std::size_t refused = 0, read = 0;
  for (int i = 0; i < 3000; ++i) {
    Forge forge(whole);
    auto& data = forge.parts[below(random, forge.parts.size())].data;
    for (std::size_t n = 1 + below(random, 4); n-- > 0 && !data.empty();) {
      const std::size_t at = below(random, data.size());
      const std::uint8_t values[] = {0, 1, 0x7f, 0x80, 0xff, static_cast<std::uint8_t>(random())};
      data[at] = values[below(random, 6)];
    }
    test::write_file(path, forge.file());
    outcome_of(path, nullptr).read ? ++read : ++refused;
  }
  std::printf("[ 3000 forgeries ] %zu refused, %zu read\n", refused, read);
  EXPECT_GT(refused, 300u);
}

TEST(Mutation, WhatRecordsMustNotSay) {
  const auto whole = test::read_file(test::sample_file("rules"));
  const auto path = test::temporary_path("rules_now");
  const std::map<std::string, std::function<void(rec::OpT&)>> changes = {
      {"outside a storage", [](rec::OpT& o) { o.tensors[0]->sizes = {400, 8}; }},
      {"outside a storage of", [](rec::OpT& o) { o.tensors[0]->strides = {std::int64_t{1} << 62, 1}; }},
      {"reach outside", [](rec::OpT& o) { o.tensors[0]->offset = -1; }},
      {"negative or overflow",
       [](rec::OpT& o) { o.tensors[0]->sizes = {std::int64_t{1} << 40, std::int64_t{1} << 40}; }},
      {"are negative", [](rec::OpT& o) { o.tensors[0]->sizes = {-1, 8}; }},
      {"sizes and", [](rec::OpT& o) { o.tensors[0]->strides = {1}; }},
      {"is not declared", [](rec::OpT& o) { o.tensors[0]->storage = 99; }},
      {"dtype 200", [](rec::OpT& o) { o.tensors[0]->dtype = static_cast<rec::DType>(200); }},
      {"digest state", [](rec::OpT& o) { o.tensors[0]->before_state = static_cast<rec::DigestState>(77); }},
      {"tensor 3 of 3", [](rec::OpT& o) { o.args[0]->i = 3; }},
      {"tensor -1 of", [](rec::OpT& o) { o.returns[0]->i = -1; }},
      {"value of kind", [](rec::OpT& o) { o.args[0]->kind = static_cast<rec::ValueKind>(99); }},
      {"nested deeper",
       [](rec::OpT& o) {
         for (int i = 0; i < 20; ++i) {
           std::vector<rec::ValuePtr> inner;
           inner.push_back(std::move(o.args[0]));
           o.args[0] = rec::list_value(std::move(inner));
         }
       }},
      {"dimensions",
       [](rec::OpT& o) {
         o.tensors[0]->sizes.assign(65, 1);
         o.tensors[0]->strides.assign(65, 1);
       }},
      {"phase", [](rec::OpT& o) { o.phase = static_cast<rec::Phase>(50); }},
      {"has no name", [](rec::OpT& o) { o.name.clear(); }},
      {"without a storage", [](rec::OpT& o) { o.tensors[0]->storage = 0; }},
      {"two ops have the ticket", [](rec::OpT& o) { o.ticket = 2; }},
  };
  for (const auto& [part, change] : changes) {
    Forge forge(whole);
    forge.first_op(change);
    test::write_file(path, forge.file());
    const auto got = outcome_of(path, nullptr);
    EXPECT_FALSE(got.read) << part;
    EXPECT_NE(got.message.find(part), std::string::npos) << part << ": " << got.message;
  }
}

TEST(Mutation, FramesAndCounts) {
  const auto whole = test::read_file(test::sample_file("counts"));
  const auto path = test::temporary_path("counts_now");
  const auto refused = [&](const Forge& forge, const char* part) {
    test::write_file(path, forge.file());
    const auto got = outcome_of(path, nullptr);
    EXPECT_FALSE(got.read) << part;
    EXPECT_NE(got.message.find(part), std::string::npos) << part << ": " << got.message;
  };
  Forge no_environment(whole);
  no_environment.rewrite(0, [](rec::RecordsT& r) { r.environment.reset(); });
  refused(no_environment, "does not describe the environment");
  Forge twice(whole);
  twice.parts.insert(twice.parts.begin(), twice.parts[0]);
  refused(twice, "describes the environment twice");
  Forge counts(whole);
  counts.rewrite(counts.parts.size() - 1, [](rec::RecordsT& r) { r.end->ops += 1; });
  refused(counts, "its end counts");
  Forge more(whole);
  more.parts.push_back(more.parts.back());
  refused(more, "stand behind its end");
  Forge type(whole);
  type.parts[1].type = 9;
  refused(type, "unknown type");
  Forge blob(whole);
  for (auto& p : blob.parts)
    if (p.type == 2) p.data[0] ^= 1;
  refused(blob, "have another digest");
  Forge offset(whole);
  for (auto& p : offset.parts)
    if (p.type == 2) p.head[40] = 1;
  refused(offset, "does not continue the blob");
}

// Six levels of vectors of offsets that all point to one table, ten times over: small in the file, huge when taken
// apart.
TEST(Mutation, SharedPartsDoNotGrow) {
  const auto whole = test::read_file(test::sample_file("shared"));
  const auto path = test::temporary_path("shared_now");
  Forge forge(whole);
  flatbuffers::FlatBufferBuilder b;
  auto v = rec::CreateValueDirect(b, rec::ValueKind::Int, 1);
  for (int depth = 0; depth < 6; ++depth) {
    const std::vector<flatbuffers::Offset<rec::Value>> ten(10, v);
    v = rec::CreateValueDirect(b, rec::ValueKind::List, 0, 0, nullptr, &ten);
  }
  const std::vector<flatbuffers::Offset<rec::Value>> args(1, v);
  const auto op = rec::CreateOpDirect(b, 1000, "aten::bomb", "", 0, rec::Phase::Forward, &args);
  const std::vector<flatbuffers::Offset<rec::Op>> ops(1, op);
  b.Finish(rec::CreateRecordsDirect(b, 0, nullptr, nullptr, nullptr, &ops));
  forge.parts[1].type = 1;
  forge.parts[1].head.clear();
  forge.parts[1].data.assign(b.GetBufferPointer(), b.GetBufferPointer() + b.GetSize());
  test::write_file(path, forge.file());
  const auto got = outcome_of(path, nullptr);
  EXPECT_FALSE(got.read);
  EXPECT_NE(got.message.find("share their parts"), std::string::npos) << got.message;
}

}  // namespace
}  // namespace step_oracle
