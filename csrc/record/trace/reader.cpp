#include "csrc/record/trace/reader.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>

#include "csrc/kernels/core/error.h"
#include "csrc/record/trace/check.h"
#include "csrc/record/trace/frame.h"

namespace step_oracle {
namespace {

class InputFile {
 public:
  explicit InputFile(const std::string& path) {
    fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd_ < 0) throw Error(ErrorKind::kIo, fmt::format("Cannot read '{}': {}.", path, std::strerror(errno)));
    struct stat info {};
    const bool regular = ::fstat(fd_, &info) == 0 && S_ISREG(info.st_mode);
    size_ = static_cast<std::uint64_t>(info.st_size);
    if (!regular) {
      ::close(fd_);
      throw Error(ErrorKind::kBadInput, fmt::format("'{}' is not a file, so it is not a trace.", path));
    }
  }
  ~InputFile() { ::close(fd_); }
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  std::uint64_t size() const { return size_; }

  // False where the file has become shorter, or cannot be read.
  bool read(std::uint64_t at, std::uint8_t* to, std::size_t size) const {
    while (size) {
      const auto n = ::pread(fd_, to, size, static_cast<off_t>(at));
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return false;
      at += static_cast<std::uint64_t>(n);
      to += n;
      size -= static_cast<std::size_t>(n);
    }
    return true;
  }

 private:
  int fd_ = -1;
  std::uint64_t size_ = 0;
};

struct BlobPart {
  std::uint64_t at, stored, raw;
  frame::Codec codec;
};

struct BlobEntry {
  std::uint64_t total = 0, have = 0;
  std::vector<BlobPart> parts;
  bool whole() const { return have == total; }
};

}  // namespace

struct Trace::Blobs {
  explicit Blobs(const std::string& path) : file(path) {}
  InputFile file;
  std::unordered_map<Digest, BlobEntry> entries;

  const BlobEntry* whole(const Digest& digest) const {
    const auto at = entries.find(digest);
    return at != entries.end() && at->second.whole() ? &at->second : nullptr;
  }
};

Trace::Trace() = default;
Trace::~Trace() = default;

// Reads frame after frame into a Trace.
class TraceLoader {
 public:
  TraceLoader(const std::string& path, const ReadLimits& limits) : trace_(new Trace), limits_(limits) {
    trace_->path = path;
    trace_->blobs_ = std::make_unique<Trace::Blobs>(path);
    trace_->bytes = file().size();
  }

  std::shared_ptr<const Trace> load() {
    try {
      header();
      while (next_frame()) {
      }
      finish();
    } catch (const Error& e) {
      if (e.kind() != ErrorKind::kCorrupt) throw;
      throw Error(ErrorKind::kCorrupt,
                  fmt::format("'{}' is damaged and is not read: {}. Record it again, or take another "
                              "copy.",
                              trace_->path, e.what()));
    }
    return std::shared_ptr<const Trace>(std::move(trace_));
  }

 private:
  const InputFile& file() const { return trace_->blobs_->file; }

  void header() {
    std::array<std::uint8_t, frame::kFileHeader> h{};
    const auto have = std::min<std::uint64_t>(h.size(), file().size());
    if (!file().read(0, h.data(), have)) check::corrupt("it cannot be read from the disk");
    if (have < frame::kMagic.size() || !std::equal(frame::kMagic.begin(), frame::kMagic.end(), h.begin()))
      throw Error(ErrorKind::kBadInput, fmt::format("'{}' is not a step-oracle trace.", trace_->path));
    if (have < h.size()) check::corrupt("it ends inside its first 32 bytes");
    trace_->version = static_cast<std::uint32_t>(frame::load_u64(&h[8]));
    if (trace_->version != frame::kVersion)
      throw Error(
          ErrorKind::kBadInput,
          fmt::format("'{}' has trace format version {}; this step-oracle reads version {}. Use the step-oracle "
                      "that wrote it, or a later one.",
                      trace_->path, trace_->version, frame::kVersion));
    if (h[12] | h[13] | h[14] | h[15]) check::corrupt("its header has bytes set that version 1 leaves zero");
    chain_ = frame::first_chain(h);
    at_ = h.size();
  }

