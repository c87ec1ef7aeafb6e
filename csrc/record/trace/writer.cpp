#include "csrc/record/trace/writer.h"

#include <fmt/format.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_set>
#include <utility>

#include "csrc/kernels/core/error.h"
#include "csrc/record/trace/frame_file.h"

namespace step_oracle {
namespace {

// A process forked while a trace is open (a data loader's worker) has no writer thread: it adds nothing.
std::atomic<int> g_forks{0};
[[maybe_unused]] const int g_registered = ::pthread_atfork(nullptr, nullptr, [] { g_forks.fetch_add(1); });

constexpr std::size_t kMaxRecordsInBatch = 8192;  // of any kind: keeps a frame far below its limit
constexpr std::size_t kMaxWaiting = 1024;         // batches; then add() blocks until the writer has caught up

using Clock = std::chrono::steady_clock;

struct Batch {
  rec::RecordsT records;
  Clock::time_point since;  // of its first record
  std::size_t ops = 0, all = 0;
};

struct BlobFrame {
  frame::Codec codec;
  std::uint64_t raw;
  frame::Bytes payload;
};

}  // namespace

class TraceWriter::Impl {
 public:
  Impl(std::string path, const rec::EnvironmentT& environment, WriterOptions options)
      : file_(std::move(path)), options_(options), forks_(g_forks.load()) {
    rec::RecordsT first;
    first.environment = std::make_unique<rec::EnvironmentT>(environment);
    write_records(first);
    thread_ = std::thread([this] { run(); });
  }

  ~Impl() { stop(); }

  // In a forked process: the thread is not there, and to take its condition variables apart would wait for it.
  bool forked() const { return g_forks.load() != forks_; }

  template <class T>
  void add(std::vector<std::unique_ptr<T>> rec::RecordsT::*list, T record) {
    if (forked()) return;
    std::unique_lock lock(mutex_);
    refuse_if_broken(lock);
    (batch_.records.*list).push_back(std::make_unique<T>(std::move(record)));
    if constexpr (std::is_same_v<T, rec::OpT>) ++batch_.ops, ++counts_.ops;
    if constexpr (std::is_same_v<T, rec::StorageT>) ++counts_.storages;
    if (++batch_.all == 1) {
      batch_.since = Clock::now();
      wake_.notify_one();
    }
    if (batch_.ops < options_.batch && batch_.all < kMaxRecordsInBatch) return;
    sealed_.push_back(std::exchange(batch_, {}));
    wake_.notify_one();
    room_.wait(lock, [&] { return sealed_.size() < kMaxWaiting || !error_.empty(); });
  }

  bool has_blob(const Digest& digest) const {
    std::lock_guard lock(mutex_);
    return blobs_.contains(digest);
  }

  // False where the digest is there (or is coming from another thread).
  bool claim(const Digest& digest) {
    if (forked()) return false;
    std::unique_lock lock(mutex_);
    refuse_if_broken(lock);
    if (!blobs_.insert(digest).second) return false;
    ++counts_.blobs;
    return true;
  }

  void blob_part(const Digest& digest, std::uint64_t total, std::uint64_t offset, frame::View data) {
    auto packed = frame::pack(frame::blob_head(digest, total, offset), data, options_.level);
    std::unique_lock lock(mutex_);
    room_.wait(lock, [&] { return queued_ < options_.queue || !error_.empty(); });
    refuse_if_broken(lock);
    queued_ += packed.bytes.size();
    queue_.push_back({packed.codec, data.size(), std::move(packed.bytes)});
    wake_.notify_one();
  }

  void flush() {
    if (forked()) return;
    std::unique_lock lock(mutex_);
    refuse_if_broken(lock);
    const std::uint64_t wanted = ++flush_wanted_;
    wake_.notify_one();
    done_.wait(lock, [&] { return flush_done_ >= wanted || !error_.empty(); });
    refuse_if_broken(lock);
  }

