// The file that frames are appended to, and the frames' chain. One thread at a time.
#pragma once
#include <cstdint>
#include <string>

#include "csrc/record/trace/frame.h"

namespace step_oracle::frame {

class File {
 public:
  // Opens or makes `path` for writing, locks it, and writes the file header. A file that stands there is replaced if it
  // is a trace (or empty); otherwise Error{kBadInput}.
  explicit File(std::string path);
  ~File();
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  // Throws Error{kIo}; the file then ends with the last whole frame, if the operating system lets it.
  void append(Type type, Codec codec, std::uint64_t raw, View payload);
  void close();

  const std::string& path() const { return path_; }
  std::uint64_t size() const { return size_; }

 private:
  void write_all(View data);
  [[noreturn]] void fail(const char* doing, int error);

  std::string path_;
  int fd_ = -1;
  std::uint64_t size_ = 0, sequence_ = 0;
  Digest chain_;
};

}  // namespace step_oracle::frame
