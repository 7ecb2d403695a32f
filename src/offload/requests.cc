// SPDX-License-Identifier: Apache-2.0

#include "offload/requests.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <utility>

#include "base/text.h"
#include "kvfolio/group_rule.h"

namespace kvfolio {

namespace {

// What follows a state. kNew again: the next part.
bool may_follow(Request::State from, Request::State to) noexcept {
  using State = Request::State;
  switch (to) {
    case State::kNew:
      return from == State::kReady || from == State::kWriting;
    case State::kListing:
      return from == State::kNew;
    case State::kAsking:
      return from == State::kListing;
    case State::kChoosing:
      return from == State::kAsking || from == State::kHolding || from == State::kLoading;
    case State::kHolding:
      return from == State::kChoosing;
    case State::kLoading:
      return from == State::kChoosing || from == State::kHolding;
    case State::kReady:
      return from == State::kLoading;
    case State::kWriting:
      return from == State::kReady;
  }
  return false;
}

Status broken(Requests::Id id, const char* rule) {
  return {ErrorCode::kAborted, text::concat("offload: request ", id, ": ", rule)};
}

}  // namespace

// ---- Request ----

std::int32_t Request::Tiers::first() const noexcept {
  KVFOLIO_DCHECK(bits_ != 0);
  return std::countr_zero(bits_);
}

void Request::was_answered(std::int32_t tier) noexcept {
  std::int32_t& left = unanswered[static_cast<std::size_t>(tier)];
  KVFOLIO_CHECK(state == State::kAsking && left > 0 && waiting >= left);
  --left;
  --waiting;
}

bool Request::has_an_answer(std::int32_t num_tiers) const noexcept {
  for (std::int32_t t = 0; t < num_tiers; ++t) {
    const auto at = static_cast<std::size_t>(t);
    const bool said_all = unanswered[at] == 0 && asked[at] == pieces.size();
    if (said_all && promised.has(t)) return true;
  }
  return false;
}

bool Request::loads_once_more(std::int32_t num_tiers) const noexcept {
  KVFOLIO_DCHECK(state == State::kLoading && waiting == 0);
  return displaced || (retry && rounds < std::max(2, num_tiers));
}

// ---- what a prompt consists of ----

Requests::Requests(const Identity& identity, const Epochs& epochs,
                   std::span<const GroupSpec> groups)
    : identity_(identity), epochs_(epochs) {
  KVFOLIO_CHECK(std::ssize(groups) == identity.num_groups());
  // The end of a part has to be one that can be loaded to: where a group drops blocks, that is not
  // known before the whole prompt was looked at.
  std::int64_t part = kPartBlocks;
  bool in_parts = true;
  for (const GroupSpec& group : groups) {
    block_sizes_.push_back(group.block_size);
    if (in_parts) part = std::lcm(part, kPartBlocks * std::int64_t{group.block_size});
    in_parts = in_parts && GroupRule(group).keeps_all() && part <= kMaxSequenceTokens;
  }
  part_tokens_ = in_parts ? static_cast<std::int32_t>(part) : 0;
}

Request Requests::make(SequenceId sequence, std::span<const std::int32_t> tokens,
                       const OpenOptions& options, std::int32_t length) const {
  Request request{.sequence = sequence, .tokens = {tokens.begin(), tokens.end()}};
  KVFOLIO_CHECK(length >= 0 && length < request.last_token());
  request.length = length;
  request.root = epochs_.root(options.root);
  request.media.assign(options.media.begin(), options.media.end());
  request.hashes.resize(tokens.size() / static_cast<std::size_t>(identity_.unit()));
  request.before = request.root;
  if (part_tokens_ != 0) request.part_begin = length;
  set_horizon(request);
  return request;
}

// The end of the part that begins at the sequence's length.
void Requests::set_horizon(Request& request) const noexcept {
  const std::int64_t last = request.last_token();
  const std::int64_t part = part_tokens_ == 0 ? last : part_tokens_;
  const std::int64_t begin = part_tokens_ == 0 ? 0 : request.length / part_tokens_ * part;
  request.horizon = static_cast<std::int32_t>(std::min(begin + part, last));
  KVFOLIO_DCHECK(request.length < request.horizon);
}

bool Requests::hash_part(Request& request, Steps& steps) const {
  const std::int32_t unit = identity_.unit();
  const auto all = static_cast<std::int32_t>(request.hashes.size());
  const std::int32_t end = request.is_last_part() ? all : request.horizon / unit;
  KVFOLIO_DCHECK(end <= all);
  for (; request.num_hashed < end; ++request.num_hashed) {
    if (!steps.has_any()) return false;
    steps.took(1);
    const std::int32_t begin = request.num_hashed * unit;
    const auto tokens =
        std::span<const std::int32_t>(request.tokens)
            .subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(unit));
    request.before = epochs_.prefix(identity_.next(request.before, begin, tokens, request.media));
    request.hashes[static_cast<std::size_t>(request.num_hashed)] = request.before;
  }
  return true;
}