  void close(rec::EndT end) {
    if (forked()) return;
    {
      std::unique_lock lock(mutex_);
      refuse_if_broken(lock);
      end.ops = counts_.ops;
      end.storages = counts_.storages;
      end.blobs = counts_.blobs;
      end_ = std::make_unique<rec::EndT>(std::move(end));
    }
    stop();
    std::unique_lock lock(mutex_);
    if (!error_.empty()) throw Error(error_kind_, error_);
    closed_ = true;
    file_.close();
  }

  const std::string& path() const { return file_.path(); }
  std::uint64_t bytes() const { return bytes_.load(); }
  std::uint64_t ops() const {
    std::lock_guard lock(mutex_);
    return counts_.ops;
  }
  WriterOptions options() const { return options_; }

 private:
  void refuse_if_broken(std::unique_lock<std::mutex>&) const {
    if (!error_.empty()) throw Error(error_kind_, error_);
    if (closed_ || end_) throw Error(ErrorKind::kBadInput, fmt::format("The trace '{}' is closed.", file_.path()));
  }

  void stop() {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
      wake_.notify_one();
    }
    if (thread_.joinable()) thread_.join();
  }

  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      const auto urgent = [&] {
        return stopping_ || !queue_.empty() || !sealed_.empty() || flush_wanted_ > flush_done_;
      };
      wake_.wait(lock, [&] { return urgent() || batch_.all > 0; });
      const auto patience = std::chrono::milliseconds(options_.flush_ms);
      if (!urgent()) wake_.wait_until(lock, batch_.since + patience, urgent);
      const bool late = batch_.all > 0 && Clock::now() >= batch_.since + patience;
      const bool last = stopping_;
      const std::uint64_t flush = flush_wanted_;
      auto batches = std::exchange(sealed_, {});
      if (last || late || flush > flush_done_) batches.push_back(std::exchange(batch_, {}));
      auto queue = std::exchange(queue_, {});
      if (last) batches.back().records.end = std::move(end_);
      room_.notify_all();
      lock.unlock();
      write(batches, queue);
      batches.clear();
      lock.lock();
      for (const auto& b : queue) queued_ -= b.payload.size();
      flush_done_ = flush;
      room_.notify_all();
      done_.notify_all();
      if (last) return;
    }
  }

  // Blobs go first: a record may name them, and End comes last.
  void write(const std::deque<Batch>& batches, const std::deque<BlobFrame>& queue) {
    if (failed_) return;
    try {
      for (const auto& b : queue) file_.append(frame::Type::kBlob, b.codec, b.raw, b.payload);
      for (const auto& b : batches)
        if (b.all || b.records.end) write_records(b.records);
      bytes_ = file_.size();
    } catch (const Error& e) {
      fail(e.kind(), e.what());
    } catch (const std::exception& e) {
      fail(ErrorKind::kInternal, fmt::format("Writing '{}' failed: {}", file_.path(), e.what()));
    }
  }

  void fail(ErrorKind kind, std::string message) {
    failed_ = true;
    std::lock_guard lock(mutex_);
    error_kind_ = kind;
    error_ = std::move(message);
  }

  void write_records(const rec::RecordsT& records) {
    flatbuffers::FlatBufferBuilder builder(64 << 10);
    builder.Finish(rec::Records::Pack(builder, &records));
    const frame::View data(builder.GetBufferPointer(), builder.GetSize());
    if (data.size() > frame::kMaxRecords)
      throw Error(ErrorKind::kUnsupported,
                  fmt::format("The records of one moment take {} bytes; a frame of '{}' holds at most {}. Record fewer "
                              "names or shorter argument lists.",
                              data.size(), file_.path(), frame::kMaxRecords));
    const auto packed = frame::pack({}, data, options_.level, frame::kMaxExpansion);
    file_.append(frame::Type::kRecords, packed.codec, data.size(), packed.bytes);
    bytes_ = file_.size();
  }

  frame::File file_;
  const WriterOptions options_;
  const int forks_;
  std::atomic<std::uint64_t> bytes_{0};
  bool failed_ = false;  // the writer thread's own

  mutable std::mutex mutex_;
  std::condition_variable wake_, room_, done_;
  Batch batch_;
  std::deque<Batch> sealed_;
  std::deque<BlobFrame> queue_;
  std::size_t queued_ = 0;
  std::uint64_t flush_wanted_ = 0, flush_done_ = 0;
  std::unordered_set<Digest> blobs_;
  rec::EndT counts_;
  std::unique_ptr<rec::EndT> end_;
  bool stopping_ = false, closed_ = false;
  ErrorKind error_kind_ = ErrorKind::kIo;
  std::string error_;
  std::thread thread_;
};

