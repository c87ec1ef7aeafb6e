// A small made-up recording: linear, dropout, loss, backward, SGD, with every kind of record in it.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "csrc/record/trace/records.h"
#include "csrc/record/trace/writer.h"

namespace step_oracle::test {

struct SampleOptions {
  int steps = 3;
  bool keep_blobs = true;
  std::uint64_t seed = 1;  // of the values, so of the digests
  bool collective = true;
};

rec::EnvironmentT sample_environment();
// Adds the records; without `close` the caller goes on.
void write_sample(TraceWriter& writer, const SampleOptions& options = {});
void close_sample(TraceWriter& writer);
// A file with the sample, closed. Returns the path.
std::string sample_file(const std::string& name, const SampleOptions& options = {});
std::string temporary_path(const std::string& name);
std::vector<std::uint8_t> read_file(const std::string& path);
void write_file(const std::string& path, const std::vector<std::uint8_t>& bytes);

}  // namespace step_oracle::test
