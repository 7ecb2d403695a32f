// SPDX-License-Identifier: Apache-2.0
#include "manager/findable_list.h"

#include <gtest/gtest.h>

#include <array>

namespace kvfolio {
namespace {

FindableList list_of(std::int32_t first, std::int32_t second) {
  std::array<GroupSpec, 2> groups;
  groups[0].num_blocks = first;
  groups[1].num_blocks = second;
  FindableList list;
  EXPECT_TRUE(list.allocate(groups));
  return list;
}

TEST(FindableList, BlocksComeInTheOrderInWhichTheyBecameFindable) {
  FindableList list = list_of(2, 3);
  list.add(1, 2);
  list.add(0, 1);
  list.add(1, 0);
  ASSERT_EQ(list.size(), 3);
  for (const auto& [g, b] : {std::pair(1, 2), std::pair(0, 1), std::pair(1, 0)}) {
    const FindableList::Member member = list.take();
    EXPECT_EQ(member.group, g);
    EXPECT_EQ(member.block, b);
  }
  EXPECT_EQ(list.size(), 0);
  EXPECT_TRUE(list.check().ok());
}

TEST(FindableList, ABlockIsInItOnceAndGetsANewSerialEachTime) {
  FindableList list = list_of(1, 1);
  list.add(0, 0);
  const std::uint64_t first = list.serial(0, 0);
  list.drop(0, 0);
  EXPECT_EQ(list.serial(0, 0), 0u);
  list.add(0, 0);
  EXPECT_GT(list.serial(0, 0), first);
  EXPECT_EQ(list.size(), 1);
  EXPECT_TRUE(list.check().ok());
}

TEST(FindableList, NeverOverflows) {
  FindableList list = list_of(3, 2);
  for (int round = 0; round < 100; ++round) {
    for (std::int32_t b = 0; b < 3; ++b) list.add(0, b);
    for (std::int32_t b = 0; b < 2; ++b) list.add(1, b);
    EXPECT_EQ(list.size(), 5);
    for (int i = 0; i <= round % 5; ++i) {
      const FindableList::Member member = list.take();
      if (i % 2 == 0) list.put_back(member);
    }
    EXPECT_TRUE(list.check().ok());
  }
}

TEST(FindableList, IsOffUntilItIsAllocated) {
  FindableList list;
  EXPECT_FALSE(list.is_on());
  EXPECT_EQ(list.serial(0, 0), 0u);
  EXPECT_EQ(list.size(), 0);
  EXPECT_EQ(list.memory().reserved, 0);
  EXPECT_TRUE(list.check().ok());
}

TEST(FindableList, ACopyGoesOnAsTheOriginal) {
  FindableList list = list_of(2, 2);
  FindableList other = list_of(2, 2);
  list.add(0, 1);
  list.add(1, 1);
  static_cast<void>(list.take());
  other.copy_from(list);
  EXPECT_EQ(other.size(), 1);
  other.add(0, 0);
  list.add(0, 0);
  EXPECT_EQ(other.serial(0, 0), list.serial(0, 0));
}

}  // namespace
}  // namespace kvfolio
