// SPDX-License-Identifier: Apache-2.0
#include "base/member_sum.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <initializer_list>

namespace kvfolio {
namespace {

MemberSum sum_of(std::initializer_list<std::int32_t> members) {
  MemberSum sum;
  for (const std::int32_t member : members) sum.add(member);
  return sum;
}

TEST(MemberSum, TheOrderOfMembersDoesNotMatter) { EXPECT_EQ(sum_of({0, 5, 7}), sum_of({7, 0, 5})); }

TEST(MemberSum, AMemberMoreOrLessMatters) {
  EXPECT_NE(sum_of({}), sum_of({0}));
  EXPECT_NE(sum_of({3}), sum_of({3, 3}));
}

TEST(MemberSum, MembersThatAddUpAlikeAreNotTheSame) {
  EXPECT_NE(sum_of({1, 4}), sum_of({2, 3}));
  EXPECT_NE(sum_of({1, 1, 4}), sum_of({2, 2, 2}));
}

TEST(MemberSum, AddingSeveralTimesAtOnceIsAddingOneByOne) {
  MemberSum sum;
  sum.add(9, 3);
  sum.add(4, 0);
  EXPECT_EQ(sum, sum_of({9, 9, 9}));
}

}  // namespace
}  // namespace kvfolio
