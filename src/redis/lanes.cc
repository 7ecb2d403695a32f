// SPDX-License-Identifier: Apache-2.0
//
// RedisTier's connections, and what is sent over them.

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
constexpr std::int64_t kSmallBytes = 256;  // of a question without a value
// The header of a record is what is kept of a value as text.
static_assert(kRecordHeaderBytes <= redis::Reply::kTextMax);
}  // namespace

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
  nodes_.want_map();
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
  nodes_.for_each_in_turn([this](Node& node) { tend(node); });
  nodes_.drop_strangers(items_, now_us_, [this](Lane& lane) { forget_descriptor(lane); });
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
  Lane* const lane = nodes_.lane_to_ask(now_us_);
  if (lane == nullptr) return;
  const std::array<std::string_view, 2> words{"CLUSTER", "SLOTS"};
  const std::uint64_t due_us = now_us_ + settings_.options.stall_timeout_us;
  lane->connection.ask({.kind = Question::Kind::kSlots, .deadline_us = due_us},
                       redis::Command(words), now_us_);
}

void RedisTier::Impl::on_map(Lane& asked, const redis::Reply& reply) {
  if (reply.kind == redis::Reply::Kind::kArray) {
    note_success(asked);
    const std::vector<redis::SlotRange> ranges = redis::read_slots(reply);
    if (!ranges.empty() && nodes_.take_map(*asked.node, ranges, now_us_)) route_again();
    return;
  }
  const std::string_view text = reply.text;
  if (reply.kind != redis::Reply::Kind::kError || text.starts_with("LOADING") ||
      text.starts_with("CLUSTERDOWN") || text.starts_with("NOAUTH")) {
    return;
  }
  const bool is_cluster = text.find("cluster support disabled") == std::string_view::npos;
  if (nodes_.take_no_map(*asked.node, is_cluster, now_us_)) route_again();
}

void RedisTier::Impl::route_again() {
  std::vector<Id> ids(unrouted_.begin(), unrouted_.end());
  for (const auto& node : nodes_.all()) {
    for (const Lane& lane : node->lanes) {
      ids.insert(ids.end(), lane.queue.begin(), lane.queue.end());
    }
  }
  for (const Id id : ids) {
    items_.leave_queue(items_.at(id));
    route(id);
  }
}

}  // namespace kvfolio
