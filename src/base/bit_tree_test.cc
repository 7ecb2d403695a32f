// SPDX-License-Identifier: Apache-2.0
#include "kvfolio/bit_tree.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <set>
#include <string>

namespace kvfolio {
namespace {

BitTree tree_of(std::int64_t size) {
  BitTree tree;
  EXPECT_TRUE(tree.allocate(size));
  return tree;
}

TEST(BitTree, ANewSetIsEmpty) {
  for (const std::int64_t size : {1, 63, 64, 65, 4096, 4097, 300000}) {
    const BitTree tree = tree_of(size);
    EXPECT_EQ(tree.first(), BitTree::kNone);
    for (const std::int64_t at : {std::int64_t{0}, size / 2, size - 1}) {
      EXPECT_FALSE(tree.contains(at));
      EXPECT_EQ(tree.next(at), BitTree::kNone);
    }
    EXPECT_TRUE(tree.is_consistent());
  }
}

TEST(BitTree, TheFirstAndTheLastPossibleMemberAreFound) {
  for (const std::int64_t size : {1, 63, 64, 65, 4096, 4097, 300000}) {
    BitTree tree = tree_of(size);
    tree.insert(size - 1);
    EXPECT_EQ(tree.first(), size - 1);
    EXPECT_EQ(tree.next(size - 1), BitTree::kNone);
    tree.insert(0);
    EXPECT_EQ(tree.first(), 0);
    EXPECT_EQ(tree.next(0), size == 1 ? BitTree::kNone : size - 1);
    tree.erase(0);
    EXPECT_EQ(tree.first(), size == 1 ? BitTree::kNone : size - 1);
    tree.erase(size - 1);
    EXPECT_EQ(tree.first(), BitTree::kNone);
  }
}

TEST(BitTree, WhatIsSaidTwiceChangesNothing) {
  BitTree tree = tree_of(5000);
  for (int i = 0; i < 2; ++i) tree.insert(4242);
  EXPECT_TRUE(tree.contains(4242));
  for (int i = 0; i < 2; ++i) tree.erase(4242);
  EXPECT_FALSE(tree.contains(4242));
  tree.erase(7);  // never a member
  EXPECT_EQ(tree.first(), BitTree::kNone);
  EXPECT_TRUE(tree.is_consistent());
}

// Against std::set. Dense, then sparse, so that words of every level fill and become empty.
TEST(BitTree, RandomOperationsAgreeWithAnOrderedSet) {
  for (const std::int64_t size : {1, 63, 64, 65, 4096, 4097, 300000}) {
    SCOPED_TRACE("size " + std::to_string(size));
    std::mt19937_64 random(static_cast<std::uint64_t>(size));
    const auto pick = [&](std::int64_t low, std::int64_t high) {
      return std::uniform_int_distribution<std::int64_t>(low, high)(random);
    };
    BitTree tree = tree_of(size);
    std::set<std::int64_t> naive;
    for (int i = 0; i < 20000; ++i) {
      // Near a few places, so that members share words and words share parents.
      const std::int64_t near = pick(0, 3) * (size - 1) / 3;
      const std::int64_t at =
          pick(0, 3) == 0 ? pick(0, size - 1)
                          : std::min(size - 1, std::max<std::int64_t>(0, near + pick(-80, 80)));
      const bool grows = i / 2500 % 2 == 0;
      if (pick(0, 9) < (grows ? 7 : 2)) {
        tree.insert(at);
        naive.insert(at);
      } else {
        // Mostly members, or a sparse set would never become empty.
        const auto member = naive.lower_bound(at);
        const std::int64_t out = member != naive.end() && pick(0, 3) != 0 ? *member : at;
        tree.erase(out);
        naive.erase(out);
      }
      ASSERT_EQ(tree.first(), naive.empty() ? BitTree::kNone : *naive.begin());
      for (const std::int64_t asked : {at, pick(0, size - 1)}) {
        const auto behind = naive.upper_bound(asked);
        ASSERT_EQ(tree.contains(asked), naive.count(asked) == 1);
        ASSERT_EQ(tree.next(asked), behind == naive.end() ? BitTree::kNone : *behind);
      }
      ASSERT_TRUE(i % 100 != 0 || tree.is_consistent());
    }
    // All members, in order.
    std::int64_t at = tree.first();
    for (const std::int64_t member : naive) {
      ASSERT_EQ(at, member);
      at = tree.next(at);
    }
    ASSERT_EQ(at, BitTree::kNone);
    for (const std::int64_t member : naive) tree.erase(member);
    ASSERT_EQ(tree.first(), BitTree::kNone);
    ASSERT_TRUE(tree.is_consistent());
  }
}

TEST(BitTree, ACopyIsEqualAndIndependent) {
  BitTree source = tree_of(4097);
  BitTree target = tree_of(4097);
  for (const std::int64_t at : {3, 64, 4096}) source.insert(at);
  target.insert(0);
  target.copy_from(source);
  EXPECT_TRUE(target.is_consistent());
  EXPECT_EQ(target.first(), 3);
  EXPECT_EQ(target.next(3), 64);
  EXPECT_EQ(target.next(64), 4096);
  target.erase(3);
  EXPECT_EQ(target.first(), 64);
  EXPECT_EQ(source.first(), 3);
}

TEST(BitTreeDeathTest, ACopyOfAnotherSizeStopsTheProgram) {
  const BitTree source = tree_of(64);
  BitTree target = tree_of(65);
  EXPECT_DEATH(target.copy_from(source), "broken invariant");
}

}  // namespace
}  // namespace kvfolio
