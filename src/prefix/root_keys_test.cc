// SPDX-License-Identifier: Apache-2.0
//
// The keys of roots alone, without a tree.

#include "prefix/root_keys.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "base/mutants.h"

namespace kvfolio {
namespace {

constexpr std::int64_t kFraming = 29;

RootKeys make_keys(std::int32_t max_keys, std::int64_t max_bytes) {
  RootKeys keys;
  EXPECT_TRUE(keys.allocate(max_keys, max_bytes).ok());
  return keys;
}

TEST(KeysOfRoots, AKeyIsItselfAndNoOther) {
  RootKeys keys = make_keys(4, 1000);
  const RootKey key{.model = "m", .adapter = "ab", .epoch = 7};
  const std::int64_t bytes = keys.bytes_of(key);
  EXPECT_EQ(bytes, 3 + kFraming);
  ArenaSpan span;
  ASSERT_TRUE(keys.keep(key, bytes, span));
  EXPECT_TRUE(keys.is(span, key));
  for (const RootKey& other :
       {RootKey{.model = "m", .adapter = "ac", .epoch = 7},
        RootKey{.model = "m", .adapter = "ab", .epoch = 8},
        RootKey{.model = "m", .adapter = "a", .adapter_version = "b", .epoch = 7},
        RootKey{.model = "ma", .adapter = "b", .epoch = 7}, RootKey{}}) {
    EXPECT_FALSE(keys.is(span, other));
    EXPECT_TRUE(constant_hash() || RootKeys::hash_of(other, 1) != RootKeys::hash_of(key, 1));
  }
  EXPECT_TRUE(constant_hash() || RootKeys::hash_of(key, 1) != RootKeys::hash_of(key, 2));
}

TEST(KeysOfRoots, LongKeysDifferWhereverOneByteDoes) {
  RootKeys keys = make_keys(2, 10000);
  std::string text(5000, 'x');
  const RootKey key{.adapter = text};
  const std::int64_t bytes = keys.bytes_of(key);
  ArenaSpan span;
  ASSERT_TRUE(keys.keep(key, bytes, span));
  for (const std::size_t at : {0u, 1013u, 1014u, 1015u, 2500u, 4999u}) {
    std::string changed = text;
    changed[at] = 'y';
    EXPECT_FALSE(keys.is(span, {.adapter = changed})) << at;
    EXPECT_TRUE(constant_hash() ||
                RootKeys::hash_of({.adapter = changed}, 0) != RootKeys::hash_of(key, 0))
        << at;
  }
  EXPECT_TRUE(keys.is(span, {.adapter = text}));
}

TEST(KeysOfRoots, AsManyAreKeptAsTheLimitsSay) {
  RootKeys keys = make_keys(2, 3 * kFraming);
  ArenaSpan first;
  ArenaSpan second;
  ArenaSpan third;
  ASSERT_TRUE(keys.keep({.epoch = 1}, kFraming, first));
  EXPECT_FALSE(keys.has_room(2 * kFraming + 1));
  ASSERT_TRUE(keys.keep({.epoch = 2}, kFraming, second));
  EXPECT_FALSE(keys.has_room(kFraming));  // two keys are the most
  EXPECT_FALSE(keys.keep({.epoch = 3}, kFraming, third));
  EXPECT_EQ(keys.num_keys(), 2);
  EXPECT_EQ(keys.num_bytes(), 2 * kFraming);
  keys.drop(first, kFraming);
  EXPECT_TRUE(keys.keep({.epoch = 3}, kFraming, third));
  EXPECT_TRUE(keys.check(2, 2 * kFraming).ok());
  EXPECT_EQ(keys.check(1, kFraming).message(),
            "prefix tree, root keys: counted 1 of 29 bytes, kept 2 of 58");
}

TEST(KeysOfRoots, AKeyOver64KiBIsTooLong) {
  const RootKeys keys = make_keys(2, 1 << 20);
  const std::string text(65536, 'x');
  EXPECT_EQ(keys.bytes_of({.model = text}), 65536 + kFraming);
  EXPECT_EQ(keys.bytes_of({.model = text, .adapter = "y"}), 0);
  EXPECT_EQ(make_keys(2, 100).bytes_of({.model = std::string(101, 'x')}), 0);
}

TEST(KeysOfRoots, ACopyHasTheSameKeysAtTheSameSpans) {
  RootKeys keys = make_keys(2, 1000);
  RootKeys copy = make_keys(2, 1000);
  ArenaSpan span;
  ASSERT_TRUE(keys.keep({.model = "m"}, keys.bytes_of({.model = "m"}), span));
  copy.copy_from(keys);
  EXPECT_TRUE(copy.is(span, {.model = "m"}));
  EXPECT_TRUE(copy.check(1, kFraming + 1).ok());
}

}  // namespace
}  // namespace kvfolio
