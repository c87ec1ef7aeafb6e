// The memory-efficient kernels against PyTorch's own compiled ones: every byte of every output.
#include <cstring>

#include "tests/attention/mem_case.h"
#include "tests/support/same_bytes.h"

namespace step_oracle::test {
namespace {

using attention::MemBackward;
using attention::MemForward;

const std::vector<AttentionCase>& cases() {
  static const std::vector<AttentionCase> all = attention_cases("kernels", "memory-efficient");
  return all;
}

void check(const AttentionCase& c, void (*forward)(const MemForward&), void (*backward)(const MemBackward&)) {
  SCOPED_TRACE(c.name());
  MemCase m(c);
  forward(m.forward);
  EXPECT_TRUE(c.equals("out", m.out.data(), m.element()));
  const std::vector<float> rows = m.lse_rows();
  EXPECT_TRUE(c.equals("lse", rows.data(), 4));
  if (!m.has_backward) return;
  backward(m.backward);
  EXPECT_TRUE(c.equals("dq", m.dq.data(), m.element()));
  EXPECT_TRUE(c.equals("dk", m.dk.data(), m.element()));
  EXPECT_TRUE(c.equals("dv", m.dv.data(), m.element()));
  EXPECT_TRUE(c.equals("delta", m.delta.data(), 4));
  if (m.has_bias) {
    EXPECT_TRUE(c.equals("dbias", m.dbias.data(), m.element()));
  }
}

TEST(MemEfficient, DefinitionGivesTheKernelsBytes) {
  for (const AttentionCase& c : cases()) check(c, attention::ref::mem_forward, attention::ref::mem_backward);
  std::printf("%zu cases\n", cases().size());
}

TEST(MemEfficient, EveryIsaGivesTheKernelsBytes) {
  for_each_isa_and_threads([] {
    for (const AttentionCase& c : cases()) check(c, attention::mem_forward, attention::mem_backward);
  });
}

}  // namespace
}  // namespace step_oracle::test