  // True where only zeros stand from some place before `end` to the end of the file, and enough of them to be no
  // chance: what a file system leaves of a write that a power failure cut.
  bool zeros_before(std::uint64_t end) const {
    constexpr std::uint64_t kEnough = 16;
    std::vector<std::uint8_t> piece(1 << 16);
    std::uint64_t zeros = 0, at = file().size();
    while (at > at_) {
      const auto n = std::min<std::uint64_t>(piece.size(), at - at_);
      if (!file().read(at - n, piece.data(), n)) return false;
      const auto rest = piece.rbegin() + static_cast<std::ptrdiff_t>(piece.size() - n);
      const auto count =
          static_cast<std::uint64_t>(std::find_if(rest, piece.rend(), [](std::uint8_t b) { return b != 0; }) - rest);
      zeros += count;
      at -= n;
      if (count < n) break;
    }
    return zeros >= std::min(kEnough, file().size() - at_) && file().size() - zeros < end;
  }

  bool cut(std::string how) {
    cut_ = fmt::format("the file is cut {} frame {} (byte {} of {})", how, trace_->frames, at_, file().size());
    return false;
  }

  bool next_frame() {
    const std::uint64_t left = file().size() - at_;
    if (left == 0) return false;
    if (trace_->has_end) check::corrupt(fmt::format("{} bytes stand behind its end", left));
    if (left < frame::kHeader) return cut("in the header of");
    std::array<std::uint8_t, frame::kHeader> h{};
    if (!file().read(at_, h.data(), h.size())) check::corrupt("it cannot be read from the disk");
    const auto head = frame::decode(h, chain_);
    if (!head && zeros_before(at_ + frame::kHeader)) return cut("by zeros in the header of");
    const auto number = trace_->frames;
    if (!head) check::corrupt(fmt::format("frame {} at byte {} is not the one that belongs here", number, at_));
    if (head->sequence != number) check::corrupt(fmt::format("frame {} has the number {}", number, head->sequence));
    const auto codec = static_cast<frame::Codec>(head->codec);
    const bool records = head->type == static_cast<std::uint8_t>(frame::Type::kRecords);
    if (!records && head->type != static_cast<std::uint8_t>(frame::Type::kBlob))
      check::corrupt(fmt::format("frame {} is of the unknown type {}", number, head->type));
    if (head->codec > static_cast<std::uint8_t>(frame::Codec::kZstd))
      check::corrupt(fmt::format("frame {} has the unknown codec {}", number, head->codec));
    if (head->stored > left - frame::kHeader) return cut("inside");
    if (records ? head->raw > frame::kMaxRecords || head->raw / frame::kMaxExpansion > head->stored
                : head->raw > frame::kMaxBlobPart || head->stored < frame::kBlobHead)
      check::corrupt(fmt::format("frame {} says that {} stored bytes are {}", number, head->stored, head->raw));
    if (head->stored > 2 * frame::kMaxRecords)
      check::corrupt(fmt::format("frame {} has {} bytes", number, head->stored));
    payload_.resize(head->stored);
    if (!file().read(at_ + frame::kHeader, payload_.data(), payload_.size()))
      check::corrupt("it cannot be read from the disk");
    const Digest chain = frame::next_chain(h, chain_, payload_);
    if (chain != head->chain) {
      if (zeros_before(at_ + frame::kHeader + head->stored)) return cut("by zeros inside");
      check::corrupt(fmt::format("the bytes of frame {} are not those that were written", number));
    }
    chain_ = chain;
    if (records) {
      this->records(codec, head->raw);
    } else {
      blob_part(codec, head->raw);
    }
    at_ += frame::kHeader + head->stored;
    ++trace_->frames;
    return true;
  }

  void blob_part(frame::Codec codec, std::uint64_t raw) {
    Digest digest;
    std::copy_n(payload_.begin(), 32, digest.bytes.begin());
    const auto total = frame::load_u64(&payload_[32]), offset = frame::load_u64(&payload_[40]);
    auto& entry = trace_->blobs_->entries[digest];
    const bool first = entry.parts.empty();
    if (first) entry.total = total;
    if (total != entry.total || offset != entry.have || raw > total - entry.have || (raw == 0 && total != 0) ||
        (!first && total == 0))
      check::corrupt(fmt::format("frame {} does not continue the blob {}", trace_->frames, digest.hex()));
    entry.parts.push_back({at_ + frame::kHeader + frame::kBlobHead, payload_.size() - frame::kBlobHead, raw, codec});
    entry.have += raw;
  }

