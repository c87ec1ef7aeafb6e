// Where a recording's records go: a trace file, or memory (tests, benches). Called by one thread at a time.
#pragma once
#include <memory>
#include <mutex>
#include <string>
#include <variant>
#include <vector>

#include "csrc/record/trace/records.h"
#include "csrc/record/trace/writer.h"

namespace step_oracle::capture {

using Record = std::variant<std::unique_ptr<rec::OpT>, rec::SchemaT, rec::StorageT, rec::StorageInitT, rec::FreedT,
                            rec::NamesT, rec::SettledT, rec::EventT, rec::PlanT>;

class Sink {
 public:
  virtual ~Sink() = default;
  virtual void add(Record record) = 0;
  // From any thread.
  virtual bool has_blob(const Digest& digest) const = 0;
  virtual void blob(const Digest& digest, const StridedBytes& bytes) = 0;
  virtual void close(rec::EndT end) = 0;
  virtual std::uint64_t bytes() const = 0;
};

class FileSink final : public Sink {
 public:
  FileSink(const std::string& path, const rec::EnvironmentT& environment) : writer_(path, environment) {}
  void add(Record record) override {
    std::visit(
        [&](auto& r) {
          if constexpr (requires { *r; }) {
            writer_.add(std::move(*r));
          } else {
            writer_.add(std::move(r));
          }
        },
        record);
  }
  bool has_blob(const Digest& digest) const override { return writer_.has_blob(digest); }
  void blob(const Digest& digest, const StridedBytes& bytes) override { writer_.blob(digest, bytes); }
  void close(rec::EndT end) override { writer_.close(std::move(end)); }
  std::uint64_t bytes() const override { return writer_.bytes_written(); }

 private:
  TraceWriter writer_;
};

class MemorySink final : public Sink {
 public:
  explicit MemorySink(bool keep) : keep_(keep) {}
  void add(Record record) override {
    if (keep_) records.push_back(std::move(record));
  }
  bool has_blob(const Digest&) const override { return true; }
  void blob(const Digest&, const StridedBytes&) override {}
  void close(rec::EndT) override {}
  std::uint64_t bytes() const override { return 0; }

  std::vector<Record> records;

 private:
  bool keep_;
};

}  // namespace step_oracle::capture
