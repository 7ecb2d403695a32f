// SPDX-License-Identifier: Apache-2.0
//
// What a reply means for the item that asked. https://redis.io/docs/reference/cluster-spec has the
// errors of a cluster.

#include <charconv>

#include "redis/redis_tier_impl.h"

namespace kvfolio {

using redis::Question;
using redis::Reply;

namespace {
constexpr std::uint64_t kTryAgainUs = 5'000;   // a slot is being moved, key by key
constexpr std::uint64_t kReadOnlyUs = 50'000;  // a primary has become a replica

std::string_view first_word(std::string_view text) { return text.substr(0, text.find(' ')); }
}  // namespace

bool RedisTier::Impl::on_reply(Lane& lane, const Question& question, const Reply& reply) {
  switch (question.kind) {
    case Question::Kind::kAuth:
      // Even where PING would be answered: as the default user, who may have other rights.
      if (reply.kind == Reply::Kind::kError) refuse(lane, reply.text);
      return true;
    case Question::Kind::kPing:
      return on_ping(lane, reply);
    case Question::Kind::kSlots:
      on_map(lane, reply);
      return true;
    case Question::Kind::kAsking:
      if (reply.kind == Reply::Kind::kError) lane.node->trouble = reply.text;
      return true;
    case Question::Kind::kItem:
      break;
  }
  if (question.item == 0) return true;
  Item& item = items_.at(question.item);
  KVFOLIO_CHECK(item.lane == &lane && item.waits_in == nullptr);
  item.lane = nullptr;
  note_success(lane);
  return on_item(lane, question.item, reply);
}

bool RedisTier::Impl::on_ping(Lane& lane, const Reply& reply) {
  if (reply.kind == Reply::Kind::kStatus && reply.text == "PONG") {
    ++counters_.connections;
    lane.connection.set_ready();
    // Greeted, and not proved yet: the next failure opens the breaker again.
    lane.breaker.greeted();
    if (!nodes_.has_map()) nodes_.want_map();
    return true;
  }
  if (reply.kind != Reply::Kind::kError) return false;
  if (reply.text.starts_with("LOADING")) {
    lose(lane, reply.text);
  } else {
    refuse(lane, reply.text);
  }
  return true;
}

// It answers, and says no: asking again at once does not help.
void RedisTier::Impl::refuse(Lane& lane, std::string why) {
  lane.node->refuses = true;
  lose(lane, std::move(why));
  if (!lane.is_open()) lane.breaker.open(now_us_, pauses());
}

bool RedisTier::Impl::on_item(Lane& lane, Id id, const Reply& reply) {
  if (reply.kind == Reply::Kind::kError) return on_error(lane, id, reply.text);
  const Item& item = items_.at(id);
  switch (item.op) {
    case TierOp::kExists:
    case TierOp::kErase:
      if (reply.kind != Reply::Kind::kInteger) break;
      finish(id,
             reply.integer > 0 || item.op == TierOp::kErase ? TierResult::kOk : TierResult::kMiss);
      return true;
    case TierOp::kLoad:
      if (reply.kind == Reply::Kind::kNil) {
        finish(id, TierResult::kMiss);
        return true;
      }
      if (reply.kind != Reply::Kind::kString) break;
      finish(id, verify(item, reply));
      return true;
    case TierOp::kStore:
      // nil: the key is there already.
      if (reply.kind != Reply::Kind::kNil && reply.kind != Reply::Kind::kStatus) break;
      finish(id, TierResult::kOk);
      return true;
  }
  finish(id, TierResult::kIoError);
  return false;
}

// What was delivered lies in the item's memory, which is the item's to write to whatever it is.
TierResult RedisTier::Impl::verify(const Item& item, const Reply& reply) {
  if (!reply.delivered) return TierResult::kCorrupt;
  KVFOLIO_CHECK(reply.text.size() == kRecordHeaderBytes);
  const auto header = std::as_bytes(std::span(reply.text)).first<kRecordHeaderBytes>();
  const std::span<const std::byte> data(item.item.data, static_cast<std::size_t>(item.item.bytes));
  switch (check_record(header, data, info_of(item), settings_.keys)) {
    case RecordFault::kNone:
      return TierResult::kOk;
    case RecordFault::kSealer:  // on the word of a server: as a miss it does no harm
      ++counters_.of_another_key;
      return TierResult::kMiss;
    default:
      return TierResult::kCorrupt;
  }
}

bool RedisTier::Impl::on_error(Lane& lane, Id id, std::string_view text) {
  const std::string_view word = first_word(text);
  const bool is_store = items_.at(id).op == TierOp::kStore;
  if (word == "MOVED" || word == "ASK") return on_redirect(lane, id, text);
  if (word == "TRYAGAIN") {
    retry_later(id, kTryAgainUs);
    return true;
  }
  lane.node->trouble = text;
  if (word == "READONLY") {
    nodes_.want_map();
    retry_later(id, kReadOnlyUs);
  } else if (word == "CLUSTERDOWN" || word == "MASTERDOWN" || word == "LOADING") {
    nodes_.want_map();
    finish(id, TierResult::kUnavailable);
  } else if (word == "WRONGTYPE") {
    finish(id, TierResult::kCorrupt);  // something else lies under the key
  } else if (word == "OOM") {
    counters_.stores_refused += is_store ? 1 : 0;
    finish(id, TierResult::kBusy);
  } else {
    // NOPERM, MISCONF, NOREPLICAS and whatever else a server may say.
    counters_.stores_refused += is_store ? 1 : 0;
    finish(id, word == "ERR" ? TierResult::kIoError : TierResult::kUnavailable);
  }
  return true;
}

// "MOVED 3999 127.0.0.1:6381", "ASK 3999 127.0.0.1:6381". Without a host: the node that says it.
bool RedisTier::Impl::on_redirect(Lane& lane, Id id, std::string_view text) {
  ++counters_.redirects;
  const bool is_ask = text.front() == 'A';
  std::string host;
  std::uint16_t port = 0;
  const std::size_t space = text.rfind(' ');
  Node* node = nullptr;
  if (space != std::string_view::npos && redis::split_address(text.substr(space + 1), host, port)) {
    node = nodes_.find_or_add(host.empty() ? lane.node->host : host, port);
  }
  if (node == nullptr) {
    finish(id, TierResult::kUnavailable);
    return false;
  }
  Item& item = items_.at(id);
  if (is_ask) {
    item.ask = node;
  } else {
    nodes_.slot_moved(item.slot, *node);
  }
  retry(id);
  return true;
}

}  // namespace kvfolio
