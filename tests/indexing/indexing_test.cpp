#include "csrc/kernels/indexing/indexing.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "csrc/kernels/core/bits.h"
#include "csrc/kernels/core/error.h"
#include "tests/support/same_bytes.h"
#include "tests/support/vectors.h"

namespace step_oracle {
namespace {

DType dtype_of(const test::Array& a) { return test::float_type(a); }

void both(const std::function<void(bool)>& body) {
  body(true);
  test::for_each_isa_and_threads([&] { body(false); });
}

// The indices of a golden file: an input array, or one noted beside the launch.
const void* indices_of(const test::VectorFile& file) {
  const auto it = file.arrays.find("in_indices");
  return it != file.arrays.end() ? it->second.bytes.data() : file.arrays.at("indices").bytes.data();
}

TEST(IndexingVectors, EmbeddingBackward) {
  int cases = 0;
  for (const auto& name : test::vector_names("embedding_bwd_")) {
    const auto file = test::load_vectors(name);
    long n = 0, width = 0, rows = 0;
    ASSERT_EQ(std::sscanf(file.meta.at("shape").get<std::string>().c_str(), "%ldx%ldx%ld", &n, &width, &rows), 3);
    const auto& want = file.out("grad_weight", "sm_90");
    const std::int64_t padding = name.find("feature") != std::string::npos ? 3 : -1;
    both([&](bool ref) {
      SCOPED_TRACE(name + (ref ? " ref" : " body"));
      std::vector<std::uint8_t> got(want.bytes.size(), 1);
      const indexing::EmbeddingParams p{
          dtype_of(want),   DType::kI64, n, width, rows, padding, false, file.in("grad").bytes.data(),
          indices_of(file), got.data()};
      ref ? indexing::ref::embedding_backward(p) : indexing::embedding_backward(p);
      EXPECT_SAME_BYTES(want.bytes.data(), got.data(), static_cast<std::int64_t>(got.size()));
    });
    ++cases;
  }
  std::printf("%d golden files\n", cases);
  EXPECT_EQ(cases, 9);
}

TEST(IndexingVectors, IndexPutAccumulate) {
  int cases = 0;
  for (const auto& name : test::vector_names("index_put_accumulate_")) {
    const auto file = test::load_vectors(name);
    long n = 0, width = 0, rows = 0;
    ASSERT_EQ(std::sscanf(file.meta.at("shape").get<std::string>().c_str(), "%ldx%ldx%ld", &n, &width, &rows), 3);
    const auto& want = file.out("dest_out", "sm_90");
    both([&](bool ref) {
      SCOPED_TRACE(name + (ref ? " ref" : " body"));
      auto got = file.in("dest").bytes;
      const indexing::AccumulateParams p{dtype_of(want),
                                         n,
                                         width,
                                         rows,
                                         static_cast<const std::int64_t*>(indices_of(file)),
                                         file.in("grad").bytes.data(),
                                         got.data()};
      ref ? indexing::ref::accumulate(p) : indexing::accumulate(p);
      EXPECT_SAME_BYTES(want.bytes.data(), got.data(), static_cast<std::int64_t>(got.size()));
    });
    ++cases;
  }
  std::printf("%d golden files\n", cases);
  EXPECT_EQ(cases, 9);
}

std::vector<std::uint8_t> random_elements(DType type, std::int64_t n, std::mt19937& rng) {
  std::normal_distribution<float> normal(0.0f, 1.0f);
  std::vector<std::uint8_t> out(static_cast<std::size_t>(n) * size_of(type));
  for (std::int64_t i = 0; i < n; ++i) {
    const std::uint32_t u = bits_of(normal(rng));
    const auto h = static_cast<std::uint16_t>(u >> 16);
    type == DType::kF32 ? std::memcpy(out.data() + 4 * i, &u, 4) : std::memcpy(out.data() + 2 * i, &h, 2);
  }
  return out;
}

TEST(Indexing, BodyEqualsDefinition) {
  std::mt19937 rng(9);
  int cases = 0;
  for (const std::int64_t n : {0, 1, 31, 33, 1025, 3072, 3073, 5000})
    for (const std::int64_t width : {1, 7, 32, 33, 300})
      for (const std::int64_t rows : {1, 40, 100000})
        for (const DType type : {DType::kF32, DType::kBF16}) {
          if (rows > 1000 && (width > 7 || n > 3073)) continue;
          std::vector<std::int64_t> index(static_cast<std::size_t>(n));
          for (auto& i : index) i = static_cast<std::int64_t>(rng()) % rows;
          const auto grad = random_elements(type, n * width, rng), dest = random_elements(type, rows * width, rng);
          for (const bool scale : {false, true}) {
            std::vector<std::uint8_t> want(dest.size()), got(dest.size(), 1);
            indexing::EmbeddingParams p{type, DType::kI64, n,           width,        rows,
                                        2,    scale,       grad.data(), index.data(), want.data()};
            indexing::ref::embedding_backward(p);
            p.out = got.data();
            test::for_each_isa_and_threads([&] {
              indexing::embedding_backward(p);
              EXPECT_SAME_BYTES(want.data(), got.data(), static_cast<std::int64_t>(want.size()));
            });
          }
          auto want = dest;
          indexing::AccumulateParams a{type, n, width, rows, index.data(), grad.data(), want.data()};
          indexing::ref::accumulate(a);
          test::for_each_isa_and_threads([&] {
            auto got = dest;
            a.dest = got.data();
            indexing::accumulate(a);
            EXPECT_SAME_BYTES(want.data(), got.data(), static_cast<std::int64_t>(want.size()));
          });
          ++cases;
        }
  std::printf("%d cases\n", cases);
}

TEST(Indexing, AtomicVariantIsNamed) {
  indexing::EmbeddingParams p{DType::kF32, DType::kI64, 8192, 768, 50257, -1, false, nullptr, nullptr, nullptr};
  EXPECT_FALSE(indexing::embedding_atomic_is_chosen(p, 132));  // GPT's token table: 8192 segments fill the card
  p.table_rows = 100;                                          // 100 blocks < 528, 919 partial sums > 400
  EXPECT_TRUE(indexing::embedding_atomic_is_chosen(p, 132));
  p.n = 3072;
  EXPECT_FALSE(indexing::embedding_atomic_is_chosen(p, 132));
}

TEST(Indexing, MovesCopyBytesAndRefuseOutside) {
  const std::uint32_t table[6] = {1, 2, 0x7fc01234u, 4, 5, 6};
  const std::int64_t index[2] = {2, 0};
  std::uint32_t out[4] = {};
  indexing::RowsParams p{2, 8, table, 3, 8, DType::kI64, index, 1, out};
  indexing::gather_rows(p);
  EXPECT_EQ(out[0], 5u);
  EXPECT_EQ(out[3], 2u);
  p.table_rows = 2;
  EXPECT_THROW(indexing::gather_rows(p), Error);

  indexing::PointsParams q{};
  q.dims = 1;
  q.shape[0] = 3;
  q.itemsize = 4;
  std::uint32_t data[4] = {10, 11, 12, 13}, got[3] = {};
  const std::int64_t at[3] = {-1, 0, 0};
  q.data = data;
  q.values = got;
  q.values_stride[0] = 4;
  q.indices = 1;
  q.index[0] = at;
  q.index_stride[0][0] = 8;
  q.indexed_size[0] = 4;
  q.indexed_stride[0] = 4;
  q.wrap = true;
  indexing::points(q);
  EXPECT_EQ(got[0], 13u);
  EXPECT_EQ(got[2], 10u);
  q.put = true;
  got[1] = 70;
  got[2] = 71;
  indexing::points(q);
  EXPECT_EQ(data[0], 71u) << "the last of equal points stays";
  q.wrap = false;
  EXPECT_THROW(indexing::points(q), Error);
}

TEST(Indexing, NonzeroInRowMajorOrder) {
  const float x[6] = {0.0f, -0.0f, 1.0f, float_of(0x7fc00000u), 0.0f, -2.0f};
  indexing::NonzeroParams p{};
  p.dims = 2;
  p.shape[0] = 2;
  p.shape[1] = 3;
  p.stride[0] = 12;
  p.stride[1] = 4;
  p.type = DType::kF32;
  p.data = x;
  ASSERT_EQ(indexing::count_nonzero(p), 3);
  std::int64_t out[6];
  indexing::list_nonzero(p, out, 2, 1);
  const std::int64_t want[6] = {0, 2, 1, 0, 1, 2};
  EXPECT_SAME_BYTES(want, out, 6);
}

}  // namespace
}  // namespace step_oracle
