// The vectors themselves: the digest function, and that every generated input has the digest of its case.
#include "tests/attention/vectors.h"

namespace step_oracle::test {
namespace {

TEST(AttentionVectors, Sha256) {  // [spec FIPS 180-4 examples]
  EXPECT_EQ(sha256("abc", 3), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 56),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
}

TEST(AttentionVectors, InputsHaveTheirDigests) {
  std::size_t inputs = 0;
  for (const char* kernel : {"memory-efficient", "FlashAttention-2", "FlashAttention-2 split keys + combine"})
    for (const AttentionCase& c : attention_cases("kernels", kernel))
      for (const auto& [name, description] : c.meta()["generated"].items()) {
        EXPECT_NO_THROW(c.input(name.c_str())) << c.name();
        ++inputs;
      }
  EXPECT_GT(inputs, 60u);
}

}  // namespace
}  // namespace step_oracle::test