Request::Piece Requests::piece_of(const Request& request, GroupId group,
                                  std::int32_t logical) const {
  KVFOLIO_DCHECK(has_hash(request, group, logical));
  const std::int32_t end = (logical + 1) * block_size(group);
  const auto unit = static_cast<std::size_t>(end / identity_.unit()) - 1;
  return {group, logical, identity_.key(group, request.hashes[unit])};
}

bool Requests::has_hash(const Request& request, GroupId group, std::int32_t logical) const {
  const std::int64_t end = std::int64_t{logical + 1} * block_size(group);
  return end > std::int64_t{request.first_hash} * identity_.unit() &&
         end <= std::int64_t{request.num_hashed} * identity_.unit();
}

Request::Verdict& Requests::verdict(Request& request, const Piece& piece) const {
  const std::int32_t at = piece.logical - request.part_begin / block_size(piece.group);
  auto& of_group = request.verdicts[static_cast<std::size_t>(piece.group.value())];
  KVFOLIO_DCHECK(at >= 0 && at < std::ssize(of_group));
  return of_group[static_cast<std::size_t>(at)];
}

void Requests::clear_verdicts(Request& request) const {
  request.verdicts.resize(block_sizes_.size());
  for (std::size_t g = 0; g < block_sizes_.size(); ++g) {
    const std::int32_t size = block_sizes_[g];
    const std::int32_t count = (request.horizon - 1) / size + 1 - request.part_begin / size;
    KVFOLIO_DCHECK(count >= 0);
    request.verdicts[g].assign(static_cast<std::size_t>(count), {});
  }
}

void Requests::clear_has(Request& request, std::int32_t limit) const {
  KVFOLIO_DCHECK(limit >= 0 && limit <= request.horizon);
  request.has.resize(block_sizes_.size());
  for (std::size_t g = 0; g < block_sizes_.size(); ++g) {
    const std::int32_t count = (limit - 1) / block_sizes_[g] + 1;
    request.has[g].assign(static_cast<std::size_t>(count), 0);
  }
}

// ---- the requests ----

Request& Requests::add(Request request) {
  KVFOLIO_CHECK(request.id == 0 && request.state == State::kNew && request.held.empty());
  request.id = ++last_id_;
  request.walk.clear();
  return requests_.emplace(last_id_, std::move(request)).first->second;
}

Request* Requests::find(Id id) noexcept {
  const auto found = requests_.find(id);
  return found == requests_.end() ? nullptr : &found->second;
}

Requests::Id Requests::of(SequenceId sequence) const noexcept {
  const auto is_its = [&](const auto& one) { return one.second.sequence == sequence; };
  const auto found = std::find_if(requests_.begin(), requests_.end(), is_its);
  return found == requests_.end() ? 0 : found->first;
}

std::vector<Requests::Id> Requests::ids() const {
  std::vector<Id> ids;
  ids.reserve(requests_.size());
  for (const auto& [id, request] : requests_) ids.push_back(id);
  return ids;
}

void Requests::remove(Request& request) {
  KVFOLIO_CHECK(request.state != State::kLoading || request.waiting == 0);
  release_all(request);
  const Id id = request.id;
  if (writer_ == id) writer_ = 0;
  requests_.erase(id);
}

void Requests::clear() noexcept {
  requests_.clear();
  loading_.clear();
  ready_to_write_.clear();
  writer_ = short_of_room_ = 0;
  for (auto& [key, arriving] : arrivals_) arriving.waiters.clear();
}

void Requests::leave_tiers() noexcept {
  KVFOLIO_CHECK(arrivals_.empty());
  for (auto& [id, request] : requests_) {
    request.waiting = 0;
    request.unanswered.fill(0);
    for (auto& of_group : request.verdicts) {
      std::fill(of_group.begin(), of_group.end(), Request::Verdict{});
    }
  }
}

