// SPDX-License-Identifier: Apache-2.0
//
// A request: asks which records there are and has them brought to the arena. Then it waits for its
// turn to be written to the cache (offload_write.cc).

#include <algorithm>
#include <bit>
#include <limits>

#include "offload/offload_impl.h"

namespace kvfolio {

// ---- what a prompt consists of ----

Offload::Impl::Piece Offload::Impl::piece_of(const Request& request, GroupId group,
                                             std::int32_t logical) const {
  const std::int32_t end = (logical + 1) * block_size(group);
  const auto unit = static_cast<std::size_t>(end / identity_.unit()) - 1;
  return {group, logical, identity_.key(group, request.hashes[unit])};
}

bool Offload::Impl::has_hash(const Request& request, GroupId group, std::int32_t logical) const {
  const std::int64_t end = std::int64_t{logical + 1} * block_size(group);
  return end > std::int64_t{request.first_hash} * identity_.unit() &&
         end <= std::int64_t{request.num_hashed} * identity_.unit();
}

Offload::Impl::Verdict& Offload::Impl::verdict(Request& request, const Piece& piece) const {
  const std::int32_t first = request.part_begin / block_size(piece.group);
  return request.verdicts[static_cast<std::size_t>(piece.group.value())]
                         [static_cast<std::size_t>(piece.logical - first)];
}

template <typename Visit>
bool Offload::Impl::walk_blocks(Request& request, std::int32_t limit, const Visit& visit) {
  const std::int32_t num_groups = identity_.num_groups();
  Walk& next = request.walk;
  if (next.empty()) {
    for (std::int32_t g = 0; g < num_groups; ++g) {
      next.push_back(request.part_begin / block_size(GroupId(g)));
    }
  }
  for (;;) {
    GroupId group;
    std::int32_t least = std::numeric_limits<std::int32_t>::max();
    for (std::int32_t g = 0; g < num_groups; ++g) {
      const std::int64_t begin =
          std::int64_t{next[static_cast<std::size_t>(g)]} * block_size(GroupId(g));
      const std::int64_t end = begin + block_size(GroupId(g));
      if (begin >= limit || end >= least) continue;
      least = static_cast<std::int32_t>(end);
      group = GroupId(g);
    }
    if (!group.valid()) break;
    if (!has_steps()) return false;
    took(1);
    visit(group, next[static_cast<std::size_t>(group.value())]++);
  }
  next.clear();
  return true;
}

// One place for each block of the first `limit` tokens. Blocks that end within what the cache had
// at open() have no hash here, and need none; nor has a last block that the prompt does not fill.
bool Offload::Impl::look_for_blocks(Request& request, bool with_tiers, std::int32_t limit) {
  if (request.walk.empty()) {
    request.has.resize(static_cast<std::size_t>(identity_.num_groups()));
    for (std::int32_t g = 0; g < identity_.num_groups(); ++g) {
      const std::int32_t count = (limit - 1) / block_size(GroupId(g)) + 1;
      request.has[static_cast<std::size_t>(g)].assign(static_cast<std::size_t>(count), 0);
    }
  }
  return walk_blocks(request, limit, [&](GroupId group, std::int32_t logical) {
    if (!has_hash(request, group, logical)) return;
    const Piece piece = piece_of(request, group, logical);
    const bool at_hand =
        arena_->contains(piece.key) || (with_tiers && verdict(request, piece).good() != 0);
    request.has[static_cast<std::size_t>(group.value())][static_cast<std::size_t>(logical)] =
        at_hand ? 1 : 0;
  });
}

// The manager looks at a byte for each block, once.
Result<Loadable> Offload::Impl::reach(Request& request, std::int32_t limit) {
  has_views_.assign(request.has.begin(), request.has.end());
  return manager_.loadable(request.sequence, request.tokens, limit, has_views_);
}

bool Offload::Impl::worth_loading(std::int64_t bytes, std::int32_t tokens) const {
  if (options_.load_bytes_per_s <= 0.0 || options_.prefill_tokens_per_s <= 0.0) return true;
  return static_cast<double>(bytes) / options_.load_bytes_per_s <
         static_cast<double>(tokens) / options_.prefill_tokens_per_s;
}

// ---- from state to state ----

// Closed, or its owner appends or has appended.
bool Offload::Impl::has_gone_on(const Request& request) const {
  const auto info = manager_.info(request.sequence);
  if (!info) return true;
  if (request.state == Request::State::kWriting) return false;
  return info->in_open_step || info->length != request.length;
}

void Offload::Impl::set_deadline(Request& request) const {
  constexpr double kMostUs = 2e6;
  const double bytes = static_cast<double>(request.tokens.size()) *
                       static_cast<double>(record_bytes(GroupId(0))) / block_size(GroupId(0));
  const double rate = options_.load_bytes_per_s / 2;
  const double moving = rate > 0.0 ? std::min(bytes / rate * 1e6, kMostUs) : 0.0;
  request.deadline_us =
      later(later(now_us_, options_.timeout_us), static_cast<std::uint64_t>(moving));
}

void Offload::Impl::enter(Request& request, Request::State state) {
  request.state = state;
  request.walk.clear();
}

void Offload::Impl::go_on(std::uint64_t id) {
  using State = Request::State;
  const auto found = requests_.find(id);
  if (found == requests_.end()) return;
  Request& request = found->second;
  if (has_gone_on(request)) {
    ++counters_.requests_canceled;
    if (writer_ == id) static_cast<void>(manager_.finish_load(request.load.id, 0));
    return drop_request(id);
  }
  if (request.state == State::kNew) {
    if (!hash_part(request) || !has_steps()) return;  // in the next poll
    set_deadline(request);
    request.since_us = now_us_;
    enter(request, State::kListing);
  }
  const bool late = now_us_ >= request.deadline_us;
  if (request.state == State::kListing) {
    if (!list_questions(request) && !late) return;
    enter(request, State::kAsking);
  }
  if (request.state == State::kAsking) {
    const bool answered = ask(id, request) && request.waiting == 0;
    // A tier that does not say what it has costs nothing that another one said it has.
    if (!answered && !late && !(is_half_over(request) && has_an_answer(request))) return;
    if (!answered) {
      if (late) request.why = LoadEnd::kTimeout;
      request.silence = true;
      note_silent_tiers(request);
    }
    request.waiting = 0;
    if (!late && !has_steps()) return;
    begin_choosing(request);
  }
  if (request.state == State::kChoosing || request.state == State::kHolding) {
    if (!late && !choose(id, request)) return;
    if (late) {
      request.pieces.clear();
      request.why = LoadEnd::kTimeout;
      enter(request, State::kLoading);
    }
  }
  if (request.state == State::kLoading) {
    if (!late) turn_to_others(id, request);
    const bool came = bring(id, request) && request.waiting == 0;
    if (!came && !late) return;
    if (!came) {
      request.why = LoadEnd::kTimeout;
      stop_waiting(id, request, true);
    } else if (!late && loads_once_more(request)) {
      if (has_steps()) begin_choosing(request);
      return;
    }
    enter(request, State::kReady);
    if (loading_.erase(id) > 0) ready_to_write_.insert(id);
    request.deadline_us = later(now_us_, options_.copy_timeout_us);
  }
  write_in_turn(id, request);
}

bool Offload::Impl::loads_once_more(const Request& request) const {
  const int rounds_max = std::max(2, static_cast<int>(ports_.size()));
  return request.displaced || (request.retry && request.rounds < rounds_max);
}

void Offload::Impl::stop_waiting(std::uint64_t id, Request& request, bool is_late) {
  if (request.state != Request::State::kLoading) return;
  // What is on its way is among the last that were begun.
  for (std::size_t i = request.begun; i > 0 && request.waiting > 0; --i) {
    const TierKey& key = request.pieces[i - 1].key;
    if (!waits_for(id, key)) continue;
    give_up(key, id, is_late);
    --request.waiting;
  }
  request.waiting = 0;
}

bool Offload::Impl::waits_for(std::uint64_t id, const TierKey& key) const {
  const auto place = arriving_.find(key);
  if (place == arriving_.end()) return false;
  const std::vector<std::uint64_t>& waiters = place->second.waiters;
  return std::find(waiters.begin(), waiters.end(), id) != waiters.end();
}

// What has not come by half of the time is brought by another tier that has it, while there is time
// for that. So a tier that hangs costs no prompt what another one has.
void Offload::Impl::turn_to_others(std::uint64_t id, Request& request) {
  if (!is_half_over(request) || request.waiting == 0) return;
  if (request.turn_end == 0) request.turn_end = request.begun;
  for (; request.turned < request.turn_end && has_steps(); ++request.turned) {
    took(1);
    const Piece piece = request.pieces[request.turned];
    if (!waits_for(id, piece.key)) continue;
    const auto late = static_cast<std::uint8_t>(1u << ops_.at(arriving_.at(piece.key).tag).tier);
    Verdict& said = verdict(request, piece);
    if ((said.good() & ~unsigned{late}) == 0) continue;
    said.failed |= late;
    give_up(piece.key, id, true);
    --request.waiting;
    request.pieces.push_back(piece);  // begun anew
  }
}

// A tier has said all that it has, and that is something.
bool Offload::Impl::has_an_answer(const Request& request) const {
  for (std::size_t t = 0; t < ports_.size(); ++t) {
    const bool said_all = request.unanswered[t] == 0 && request.asked[t] == request.pieces.size();
    if (said_all && (request.promised >> t & 1) != 0) return true;
  }
  return false;
}

// They had their time, and did not say what they have, or took no question for what they owe.
void Offload::Impl::note_silent_tiers(const Request& request) {
  for (std::size_t t = 0; t < ports_.size(); ++t) {
    const bool is_full =
        request.asked[t] < request.pieces.size() && !ports_[t].has_room_for_questions();
    if ((request.unanswered[t] == 0 && !is_full) || request.pieces.empty()) continue;
    const Piece& first = request.pieces.front();
    ports_[t].was_late(TierOp::kExists, first.key, 0, request.since_us, now_us_);
  }
}

// ---- asking ----

// Every record that the arena lacks. One that is on its way already is asked for only if another
// tier may have it, too: what it comes from may hang.
bool Offload::Impl::list_questions(Request& request) {
  if (request.walk.empty()) {
    request.verdicts.resize(static_cast<std::size_t>(identity_.num_groups()));
    for (std::int32_t g = 0; g < identity_.num_groups(); ++g) {
      const std::int32_t size = block_size(GroupId(g));
      const std::int32_t count = (request.horizon - 1) / size + 1 - request.part_begin / size;
      request.verdicts[static_cast<std::size_t>(g)].assign(static_cast<std::size_t>(count), {});
    }
  }
  if (ports_.empty()) return true;
  return walk_blocks(request, request.horizon, [&](GroupId group, std::int32_t logical) {
    if (!has_hash(request, group, logical)) return;
    const Piece piece = piece_of(request, group, logical);
    if (arena_->contains(piece.key)) return;
    const auto arriving = arriving_.find(piece.key);
    if (arriving == arriving_.end()) return request.pieces.push_back(piece);
    const std::int32_t tier = ops_.at(arriving->second.tag).tier;
    verdict(request, piece).has |= static_cast<std::uint8_t>(1u << tier);
    request.promised |= static_cast<std::uint8_t>(1u << tier);
    if (ports_.size() > 1) request.pieces.push_back(piece);
  });
}

// Asks every tier for every piece, as far as they take questions now. True: all are asked.
bool Offload::Impl::ask(std::uint64_t id, Request& request) {
  constexpr std::size_t kBatch = 256;
  bool all = true;
  for (std::size_t t = 0; t < ports_.size(); ++t) {
    const auto index = static_cast<std::int32_t>(t);
    std::size_t& next = request.asked[t];
    // That it is passed over may turn out between two questions.
    if (!ports_[t].is_read()) next = request.pieces.size();
    while (next < request.pieces.size()) {
      if (!ports_[t].has_room_for_questions()) {
        all = false;
        break;
      }
      if (!has_steps()) {
        all = false;
        break;
      }
      const std::size_t first = next;
      std::vector<std::size_t> places;  // of the items, in the pieces
      for (; next < request.pieces.size() && places.size() < kBatch; ++next) {
        const Piece& piece = request.pieces[next];
        if (!ports_[t].takes(record_bytes(piece.group))) continue;
        places.push_back(next);
        add_item({.kind = TierOp::kExists,
                  .tier = index,
                  .key = piece.key,
                  .request = id,
                  .piece = piece,
                  .part_begin = request.part_begin},
                 nullptr);
      }
      took(std::ssize(places));
      if (places.empty()) break;
      const bool works = ports_[t].works();
      const std::size_t accepted = submit(index, TierOp::kExists, request.deadline_us);
      request.waiting += static_cast<std::int32_t>(accepted);
      request.unanswered[t] += static_cast<std::int32_t>(accepted);
      if (accepted == places.size()) continue;
      // Full: the rest is asked later. One that refuses all while it has nothing to do is not.
      next = accepted > 0 ? places[accepted] : works ? first : request.pieces.size();
      all = all && next == request.pieces.size();
      break;
    }
  }
  return all;
}

// ---- bringing ----

// Holds what the arena has and a load would wait for, and lists the rest of that.
bool Offload::Impl::hold_or_list(std::uint64_t id, Request& request) {
  return walk_blocks(request, request.limit, [&](GroupId group, std::int32_t logical) {
    const auto& needed = request.has[static_cast<std::size_t>(group.value())];
    if (needed[static_cast<std::size_t>(logical)] == 0) return;
    const Piece piece = piece_of(request, group, logical);
    if (arena_->contains(piece.key)) return hold(id, request, end_of(piece), piece.key);
    request.bytes += record_bytes(group);
    request.pieces.push_back(piece);  // the beginning of the prefix first: it is worth most
  });
}

void Offload::Impl::begin_choosing(Request& request) {
  request.since_us = now_us_;
  request.failed = request.retry = false;
  request.begun = request.turned = request.turn_end = 0;
  request.pieces.clear();
  request.rounds += request.displaced ? 0 : 1;
  request.displaced = false;
  request.limit = request.horizon;
  enter(request, Request::State::kChoosing);
}

// What to load: as much as tiers have, the arena can hold and is worth it.
bool Offload::Impl::choose(std::uint64_t id, Request& request) {
  using State = Request::State;
  for (;;) {
    if (request.state == State::kChoosing) {
      if (!look_for_blocks(request, true, request.limit)) return false;
      const auto can = reach(request, request.limit);
      request.pieces.clear();
      if (!can) break;
      request.can = *can;
      request.bytes = 0;
      request.held.release_behind(request.limit);
      if (request.held.empty()) loading_.erase(id);
      enter(request, State::kHolding);
    }
    if (!hold_or_list(id, request)) return false;
    if (request.bytes == 0) break;
    const std::int32_t tokens = request.can.end - request.can.begin;
    if (!worth_loading(request.bytes, tokens)) {
      request.why = LoadEnd::kRecompute;
      request.pieces.clear();
      break;
    }
    if (request.bytes <= options_.arena_bytes || tokens <= 0) break;
    request.failed = true;  // there is more than the arena holds
    request.limit = request.can.begin + tokens / 2;
    enter(request, State::kChoosing);
  }
  enter(request, State::kLoading);
  return true;
}

// Has the pieces brought, each by the cheapest tier that has it, as far as tiers and arena have
// room now. True: nothing is left to begin.
bool Offload::Impl::bring(std::uint64_t id, Request& request) {
  for (; request.begun < request.pieces.size(); ++request.begun) {
    if (!has_steps()) return false;
    took(1);
    const Piece& piece = request.pieces[request.begun];
    if (arena_->contains(piece.key)) {
      hold(id, request, end_of(piece), piece.key);
      continue;
    }
    Verdict& said = verdict(request, piece);
    Begun begun = Begun::kNo;
    while (begun == Begun::kNo && said.good() != 0) {
      const auto tier = static_cast<std::int32_t>(std::countr_zero(said.good()));
      begun = start_load(id, request, piece, tier);
      if (begun == Begun::kNo) said.failed |= static_cast<std::uint8_t>(1u << tier);
    }
    if (begun == Begun::kLater) return false;
    request.failed |= begun == Begun::kNo;
  }
  return true;
}

// ---- records that wait for a prompt's turn ----

// Requires: the request is kHolding or kLoading.
void Offload::Impl::hold(std::uint64_t id, Request& request, std::int32_t end, const TierKey& key) {
  request.held.add(end, arena_->hold(key));
  if (!request.held.empty()) loading_.insert(id);
}

void Offload::Impl::release_held(std::uint64_t id, Request& request) noexcept {
  request.held.clear();
  loading_.erase(id);
  ready_to_write_.erase(id);
}

// Prompts are served in the order of open(). One that was opened later and still loads gives up the
// end of its prefix, which it loads again if there is time. False: there is none.
bool Offload::Impl::take_from_younger(std::uint64_t id) {
  if (loading_.empty() || *loading_.rbegin() <= id) return false;
  took(1);
  const std::uint64_t youngest = *loading_.rbegin();
  Request& gives = requests_.at(youngest);
  gives.held.release_last();
  if (gives.held.empty()) loading_.erase(youngest);
  gives.failed = gives.displaced = true;
  return true;
}

}  // namespace kvfolio
