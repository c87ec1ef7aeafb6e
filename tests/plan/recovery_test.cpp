// A few products of each form and type; scripts/check_plans runs forty.
#include <gtest/gtest.h>

#include "csrc/kernels/core/parallel.h"
#include "csrc/oracle/plan/table.h"
#include "tests/plan/recover.h"

namespace step_oracle::slow {
namespace {

TEST(Recovery, EveryFormIsFoundFromItsDigestOrInATie) {
  int cases = 0, ties = 0;
  const int threads = num_threads();
  set_num_threads(1);  // products too small to share
  for (const Form& form : forms())
    for (const Kind kind : form.kinds) {
      std::mt19937 gen(11);
      for (int i = 0; i < 1; ++i) {
        const Drawn drawn = draw(form, kind, gen);
        const Recovered r = recover(drawn);
        ++cases, ties += r.matches > 1;
        EXPECT_TRUE(r.right) << form.name << ", " << name_of(kind) << ", case " << i << ": "
                             << plan::describe(drawn.plan) << " of k " << drawn.problem.k << " is not among "
                             << r.matches << " matches of " << r.tried;
      }
    }
  set_num_threads(threads);
  std::printf("%d products, %d ties\n", cases, ties);
  EXPECT_GE(cases, 70);
  EXPECT_LT(ties, cases) << "no product tells its plan";
}

TEST(Recovery, AFormOutsideTheVocabularyHasNoPlan) {
  for (const Form& form : strangers())
    for (const Kind kind : form.kinds) {
      std::mt19937 gen(12);
      Drawn drawn = draw(form, kind, gen);
      while (kind != Kind::kFloat32 && !drawn.problem.wide) drawn = draw(form, kind, gen);  // 8 digits hide an order
      const plan::Fit found = fit_from_digest(drawn);
      EXPECT_TRUE(found.matches.empty()) << form.name << ", " << name_of(kind) << ": "
                                         << plan::describe(found.matches[0]);
      EXPECT_GT(found.tried, 40);
    }
}

}  // namespace
}  // namespace step_oracle::slow
