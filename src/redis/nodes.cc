// SPDX-License-Identifier: Apache-2.0
//
// RedisTier's connections, what is sent over them, and the map of slots.

#include <sys/epoll.h>

#include <algorithm>
#include <array>

#include "base/text.h"
#include "redis/redis_tier_impl.h"

namespace kvfolio {

using redis::Connection;
using redis::Question;
using redis::ReplyReader;

namespace {
constexpr int kFailuresMax = 3;
constexpr std::size_t kNodesMax = 1024;
constexpr std::uint64_t kRetryUs = 10'000;       // after the first failures
constexpr std::uint64_t kMapEveryUs = 100'000;   // at most so often
constexpr std::uint64_t kMapAgeUs = 10'000'000;  // at least so often
constexpr std::int64_t kSmallBytes = 256;        // of a question without a value
}  // namespace

bool RedisTier::Impl::Node::is_open() const noexcept { return failures >= kFailuresMax; }

RedisTier::Impl::Node* RedisTier::Impl::find_or_add(const std::string& host, std::uint16_t port) {
  for (const auto& node : nodes_) {
    if (node->host == host && node->port == port) return node.get();
  }
  if (nodes_.size() >= kNodesMax) return nullptr;
  nodes_.push_back(std::make_unique<Node>());
  Node& node = *nodes_.back();
  node.host = host;
  node.port = port;
  node.addresses = redis::resolve(host, port, true);  // of an address: does not wait
  for (Lane& lane : node.lanes) lane.node = &node;
  return &node;
}

// ---- connections ----

void RedisTier::Impl::listen() {
  std::array<epoll_event, 256> events;
  const int n = epoll_wait(epoll_fd_, events.data(), static_cast<int>(events.size()), 0);
  for (int i = 0; i < n; ++i) {
    auto* lane = static_cast<Lane*>(events[static_cast<std::size_t>(i)].data.ptr);
    if (lane != nullptr) visit(*lane);
  }
}

// Moves what can be moved, and takes the replies that came.
void RedisTier::Impl::visit(Lane& lane) {
  Connection& connection = lane.connection;
  do {
    if (connection.state() == Connection::State::kClosed) return;
    const bool was_connecting = connection.state() == Connection::State::kConnecting;
    if (!connection.move(budget_, now_us_)) {
      lose(lane, connection.error());
      return;
    }
    if (was_connecting && connection.state() == Connection::State::kGreeting) greet(lane);
    if (!take_replies(lane)) return;
  } while (connection.has_more() && budget_.bytes > 0);
}

// False: the connection is closed now.
bool RedisTier::Impl::take_replies(Lane& lane) {
  for (;;) {
    Question question;
    const redis::Reply* reply = nullptr;
    const ReplyReader::Next next = lane.connection.next(question, reply);
    if (next == ReplyReader::Next::kMore) return true;
    if (next == ReplyReader::Next::kTooLong) {
      refuse_long_value(lane);
      return false;
    }
    const bool fits = next == ReplyReader::Next::kReply && on_reply(lane, question, *reply);
    if (lane.connection.state() == Connection::State::kClosed) return false;
    if (fits) continue;
    ++counters_.replies_refused;
    lose(lane, "a reply that does not fit the question");
    return false;
  }
}

// It is longer than any record that was asked for: not what we stored. What follows cannot be found
// without reading it all.
void RedisTier::Impl::refuse_long_value(Lane& lane) {
  ++counters_.replies_refused;
  const Id id = lane.connection.questions().front().item;
  if (id != 0) finish(id, TierResult::kCorrupt);
  drop(lane, "a value that is too long");
}

void RedisTier::Impl::connect(Lane& lane) {
  Node& node = *lane.node;
  if (node.addresses.empty()) {
    lose(lane, "it is announced under a name, which is not among servers");
    return;
  }
  const redis::Address& address = node.addresses[node.next_address++ % node.addresses.size()];
  if (!lane.connection.open(address, settings_.tls.get(), node.host,
                            settings_.options.stall_timeout_us, now_us_)) {
    lose(lane, lane.connection.error());
    return;
  }
  lane.interest = 0;
  visit(lane);
}

// The first questions. Nothing else is sent before the reply to PING.
void RedisTier::Impl::greet(Lane& lane) {
  if (!settings_.password.empty()) {
    std::vector<std::string_view> words{"AUTH"};
    if (!settings_.user.empty()) words.push_back(settings_.user);
    words.push_back(settings_.password);
    lane.connection.ask({.kind = Question::Kind::kAuth}, redis::Command(words), now_us_);
  }
  ask_ping(lane);
}

void RedisTier::Impl::ask_ping(Lane& lane) {
  const std::array<std::string_view, 1> ping{"PING"};
  lane.connection.ask({.kind = Question::Kind::kPing}, redis::Command(ping), now_us_);
}

// Counts a failure of the node, and drops the connection.
void RedisTier::Impl::lose(Lane& lane, const std::string& why) {
  Node& node = *lane.node;
  const bool was_ready = lane.connection.state() == Connection::State::kReady;
  // A server may close what is not used.
  if (!was_ready || !lane.connection.questions().empty()) ++node.failures;
  want_map_ = true;
  node.retry_us = now_us_ + kRetryUs;
  if (node.is_open()) open_breaker(node);
  drop(lane, why);
}

// Closes the connection and asks again for what was in flight.
void RedisTier::Impl::drop(Lane& lane, const std::string& why) {
  if (lane.connection.state() == Connection::State::kReady) ++counters_.connections_lost;
  std::vector<Id> in_flight;
  for (const Question& question : lane.connection.questions()) {
    if (question.item != 0) in_flight.push_back(question.item);
  }
  lane.connection.close(why);
  lane.interest = 0;
  lane.node->trouble = why;
  for (const Id id : in_flight) {
    items_.at(id).lane = nullptr;
    retry(id);
  }
}

void RedisTier::Impl::open_breaker(Node& node) {
  const RedisOptions& options = settings_.options;
  node.failures = kFailuresMax;
  node.pause_us = std::clamp(node.pause_us * 2, options.breaker_us_min, options.breaker_us_max);
  node.retry_us = now_us_ + node.pause_us;
  for (Lane& lane : node.lanes) {
    for (const Id id : std::exchange(lane.queue, {})) {
      if (items_.contains(id)) finish(id, TierResult::kUnavailable);
    }
  }
}

void RedisTier::Impl::note_success(Node& node) {
  if (node.failures > 0) node.trouble.clear();
  node.failures = 0;
  node.pause_us = 0;
}

// ---- once in every poll ----

void RedisTier::Impl::tend() {
  while (!later_.empty() && later_.begin()->first <= now_us_) {
    const Id id = later_.begin()->second;
    later_.erase(later_.begin());
    if (items_.contains(id)) retry(id);
  }
  ask_for_map();
  // Starts at another node each time, since the first ones may use up the budget.
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    tend(*nodes_[(i + last_tended_) % nodes_.size()]);
  }
  ++last_tended_;
  drop_strangers();
}

