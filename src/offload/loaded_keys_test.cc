// SPDX-License-Identifier: Apache-2.0

#include "offload/loaded_keys.h"

#include <gtest/gtest.h>

namespace kvfolio {
namespace {

constexpr int kMost = static_cast<int>(LoadedKeys::kMost);

TierKey loaded_key(int number) {
  TierKey key;
  for (std::size_t i = 0; i < 3; ++i) key.bytes[24 + i] = std::byte(number >> 8 * i & 0xff);
  return key;
}

struct Filled : LoadedKeys {
  explicit Filled(int num_keys) {
    for (int i = 0; i < num_keys; ++i) add(loaded_key(i));
  }
};

TEST(LoadedKeys, EachIsTakenOnce) {
  Filled keys(2);
  EXPECT_TRUE(keys.take(loaded_key(1)));
  EXPECT_FALSE(keys.take(loaded_key(1)));
  EXPECT_FALSE(keys.take(loaded_key(2)));
  keys.clear();
  EXPECT_FALSE(keys.take(loaded_key(0)));
}

// O10.
TEST(LoadedKeys, TheOldestIsTheFirstToGo) {
  Filled keys(kMost + 2);
  for (int i = 0; i < kMost + 2; ++i) ASSERT_EQ(keys.take(loaded_key(i)), i >= 2) << i;
}

TEST(LoadedKeys, WhatIsLoadedAgainIsTheNewest) {
  Filled keys(kMost);
  keys.add(loaded_key(0));
  keys.add(loaded_key(kMost));
  EXPECT_TRUE(keys.take(loaded_key(0)));
  EXPECT_FALSE(keys.take(loaded_key(1)));
  keys.add(loaded_key(kMost + 1));
  EXPECT_TRUE(keys.take(loaded_key(2))) << "what was taken makes room";
}

}  // namespace
}  // namespace kvfolio
