// SPDX-License-Identifier: Apache-2.0
#include "offload/ops.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace kvfolio {
namespace {

TierAsked asked(TierOp kind, std::int32_t tier = 0) {
  TierAsked op;
  op.kind = kind;
  op.tier = tier;
  return op;
}

TEST(Ops, WhatATierTookIsCountedUntilThatTierEndsIt) {
  Ops ops;
  const std::uint64_t load = ops.add(asked(TierOp::kLoad, 1));
  const std::uint64_t question = ops.add(asked(TierOp::kExists, 1));
  EXPECT_NE(load, question);
  EXPECT_EQ(ops.in_flight().loads, 0);
  ops.began(load, 10);
  ops.began(question, 10);
  EXPECT_EQ(ops.in_flight().loads, 1);
  EXPECT_EQ(ops.in_flight().questions, 1);
  EXPECT_TRUE(ops.touch_memory());
  EXPECT_TRUE(ops.check().ok());

  EXPECT_FALSE(ops.take(load, 0));  // another tier cannot say that
  EXPECT_FALSE(ops.take(load + 100, 1));
  EXPECT_TRUE(ops.take(load, 1));
  EXPECT_FALSE(ops.take(load, 1));
  EXPECT_EQ(ops.in_flight().loads, 0);
  EXPECT_FALSE(ops.touch_memory());
  EXPECT_EQ(ops.size(), 1);
  EXPECT_TRUE(ops.check().ok());
}

TEST(Ops, WhatATierDidNotTakeIsGoneAndItsTagComesToNoOther) {
  Ops ops;
  const std::uint64_t tag = ops.add(asked(TierOp::kStore));
  ops.drop(tag);
  EXPECT_EQ(ops.size(), 0);
  EXPECT_FALSE(ops.has_watched());
  EXPECT_GT(ops.add(asked(TierOp::kStore)), tag);
}

TEST(Ops, StoresAreWatchedInOrderUntilTheyEndOrAreOverdue) {
  Ops ops;
  const std::uint64_t first = ops.add(asked(TierOp::kStore));
  ops.began(first, 10);
  const std::uint64_t second = ops.add(asked(TierOp::kStore));
  ops.began(second, 20);
  ASSERT_TRUE(ops.has_watched());
  EXPECT_EQ(ops.first_watched(), first);
  EXPECT_TRUE(ops.take(first, 0));
  EXPECT_EQ(ops.watched(), nullptr);
  EXPECT_TRUE(ops.check().ok());
  ops.unwatch();
  ASSERT_EQ(ops.watched(), &ops.at(second));
  ops.watched()->overdue = true;
  ops.unwatch();
  EXPECT_FALSE(ops.has_watched());
  EXPECT_TRUE(ops.check().ok());
}

TEST(Ops, CheckSeesAStoreThatIsNotWatched) {
  Ops ops;
  ops.began(ops.add(asked(TierOp::kStore)), 10);
  ops.unwatch();
  EXPECT_FALSE(ops.check().ok());
}

TEST(Ops, CheckSeesWhatIsMiscounted) {
  Ops ops;
  static_cast<void>(ops.add(asked(TierOp::kLoad)));  // its tier has not taken it
  EXPECT_FALSE(ops.check().ok());
}

TEST(Ops, AChildOfForkHasNothingInFlight) {
  Ops ops;
  ops.began(ops.add(asked(TierOp::kStore)), 10);
  ops.began(ops.add(asked(TierOp::kLoad)), 10);
  ops.clear();
  EXPECT_EQ(ops.size(), 0);
  EXPECT_FALSE(ops.has_watched());
  EXPECT_FALSE(ops.in_flight().any());
  EXPECT_TRUE(ops.check().ok());
}

}  // namespace
}  // namespace kvfolio