void RedisTier::Impl::tend(Node& node) {
  const RedisOptions& options = settings_.options;
  for (Lane& lane : node.lanes) {
    Connection& connection = lane.connection;
    if (connection.has_more()) visit(lane);
    if (connection.is_late(now_us_, options.connect_timeout_us, options.stall_timeout_us)) {
      lose(lane, connection.state() == Connection::State::kReady ? "it did not reply in time"
                                                                 : "it did not greet in time");
    }
    // An open breaker is tried by one connection.
    const bool is_loads = &lane == &node.lanes[kLoads];
    const bool wanted = is_loads || (!lane.queue.empty() && !node.is_open());
    if (wanted && connection.state() == Connection::State::kClosed && now_us_ >= node.retry_us) {
      connect(lane);
    }
    if (connection.state() == Connection::State::kReady) {
      // The other connection opened the breaker; this one asks whether all is well again.
      if (is_loads && node.is_open() && now_us_ >= node.retry_us) {
        ask_ping(lane);
        node.retry_us = now_us_ + node.pause_us;
      }
      send_queue(lane);
    }
    set_interest(lane);
  }
}

void RedisTier::Impl::send_queue(Lane& lane) {
  const bool had_any = !lane.queue.empty();
  while (!lane.queue.empty() && budget_.bytes > 0) {
    const Id id = lane.queue.front();
    const auto found = items_.find(id);
    if (found == items_.end()) {
      lane.queue.pop_front();
      continue;
    }
    const std::int64_t in_flight = lane.connection.bytes_in_flight();
    if (in_flight > 0 &&
        in_flight + found->second.item.bytes > settings_.options.bytes_in_flight_max) {
      break;
    }
    lane.queue.pop_front();
    send_item(lane, id, found->second);
  }
  if (had_any) visit(lane);
}

void RedisTier::Impl::send_item(Lane& lane, Id id, Item& item) {
  Connection& connection = lane.connection;
  if (item.ask != nullptr) {
    const std::array<std::string_view, 1> asking{"ASKING"};
    connection.ask({.kind = Question::Kind::kAsking}, redis::Command(asking), now_us_);
    item.ask = nullptr;
  }
  Question question{.kind = Question::Kind::kItem, .item = id, .deadline_us = item.deadline_us};
  question.budget = kSmallBytes;
  if (item.op == TierOp::kLoad) {
    question.target = {item.item.data, static_cast<std::size_t>(item.item.bytes)};
    question.budget += item.item.bytes;
  }
  if (item.op == TierOp::kStore) {
    question.budget += item.item.bytes;
    budget_.bytes -= item.item.bytes;  // the command is a copy
  }
  item.question = connection.ask(question, command_of(item), now_us_);
  item.lane = &lane;
  ++item.sends;
}

