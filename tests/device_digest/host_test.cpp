// The kernels' source, run by the host, against the digest that the CPU uses.
#include <gtest/gtest.h>

#include <random>

#include "csrc/record/device_digest/plan.h"

namespace step_oracle::device_digest {
namespace {

struct Case {
  std::vector<std::int64_t> sizes, strides;
  std::size_t itemsize = 1, first = 0;  // bytes into the memory
};

StridedBytes bytes_of(const Case& c, const std::vector<std::uint8_t>& memory) {
  return {memory.data() + c.first, c.sizes, c.strides, c.itemsize};
}

// A case whose elements all lie in `size` bytes of memory.
Case random_case(std::mt19937_64& random, std::size_t size) {
  const auto below = [&](std::uint64_t n) { return static_cast<std::int64_t>(random() % n); };
  Case c;
  c.itemsize = std::size_t{1} << below(5);
  const auto room = static_cast<std::int64_t>(size / c.itemsize) / 2;  // elements on either side of the first
  const std::int64_t dims = below(7);
  std::int64_t used = 0, count = 1;
  for (std::int64_t d = 0; d < dims; ++d) {
    const std::int64_t most = std::max<std::int64_t>(1, 40000 / count);
    std::int64_t n = below(4) == 0 ? below(3) : 1 + below(std::min<std::int64_t>(most, below(3) == 0 ? 20000 : 12));
    const std::int64_t left = (room - used) / std::max<std::int64_t>(n, 1);
    std::int64_t stride = left > 0 ? below(std::min<std::int64_t>(left, 1 + below(300)) + 1) : 0;
    if (below(3) == 0) stride = std::min<std::int64_t>(left, 1);
    if (below(6) == 0) stride = -stride;
    used += std::max<std::int64_t>(0, n - 1) * std::abs(stride);
    c.sizes.push_back(n);
    c.strides.push_back(stride);
    count *= std::max<std::int64_t>(n, 1);
  }
  if (below(3) == 0)  // a contiguous one: row-major strides
    for (std::int64_t d = dims - 1, run = 1; d >= 0; --d) {
      c.strides[static_cast<std::size_t>(d)] = run;
      run *= std::max<std::int64_t>(c.sizes[static_cast<std::size_t>(d)], 1);
      if (run > room) return random_case(random, size);
    }
  c.first = (static_cast<std::size_t>(room) + static_cast<std::size_t>(below(20))) * c.itemsize;
  if (below(20) == 0) c.first += static_cast<std::size_t>(below(16));  // not even aligned to its element
  return c;
}

std::vector<std::uint8_t> random_bytes(std::mt19937_64& random, std::size_t size) {
  std::vector<std::uint8_t> out(size);
  for (auto& b : out) b = static_cast<std::uint8_t>(random());
  return out;
}

TEST(DeviceDigest, TenThousandRandomTensors) {
  std::mt19937_64 random(1);
  const auto memory = random_bytes(random, 4 << 20);
  int cases = 0, gathers = 0, several_groups = 0, empty = 0;
  while (cases < 10000) {
    std::vector<Case> batch;
    std::vector<Item> items;
    const std::size_t want = 1 + random() % 40;  // more than one launch takes
    while (batch.size() < want && cases + static_cast<int>(batch.size()) < 10000)
      batch.push_back(random_case(random, (4 << 20) - 1024));
    for (const auto& c : batch) {
      const auto item = item_of(bytes_of(c, memory));
      ASSERT_TRUE(item);
      items.push_back(*item);
      gathers += item->fetch == kGather;
      several_groups += groups_of(item->bytes) > 1;
      empty += item->bytes == 0;
    }
    const auto found = digest_on_host(items);
    for (std::size_t i = 0; i < batch.size(); ++i) {
      ASSERT_EQ(found[i].hex(), blake3(bytes_of(batch[i], memory)).hex())
          << "case " << cases + static_cast<int>(i) << ", " << items[i].bytes << " bytes of items of " << batch[i].itemsize;
    }
    cases += static_cast<int>(batch.size());
  }
  EXPECT_GT(gathers, 2000);
  EXPECT_GT(several_groups, 500);
  EXPECT_GT(empty, 100);
  std::printf("%d cases: %d gathered, %d of several groups, %d empty\n", cases, gathers, several_groups, empty);
}

TEST(DeviceDigest, EverySizeToFourChunksAndEveryBoundary) {
  std::mt19937_64 random(2);
  const auto memory = random_bytes(random, 3 << 20);
  std::vector<std::int64_t> sizes;
  for (std::int64_t n = 0; n <= 4100; ++n) sizes.push_back(n);
  for (std::int64_t chunks : {5, 7, 8, 127, 128, 129, 255, 256, 257, 383, 384, 385, 1023, 1024, 1025, 2047})
    for (std::int64_t d : {-1, 0, 1}) sizes.push_back(chunks * 1024 + d);
  for (std::size_t shift : {0, 4, 2, 1}) {
    for (const std::int64_t n : sizes) {
      const std::int64_t one = 1;
      const StridedBytes t{memory.data() + shift, {&n, 1}, {&one, 1}, 1};
      const Item item = *item_of(t);
      ASSERT_EQ(digest_on_host({&item, 1})[0].hex(), blake3(t).hex()) << n << " bytes, " << shift << " off";
    }
  }
}

// The compression's words, order of rounds and flags are what the published vector fixes; the upstream C agrees with it.
TEST(DeviceDigest, PublishedVector) {
  const Item item = *item_of({nullptr, {}, {}, 0});
  EXPECT_EQ(digest_on_host({&item, 1})[0].hex(), "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262");
}

TEST(DeviceDigest, TooManyDimensionsAreRefused) {
  const std::vector<std::int64_t> sizes(9, 2), strides = {1, 3, 9, 27, 81, 243, 729, 2187, 6561};
  std::vector<std::uint8_t> memory(1 << 15);
  EXPECT_FALSE(item_of({memory.data(), sizes, strides, 1}));
  EXPECT_TRUE(item_of({memory.data(), std::span(sizes).first(8), std::span(strides).first(8), 1}));
}

TEST(DeviceDigest, ScratchOfABatchDoesNotOverlap) {
  std::vector<Item> items(kMostItems);
  for (auto& item : items) item.bytes = 300 * 1024;
  items[3].bytes = 0;
  const Launch launch = plan_launch(items, 7);
  U64 next = 0;
  U32 block = 0;
  for (U32 i = 0; i < kMostItems; ++i) {
    const Item& item = launch.batch.items[i];
    EXPECT_EQ(item.output, 7 + i);
    EXPECT_EQ(item.first_block, block);
    block += static_cast<U32>(groups_of(item.bytes));
    if (groups_of(item.bytes) < 2) continue;
    EXPECT_EQ(item.scratch, next);
    next += 2 * groups_of(item.bytes);
  }
  EXPECT_EQ(launch.blocks, block);
  EXPECT_EQ(launch.scratch_bytes, 32 * next);
  EXPECT_THROW(plan_launch(std::vector<Item>(kMostItems + 1), 0), std::exception);
}

}  // namespace
}  // namespace step_oracle::device_digest