TraceWriter::TraceWriter(std::string path, const rec::EnvironmentT& environment, WriterOptions options)
    : impl_(std::make_unique<Impl>(std::move(path), environment, options)) {}
TraceWriter::~TraceWriter() {
  if (impl_->forked()) static_cast<void>(impl_.release());
}

void TraceWriter::add(rec::SchemaT r) { impl_->add(&rec::RecordsT::schemas, std::move(r)); }
void TraceWriter::add(rec::StorageT r) { impl_->add(&rec::RecordsT::storages, std::move(r)); }
void TraceWriter::add(rec::StorageInitT r) { impl_->add(&rec::RecordsT::inits, std::move(r)); }
void TraceWriter::add(rec::FreedT r) { impl_->add(&rec::RecordsT::freed, std::move(r)); }
void TraceWriter::add(rec::NamesT r) { impl_->add(&rec::RecordsT::names, std::move(r)); }
void TraceWriter::add(rec::OpT r) { impl_->add(&rec::RecordsT::ops, std::move(r)); }
void TraceWriter::add(rec::SettledT r) { impl_->add(&rec::RecordsT::settled, std::move(r)); }
void TraceWriter::add(rec::EventT r) { impl_->add(&rec::RecordsT::events, std::move(r)); }
void TraceWriter::add(rec::PlanT r) { impl_->add(&rec::RecordsT::plans, std::move(r)); }

bool TraceWriter::has_blob(const Digest& digest) const { return impl_->has_blob(digest); }

void TraceWriter::blob(const Digest& digest, const void* data, std::size_t size) {
  if (!impl_->claim(digest)) return;
  const auto* bytes = static_cast<const std::uint8_t*>(data);
  std::size_t at = 0;
  do {
    const std::size_t n = std::min<std::size_t>(size - at, frame::kMaxBlobPart);
    impl_->blob_part(digest, size, at, {bytes + at, n});
    at += n;
  } while (at < size);
}

void TraceWriter::blob(const Digest& digest, const StridedBytes& t) {
  if (!impl_->claim(digest)) return;
  std::uint64_t total = t.itemsize;
  for (std::int64_t n : t.sizes) total *= static_cast<std::uint64_t>(n);
  frame::Bytes part;
  std::uint64_t at = 0;
  const auto send = [&] {
    impl_->blob_part(digest, total, at, part);
    at += part.size();
    part.clear();
  };
  for_each_piece(t, [&](const void* data, std::size_t size) {
    const auto* from = static_cast<const std::uint8_t*>(data);
    while (size) {
      const std::size_t n = std::min<std::size_t>(size, frame::kMaxBlobPart - part.size());
      part.insert(part.end(), from, from + n);
      from += n;
      size -= n;
      if (part.size() == frame::kMaxBlobPart) send();
    }
  });
  if (!part.empty() || total == 0) send();
}

void TraceWriter::flush() { impl_->flush(); }
void TraceWriter::close(rec::EndT end) { impl_->close(std::move(end)); }
const std::string& TraceWriter::path() const { return impl_->path(); }
std::uint64_t TraceWriter::bytes_written() const { return impl_->bytes(); }
std::uint64_t TraceWriter::ops_added() const { return impl_->ops(); }

}  // namespace step_oracle
