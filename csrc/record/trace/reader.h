// Reads a trace (docs/trace-format.md). Nothing that the file says is believed before it is checked: a file that breaks
// a rule is refused with Error{kCorrupt}, one that is cut reads up to its last whole frame and is not `complete`.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "csrc/record/trace/records.h"

namespace step_oracle {

struct StorageInfo {
  rec::StorageT record;
  rec::StorageInitT init;      // state Absent where there is none
  std::uint64_t last_use = 0;  // ticket of the last op that uses it (0 where none does)
  bool freed = false;
  std::uint64_t freed_at = 0;  // freed before the op with this ticket
};

struct ReadLimits {
  std::uint64_t records = 4ull << 30;  // bytes of records when expanded
};

class Trace {
 public:
  // Throws Error{kIo}, Error{kBadInput} (not a trace, a later format version), Error{kCorrupt}.
  static std::shared_ptr<const Trace> open(const std::string& path, const ReadLimits& limits = {});
  ~Trace();

  std::string path;
  std::uint32_t version = 0;
  std::uint64_t bytes = 0;  // of the file
  std::uint64_t frames = 0;
  bool complete = false;
  std::string reason;  // why not complete, in one sentence

  rec::EnvironmentT environment;
  std::map<std::string, std::string> schemas;  // "aten::mul_.Tensor" -> text
  std::vector<StorageInfo> storages;           // in the order of the file
  std::vector<rec::NameT> names_start, names_end;
  std::vector<rec::OpT> ops;  // by ticket; pending digests are filled in from `settled`
  std::vector<rec::SettledT> settled;
  std::vector<rec::EventT> events;  // by ticket
  std::vector<rec::PlanT> plans;    // by op
  bool has_end = false;
  rec::EndT end;

  const StorageInfo* storage(std::uint64_t id, std::uint32_t generation) const;  // null where there is none
  std::size_t op_index(std::uint64_t ticket) const;  // the first op with this ticket or a later one
  std::size_t tensor_count() const;                  // uses of tensors in all ops
  std::size_t blob_count() const;
  bool has_blob(const Digest& digest) const;
  std::uint64_t blob_size(const Digest& digest) const;  // 0 where there is none
  // Reads, expands and re-digests the bytes. Throws Error{kBadInput} where the trace does not keep them,
  // Error{kCorrupt} where they are not what the digest says. May be called from several threads.
  std::vector<std::uint8_t> blob(const Digest& digest) const;
  std::vector<Digest> blob_digests() const;

 private:
  Trace();
  friend class TraceLoader;
  struct Blobs;
  std::unique_ptr<Blobs> blobs_;
  std::map<std::pair<std::uint64_t, std::uint32_t>, std::size_t> storage_index_;
};

// Reads every blob too. Returns the number of blobs checked; throws as open() and blob() do.
std::size_t check_blobs(const Trace& trace);

}  // namespace step_oracle
