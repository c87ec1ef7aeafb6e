// A trace says what was recorded: round trip, crash, errors of the operating system, other files in the way.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <thread>

#include "csrc/kernels/core/error.h"
#include "csrc/record/trace/reader.h"
#include "tests/trace/sample.h"

namespace step_oracle {
namespace {

using test::temporary_path;

std::string message_of(const std::function<void()>& act, ErrorKind kind) {
  try {
    act();
  } catch (const Error& e) {
    EXPECT_EQ(static_cast<int>(e.kind()), static_cast<int>(kind)) << e.what();
    return e.what();
  }
  ADD_FAILURE() << "no error";
  return {};
}

TEST(Trace, RoundTrip) {
  const auto trace = Trace::open(test::sample_file("round"));
  EXPECT_TRUE(trace->complete) << trace->reason;
  EXPECT_EQ(trace->ops.size(), 12u);
  EXPECT_EQ(trace->storages.size(), 6u);
  EXPECT_EQ(trace->environment.cards.at(0)->sms, 114);
  EXPECT_EQ(trace->environment.argv.size(), 3u);
  EXPECT_EQ(trace->names_start.at(0).name, "fc.weight");
  EXPECT_EQ(trace->names_end.size(), 1u);
  EXPECT_EQ(trace->plans.size(), 3u);
  EXPECT_EQ(trace->schemas.count("aten::bernoulli_.float"), 1u);
  const auto& drop = trace->ops.at(1);
  EXPECT_EQ(rec::display_name(drop), "aten.bernoulli_.float");
  EXPECT_TRUE(std::signbit(rec::float_of(*drop.args.at(1))));
  EXPECT_EQ(drop.args.at(3)->list.size(), 4u);
  EXPECT_EQ(rec::float_bits_im(*drop.args.at(3)->list.at(2)), -2.5);
  EXPECT_NE(drop.tensors.at(0)->before, drop.tensors.at(0)->after);
  EXPECT_EQ(trace->ops.at(3).tensors.at(0)->after_state, rec::DigestState::Known) << "the completion is filled in";
  const auto* y = trace->storage(4, 0);
  ASSERT_NE(y, nullptr);
  EXPECT_TRUE(y->freed);
  EXPECT_EQ(y->last_use, 2u);
  EXPECT_EQ(check_blobs(*trace), 3u);
  EXPECT_EQ(trace->blob(trace->storage(1, 0)->init.digest).size(), 4u * 8 * 4);
  EXPECT_EQ(trace->storage(9, 0), nullptr);
}

TEST(Trace, BlobsLargeEmptyStrided) {
  const auto path = temporary_path("blobs");
  std::vector<float> big(3 << 20);
  for (std::size_t i = 0; i < big.size(); ++i) big[i] = static_cast<float>(i * 2654435761u);
  const std::int64_t sizes[] = {1024, 3072}, strides[] = {1, 1024};
  const StridedBytes transposed{big.data(), sizes, strides, 4};
  std::vector<float> logical;
  for (int i = 0; i < 1024; ++i)
    for (int j = 0; j < 3072; ++j) logical.push_back(big[static_cast<std::size_t>(i + j * 1024)]);
  const auto plain = blake3(big.data(), big.size() * 4), nothing = blake3(nullptr, 0);
  EXPECT_EQ(blake3(transposed), blake3(logical.data(), logical.size() * 4));
  TraceWriter writer(path, test::sample_environment());
  writer.blob(plain, big.data(), big.size() * 4);
  writer.blob(plain, big.data(), big.size() * 4);
  writer.blob(nothing, nullptr, 0);
  writer.blob(blake3(transposed), transposed);
  EXPECT_TRUE(writer.has_blob(plain));
  test::close_sample(writer);
  const auto trace = Trace::open(path);
  EXPECT_EQ(check_blobs(*trace), 3u);
  EXPECT_EQ(trace->blob_size(plain), big.size() * 4);
  EXPECT_TRUE(trace->blob(nothing).empty());
  EXPECT_EQ(trace->blob(blake3(transposed)).size(), logical.size() * 4);
  EXPECT_NE(message_of([&] { trace->blob(Digest{}); }, ErrorKind::kBadInput).find("keep="), std::string::npos);
}

TEST(Trace, ManyThreads) {
  const auto path = temporary_path("threads");
  TraceWriter writer(path, test::sample_environment());
  std::vector<std::thread> threads;
  for (std::uint64_t t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (std::uint64_t i = 0; i < 500; ++i) {
        rec::OpT op;
        op.ticket = i * 4 + t;
        op.name = "aten::nothing";
        op.thread = static_cast<std::uint32_t>(t);
        writer.add(std::move(op));
      }
    });
  for (auto& t : threads) t.join();
  test::close_sample(writer);
  const auto trace = Trace::open(path);
  ASSERT_EQ(trace->ops.size(), 2000u);
  for (std::uint64_t i = 0; i < 2000; ++i) EXPECT_EQ(trace->ops[i].ticket, i);
}

TEST(Trace, KilledInTheMiddle) {
  const auto path = temporary_path("killed");
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    TraceWriter writer(path, test::sample_environment());
    test::write_sample(writer);
    std::this_thread::sleep_for(std::chrono::milliseconds(300));  // more than flush_ms: what came is in the file
    ::kill(::getpid(), SIGKILL);
  }
  ::waitpid(child, nullptr, 0);
  const auto trace = Trace::open(path);
  EXPECT_FALSE(trace->complete);
  EXPECT_NE(trace->reason.find("did not come to its end"), std::string::npos) << trace->reason;
  EXPECT_EQ(trace->ops.size(), 12u);
}

