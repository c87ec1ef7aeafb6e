// Writes a trace (docs/trace-format.md). Any thread may call; the order of ops is their ticket's, not the calls'.
//
// Records are packed, compressed and written by a thread of the writer's own, at the latest 50 ms after they came, so
// that a killed process loses little. An error of the operating system (full disk, no permission) is kept and thrown
// as Error{kIo}, with path and reason, by the next call and by close().
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "csrc/record/trace/records.h"

namespace step_oracle {

struct WriterOptions {
  int level = 3;                 // zstd
  std::size_t batch = 64;        // ops in a frame
  int flush_ms = 50;             // the longest that a record waits
  std::size_t queue = 64 << 20;  // bytes of kept blobs that may wait; then blob() blocks
};

class TraceWriter {
 public:
  // Makes or replaces the file. Throws Error{kBadInput} where something stands there that is not a trace, or another
  // process is writing it; Error{kIo} where it cannot be opened.
  TraceWriter(std::string path, const rec::EnvironmentT& environment, WriterOptions options = {});
  // Without close(): what came is written, no End; the trace reads as not complete. Never throws.
  ~TraceWriter();
  TraceWriter(const TraceWriter&) = delete;
  TraceWriter& operator=(const TraceWriter&) = delete;

  // A storage comes before the first op that uses it, a schema may come any time. Records of one thread keep their
  // order in the file.
  void add(rec::SchemaT schema);
  void add(rec::StorageT storage);
  void add(rec::StorageInitT init);
  void add(rec::FreedT freed);
  void add(rec::NamesT names);
  void add(rec::OpT op);
  void add(rec::SettledT settled);
  void add(rec::EventT event);
  void add(rec::PlanT plan);

  bool has_blob(const Digest& digest) const;
  // Keeps the bytes (once: a digest that is there already is left alone). `data` is read during the call, which also
  // compresses. The digest must be theirs; readers check it.
  void blob(const Digest& digest, const void* data, std::size_t size);
  void blob(const Digest& digest, const StridedBytes& bytes);

  // Returns when all that was added is with the operating system.
  void flush();
  // Writes End (its counts of ops, storages and blobs are filled in here) and closes the file. Later calls throw.
  void close(rec::EndT end);

  const std::string& path() const;
  std::uint64_t bytes_written() const;
  std::uint64_t ops_added() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace step_oracle
