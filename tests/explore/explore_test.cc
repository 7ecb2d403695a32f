// SPDX-License-Identifier: Apache-2.0
//
// Every state that a manager of 4 blocks of 2 tokens, 2 sequences and 2 steps in flight can reach,
// breadth first, each operation tried in each state, all rules checked after each. KVFOLIO_EXPLORE_
// STATES (per order, 0: all) and KVFOLIO_EXPLORE_SECONDS bound it. A failure prints the operations
// that lead to it.

#include <gtest/gtest.h>
#include <malloc.h>

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <unordered_set>

#include "world.h"

namespace kvfolio::explore {
namespace {

std::int64_t environment(const char* name, std::int64_t otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr || *value == '\0' ? otherwise : std::strtoll(value, nullptr, 10);
}

using Hash = std::array<std::uint64_t, 2>;
struct HashOfHash {
  std::size_t operator()(const Hash& hash) const noexcept {
    return static_cast<std::size_t>(hash[0]);
  }
};

// A state that was met. Its manager is made from the parent's when its turn comes, by a clone and
// one operation, and lives until the last child has had its turn.
struct Node {
  std::uint32_t parent;
  std::uint8_t operation;
  std::uint8_t depth;
  std::uint8_t waiting;  // children whose turn is to come
  World* world;
};

class Explorer {
 public:
  Explorer(Order order, std::size_t max_states, std::int64_t max_seconds)
      : order_(order), max_states_(max_states), max_seconds_(max_seconds) {}

  void run() {
    const auto start = std::chrono::steady_clock::now();
    const auto seconds = [&] {
      return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    };
    World* const root = take();
    seen_.insert(root->hash());
    nodes_.push_back({0, 0, 0, 0, root});
    std::size_t at = 0;
    for (; at < nodes_.size() && !full() && failures_ == 0; ++at) {
      if (at % 256 == 0 && max_seconds_ > 0 && seconds() > static_cast<double>(max_seconds_)) {
        ended_early_ = true;
        break;
      }
      expand(at);
    }
    const bool all = at == nodes_.size();
    ended_early_ = ended_early_ || all;
    std::cout << (order_ == Order::kInOrder ? "in order" : "unordered") << ": states "
              << nodes_.size() << " transitions " << transitions_ << " depth "
              << int{nodes_.back().depth} << (all ? ", all there are" : "") << "; refused "
              << refused_ << ", " << kinds_.size() << " kinds of operation, " << seconds()
              << " s, at most " << owned_.size() << " managers of " << bytes_per_world_
              << " bytes\n";
  }
  [[nodiscard]] int failures() const { return failures_; }
  [[nodiscard]] std::size_t kinds() const { return kinds_.size(); }
  [[nodiscard]] std::size_t states() const { return nodes_.size(); }
  // There are no more states, or the time was over.
  [[nodiscard]] bool ended_early() const { return ended_early_; }

 private:
  [[nodiscard]] bool full() const { return max_states_ != 0 && nodes_.size() >= max_states_; }

  World* take() {
    if (free_.empty()) {
      const std::size_t before = mallinfo2().uordblks;
      owned_.push_back(std::make_unique<World>(order_));
      bytes_per_world_ = mallinfo2().uordblks - before;
      return owned_.back().get();
    }
    World* const world = free_.back();
    free_.pop_back();
    return world;
  }

  void materialise(std::size_t at) {
    Node& node = nodes_[at];
    if (node.world != nullptr) return;
    Node& parent = nodes_[node.parent];
    node.world = take();
    node.world->copy_from(*parent.world);
    std::string broken;
    static_cast<void>(node.world->apply(operations()[node.operation], broken));
    --parent.waiting;
    let_go(node.parent);
  }

  void let_go(std::size_t at) {
    if (nodes_[at].waiting != 0) return;
    free_.push_back(nodes_[at].world);
    nodes_[at].world = nullptr;
  }

