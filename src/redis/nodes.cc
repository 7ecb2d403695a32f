// SPDX-License-Identifier: Apache-2.0
//
// RedisTier's connections, what is sent over them, and the map of slots.

#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <optional>

#include "base/text.h"
#include "redis/redis_tier_impl.h"

namespace kvfolio {

using redis::Connection;
using redis::Question;
using redis::ReplyReader;

namespace {
constexpr std::size_t kNodesMax = 256;
constexpr std::uint64_t kMapEveryUs = 100'000;   // at most so often
constexpr std::uint64_t kMapAgeUs = 10'000'000;  // at least so often
constexpr std::int64_t kSmallBytes = 256;        // of a question without a value
// The header of a record is what is kept of a value as text.
static_assert(kRecordHeaderBytes <= redis::Reply::kTextMax);
static_assert(kMapEveryUs < kMapAgeUs);
}  // namespace

redis::Node* RedisTier::Impl::find_or_add(const std::string& host, std::uint16_t port) {
  for (const auto& node : nodes_) {
    if (node->host == host && node->port == port) return node.get();
  }
  if (nodes_.size() >= kNodesMax) return nullptr;
  nodes_.push_back(std::make_unique<Node>());
  Node& node = *nodes_.back();
  node.host = host;
  node.port = port;
  node.addresses = redis::resolve(host, port, true);  // of an address: does not wait
  leave_near_addresses(node);
  for (Lane& lane : node.lanes) lane.node = &node;
  return &node;
}

// A server that lies, or is wrong about itself, does not lead us to what else listens on this
// machine or link, nor has us say the password there, unless the caller's own servers are there.
void RedisTier::Impl::leave_near_addresses(Node& node) const {
  const auto is_too_near = [this](const redis::Address& address) {
    const redis::Scope scope = redis::scope_of(address);
    const auto has_it = [scope](const redis::Address& one) {
      return redis::scope_of(one) == scope;
    };
    const auto is_there = [&](const auto& seed) {
      return seed->is_seed && std::any_of(seed->addresses.begin(), seed->addresses.end(), has_it);
    };
    return scope != redis::Scope::kAny && std::none_of(nodes_.begin(), nodes_.end(), is_there);
  };
  node.too_near = std::erase_if(node.addresses, is_too_near) > 0;
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
// without reading it all. Where no record was asked for, the node fails.
void RedisTier::Impl::refuse_long_value(Lane& lane) {
  ++counters_.replies_refused;
  const Question& asked = lane.connection.questions().front();
  if (asked.kind != Question::Kind::kItem) return lose(lane, "a reply that is too long");
  if (asked.item != 0) {
    finish(asked.item, TierResult::kCorrupt);
  } else {
    ++health_.corrupt_unasked;  // the one who asked does not wait any more
  }
  // The others are asked for again, through no fault of theirs.
  for (const Question& question : lane.connection.questions()) {
    if (question.item == 0) continue;
    Item& item = items_.at(question.item);
    KVFOLIO_DCHECK(item.lane == &lane && item.sends > 0);
    --item.sends;
  }
  drop(lane, "a value that is too long");
}

void RedisTier::Impl::connect(Lane& lane) {
  Node& node = *lane.node;
  node.tried = true;
  if (node.addresses.empty()) {
    lose(lane, node.too_near ? "it is announced at an address of this machine or link, where none "
                               "of servers is"
                             : "it is announced under a name, which is not among servers");
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
  KVFOLIO_CHECK(lane.connection.questions().empty());  // the password is the first thing said
  const std::uint64_t due_us = now_us_ + settings_.options.connect_timeout_us;
  if (!settings_.password.empty()) {
    std::vector<std::string_view> words{"AUTH"};
    if (!settings_.user.empty()) words.push_back(settings_.user);
    words.push_back(settings_.password);
    lane.connection.ask({.kind = Question::Kind::kAuth, .deadline_us = due_us},
                        redis::Command(words), now_us_);
  }
  const std::array<std::string_view, 1> ping{"PING"};
  lane.connection.ask({.kind = Question::Kind::kPing, .deadline_us = due_us}, redis::Command(ping),
                      now_us_);
}

// Counts a failure, and drops the connection. Takes the reason as a copy: it may be of a reply,
// which ends with the connection.
void RedisTier::Impl::lose(Lane& lane, std::string why) {
  // A server may close what is not used.
  const bool was_used = !lane.is_ready() || !lane.connection.questions().empty();
  want_map_ = true;
  lane.breaker.lost(was_used, now_us_, pauses());
  drop(lane, std::move(why));
}

// Closes the connection and asks again for what was in flight.
void RedisTier::Impl::drop(Lane& lane, std::string why) {
  if (lane.is_ready()) ++counters_.connections_lost;
  std::vector<Id> in_flight;
  for (const Question& question : lane.connection.questions()) {
    if (question.item != 0) in_flight.push_back(question.item);
  }
  forget_descriptor(lane);
  lane.connection.close(why);
  lane.node->trouble = std::move(why);
  for (const Id id : in_flight) {
    Item& item = items_.at(id);
    KVFOLIO_CHECK(item.lane == &lane);
    item.lane = nullptr;
    retry(id);
  }
}

// Closing alone does not do it where a child of fork() has the descriptor, too: then epoll would go
// on to name the lane.
void RedisTier::Impl::forget_descriptor(Lane& lane) {
  if (lane.interest != 0) epoll_ctl(epoll_fd_, EPOLL_CTL_DEL, lane.connection.fd(), nullptr);
  lane.interest = 0;
}

void RedisTier::Impl::give_up_queue(Lane& lane) {
  for (int left = kEndsPerPoll; left > 0 && !lane.queue.empty(); --left) {
    finish(lane.queue.front(), TierResult::kUnavailable);
  }
}

void RedisTier::Impl::note_success(Lane& lane) {
  lane.node->refuses = false;
  if (lane.breaker.went_well()) lane.node->trouble.clear();
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
    if (lane.is_open()) give_up_queue(lane);
    if (connection.has_more()) visit(lane);
    if (connection.is_late(now_us_, options.connect_timeout_us, options.stall_timeout_us)) {
      lose(lane, lane.is_ready() ? "it did not reply in time" : "it did not greet in time");
    }
    if (connection.state() == Connection::State::kClosed && is_wanted(lane)) connect(lane);
    if (lane.is_ready()) send_queue(lane);
    set_interest(lane);
  }
}

// Nodes of the map are connected to once, so that who cannot be reached is known, and then when
// there is something to say; the caller's own always, for they know the map. An open breaker is
// tried by a connection.
bool RedisTier::Impl::is_wanted(const Lane& lane) const {
  if (!lane.breaker.may_try(now_us_)) return false;
  const bool first =
      &lane == &lane.node->lanes[redis::kLoads] && (lane.node->is_seed || !lane.node->tried);
  return first || !lane.queue.empty() || lane.is_open();
}

void RedisTier::Impl::send_queue(Lane& lane) {
  while (lane.is_ready() && ask_some(lane)) visit(lane);
}

// A store is sealed here, so no more is asked than this poll may send.
bool RedisTier::Impl::ask_some(Lane& lane) {
  const Connection& connection = lane.connection;
  bool asked = false;
  while (!lane.queue.empty() && connection.unsent_bytes() < budget_.bytes) {
    const Id id = lane.queue.front();
    Item& item = items_.at(id);
    const std::int64_t in_flight = connection.bytes_in_flight();
    if (in_flight > 0 && in_flight + item.item.bytes > settings_.options.bytes_in_flight_max) break;
    items_.leave_queue(item);
    send_item(lane, id, item);
    asked = true;
  }
  return asked;
}

void RedisTier::Impl::send_item(Lane& lane, Id id, Item& item) {
  std::optional<redis::Command> command = command_of(item);
  if (!command) return finish(id, TierResult::kBusy);
  KVFOLIO_DCHECK(item.lane == nullptr && item.waits_in == nullptr);
  KVFOLIO_CHECK(item.sends < kSendsMax);
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
    question.header_bytes = kRecordHeaderBytes;
    question.budget += kRecordHeaderBytes + item.item.bytes;
  }
  if (item.op == TierOp::kStore) {
    question.budget += kRecordHeaderBytes + item.item.bytes;
    budget_.bytes -= item.item.bytes;  // sealing reads it all
  }
  item.question = connection.ask(question, *std::move(command), now_us_);
  item.lane = &lane;
  ++item.sends;
}

// Nothing: no memory to seal a record with.
std::optional<redis::Command> RedisTier::Impl::command_of(const Item& item) const {
  const std::string key = key_of(item.item.key);
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
  const std::span<const std::byte> data(item.item.data, static_cast<std::size_t>(item.item.bytes));
  std::array<std::byte, kRecordHeaderBytes> header{};
  if (!seal_record(info_of(item), data, settings_.keys, header)) return std::nullopt;
  const std::string ttl = std::to_string(settings_.options.ttl_ms);
  const std::array<std::string_view, 3> more{"NX", "PX", ttl};
  return redis::Command::set(key, header, data,
                             std::span(more).first(settings_.options.ttl_ms == 0 ? 1 : 3));
}

RecordInfo RedisTier::Impl::info_of(const Item& item) {
  return {.key = item.item.key, .payload_bytes = item.item.bytes};
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
    Lane& lane = nodes_[next_map_node_++ % nodes_.size()]->lanes[redis::kLoads];
    if (!lane.is_ready()) continue;
    const std::array<std::string_view, 2> words{"CLUSTER", "SLOTS"};
    const std::uint64_t due_us = now_us_ + settings_.options.stall_timeout_us;
    lane.connection.ask({.kind = Question::Kind::kSlots, .deadline_us = due_us},
                        redis::Command(words), now_us_);
    map_asked_us_ = now_us_;
    return;
  }
}

