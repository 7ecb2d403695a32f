// SPDX-License-Identifier: Apache-2.0
#include "redis/items.h"

#include <gtest/gtest.h>

#include <array>
#include <random>
#include <vector>

namespace kvfolio::redis {
namespace {

Items::Item item_of(std::uint64_t tag, std::uint64_t deadline_us) {
  return {.op = TierOp::kExists, .item = {.tag = tag}, .deadline_us = deadline_us};
}

TEST(Items, AnItemThatEndsLeavesItsQueueFromWhereverItStands) {
  Items items;
  Items::Queue queue;
  std::vector<Items::Id> ids;
  for (std::uint64_t i = 0; i < 5; ++i) {
    ids.push_back(items.add(item_of(i, 100)));
    items.enqueue(queue, ids.back());
  }
  items.finish(ids[2], TierResult::kMiss);
  EXPECT_EQ(queue, (Items::Queue{ids[0], ids[1], ids[3], ids[4]}));
  items.leave_queue(items.at(ids[0]));
  items.leave_queue(items.at(ids[0]));  // it waits in none
  EXPECT_EQ(queue.front(), ids[1]);
  EXPECT_TRUE(items.contains(ids[0]));
  EXPECT_FALSE(items.contains(ids[2]));
  EXPECT_EQ(items.num_accepted(), 5u) << "what is done counts until it is handed over";
  std::array<TierDone, 4> done;
  EXPECT_EQ(items.hand_over(done), 1u);
  EXPECT_EQ(done[0].tag, 2u);
  EXPECT_EQ(done[0].result, TierResult::kMiss);
  EXPECT_EQ(items.num_accepted(), 4u);
}

TEST(Items, TheFirstDeadlineIsTheFirstToBeOver) {
  Items items;
  for (const std::uint64_t deadline_us : {30u, 10u, 20u, 10u}) items.add(item_of(0, deadline_us));
  EXPECT_FALSE(items.overdue(9));
  std::vector<std::uint64_t> ended;
  while (const auto id = items.overdue(25)) {
    ended.push_back(items.at(*id).deadline_us);
    items.finish(*id, TierResult::kTimeout);
  }
  EXPECT_EQ(ended, (std::vector<std::uint64_t>{10, 10, 20}));
  EXPECT_FALSE(items.empty());
}

TEST(Items, RandomCallsBreakNoRule) {
  for (std::uint32_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    Items items;
    std::array<Items::Queue, 3> queues;
    const std::array<const Items::Queue*, 3> all = {&queues[0], &queues[1], &queues[2]};
    std::vector<Items::Id> live;
    std::size_t added = 0, handed_over = 0;
    for (int step = 0; step < 2000; ++step) {
      const std::size_t which = live.empty() ? 0 : random() % live.size();
      switch (random() % 4) {
        case 0:
          live.push_back(items.add(item_of(added++, random() % 100)));
          break;
        case 1:
          if (live.empty()) break;
          items.leave_queue(items.at(live[which]));
          items.enqueue(queues[random() % 3], live[which]);
          break;
        case 2:
          if (live.empty() || random() % 2 == 0) break;
          items.finish(live[which], TierResult::kMiss);
          live.erase(live.begin() + static_cast<std::ptrdiff_t>(which));
          break;
        default: {
          std::array<TierDone, 3> done;
          handed_over += items.hand_over(done);
        }
      }
      ASSERT_EQ(items.num_accepted(), added - handed_over);
      const Status status = items.check(all);
      ASSERT_TRUE(status.ok()) << status << " at step " << step;
    }
  }
}

TEST(Items, TheCheckSeesAQueueThatIsNotNamed) {
  Items items;
  Items::Queue named, other;
  const std::array<const Items::Queue*, 1> queues = {&named};
  items.enqueue(other, items.add(item_of(1, 5)));
  EXPECT_FALSE(items.check(queues).ok());
  other.clear();
}

}  // namespace
}  // namespace kvfolio::redis