TEST(Trace, ForkedChildAddsNothing) {
  const auto path = temporary_path("forked");
  TraceWriter writer(path, test::sample_environment());
  const pid_t child = ::fork();
  if (child == 0) {
    auto* here = new rec::OpT;
    here->name = "aten::child";
    writer.add(std::move(*here));
    writer.flush();
    writer.~TraceWriter();
    ::_exit(0);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  test::write_sample(writer);
  test::close_sample(writer);
  EXPECT_EQ(Trace::open(path)->ops.size(), 12u);
}

TEST(Trace, EveryCutReadsOrIsRefused) {
  const auto path = test::sample_file("cut");
  const auto whole = test::read_file(path);
  const auto ops = Trace::open(path)->ops.size();
  std::size_t before = ops, most = 0, read = 0;
  bool refused = false;
  for (std::size_t n = whole.size(); n-- > 0;) {
    ASSERT_EQ(::truncate(path.c_str(), static_cast<off_t>(n)), 0);
    try {
      const auto trace = Trace::open(path);
      ++read;
      EXPECT_FALSE(refused) << "a shorter piece reads where a longer one was refused: " << n;
      EXPECT_FALSE(trace->complete);
      EXPECT_FALSE(trace->reason.empty());
      EXPECT_LE(trace->ops.size(), before);
      before = trace->ops.size();
      most = std::max(most, before);
    } catch (const Error&) {
      refused = true;
    }
  }
  EXPECT_EQ(most, ops);
  EXPECT_GT(read, whole.size() * 3 / 4) << "only a cut in the first frame is refused";
}

TEST(Trace, ATailOfZerosIsACut) {
  const auto path = test::sample_file("zeros");
  const auto whole = test::read_file(path);
  std::size_t read = 0, tried = 0;
  for (std::size_t n = 16; n < whole.size(); n += 7, ++tried) {
    auto bytes = whole;
    std::fill(bytes.end() - static_cast<std::ptrdiff_t>(n), bytes.end(), std::uint8_t{0});
    test::write_file(path, bytes);
    try {
      EXPECT_FALSE(Trace::open(path)->complete) << n;
      ++read;
    } catch (const Error&) {
    }
  }
  EXPECT_GT(read, tried * 3 / 4) << "only where the zeros reach the first frame";
}

TEST(Trace, FullDisk) {
  EXPECT_NE(
      message_of([] { TraceWriter("/dev/full", test::sample_environment()); }, ErrorKind::kIo).find("No space left"),
      std::string::npos);
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{4096, 4096};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    const auto path = temporary_path("full");
    std::string said;
    try {
      TraceWriter writer(path, test::sample_environment());
      for (std::uint64_t s = 0; s < 1000; ++s) {
        rec::OpT op;
        op.ticket = s;
        op.name = "aten::x" + std::to_string(s * 2654435761u);
        op.module_ = blake3(&s, sizeof s).hex();
        writer.add(std::move(op));
      }
      test::close_sample(writer);
    } catch (const Error& e) {
      said = e.what();
    }
    const bool good = said.find("File too large") != std::string::npos && said.find(path) != std::string::npos &&
                      !Trace::open(path)->complete;
    ::_exit(good ? 0 : 1);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(Trace, OtherFilesInTheWay) {
  const auto path = temporary_path("other");
  test::write_file(path, {'h', 'e', 'l', 'l', 'o'});
  EXPECT_NE(
      message_of([&] { TraceWriter(path, test::sample_environment()); }, ErrorKind::kBadInput).find("not overwritten"),
      std::string::npos);
  EXPECT_EQ(test::read_file(path).size(), 5u);
  EXPECT_NE(message_of([&] { Trace::open(path); }, ErrorKind::kBadInput).find("not a step-oracle trace"),
            std::string::npos);
  message_of([] { Trace::open(temporary_path("nobody")); }, ErrorKind::kIo);
  message_of([] { Trace::open("/tmp"); }, ErrorKind::kBadInput);
  message_of([] { TraceWriter("/nowhere/at/all", test::sample_environment()); }, ErrorKind::kIo);
  const auto again = test::sample_file("again");
  EXPECT_EQ(Trace::open(test::sample_file("again"))->ops.size(), 12u) << "a trace is replaced";
  TraceWriter first(again, test::sample_environment());
  EXPECT_NE(message_of([&] { TraceWriter(again, test::sample_environment()); }, ErrorKind::kBadInput)
                .find("Another recorder"),
            std::string::npos);
}

TEST(Trace, ClosedIsClosed) {
  TraceWriter writer(temporary_path("closed"), test::sample_environment());
  test::close_sample(writer);
  message_of([&] { writer.add(rec::OpT()); }, ErrorKind::kBadInput);
  message_of([&] { test::close_sample(writer); }, ErrorKind::kBadInput);
}

TEST(Trace, NotSeenIsNotComplete) {
  const auto path = temporary_path("notseen");
  TraceWriter writer(path, test::sample_environment());
  rec::EventT e;
  e.kind = rec::EventKind::NotSeen;
  e.text = "Code made by inductor ran and its ops were not seen.";
  writer.add(e);
  test::close_sample(writer);
  const auto trace = Trace::open(path);
  EXPECT_FALSE(trace->complete);
  EXPECT_EQ(trace->reason, e.text);
}

TEST(Digest, StridedIsLogical) {
  std::vector<std::uint16_t> m(7 * 5 * 3 * 2);
  for (std::size_t i = 0; i < m.size(); ++i) m[i] = static_cast<std::uint16_t>(i * 40503);
  const auto check = [&](std::vector<std::int64_t> sizes, std::vector<std::int64_t> strides, std::size_t offset) {
    std::vector<std::uint16_t> logical;
    std::vector<std::int64_t> at(sizes.size(), 0);
    const std::int64_t n = rec::numel(sizes);
    for (std::int64_t i = 0; i < n; ++i) {
      std::int64_t rest = i, place = static_cast<std::int64_t>(offset);
      for (std::size_t d = sizes.size(); d-- > 0;) {
        place += rest % sizes[d] * strides[d];
        rest /= sizes[d];
      }
      logical.push_back(m[static_cast<std::size_t>(place)]);
    }
    EXPECT_EQ(blake3(StridedBytes{m.data() + offset, sizes, strides, 2}), blake3(logical.data(), logical.size() * 2));
  };
  check({}, {}, 3);
  check({7, 30}, {30, 1}, 0);
  check({30, 7}, {1, 30}, 0);
  check({7, 5, 6}, {30, 1, 5}, 0);
  check({1, 7, 1, 5}, {9, 30, 4, 6}, 2);
  check({4, 0, 3}, {1, 1, 1}, 0);
  check({5, 6}, {0, 1}, 1);
  check({6}, {-1}, 10);
  check({3, 4}, {20, 5}, 0);
}

}  // namespace
}  // namespace step_oracle
