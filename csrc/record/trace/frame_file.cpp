#include "csrc/record/trace/frame_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "csrc/kernels/core/error.h"

namespace step_oracle::frame {
namespace {

// A regular file that is not empty is replaced only where it begins as a trace does.
void refuse_what_is_not_a_trace(int fd, const std::string& path) {
  struct stat info {};
  if (::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode) || info.st_size == 0) return;
  std::array<std::uint8_t, 8> start{};
  const auto n = ::pread(fd, start.data(), start.size(), 0);
  if (n != static_cast<ssize_t>(start.size()) || start != kMagic)
    throw Error(ErrorKind::kBadInput,
                fmt::format("'{}' exists and is not a step-oracle trace, so it is not overwritten. "
                            "Give another path, or delete it.",
                            path));
}

}  // namespace

void File::fail(const char* doing, int error) {
  throw Error(ErrorKind::kIo,
              fmt::format("Cannot {} '{}': {}. {}", doing, path_, std::strerror(error),
                          error == ENOSPC || error == EFBIG || error == EDQUOT
                              ? "Free space or give another path; what is there reads as an incomplete trace."
                              : "Check the path and its permissions."));
}

File::File(std::string path) : path_(std::move(path)) {
  fd_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd_ < 0) fail("write", errno);
  try {
    if (::flock(fd_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
      throw Error(ErrorKind::kBadInput,
                  fmt::format("Another recorder is writing '{}'. Give every process (every rank) a "
                              "path of its own.",
                              path_));
    refuse_what_is_not_a_trace(fd_, path_);
    struct stat info {};
    if (::fstat(fd_, &info) == 0 && S_ISREG(info.st_mode) && ::ftruncate(fd_, 0) != 0) fail("write", errno);
    std::array<std::uint8_t, 16> id{};
    if (::getrandom(id.data(), id.size(), 0) != static_cast<ssize_t>(id.size())) fail("draw an id for", errno);
    const auto header = file_header(id);
    write_all(header);
    chain_ = first_chain(header);
  } catch (...) {
    ::close(fd_);
    fd_ = -1;
    throw;
  }
}

File::~File() {
  if (fd_ >= 0) ::close(fd_);
}

void File::write_all(View data) {
  const std::uint64_t before = size_;
  while (!data.empty()) {
    const auto n = ::write(fd_, data.data(), data.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      const int error = n < 0 ? errno : ENOSPC;
      size_ = before;
      fail("write", error);
    }
    size_ += static_cast<std::uint64_t>(n);
    data = data.subspan(static_cast<std::size_t>(n));
  }
}

void File::append(Type type, Codec codec, std::uint64_t raw, View payload) {
  const std::uint64_t whole = size_;
  Digest chain = chain_;
  const auto header = encode(type, codec, sequence_, raw, payload, chain);
  try {
    // One write, so that a killed process leaves either the frame or a part of it, never a header alone for long.
    Bytes all(header.begin(), header.end());
    all.insert(all.end(), payload.begin(), payload.end());
    write_all(all);
  } catch (...) {
    size_ = whole;
    if (::ftruncate(fd_, static_cast<off_t>(whole)) != 0) errno = 0;
    throw;
  }
  chain_ = chain;
  ++sequence_;
}

void File::close() {
  if (fd_ < 0) return;
  const int fd = fd_;
  fd_ = -1;
  if (::close(fd) != 0) fail("close", errno);
}

}  // namespace step_oracle::frame