// ---- from state to state ----

void Requests::enter(Request& request, State state) {
  KVFOLIO_CHECK(may_follow(request.state, state));
  // Answers that are still to come count no more; records that are, do.
  KVFOLIO_CHECK(request.state != State::kLoading || request.waiting == 0);
  if (state == State::kReady && loading_.erase(request.id) > 0) ready_to_write_.insert(request.id);
  if (state == State::kWriting) {
    KVFOLIO_CHECK(writer_ == 0);
    writer_ = request.id;
  }
  request.state = state;
  request.waiting = 0;
  request.walk.clear();
}

void Requests::begin_round(Request& request, std::uint64_t now_us) {
  request.since_us = now_us;
  request.failed = request.retry = false;
  request.begun = request.turned = request.turn_end = 0;
  request.pieces.clear();
  request.rounds += request.displaced ? 0 : 1;
  request.displaced = false;
  request.limit = request.horizon;
  enter(request, State::kChoosing);
}

void Requests::begin_next_part(Request& request, std::int32_t length) {
  KVFOLIO_CHECK(may_follow(request.state, State::kNew));
  KVFOLIO_CHECK(length == request.horizon && !request.is_last_part());
  if (writer_ == request.id) writer_ = 0;
  release_all(request);
  Request next{.id = request.id,
               .sequence = request.sequence,
               .tokens = std::move(request.tokens),
               .root = request.root,
               .media = std::move(request.media),
               .hashes = std::move(request.hashes),
               .first_hash = request.first_hash,
               .num_hashed = request.num_hashed,
               .before = request.before,
               .length = length,
               .part_begin = length,
               .has_a_part = true};
  set_horizon(next);
  request = std::move(next);
}

// ---- what is on its way ----

const Requests::Arriving* Requests::arriving(const TierKey& key) const {
  const auto found = arrivals_.find(key);
  return found == arrivals_.end() ? nullptr : &found->second;
}

bool Requests::waits_for(const Request& request, const TierKey& key) const {
  const Arriving* const there = arriving(key);
  if (there == nullptr) return false;
  return std::find(there->waiters.begin(), there->waiters.end(), request.id) !=
         there->waiters.end();
}

void Requests::wait_for(Request& request, const TierKey& key) {
  KVFOLIO_CHECK(request.state == State::kLoading);
  KVFOLIO_DCHECK(!waits_for(request, key));
  arrivals_.at(key).waiters.push_back(request.id);
  ++request.waiting;
}

void Requests::begin_arriving(Request& request, Arriving arriving) {
  KVFOLIO_CHECK(request.state == State::kLoading && arriving.tag != 0);
  arriving.waiters.push_back(request.id);
  ++request.waiting;
  const TierKey key = arriving.piece.key;
  const bool is_new = arrivals_.emplace(key, std::move(arriving)).second;
  KVFOLIO_CHECK(is_new);  // else the tag of the other one would be lost, and its slot
}

bool Requests::stop_waiting(Request& request, const TierKey& key) {
  std::vector<Id>& waiters = arrivals_.at(key).waiters;
  const std::size_t left = std::erase(waiters, request.id);
  KVFOLIO_CHECK(left == 1 && request.waiting > 0);
  --request.waiting;
  return waiters.empty();
}

Requests::Arriving Requests::take_arrived(const TierKey& key) {
  Arriving arrived = take_late(key);
  for (const Id id : arrived.waiters) {
    Request& request = requests_.at(id);
    KVFOLIO_CHECK(request.state == State::kLoading && request.waiting > 0);
    --request.waiting;
  }
  return arrived;
}

Requests::Arriving Requests::take_late(const TierKey& key) {
  auto node = arrivals_.extract(key);
  KVFOLIO_CHECK(!node.empty());
  return std::move(node.mapped());
}

// ---- records that wait for a prompt's turn ----

void Requests::hold(Request& request, std::int32_t end, ArenaPin pin) {
  KVFOLIO_CHECK(request.state == State::kHolding || request.state == State::kLoading);
  request.held.add(end, std::move(pin));
  if (!request.held.empty()) loading_.insert(request.id);
}

void Requests::release(Request& request, std::int32_t end, const ArenaPin& pin) {
  KVFOLIO_DCHECK(request.state == State::kWriting);
  request.held.release(end, pin);
  if (request.held.empty()) ready_to_write_.erase(request.id);
}

