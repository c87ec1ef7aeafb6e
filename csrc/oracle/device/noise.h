// Memory that nobody wrote, for walks of recipes.
#pragma once
#include <cstddef>

namespace step_oracle::device {

// For its time, memory that this thread takes for a card holds bytes that nobody can foretell, so that nothing is promised
// of memory that nobody wrote.
class NoiseScope {
 public:
  NoiseScope();
  ~NoiseScope();
  NoiseScope(const NoiseScope&) = delete;
  NoiseScope& operator=(const NoiseScope&) = delete;

 private:
  bool outer_;
};
void fill_with_noise(void* data, std::size_t n);

}  // namespace step_oracle::device
