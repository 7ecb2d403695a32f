// SPDX-License-Identifier: Apache-2.0
//
// A request: asks which records there are and has them brought to the arena. Then it waits for its
// turn to be written to the cache (offload_write.cc).

#include <algorithm>
#include <bit>

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

// One place for each block of the first `limit` tokens. Blocks that end within what the cache had
// at open() have no hash here, and need none; nor has a last block that the prompt does not fill.
void Offload::Impl::fill_has(const Request& request, bool with_tiers, std::int32_t limit) {
  has_views_.clear();
  const auto in_a_tier = [&](const TierKey& key) {
    const auto verdict = request.where.find(key);
    return verdict != request.where.end() && verdict->second.good() != 0;
  };
  for (std::int32_t g = 0; g < identity_.num_groups(); ++g) {
    const GroupId group(g);
    std::vector<std::uint8_t>& has = has_[static_cast<std::size_t>(g)];
    has.assign(static_cast<std::size_t>((limit - 1) / block_size(group)) + 1, 0);
    std::int32_t i = request.part_begin / block_size(group);
    took(static_cast<std::int64_t>(has.size()) - i);
    for (; static_cast<std::size_t>(i) < has.size(); ++i) {
      if (!has_hash(request, group, i)) continue;
      const TierKey key = piece_of(request, group, i).key;
      const bool at_hand = arena_->contains(key) || (with_tiers && in_a_tier(key));
      has[static_cast<std::size_t>(i)] = at_hand ? 1 : 0;
    }
    has_views_.emplace_back(has);
  }
}

Result<Loadable> Offload::Impl::reach(const Request& request, bool with_tiers, std::int32_t limit) {
  fill_has(request, with_tiers, limit);
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
    list_questions(request);
  }
  const bool late = now_us_ >= request.deadline_us;
  if (request.state == State::kAsking) {
    const bool answered = ask(id, request) && request.waiting == 0;
    if (!answered && !late) return;
    if (!answered) {
      request.why = LoadEnd::kTimeout;
      note_silent_tiers(request);
    }
    request.waiting = 0;
    if (!late && !has_steps()) return;
    choose(id, request, late);
  }
  if (request.state == State::kLoading) {
    if (!late) turn_to_others(id, request);
    const bool came = bring(id, request) && request.waiting == 0;
    if (!came && !late) return;
    if (!came) {
      request.why = LoadEnd::kTimeout;
      stop_waiting(id, request, true);
    } else if (!late && loads_once_more(request)) {
      if (has_steps()) choose(id, request, false);
      return;
    }
    request.state = State::kReady;
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
  for (const Piece& piece : std::span(request.pieces).first(request.begun)) {
    give_up(piece.key, id, is_late);
  }
  request.waiting = 0;
}

// What has not come by half of the time is brought by another tier that has it, while there is time
// for that. So a tier that hangs costs no prompt what another one has.
void Offload::Impl::turn_to_others(std::uint64_t id, Request& request) {
  const bool is_time = now_us_ - request.since_us >= (request.deadline_us - request.since_us) / 2;
  if (request.turned || !is_time || request.waiting == 0) return;
  request.turned = true;
  const std::size_t begun = request.begun;
  for (std::size_t i = 0; i < begun; ++i) {
    const Piece piece = request.pieces[i];
    const auto place = arriving_.find(piece.key);
    if (place == arriving_.end()) continue;
    const std::vector<std::uint64_t>& waiters = place->second.waiters;
    if (std::find(waiters.begin(), waiters.end(), id) == waiters.end()) continue;
    const auto late = static_cast<std::uint8_t>(1u << ops_.at(place->second.tag).tier);
    Verdict& verdict = request.where[piece.key];
    if ((verdict.good() & ~unsigned{late}) == 0) continue;
    verdict.failed |= late;
    give_up(piece.key, id, true);
    --request.waiting;
    request.pieces.push_back(piece);  // begun anew
  }
}

// They had their time, and did not say what they have.
void Offload::Impl::note_silent_tiers(const Request& request) {
  for (std::size_t t = 0; t < ports_.size(); ++t) {
    if (request.unanswered[t] == 0 || request.pieces.empty()) continue;
    const Piece& first = request.pieces.front();
    ports_[t].was_late(TierOp::kExists, first.key, 0, request.since_us, now_us_);
  }
}

// ---- asking ----