void Requests::release_behind(Request& request, std::int32_t end) {
  KVFOLIO_DCHECK(request.state == State::kChoosing);
  request.held.release_behind(end);
  if (request.held.empty()) loading_.erase(request.id);
}

void Requests::release_all(Request& request) noexcept {
  request.held.clear();
  loading_.erase(request.id);
  ready_to_write_.erase(request.id);
}

// ---- turns ----

bool Requests::take_from_younger(const Request& request) {
  if (loading_.empty() || *loading_.rbegin() <= request.id) return false;
  Request& gives = requests_.at(*loading_.rbegin());
  KVFOLIO_DCHECK(!gives.held.empty() && gives.state < State::kReady);
  gives.held.release_last();
  if (gives.held.empty()) loading_.erase(gives.id);
  gives.failed = gives.displaced = true;
  return true;
}

bool Requests::others_hold(const Request& request) const noexcept {
  return loading_.size() > (loading_.contains(request.id) ? 1u : 0u) || !ready_to_write_.empty() ||
         writer_ != 0;
}

// ---- check ----

// `arriving`: how many of the records on their way it waits for.
std::int64_t Requests::num_copying() const noexcept {
  const auto writer = requests_.find(writer_);
  return writer == requests_.end() ? 0 : std::ssize(writer->second.copying);
}

Status Requests::check(const Request& request, std::int32_t arriving) const {
  const Id id = request.id;
  const auto num_groups = static_cast<std::int32_t>(block_sizes_.size());
  const bool is_ready = request.state >= State::kReady;
  const bool loads = loading_.contains(id), is_in_turn = ready_to_write_.contains(id);
  std::int32_t unanswered = 0;
  for (const std::int32_t of_tier : request.unanswered) unanswered += of_tier;
  const std::int32_t waits = request.state == State::kAsking    ? unanswered
                             : request.state == State::kLoading ? arriving
                                                                : 0;
  if ((request.state == State::kWriting) != (writer_ == id)) return broken(id, "who writes");
  if (request.held.empty() == (loads || is_in_turn)) return broken(id, "who holds records");
  if (is_ready ? loads : is_in_turn) return broken(id, "it holds as in another state");
  if (!request.held.empty() && request.state < State::kChoosing) return broken(id, "it holds");
  if (!request.held.check()) return broken(id, "it holds nothing, or a record twice");
  if (request.waiting != waits) return broken(id, "what it waits for is miscounted");
  if (arriving > 0 && request.state != State::kLoading) return broken(id, "it waits, not loading");
  if (request.state == State::kLoading && request.begun > request.pieces.size()) {
    return broken(id, "more pieces are begun than there are");
  }
  if (request.part_begin > request.length || request.length >= request.horizon ||
      request.horizon > request.last_token()) {
    return broken(id, "its part");
  }
  if (request.first_hash > request.num_hashed || request.num_hashed > std::ssize(request.hashes)) {
    return broken(id, "its hashes");
  }
  if (request.state == State::kWriting &&
      (request.group >= num_groups || request.done > request.todo.size())) {
    return broken(id, "what it writes");
  }
  if (request.state != State::kWriting && (request.stops || !request.copying.empty())) {
    return broken(id, "it copies, not writing");
  }
  return {};
}

Status Requests::check() const {
  std::map<Id, std::int32_t> arriving;
  for (const auto& [key, record] : arrivals_) {
    if (record.tag == 0 || !(record.piece.key == key)) return broken(0, "a record arrives as none");
    if (record.waiters.empty()) return broken(0, "a record arrives for no request");
    for (const Id id : record.waiters) {
      if (!requests_.contains(id)) return broken(id, "it has ended, and a record arrives for it");
      if (std::count(record.waiters.begin(), record.waiters.end(), id) != 1) {
        return broken(id, "it waits twice for a record");
      }
      ++arriving[id];
    }
  }
  for (const std::set<Id>* ids : {&loading_, &ready_to_write_}) {
    for (const Id id : *ids) {
      if (!requests_.contains(id)) return broken(id, "it has ended, and holds records");
    }
  }
  if (writer_ != 0 && !requests_.contains(writer_)) return broken(writer_, "it has ended, writing");
  for (const auto& [id, request] : requests_) {
    if (request.id != id || id > last_id_) return broken(id, "its number is of another one");
    KVFOLIO_RETURN_IF_ERROR(check(request, arriving[id]));
  }
  return {};
}

}  // namespace kvfolio
