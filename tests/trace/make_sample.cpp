// make_sample PATH [SEED]: the file of tests/data/traces.
#include <cstdlib>

#include "tests/trace/sample.h"

int main(int argc, char** argv) {
  using namespace step_oracle;
  if (argc < 2) return 2;
  WriterOptions small;
  small.batch = 4;
  TraceWriter writer(argv[1], test::sample_environment(), small);
  test::SampleOptions options;
  if (argc > 2) options.seed = std::strtoull(argv[2], nullptr, 10);
  test::write_sample(writer, options);
  test::close_sample(writer);
}
