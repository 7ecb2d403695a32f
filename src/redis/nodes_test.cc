// SPDX-License-Identifier: Apache-2.0
//
// Which servers are known and whose the slots are: no connection, and no server.

#include "redis/nodes.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace kvfolio::redis {
namespace {

constexpr GrowingPause::Limits kNodePauses{.shortest_us = 1'000'000, .longest_us = 4'000'000};

void add_seed(Nodes& nodes, const std::string& host, std::uint16_t port) {
  nodes.add_seed(host, port, resolve(host, port, true));
}

TEST(Nodes, EachIsThereOnceAndThereAreNotTooMany) {
  Nodes nodes;
  add_seed(nodes, "192.0.2.1", 6379);
  Node* const first = nodes.find_or_add("192.0.2.1", 6379);
  EXPECT_TRUE(first->is_seed);
  EXPECT_EQ(nodes.all().size(), 1u);
  for (std::uint16_t port = 1; port < Nodes::kMost; ++port) {
    ASSERT_NE(nodes.find_or_add("192.0.2.2", port), nullptr);
  }
  EXPECT_EQ(nodes.find_or_add("192.0.2.2", 9999), nullptr);
  EXPECT_EQ(nodes.find_or_add("192.0.2.1", 6379), first) << "what is there is found all the same";
  EXPECT_EQ(nodes.broken_rule(kNodePauses), nullptr);
}

TEST(Nodes, AServerLeadsToThisMachineOnlyWhereTheCallersOwnAre) {
  Nodes far, near;
  add_seed(far, "192.0.2.1", 6379);
  EXPECT_TRUE(far.find_or_add("127.0.0.1", 22)->too_near);
  EXPECT_TRUE(far.find_or_add("127.0.0.1", 22)->addresses.empty());
  EXPECT_FALSE(far.find_or_add("198.51.100.7", 6379)->too_near);
  add_seed(near, "127.0.0.1", 6379);
  EXPECT_FALSE(near.find_or_add("127.0.0.1", 6380)->too_near);
  EXPECT_FALSE(near.find_or_add("127.0.0.1", 6379)->too_near) << "the caller named it";
}

TEST(Nodes, ASlotBelongsToTheRangeThatNamesItFirst) {
  Nodes nodes;
  add_seed(nodes, "192.0.2.1", 6379);
  Node& asked = *nodes.all().front();
  EXPECT_FALSE(nodes.has_map());
  EXPECT_EQ(nodes.owner(0), nullptr);
  const std::vector<SlotRange> ranges = {
      {.first = 0, .last = 9999, .host = "", .port = 6379},
      {.first = 10000, .last = 16383, .host = "192.0.2.2", .port = 6379},
      {.first = 0, .last = 16383, .host = "192.0.2.3", .port = 6379}};
  EXPECT_TRUE(nodes.take_map(asked, ranges, 1));
  EXPECT_TRUE(nodes.has_map());
  EXPECT_EQ(nodes.owner(9999), &asked) << "a range without a host is of the one who says it";
  EXPECT_EQ(nodes.owner(10000)->host, "192.0.2.2");
  EXPECT_EQ(nodes.num_slots(asked), 10000);
  EXPECT_EQ(nodes.all().size(), 2u) << "the third has more slots than are left";
  EXPECT_FALSE(nodes.take_map(asked, ranges, 2)) << "the same map again";
  nodes.slot_moved(5, *nodes.find_or_add("192.0.2.4", 6379));
  EXPECT_EQ(nodes.owner(5)->host, "192.0.2.4");
  EXPECT_TRUE(nodes.take_map(asked, ranges, 3)) << "the map takes it back";
  EXPECT_EQ(nodes.broken_rule(kNodePauses), nullptr);
}

TEST(Nodes, AServerAloneHasAllSlotsUnlessAMapCameBefore) {
  Nodes nodes;
  add_seed(nodes, "192.0.2.1", 6379);
  Node& asked = *nodes.all().front();
  EXPECT_TRUE(nodes.take_no_map(asked, false, 1));
  EXPECT_EQ(nodes.num_slots(asked), kNumSlots);
  Node& other = *nodes.find_or_add("192.0.2.2", 6379);
  EXPECT_FALSE(nodes.take_no_map(other, false, 2));
  EXPECT_EQ(nodes.num_slots(asked), kNumSlots);
}

TEST(Nodes, StrangersAreForgottenUnlessSomethingIsDoneWithThem) {
  Nodes nodes;
  Items items;
  add_seed(nodes, "192.0.2.1", 6379);
  Node& seed = *nodes.all().front();
  Node& waits = *nodes.find_or_add("192.0.2.2", 1);
  Node& asked = *nodes.find_or_add("192.0.2.2", 2);
  Node& moved = *nodes.find_or_add("192.0.2.2", 3);
  nodes.find_or_add("192.0.2.2", 4);
  nodes.take_no_map(seed, true, 1);
  nodes.slot_moved(7, moved);
  items.enqueue(waits.lanes[kStores].queue, items.add({}));
  const Items::Id to_ask = items.add({});
  items.at(to_ask).ask = &asked;
  int forgotten = 0;
  const auto forget = [&](Lane& lane) {
    EXPECT_EQ(lane.node->port, 4);
    ++forgotten;
  };
  nodes.drop_strangers(items, Nodes::kMapEveryUs, forget);
  EXPECT_EQ(forgotten, 2) << "both lanes of the one that nothing is done with";
  EXPECT_EQ(nodes.all().size(), 4u);
  EXPECT_EQ(nodes.broken_rule(kNodePauses), nullptr);
  items.finish(to_ask, TierResult::kMiss);
  nodes.drop_strangers(items, Nodes::kMapEveryUs + 1, forget);
  EXPECT_EQ(nodes.all().size(), 4u) << "not in each poll";
  items.finish(items.any(), TierResult::kMiss);
  nodes.slot_moved(7, seed);
  nodes.drop_strangers(items, 3 * Nodes::kMapEveryUs, [](Lane&) {});
  EXPECT_EQ(nodes.all().size(), 1u);
}

TEST(Nodes, EveryTurnBeginsWithAnother) {
  Nodes nodes;
  for (std::uint16_t port = 1; port <= 3; ++port) add_seed(nodes, "192.0.2.1", port);
  std::vector<int> first;
  for (int turn = 0; turn < 3; ++turn) {
    std::vector<int> ports;
    nodes.for_each_in_turn([&](const Node& node) { ports.push_back(node.port); });
    EXPECT_EQ(ports.size(), 3u);
    first.push_back(ports[0]);
  }
  EXPECT_EQ(first, (std::vector<int>{1, 2, 3}));
}

TEST(Node, TheCheckSeesALaneOfAnotherNodeAndADescriptorThatIsClosed) {
  Node node, other;
  for (Lane& lane : node.lanes) lane.node = &node;
  EXPECT_EQ(node.broken_rule(kNodePauses), nullptr);
  node.lanes[kStores].node = &other;
  EXPECT_STREQ(node.broken_rule(kNodePauses), "a lane is of another node");
  node.lanes[kStores].node = &node;
  node.lanes[kLoads].interest = 1;
  EXPECT_STREQ(node.broken_rule(kNodePauses), "a descriptor that is closed is waited for");
}

}  // namespace
}  // namespace kvfolio::redis