// Every record that the arena lacks. One that is on its way already is not asked for.
void Offload::Impl::list_questions(Request& request) {
  request.state = Request::State::kAsking;
  request.since_us = now_us_;
  if (ports_.empty()) return;
  fill_has(request, false, request.horizon);
  for (std::int32_t g = 0; g < identity_.num_groups(); ++g) {
    const std::vector<std::uint8_t>& has = has_[static_cast<std::size_t>(g)];
    std::int32_t i = request.part_begin / block_size(GroupId(g));
    took(static_cast<std::int64_t>(has.size()) - i);
    for (; static_cast<std::size_t>(i) < has.size(); ++i) {
      if (!has_hash(request, GroupId(g), i) || has[static_cast<std::size_t>(i)] != 0) continue;
      const Piece piece = piece_of(request, GroupId(g), i);
      const auto arriving = arriving_.find(piece.key);
      if (arriving == arriving_.end()) {
        request.pieces.push_back(piece);
      } else {
        const std::int32_t tier = ops_.at(arriving->second.tag).tier;
        request.where[piece.key].has |= static_cast<std::uint8_t>(1u << tier);
      }
    }
  }
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
        add_item({.kind = TierOp::kExists, .tier = index, .key = piece.key, .request = id},
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

// What the last reach() says that a load would wait for, and the arena lacks; returns its bytes.
// What the arena has is held.
std::int64_t Offload::Impl::list_missing(std::uint64_t id, Request& request) {
  std::int64_t bytes = 0;
  request.pieces.clear();
  release_held(id, request);
  for (std::int32_t g = 0; g < identity_.num_groups(); ++g) {
    const std::vector<std::uint8_t>& needed = has_[static_cast<std::size_t>(g)];
    std::int32_t i = request.part_begin / block_size(GroupId(g));
    took(static_cast<std::int64_t>(needed.size()) - i);
    for (; static_cast<std::size_t>(i) < needed.size(); ++i) {
      if (needed[static_cast<std::size_t>(i)] == 0) continue;
      const Piece piece = piece_of(request, GroupId(g), i);
      if (arena_->contains(piece.key)) {
        hold(id, request, end_of(piece), piece.key);
        continue;
      }
      bytes += record_bytes(piece.group);
      request.pieces.push_back(piece);
    }
  }
  // The beginning of the prefix first: it is worth most if there is no room for all.
  const auto before = [this](const Piece& a, const Piece& b) { return end_of(a) < end_of(b); };
  if (identity_.num_groups() > 1) {
    std::stable_sort(request.pieces.begin(), request.pieces.end(), before);
  }
  return bytes;
}

// What to load: as much as tiers have, the arena can hold and is worth it.
void Offload::Impl::choose(std::uint64_t id, Request& request, bool late) {
  request.state = Request::State::kLoading;
  request.since_us = now_us_;
  request.failed = request.retry = false;
  request.begun = 0;
  request.pieces.clear();
  if (late) return;
  request.rounds += request.displaced ? 0 : 1;
  request.displaced = false;
  std::int32_t limit = request.horizon;
  for (;;) {
    const auto can = reach(request, true, limit);
    if (!can) return request.pieces.clear();
    const std::int64_t bytes = list_missing(id, request);
    if (bytes == 0) return;
    if (!worth_loading(bytes, can->end - can->begin)) {
      request.why = LoadEnd::kRecompute;
      return request.pieces.clear();
    }
    if (bytes <= options_.arena_bytes || can->end <= can->begin) return;
    request.failed = true;  // there is more than the arena holds
    limit = can->begin + (can->end - can->begin) / 2;
  }
}

// Has the pieces brought, each by the cheapest tier that has it, as far as tiers and arena have
// room now. True: nothing is left to begin.
bool Offload::Impl::bring(std::uint64_t id, Request& request) {
  for (; request.begun < request.pieces.size(); ++request.begun) {
    took(1);
    const Piece& piece = request.pieces[request.begun];
    if (arena_->contains(piece.key)) {
      hold(id, request, end_of(piece), piece.key);
      continue;
    }
    Verdict& verdict = request.where[piece.key];
    Begun begun = Begun::kNo;
    while (begun == Begun::kNo && verdict.good() != 0) {
      const auto tier = static_cast<std::int32_t>(std::countr_zero(verdict.good()));
      begun = start_load(id, request, piece, tier);
      if (begun == Begun::kNo) verdict.failed |= static_cast<std::uint8_t>(1u << tier);
    }
    if (begun == Begun::kLater) return false;
    request.failed |= begun == Begun::kNo;
  }
  return true;
}

// ---- records that wait for a prompt's turn ----

// Requires: the request is kLoading.
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
