// SPDX-License-Identifier: Apache-2.0
#include "redis/nodes.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

namespace kvfolio::redis {

static_assert(Nodes::kMapEveryUs < Nodes::kMapAgeUs);

// ---- the nodes ----

Node* Nodes::find_or_add(const std::string& host, std::uint16_t port) {
  for (const auto& node : nodes_) {
    if (node->host == host && node->port == port) return node.get();
  }
  if (nodes_.size() >= kMost) return nullptr;
  nodes_.push_back(std::make_unique<Node>());
  Node& node = *nodes_.back();
  node.host = host;
  node.port = port;
  node.addresses = resolve(host, port, true);  // of an address: does not wait
  leave_near_addresses(node);
  for (Lane& lane : node.lanes) lane.node = &node;
  return &node;
}

void Nodes::add_seed(const std::string& host, std::uint16_t port, std::vector<Address> addresses) {
  Node* const node = find_or_add(host, port);
  KVFOLIO_CHECK(node != nullptr);  // there is room for more than all seeds
  node->addresses = std::move(addresses);
  node->too_near = false;
  node->is_seed = true;
}

// A server that lies, or is wrong about itself, does not lead us to what else listens on this
// machine or link, nor has us say the password there, unless the caller's own servers are there.
void Nodes::leave_near_addresses(Node& node) const {
  const auto is_too_near = [this](const Address& address) {
    const Scope scope = scope_of(address);
    const auto has_it = [scope](const Address& one) { return scope_of(one) == scope; };
    const auto is_there = [&](const auto& seed) {
      return seed->is_seed && std::any_of(seed->addresses.begin(), seed->addresses.end(), has_it);
    };
    return scope != Scope::kAny && std::none_of(nodes_.begin(), nodes_.end(), is_there);
  };
  node.too_near = std::erase_if(node.addresses, is_too_near) > 0;
}

void Nodes::clear() noexcept {
  std::fill(owners_.begin(), owners_.end(), nullptr);
  nodes_.clear();
}

// ---- whose the slots are ----

Node* Nodes::owner(int slot) const noexcept {
  KVFOLIO_DCHECK(slot >= 0 && slot < kNumSlots);
  return owners_[static_cast<std::size_t>(slot)];
}

std::int32_t Nodes::num_slots(const Node& node) const noexcept {
  return static_cast<std::int32_t>(std::count(owners_.begin(), owners_.end(), &node));
}

void Nodes::slot_moved(int slot, Node& to) noexcept {
  KVFOLIO_DCHECK(slot >= 0 && slot < kNumSlots && has_map_);
  owners_[static_cast<std::size_t>(slot)] = &to;
  wants_map_ = true;
}

Lane* Nodes::lane_to_ask(std::uint64_t now_us) noexcept {
  const bool is_old = is_cluster_ && now_us - map_us_ > kMapAgeUs;
  if (!wants_map_ && !is_old && has_map_) return nullptr;
  if (map_asked_us_ != 0 && now_us - map_asked_us_ < kMapEveryUs) return nullptr;
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    Lane& lane = nodes_[next_asked_++ % nodes_.size()]->lanes[kLoads];
    if (!lane.is_ready()) continue;
    map_asked_us_ = now_us;
    return &lane;
  }
  return nullptr;
}

bool Nodes::take_map(Node& asked, const std::vector<SlotRange>& ranges, std::uint64_t now_us) {
  const std::vector<Node*> before = owners_;
  std::fill(owners_.begin(), owners_.end(), nullptr);
  for (const auto& node : nodes_) node->in_map = false;
  std::map<std::pair<std::string, std::uint16_t>, Node*> known;
  int left = kNumSlots;
  for (const SlotRange& range : ranges) {
    KVFOLIO_CHECK(range.first >= 0 && range.first <= range.last && range.last < kNumSlots);
    const int slots = range.last - range.first + 1;
    if (slots > left) break;
    left -= slots;
    const std::string& host = range.host.empty() ? asked.host : range.host;
    Node*& node = known[{host, range.port}];
    if (node == nullptr) node = range.port == 0 ? &asked : find_or_add(host, range.port);
    if (node == nullptr) break;  // too many nodes
    node->in_map = true;
    std::fill(owners_.begin() + range.first, owners_.begin() + range.last + 1, node);
  }
  has_map_ = true;
  wants_map_ = false;
  map_us_ = now_us;
  return before != owners_;
}

bool Nodes::take_no_map(Node& asked, bool is_cluster, std::uint64_t now_us) {
  const bool has_changed =
      !has_map_ && take_map(asked, {{.first = 0, .last = kNumSlots - 1}}, now_us);
  is_cluster_ = is_cluster;
  wants_map_ = false;
  map_us_ = now_us;
  return has_changed;
}

// ---- nodes that are not named any more ----

bool Nodes::mark_used(const Items& items, std::uint64_t now_us) {
  if (!has_map_ || now_us - strangers_us_ < kMapEveryUs) return false;
  strangers_us_ = now_us;
  const auto is_known = [](const auto& node) { return node->is_seed || node->in_map; };
  if (std::all_of(nodes_.begin(), nodes_.end(), is_known)) return false;
  for (const auto& node : nodes_) {
    node->is_used = is_known(node);
    for (const Lane& lane : node->lanes) {
      node->is_used |= !lane.queue.empty() || !lane.connection.questions().empty();
    }
  }
  for (Node* owner : owners_) {
    if (owner != nullptr) owner->is_used = true;
  }
  for (const auto& [id, item] : items.all()) {
    if (item.ask != nullptr) item.ask->is_used = true;
  }
  return true;
}

const char* Nodes::broken_rule(GrowingPause::Limits pauses) const {
  if (nodes_.size() > kMost) return "there are too many nodes";
  std::set<const Node*> there = {nullptr};
  std::set<std::pair<std::string, std::uint16_t>> addresses;
  for (const auto& node : nodes_) {
    if (const char* rule = node->broken_rule(pauses); rule != nullptr) return rule;
    if (!addresses.emplace(node->host, node->port).second) return "a node is there twice";
    there.insert(node.get());
  }
  for (const Node* owner : owners_) {
    if (!there.contains(owner)) return "a slot is of a node that is gone";
    if (owner != nullptr && !has_map_) return "a slot has an owner, and there is no map";
  }
  return nullptr;
}

}  // namespace kvfolio::redis
