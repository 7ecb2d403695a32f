// SPDX-License-Identifier: Apache-2.0
#include "offload/held_stores.h"

#include <gtest/gtest.h>

#include <map>

#include "offload/offload_test_cache.h"

namespace kvfolio {
namespace {

FindableBlock entry_of(std::int32_t block, std::uint64_t serial) {
  return {GroupId(0), BlockId(block), 8, serial};
}

struct Held {
  HeldStores held{test::full(4).groups};
  std::map<std::int32_t, std::uint64_t> serials;  // of blocks that are findable

  void add(std::int32_t block, std::uint64_t serial) {
    serials[block] = serial;
    held.hold(entry_of(block, serial));
  }
  std::vector<std::uint64_t> release() {
    std::vector<std::uint64_t> let_go;
    held.release(
        [&](GroupId, BlockId block) {
          const auto found = serials.find(block.value());
          return found == serials.end() ? 0 : found->second;
        },
        [&](const std::vector<FindableBlock>& blocks) {
          for (const FindableBlock& block : blocks) let_go.push_back(block.serial);
        });
    EXPECT_TRUE(held.check().ok());
    return let_go;
  }
};

TEST(HeldStores, WhatIsReleasedComesOnceAndInItsOrder) {
  Held t;
  t.add(3, 5);
  t.add(0, 7);
  t.add(2, 6);
  EXPECT_EQ(t.release(), (std::vector<std::uint64_t>{5, 6, 7}));
  EXPECT_EQ(t.release(), std::vector<std::uint64_t>{});
}

TEST(HeldStores, ABlockThatIsNoLongerFindableAsItWasIsDropped) {
  Held t;
  t.add(0, 1);
  t.add(1, 2);
  t.add(2, 3);
  t.add(2, 4);  // anew
  t.serials.erase(0);
  t.serials[1] = 5;  // the manager has it in its list
  EXPECT_TRUE(t.held.holds(entry_of(2, 4)));
  EXPECT_FALSE(t.held.holds(entry_of(2, 3)));
  EXPECT_EQ(t.release(), std::vector<std::uint64_t>{4});
}

TEST(HeldStores, NothingIsHeldWhereItIsOff) {
  HeldStores off;
  EXPECT_FALSE(off.is_on());
  EXPECT_TRUE(off.check().ok());
}

}  // namespace
}  // namespace kvfolio
