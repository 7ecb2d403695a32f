// SPDX-License-Identifier: Apache-2.0
#include "base/hash_hole.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace kvfolio {
namespace {

constexpr std::size_t kPlaces = 8;

// Entries are their homes; -1: empty.
struct Homes {
  std::vector<int> places = std::vector<int>(kPlaces, -1);

  void add(int home) {
    std::size_t at = std::size_t(home);
    while (places[at] >= 0) at = (at + 1) % kPlaces;
    places[at] = home;
  }
  void erase(std::size_t at) {
    places[close_hole(
        at, kPlaces - 1, [&](std::size_t place) { return places[place] < 0; },
        [&](std::size_t place) { return std::size_t(places[place]); },
        [&](std::size_t from, std::size_t to) { places[to] = places[from]; })] = -1;
  }
  // No place from an entry's home to it is empty.
  [[nodiscard]] bool finds(std::size_t at) const {
    for (std::size_t place = std::size_t(places[at]); place != at; place = (place + 1) % kPlaces) {
      if (places[place] < 0) return false;
    }
    return true;
  }
};

// All tables of up to five entries over eight places, around the end too, and each of their places.
TEST(HashHole, WhateverIsErasedTheOthersAreFound) {
  for (int homes = 0; homes < 8 * 8 * 8 * 8 * 8; ++homes) {
    Homes full;
    for (int i = 0, left = homes; i < 5; ++i, left /= 8) full.add(left % 8);
    for (std::size_t at = 0; at < kPlaces; ++at) {
      if (full.places[at] < 0) continue;
      Homes table = full;
      table.erase(at);
      std::vector<int> before = full.places, after = table.places;
      before[at] = -1;
      std::sort(before.begin(), before.end());
      std::sort(after.begin(), after.end());
      ASSERT_EQ(before, after) << homes << ", place " << at;
      for (std::size_t place = 0; place < kPlaces; ++place) {
        ASSERT_TRUE(table.places[place] < 0 || table.finds(place)) << homes << ", place " << at;
      }
    }
  }
}

}  // namespace
}  // namespace kvfolio