  void records(frame::Codec codec, std::uint64_t raw) {
    records_bytes_ += raw;
    if (records_bytes_ > limits_.records)
      throw Error(ErrorKind::kBadInput,
                  fmt::format("The records of '{}' take more than {} bytes of memory, the limit set. "
                              "Record fewer steps in one trace.",
                              trace_->path, limits_.records));
    if (!frame::unpack(codec, payload_, raw, expanded_))
      check::corrupt(fmt::format("frame {} does not expand to the {} bytes it promises", trace_->frames, raw));
    rec::RecordsT r;
    check::verified(expanded_, trace_->frames)->UnPackTo(&r);
    if ((trace_->frames == 0) != static_cast<bool>(r.environment))
      check::corrupt(trace_->frames == 0 ? "its first frame does not describe the environment"
                                         : "it describes the environment twice");
    if (r.environment) {
      check::environment(*r.environment);
      trace_->environment = std::move(*r.environment);
    }
    take(r);
  }

  void take(rec::RecordsT& r) {
    for (auto& s : r.schemas) trace_->schemas.insert_or_assign(std::move(s->name), std::move(s->text));
    for (auto& s : r.storages) {
      check::storage(*s, known_);
      trace_->storage_index_.emplace(std::pair(s->id, s->generation), trace_->storages.size());
      trace_->storages.push_back({std::move(*s), {}, 0, false, 0});
    }
    for (auto& i : r.inits) {
      check::init(*i, known_);
      trace_->storages[trace_->storage_index_.at({i->id, i->generation})].init = std::move(*i);
    }
    for (auto& o : r.ops) {
      check::op(*o, known_);
      if (!tickets_.insert(o->ticket).second) check::corrupt(fmt::format("two ops have the ticket {}", o->ticket));
      trace_->ops.push_back(std::move(*o));
    }
    for (auto& f : r.freed) freed_.emplace(f->id, f->ticket);
    for (auto& s : r.settled) trace_->settled.push_back(std::move(*s));
    for (auto& n : r.names) {
      if (static_cast<unsigned>(n->moment) > static_cast<unsigned>(rec::Moment::End))
        check::corrupt("names of no moment");
      auto& to = n->moment == rec::Moment::Start ? trace_->names_start : trace_->names_end;
      for (auto& entry : n->entries) {
        check::name(*entry, known_);
        to.push_back(std::move(*entry));
      }
    }
    for (auto& e : r.events) {
      check::event(*e);
      trace_->events.push_back(std::move(*e));
    }
    for (auto& p : r.plans) trace_->plans.push_back(std::move(*p));
    if (r.end) {
      trace_->has_end = true;
      trace_->end = std::move(*r.end);
    }
  }

  void finish() {
    if (trace_->frames == 0) check::corrupt("it ends before its first record");
    auto& t = *trace_;
    std::sort(t.ops.begin(), t.ops.end(), [](const auto& a, const auto& b) { return a.ticket < b.ticket; });
    std::stable_sort(t.events.begin(), t.events.end(),
                     [](const auto& a, const auto& b) { return a.ticket < b.ticket; });
    std::stable_sort(t.plans.begin(), t.plans.end(), [](const auto& a, const auto& b) { return a.op < b.op; });
    settle();
    for (const auto& op : t.ops)
      for (const auto& u : op.tensors)
        if (const auto at = t.storage_index_.find({u->storage, u->generation}); at != t.storage_index_.end())
          t.storages[at->second].last_use = op.ticket;
    for (auto& s : t.storages)
      if (const auto f = freed_.find(s.record.id); f != freed_.end()) {
        s.freed = true;
        s.freed_at = f->second;
      }
    if (t.has_end &&
        (t.end.ops != t.ops.size() || t.end.storages != t.storages.size() || t.end.blobs != t.blobs_->entries.size()))
      check::corrupt(fmt::format("its end counts {} ops, {} storages and {} blobs, and it holds {}, {} and {}",
                                 t.end.ops, t.end.storages, t.end.blobs, t.ops.size(), t.storages.size(),
                                 t.blobs_->entries.size()));
    completeness();
  }

  void settle() {
    auto& t = *trace_;
    for (const auto& s : t.settled) {
      const std::size_t i = t.op_index(s.op);
      if (i == t.ops.size() || t.ops[i].ticket != s.op) {
        if (t.has_end) check::corrupt(fmt::format("a collective that is not there (op {}) has completed", s.op));
        continue;
      }
      for (const auto& u : s.tensors) {
        if (u->index >= t.ops[i].tensors.size() ||
            static_cast<unsigned>(u->state) > static_cast<unsigned>(rec::DigestState::Pending))
          check::corrupt(
              fmt::format("the completion of op {} names tensor {} of {}", s.op, u->index, t.ops[i].tensors.size()));
        t.ops[i].tensors[u->index]->after = u->after;
        t.ops[i].tensors[u->index]->after_state = u->state;
        check::tensor(*t.ops[i].tensors[u->index], known_, fmt::format("the completion of op {}", s.op));
      }
    }
  }

