// Every row of maps.inc: the bodies give the definition's bytes, for every operand type, stride and boundary size.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

#include "csrc/kernels/core/bits.h"
#include "csrc/kernels/pointwise/pointwise_body.h"
#include "tests/support/same_bytes.h"

namespace step_oracle::pointwise {
namespace {

const DType kAllTypes[] = {DType::kF32, DType::kF64, DType::kF16, DType::kBF16, DType::kI8,
                           DType::kU8,  DType::kI16, DType::kI32, DType::kI64,  DType::kBool};

// One element of random bits: usual values, every now and then a special one.
void random_element(std::mt19937_64& gen, DType type, char* to) {
  std::normal_distribution<double> normal(0, 3);
  const bool special = gen() % 12 == 0;
  const std::uint64_t raw = gen();
  switch (type) {
    case DType::kF32: {
      const std::uint32_t odd[] = {0,          0x80000000, 0x7f800000, 0xff800000, 0x7fc00123,
                                   0xffa00001, 1,          0x807fffff, 0x7f7fffff, 0x3f800000};
      const std::uint32_t u = special ? odd[raw % std::size(odd)] : bits_of(static_cast<float>(normal(gen)));
      std::memcpy(to, &u, 4);
      break;
    }
    case DType::kF64: {
      const std::uint64_t odd[] = {0, 1ull << 63,         0x7ff0000000000000, 0xfff0000000000000, 0x7ff8000000000001,
                                   1, 0x41dfffffffc00000, 0x43e0000000000000, 0xc3e0000000000001};
      const std::uint64_t u = special ? odd[raw % std::size(odd)] : bits_of(normal(gen));
      std::memcpy(to, &u, 8);
      break;
    }
    case DType::kF16:
    case DType::kBF16: {
      const std::uint16_t u =
          static_cast<std::uint16_t>(special               ? raw
                                     : type == DType::kF16 ? 0x3000 + raw % 0x1c00 + (raw >> 20 & 0x8000)
                                                           : bits_of(static_cast<float>(normal(gen))) >> 16);
      std::memcpy(to, &u, 2);
      break;
    }
    case DType::kBool:
      *to = static_cast<char>(raw & 1);
      break;
    default: {
      const std::int64_t v = special ? static_cast<std::int64_t>(raw) : static_cast<std::int64_t>(raw % 41) - 20;
      std::memcpy(to, &v, size_of(type));
    }
  }
}

// Storage of one operand: n elements, `stride` elements apart (0: one).
struct Store {
  std::vector<char> bytes;
  Operand operand;
  Store(std::mt19937_64& gen, DType type, std::int64_t n, std::int64_t stride) {
    const auto size = size_of(type);
    const std::int64_t count = stride == 0 ? 1 : n * stride + 1;
    bytes.resize(static_cast<std::size_t>(count) * size + 1);
    for (std::int64_t i = 0; i < count; ++i)
      random_element(gen, type, bytes.data() + static_cast<std::size_t>(i) * size);
    operand.dtype = type;
    operand.data = bytes.data();
    operand.stride[0] = stride * static_cast<std::int64_t>(size);
  }
};

DType common_of(Domain domain, std::mt19937_64& gen) {
  const DType floats[] = {DType::kF32, DType::kF32, DType::kBF16, DType::kF16};
  const DType ints[] = {DType::kI64, DType::kI32, DType::kU8, DType::kI16, DType::kI8};
  switch (domain) {
    case Domain::F:
      return floats[gen() % 4];
    case Domain::H:
      return floats[2 + gen() % 2];
    case Domain::D:
      return DType::kF64;
    default:
      return ints[gen() % 5];
  }
}

bool takes(const Row& row, DType common) { return find_row(row.name, common) == &row; }

void check(const Row& row, std::mt19937_64& gen, std::int64_t n, bool plain) {
  Params p;
  do p.common = common_of(row.domain, gen);
  while (!takes(row, p.common));
  p.row = &row;
  p.scalars = Scalars::of(row.domain == Domain::I ? 3 : 0.37, row.domain == Domain::I ? 7 : 1.25);
  if (!plain) p.opmath_operands = static_cast<unsigned>(gen() % 16);
  const DType result = row.kind == Kind::test ? DType::kBool : p.common;
  std::vector<Store> stores;
  for (int k = 0; k <= row.inputs; ++k) {
    DType type = k == 0 ? result : p.common;
    if (!plain && gen() % 4 == 0) type = kAllTypes[gen() % std::size(kAllTypes)];
    const std::int64_t stride = plain    ? 1
                                : k == 0 ? 1 + static_cast<std::int64_t>(gen() % 2)
                                         : static_cast<std::int64_t>(gen() % 3);
    stores.emplace_back(gen, type, n, stride);
  }
  p.loop.ndim = 1;
  p.loop.shape[0] = n;
  p.loop.operands = row.inputs + 1;
  for (int k = 0; k <= row.inputs; ++k) p.loop.operand[k] = stores[static_cast<std::size_t>(k)].operand;
  Store& out = stores[0];
  const std::vector<char> before = out.bytes;
  ref::map(p);
  const std::vector<char> want = out.bytes;
  test::for_each_isa_and_threads([&] {
    out.bytes = before;
    p.loop.operand[0].data = out.bytes.data();
    map(p);
    EXPECT_SAME_BYTES(want.data(), out.bytes.data(), static_cast<std::int64_t>(want.size()))
        << row.name << " in " << name_of(p.common) << ", n " << n << (plain ? ", plain" : "");
  });
}

TEST(PointwiseBody, EqualsDefinition) {
  std::mt19937_64 gen(20);
  int rows = 0;
  for (const Row& row : kRows) {
    for (std::int64_t n : {0, 1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 65, 1023, 1025}) check(row, gen, n, true);
    for (std::int64_t n : {1, 5, 16, 63, 1024, 1030, 2300})
      for (int repeat = 0; repeat < 3; ++repeat) check(row, gen, n, false);
    ++rows;
    if (HasFailure()) break;
  }
  std::printf("%d rows\n", rows);
}

// Several dimensions, broadcast and negative strides, transposed outputs.
TEST(PointwiseBody, Strides) {
  std::mt19937_64 gen(21);
  for (int repeat = 0; repeat < 40; ++repeat) {
    const std::int64_t shape[3] = {1 + static_cast<std::int64_t>(gen() % 9), 1 + static_cast<std::int64_t>(gen() % 70),
                                   1 + static_cast<std::int64_t>(gen() % 40)};
    const std::int64_t total = shape[0] * shape[1] * shape[2];
    std::vector<Store> stores;
    Params p;
    p.common = DType::kF32;
    p.row = &row("addcmul", DType::kF32);
    p.scalars = Scalars::of(0.37);
    p.loop.ndim = 3;
    p.loop.operands = 4;
    for (int d = 0; d < 3; ++d) p.loop.shape[d] = shape[d];
    for (int k = 0; k < 4; ++k) {
      stores.emplace_back(gen, DType::kF32, total, 1);
      p.loop.operand[k] = stores.back().operand;
      int order[3] = {0, 1, 2};
      std::shuffle(order, order + 3, gen);
      std::int64_t step = 4;
      for (int d : order) {
        p.loop.operand[k].stride[d] = step;
        step *= shape[d];
      }
      if (k > 0 && gen() % 3 == 0) p.loop.operand[k].stride[gen() % 3] = 0;
    }
    Store& out = stores[0];
    ref::map(p);
    const std::vector<char> want = out.bytes;
    test::for_each_isa_and_threads([&] {
      std::fill(out.bytes.begin(), out.bytes.end() - 1, 0);
      map(p);
      EXPECT_SAME_BYTES(reinterpret_cast<const std::uint32_t*>(want.data()),
                        reinterpret_cast<const std::uint32_t*>(out.bytes.data()), total);
    });
  }
}

// Large enough for several threads.
TEST(PointwiseBody, Threads) {
  std::mt19937_64 gen(22);
  check(row("add", DType::kF32), gen, 3 * kGrain + 17, true);
  check(row("lerp", DType::kF32), gen, 2 * kGrain + 1, false);
}

}  // namespace
}  // namespace step_oracle::pointwise
