#include "csrc/record/trace/diff_align.h"

#include <algorithm>

namespace step_oracle::align {

Pairs common(const std::vector<std::uint32_t>& a, const std::vector<std::uint32_t>& b, std::size_t max_edits) {
  Pairs pairs;
  std::size_t head = 0;
  while (head < a.size() && head < b.size() && a[head] == b[head]) pairs.emplace_back(head, head), ++head;
  std::size_t tail = 0;
  while (tail < a.size() - head && tail < b.size() - head && a[a.size() - 1 - tail] == b[b.size() - 1 - tail]) ++tail;

  // The middle: furthest[d][k] is how far into a the path with d edits on diagonal k (= i - j) gets.
  const auto n = static_cast<std::ptrdiff_t>(a.size() - head - tail),
             m = static_cast<std::ptrdiff_t>(b.size() - head - tail);
  const auto same = [&](std::ptrdiff_t i, std::ptrdiff_t j) {
    return a[head + static_cast<std::size_t>(i)] == b[head + static_cast<std::size_t>(j)];
  };
  std::vector<std::vector<std::ptrdiff_t>> furthest;
  const auto at = [](const std::vector<std::ptrdiff_t>& row, std::ptrdiff_t d, std::ptrdiff_t k) {
    return k < -d || k > d ? std::ptrdiff_t{-1} : row[static_cast<std::size_t>(k + d)];
  };
  std::ptrdiff_t found = n + m == 0 ? 0 : -1;
  const auto limit = static_cast<std::ptrdiff_t>(std::min<std::size_t>(static_cast<std::size_t>(n + m), max_edits));
  for (std::ptrdiff_t d = 0; n + m > 0 && d <= limit && found < 0; ++d) {
    std::vector<std::ptrdiff_t> row(static_cast<std::size_t>(2 * d + 1), -1);
    for (std::ptrdiff_t k = -d; k <= d; k += 2) {
      std::ptrdiff_t i = 0;
      if (d > 0) {
        const auto left = at(furthest.back(), d - 1, k - 1), up = at(furthest.back(), d - 1, k + 1);
        i = k == -d || (k != d && left < up) ? up : left + 1;
      }
      while (i < n && i - k < m && i - k >= 0 && same(i, i - k)) ++i;
      row[static_cast<std::size_t>(k + d)] = i;
      if (i == n && i - k == m) found = d;
    }
    furthest.push_back(std::move(row));
  }
  Pairs middle;
  std::ptrdiff_t i = n, j = m;
  for (std::ptrdiff_t d = found; d > 0; --d) {
    const std::ptrdiff_t k = i - j;
    const auto& row = furthest[static_cast<std::size_t>(d - 1)];
    const auto left = at(row, d - 1, k - 1), up = at(row, d - 1, k + 1);
    const bool down = k == -d || (k != d && left < up);
    const std::ptrdiff_t from_i = down ? up : left, from_j = from_i - (down ? k + 1 : k - 1);
    const std::ptrdiff_t start = down ? from_i : from_i + 1;
    while (i > start)
      --i, --j, middle.emplace_back(head + static_cast<std::size_t>(i), head + static_cast<std::size_t>(j));
    i = from_i;
    j = from_j;
  }
  while (found >= 0 && i > 0 && j > 0) {
    --i, --j;
    middle.emplace_back(head + static_cast<std::size_t>(i), head + static_cast<std::size_t>(j));
  }
  pairs.insert(pairs.end(), middle.rbegin(), middle.rend());
  for (std::size_t t = tail; t > 0; --t) pairs.emplace_back(a.size() - t, b.size() - t);
  return pairs;
}

}  // namespace step_oracle::align
