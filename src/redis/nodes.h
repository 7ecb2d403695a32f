// SPDX-License-Identifier: Apache-2.0
#pragma once

// Nodes are the servers that a RedisTier knows, and which of them has each slot of a cluster: the
// caller's own, and those that a map or a redirection named. It knows when the map is to be asked
// for, and forgets servers that the cluster does not name any more. What is said to a server is not
// its matter.
//
// Invariants: there are kMost at most, each with its own address; what has a slot is among them;
// before the first map no slot has an owner. Thread safety: none.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "redis/node.h"
#include "redis/slot_map.h"

namespace kvfolio::redis {

class Nodes {
 public:
  static constexpr std::size_t kMost = 256;
  static constexpr std::uint64_t kMapEveryUs = 100'000;   // it is asked for so often at most,
  static constexpr std::uint64_t kMapAgeUs = 10'000'000;  // and so often at least

  Nodes() : owners_(kNumSlots, nullptr) {}

  // Null: there are too many. A server that is new here has the addresses of its number only, and
  // not those that are too near.
  Node* find_or_add(const std::string& host, std::uint16_t port);
  // The caller named it, and it has these addresses.
  void add_seed(const std::string& host, std::uint16_t port, std::vector<Address> addresses);
  [[nodiscard]] const std::vector<std::unique_ptr<Node>>& all() const noexcept { return nodes_; }
  // Starts at another one each time, since the first ones may use up what a poll has. `visit` may
  // add some.
  template <typename Visit>
  void for_each_in_turn(const Visit& visit);
  void clear() noexcept;

  // ---- whose the slots are ----
  // The first map has come.
  [[nodiscard]] bool has_map() const noexcept { return has_map_; }
  // Null: no node has it.
  [[nodiscard]] Node* owner(int slot) const noexcept;
  [[nodiscard]] std::int32_t num_slots(const Node& node) const noexcept;
  // A server said that another one has the slot.
  void slot_moved(int slot, Node& to) noexcept;
  void want_map() noexcept { wants_map_ = true; }
  // Which node to ask for the map now, one after the other; null: none is to be asked, or ready.
  [[nodiscard]] Lane* lane_to_ask(std::uint64_t now_us) noexcept;
  // What `asked` said. A slot belongs to the range that names it first: those of a true map do not
  // overlap, and a false one cannot keep us here. True: a slot has another owner now.
  bool take_map(Node& asked, const std::vector<SlotRange>& ranges, std::uint64_t now_us);
  // `asked` is a server alone, or does not let us ask: if it is of a cluster, it redirects. True: a
  // slot has another owner now.
  bool take_no_map(Node& asked, bool is_cluster, std::uint64_t now_us);

  // Forgets nodes that the cluster does not name any more and that nothing is done with. Not in
  // each poll: it looks at all slots and items. `forget` is called with each lane of these.
  template <typename Forget>
  void drop_strangers(const Items& items, std::uint64_t now_us, const Forget& forget);

  // Null, or the rule that is broken.
  [[nodiscard]] const char* broken_rule(GrowingPause::Limits pauses) const;

 private:
  void leave_near_addresses(Node& node) const;
  // False: all are known, or it is too soon.
  bool mark_used(const Items& items, std::uint64_t now_us);

  std::vector<std::unique_ptr<Node>> nodes_;
  std::vector<Node*> owners_;  // by slot; null: no node has it
  bool has_map_ = false;
  bool is_cluster_ = true;
  bool wants_map_ = true;
  std::uint64_t map_us_ = 0;  // when it came
  std::uint64_t map_asked_us_ = 0;
  std::size_t next_asked_ = 0, next_turn_ = 0;
  std::uint64_t strangers_us_ = 0;  // when they were looked for
};

template <typename Visit>
void Nodes::for_each_in_turn(const Visit& visit) {
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    visit(*nodes_[(i + next_turn_) % nodes_.size()]);
  }
  ++next_turn_;
}

template <typename Forget>
void Nodes::drop_strangers(const Items& items, std::uint64_t now_us, const Forget& forget) {
  if (!mark_used(items, now_us)) return;
  std::erase_if(nodes_, [&](const std::unique_ptr<Node>& node) {
    if (node->is_used) return false;
    for (Lane& lane : node->lanes) {
      KVFOLIO_CHECK(lane.queue.empty());  // what waits there would never end
      forget(lane);
    }
    return true;
  });
}

}  // namespace kvfolio::redis
