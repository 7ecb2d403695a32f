// SPDX-License-Identifier: Apache-2.0
#include "nearest_word.h"

#include <algorithm>
#include <array>
#include <cstddef>

namespace kvfolio::tools {

namespace {

constexpr std::size_t kMostLetters = 64;  // no name is longer

// Row by row; `rows` are those of the last two letters of `a` and of this one.
std::size_t changes(std::string_view a, std::string_view b) {
  std::array<std::array<std::size_t, kMostLetters + 1>, 3> rows{};
  for (std::size_t j = 0; j <= b.size(); ++j) rows[0][j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    const auto& before = rows[(i - 1) % 3];
    auto& row = rows[i % 3];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = before[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({replaced, before[j] + 1, row[j - 1] + 1});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], rows[(i - 2) % 3][j - 2] + 1);
      }
    }
  }
  return rows[a.size() % 3][b.size()];
}

}  // namespace

std::string did_you_mean(std::string_view word, const std::vector<std::string>& names) {
  if (word.size() > kMostLetters) return {};
  std::size_t least = std::min<std::size_t>(2, word.size() / 3) + 1;
  const std::string* nearest = nullptr;
  for (const std::string& name : names) {
    if (name.size() > kMostLetters) continue;
    const std::size_t count = changes(word, name);
    if (count >= least) continue;
    least = count;
    nearest = &name;
  }
  return nearest == nullptr ? std::string() : " (did you mean " + *nearest + "?)";
}

}  // namespace kvfolio::tools
