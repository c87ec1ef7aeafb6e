// recovery FORM KIND SHAPES: one line "right ties tried"; without arguments, the rows there are. scripts/check_plans.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tests/plan/recover.h"

int main(int count, char** words) {
  using namespace step_oracle::slow;
  if (count == 1) {
    for (const auto* list : {&forms(), &strangers()})
      for (const Form& form : *list)
        for (const Kind kind : form.kinds) std::printf("%s\t%s\t%s\n", form.name.c_str(), name_of(kind), form.source.c_str());
    return 0;
  }
  if (count != 4) return std::fprintf(stderr, "usage: recovery [FORM KIND SHAPES]\n"), 2;
  for (const auto* list : {&forms(), &strangers()})
    for (const Form& form : *list)
      for (const Kind kind : form.kinds) {
        if (form.name != words[1] || std::strcmp(name_of(kind), words[2]) != 0) continue;
        std::mt19937 gen(2026);
        const int shapes = std::atoi(words[3]);
        int right = 0, ties = 0, most = 0;
        for (int i = 0; i < shapes; ++i) {
          Drawn drawn = draw(form, kind, gen);
          if (list == &strangers()) {
            while (kind != Kind::kFloat32 && !drawn.problem.wide) drawn = draw(form, kind, gen);
            const auto found = fit_from_digest(drawn);
            right += found.matches.empty(), most = std::max(most, found.tried);
          } else {
            const Recovered r = recover(drawn);
            right += r.right, ties += r.matches > 1, most = std::max(most, r.tried);
          }
        }
        std::printf("%d %d %d\n", right, ties, most);
        return 0;
      }
  return std::fprintf(stderr, "recovery: no form '%s' of %s\n", words[1], words[2]), 2;
}