void RedisTier::Impl::on_map(Lane& asked, const redis::Reply& reply) {
  if (reply.kind == redis::Reply::Kind::kArray) {
    note_success(asked);
    const std::vector<redis::SlotRange> ranges = redis::read_slots(reply);
    if (!ranges.empty()) take_map(*asked.node, ranges);
    return;
  }
  const std::string_view text = reply.text;
  if (reply.kind != redis::Reply::Kind::kError || text.starts_with("LOADING") ||
      text.starts_with("CLUSTERDOWN") || text.starts_with("NOAUTH")) {
    return;
  }
  // A server alone, or one that does not let us ask: if it is of a cluster, it redirects.
  if (!map_known_) take_map(*asked.node, {{.first = 0, .last = redis::kNumSlots - 1}});
  is_cluster_ = text.find("cluster support disabled") == std::string_view::npos;
  want_map_ = false;
  map_us_ = now_us_;
}

// A slot belongs to the range that names it first: those of a true map do not overlap, and a false
// one cannot keep us here.
void RedisTier::Impl::take_map(Node& asked, const std::vector<redis::SlotRange>& ranges) {
  const std::vector<Node*> before = owners_;
  std::fill(owners_.begin(), owners_.end(), nullptr);
  for (const auto& node : nodes_) node->in_map = false;
  std::map<std::pair<std::string, std::uint16_t>, Node*> known;
  int left = redis::kNumSlots;
  for (const redis::SlotRange& range : ranges) {
    KVFOLIO_CHECK(range.first >= 0 && range.first <= range.last && range.last < redis::kNumSlots);
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
  map_known_ = true;
  want_map_ = false;
  map_us_ = now_us_;
  if (before != owners_) route_again();
}

void RedisTier::Impl::route_again() {
  std::vector<Id> ids(unrouted_.begin(), unrouted_.end());
  for (const auto& node : nodes_) {
    for (const Lane& lane : node->lanes) {
      ids.insert(ids.end(), lane.queue.begin(), lane.queue.end());
    }
  }
  for (const Id id : ids) {
    items_.leave_queue(items_.at(id));
    route(id);
  }
}

// Forgets nodes that the cluster does not name any more. Not in each poll: it looks at all slots
// and items.
void RedisTier::Impl::drop_strangers() {
  if (!map_known_ || now_us_ - strangers_us_ < kMapEveryUs) return;
  strangers_us_ = now_us_;
  const auto is_known = [](const auto& node) { return node->is_seed || node->in_map; };
  if (std::all_of(nodes_.begin(), nodes_.end(), is_known)) return;
  for (const auto& node : nodes_) {
    node->is_used = is_known(node);
    for (const Lane& lane : node->lanes) {
      node->is_used |= !lane.queue.empty() || !lane.connection.questions().empty();
    }
  }
  for (Node* owner : owners_) {
    if (owner != nullptr) owner->is_used = true;
  }
  for (const auto& [id, item] : items_.all()) {
    if (item.ask != nullptr) item.ask->is_used = true;
  }
  std::erase_if(nodes_, [&](const auto& node) {
    if (node->is_used) return false;
    for (Lane& lane : node->lanes) {
      KVFOLIO_CHECK(lane.queue.empty());  // what waits there would never end
      forget_descriptor(lane);
    }
    return true;
  });
}

}  // namespace kvfolio