  void expand(std::size_t at) {
    materialise(at);
    const Hash before = nodes_[at].world->hash();
    World* const next = take();
    bool fresh = false;
    std::string broken;
    for (std::size_t i = 0; i < operations().size() && !full() && failures_ == 0; ++i) {
      const Operation& operation = operations()[i];
      if (!fresh) next->copy_from(*nodes_[at].world);
      fresh = true;
      const Outcome outcome = next->apply(operation, broken);
      if (outcome == Outcome::kSkipped) continue;
      const Hash hash = next->hash();
      if (outcome == Outcome::kRefused) {
        ++refused_;
        if (hash != before) broken += "; refused, and something changed";
      } else {
        ++transitions_;
        kinds_.insert(static_cast<int>(operation.kind));
        fresh = false;
        if (broken.empty()) next->check(broken);
        if (broken.empty() && seen_.insert(hash).second) {
          nodes_.push_back({static_cast<std::uint32_t>(at), static_cast<std::uint8_t>(i),
                            static_cast<std::uint8_t>(nodes_[at].depth + 1), 0, nullptr});
          ++nodes_[at].waiting;
        }
      }
      if (!broken.empty()) report(at, operation, broken);
    }
    free_.push_back(next);
    let_go(at);
  }

  void report(std::size_t at, const Operation& last, const std::string& broken) {
    ++failures_;
    std::string path = show(last);
    for (; at != 0; at = nodes_[at].parent) {
      path = show(operations()[nodes_[at].operation]) + ", " + path;
    }
    ADD_FAILURE() << broken << "\nafter: " << path;
  }

  Order order_;
  std::size_t max_states_;
  std::int64_t max_seconds_;
  std::vector<Node> nodes_;
  std::unordered_set<Hash, HashOfHash> seen_;
  std::unordered_set<int> kinds_;
  std::vector<std::unique_ptr<World>> owned_;
  std::vector<World*> free_;
  std::size_t bytes_per_world_ = 0;
  std::int64_t transitions_ = 0;
  std::int64_t refused_ = 0;
  int failures_ = 0;
  bool ended_early_ = false;
};

class Explore : public testing::TestWithParam<Order> {};

TEST_P(Explore, EveryRuleHoldsInEveryStateThatASmallPoolReaches) {
  const std::int64_t states = environment("KVFOLIO_EXPLORE_STATES", 12000);
  Explorer explorer(GetParam(), static_cast<std::size_t>(states),
                    environment("KVFOLIO_EXPLORE_SECONDS", 0));
  explorer.run();
  EXPECT_EQ(explorer.failures(), 0);
  // Fewer only where there are no more, or the time that was given is over.
  EXPECT_TRUE(explorer.ended_early() || explorer.states() >= static_cast<std::size_t>(states))
      << explorer.states() << " states of " << states;
  if (states >= 12000) {
    EXPECT_GE(explorer.kinds(), 14U);
  }
}

// A path that only 10^5 states come to: it had changed which blocks were the sequence's own.
TEST_P(Explore, ARefusedReserveChangesNothing) {
  const auto with = [](Kind kind, std::int32_t who, std::int32_t a, std::int32_t b) {
    return Operation{kind, who, a, b};
  };
  World world(GetParam());
  std::string broken;
  for (const Operation& operation : {with(Kind::kOpen, 0, 0b10, 0), with(Kind::kFeed, 0, 0b101, 0),
                                     with(Kind::kOpen, 1, 0b10, 0), with(Kind::kReserve, 0, 1, 0),
                                     with(Kind::kFeed, 1, 0b1001, 0)}) {
    ASSERT_EQ(world.apply(operation, broken), Outcome::kDone) << show(operation) << broken;
  }
  const Hash before = world.hash();
  EXPECT_EQ(world.apply({Kind::kReserve, 0, 3, 0}, broken), Outcome::kRefused) << broken;
  EXPECT_EQ(world.hash(), before);
}

INSTANTIATE_TEST_SUITE_P(BothOrders, Explore, testing::Values(Order::kInOrder, Order::kUnordered),
                         [](const auto& order) {
                           return order.param == Order::kInOrder ? "InOrder" : "Unordered";
                         });

}  // namespace
}  // namespace kvfolio::explore