redis::Command RedisTier::Impl::command_of(const Item& item) const {
  const std::string key = key_of(item.item.key);
  const std::string ttl = std::to_string(settings_.options.ttl_ms);
  switch (item.op) {
    case TierOp::kExists:
      return redis::Command(std::array<std::string_view, 2>{"EXISTS", key});
    case TierOp::kLoad:
      return redis::Command(std::array<std::string_view, 2>{"GET", key});
    case TierOp::kErase:
      return redis::Command(std::array<std::string_view, 2>{"UNLINK", key});
    case TierOp::kStore:
      break;
  }
  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-reinterpret-cast): bytes as the text of a command
  const auto* data = reinterpret_cast<const char*>(item.item.data);
  const std::string_view value(data, static_cast<std::size_t>(item.item.bytes));
  if (settings_.options.ttl_ms == 0) {
    return redis::Command(std::array<std::string_view, 4>{"SET", key, value, "NX"});
  }
  return redis::Command(std::array<std::string_view, 6>{"SET", key, value, "NX", "PX", ttl});
}

void RedisTier::Impl::set_interest(Lane& lane) {
  const int fd = lane.connection.fd();
  if (fd < 0) return;  // closing took it out of epoll
  const std::uint32_t wanted = EPOLLIN | (lane.connection.wants_write() ? EPOLLOUT : 0u);
  if (wanted == lane.interest) return;
  epoll_event event{.events = wanted, .data = {.ptr = &lane}};
  epoll_ctl(epoll_fd_, lane.interest == 0 ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, fd, &event);
  lane.interest = wanted;
}

// ---- the map of slots ----

void RedisTier::Impl::ask_for_map() {
  const bool is_old = is_cluster_ && now_us_ - map_us_ > kMapAgeUs;
  if (!want_map_ && !is_old && map_known_) return;
  if (map_asked_us_ != 0 && now_us_ - map_asked_us_ < kMapEveryUs) return;
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    Connection& connection = nodes_[next_map_node_++ % nodes_.size()]->lanes[kLoads].connection;
    if (connection.state() != Connection::State::kReady) continue;
    const std::array<std::string_view, 2> words{"CLUSTER", "SLOTS"};
    connection.ask({.kind = Question::Kind::kSlots}, redis::Command(words), now_us_);
    map_asked_us_ = now_us_;
    return;
  }
}

void RedisTier::Impl::on_map(Node& asked, const redis::Reply& reply) {
  if (reply.kind == redis::Reply::Kind::kArray) {
    note_success(asked);
    const std::vector<redis::SlotRange> ranges = redis::read_slots(reply);
    if (!ranges.empty()) take_map(asked, ranges);
    return;
  }
  const std::string_view text = reply.text;
  if (reply.kind != redis::Reply::Kind::kError || text.starts_with("LOADING") ||
      text.starts_with("CLUSTERDOWN") || text.starts_with("NOAUTH")) {
    return;
  }
  // A server alone, or one that does not let us ask: if it is of a cluster, it redirects.
  if (!map_known_) take_map(asked, {{.first = 0, .last = redis::kNumSlots - 1}});
  is_cluster_ = text.find("cluster support disabled") == std::string_view::npos;
}

void RedisTier::Impl::take_map(Node& asked, const std::vector<redis::SlotRange>& ranges) {
  const std::vector<Node*> before = owners_;
  std::fill(owners_.begin(), owners_.end(), nullptr);
  for (const auto& node : nodes_) node->in_map = false;
  for (const redis::SlotRange& range : ranges) {
    const std::string& host = range.host.empty() ? asked.host : range.host;
    Node* node = range.port == 0 ? &asked : find_or_add(host, range.port);
    if (node == nullptr) continue;
    node->in_map = true;
    std::fill(owners_.begin() + range.first, owners_.begin() + range.last + 1, node);
  }
  map_known_ = true;
  want_map_ = false;
  map_us_ = now_us_;
  if (before != owners_) route_again();
}

void RedisTier::Impl::route_again() {
  std::vector<Id> ids = std::exchange(unrouted_, {});
  for (const auto& node : nodes_) {
    for (Lane& lane : node->lanes) {
      ids.insert(ids.end(), lane.queue.begin(), lane.queue.end());
      lane.queue.clear();
    }
  }
  for (const Id id : ids) {
    if (items_.contains(id)) route(id);
  }
}

// Forgets nodes that the cluster does not name any more.
void RedisTier::Impl::drop_strangers() {
  std::erase_if(nodes_, [&](const auto& node) {
    if (node->is_seed || node->in_map || !map_known_) return false;
    const bool is_used = std::any_of(node->lanes.begin(), node->lanes.end(), [](const Lane& lane) {
      return !lane.queue.empty() || !lane.connection.questions().empty();
    });
    if (is_used) return false;
    return std::none_of(owners_.begin(), owners_.end(),
                        [&](const Node* owner) { return owner == node.get(); }) &&
           std::none_of(items_.begin(), items_.end(),
                        [&](const auto& item) { return item.second.ask == node.get(); });
  });
}

}  // namespace kvfolio