  void completeness() {
    auto& t = *trace_;
    const auto unseen =
        std::find_if(t.events.begin(), t.events.end(), [](const auto& e) { return e.kind == rec::EventKind::NotSeen; });
    if (!cut_.empty()) {
      t.reason = cut_ + fmt::format("; it reads up to its last whole frame: {} ops.", t.ops.size());
    } else if (!t.has_end) {
      t.reason = fmt::format(
          "the recording did not come to its end (the process was killed or is still running); {} ops "
          "were read.",
          t.ops.size());
    } else if (!t.end.complete) {
      t.reason = t.end.reason.empty() ? "the recorder says that it did not come to its end." : t.end.reason;
    } else if (unseen != t.events.end()) {
      t.reason = unseen->text;
    } else {
      t.complete = true;
    }
  }

  std::unique_ptr<Trace> trace_;
  const ReadLimits limits_;
  Digest chain_;
  std::uint64_t at_ = 0, records_bytes_ = 0;
  std::string cut_;
  frame::Bytes payload_, expanded_;
  check::Storages known_;
  std::set<std::uint64_t> tickets_;
  std::map<std::uint64_t, std::uint64_t> freed_;
};

std::shared_ptr<const Trace> Trace::open(const std::string& path, const ReadLimits& limits) {
  return TraceLoader(path, limits).load();
}

const StorageInfo* Trace::storage(std::uint64_t id, std::uint32_t generation) const {
  const auto at = storage_index_.find({id, generation});
  return at == storage_index_.end() ? nullptr : &storages[at->second];
}

std::size_t Trace::op_index(std::uint64_t ticket) const {
  const auto at = std::lower_bound(ops.begin(), ops.end(), ticket,
                                   [](const rec::OpT& op, std::uint64_t t) { return op.ticket < t; });
  return static_cast<std::size_t>(at - ops.begin());
}

std::size_t Trace::tensor_count() const {
  std::size_t n = 0;
  for (const auto& op : ops) n += op.tensors.size();
  return n;
}

std::size_t Trace::blob_count() const { return blob_digests().size(); }
bool Trace::has_blob(const Digest& digest) const { return blobs_->whole(digest); }

std::uint64_t Trace::blob_size(const Digest& digest) const {
  const auto* entry = blobs_->whole(digest);
  return entry ? entry->total : 0;
}

std::vector<std::uint8_t> Trace::blob(const Digest& digest) const {
  const auto* entry = blobs_->whole(digest);
  if (!entry)
    throw Error(ErrorKind::kBadInput, fmt::format("'{}' does not keep the bytes of {}. Record with keep=\"state\" or "
                                                  "keep=\"all\".",
                                                  path, digest.hex()));
  std::vector<std::uint8_t> out;
  frame::Bytes stored, piece;
  for (const auto& part : entry->parts) {
    stored.resize(part.stored);
    if (!blobs_->file.read(part.at, stored.data(), stored.size()) ||
        !frame::unpack(part.codec, stored, part.raw, piece))
      throw Error(ErrorKind::kCorrupt,
                  fmt::format("The bytes of {} in '{}' cannot be expanded: the file is damaged.", digest.hex(), path));
    out.insert(out.end(), piece.begin(), piece.end());
  }
  if (blake3(out.data(), out.size()) != digest)
    throw Error(ErrorKind::kCorrupt, fmt::format("The bytes that '{}' keeps under {} have another digest: the file is "
                                                 "damaged.",
                                                 path, digest.hex()));
  return out;
}

std::vector<Digest> Trace::blob_digests() const {
  std::vector<Digest> out;
  for (const auto& [digest, entry] : blobs_->entries)
    if (entry.whole()) out.push_back(digest);
  std::sort(out.begin(), out.end());
  return out;
}

std::size_t check_blobs(const Trace& trace) {
  const auto all = trace.blob_digests();
  for (const auto& digest : all) static_cast<void>(trace.blob(digest));
  return all.size();
}

}  // namespace step_oracle
