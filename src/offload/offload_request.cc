// SPDX-License-Identifier: Apache-2.0
//
// From state to state (requests.h), up to kReady: which records there are is asked of the arena and
// the tiers, what of that can be loaded of the manager. From there on it is offload_write.cc.

#include <algorithm>

#include "offload/offload_impl.h"

namespace kvfolio {

namespace {
constexpr double kAssumedRate = 1e9;                // bytes/s, if the host does not say it
constexpr std::uint64_t kTimeAtOnceUs = 2'000'000;  // before any bytes come
}  // namespace

// ---- what is at hand ----

// One place for each block of the first `limit` tokens. Blocks that end within what the cache had
// at open() have no hash here, and need none; nor has a last block that the prompt does not fill.
bool Offload::Impl::look_for_blocks(Request& request, bool with_tiers, std::int32_t limit) {
  if (request.walk.empty()) requests_.clear_has(request, limit);
  return requests_.walk(request, limit, steps_, [&](GroupId group, std::int32_t logical) {
    if (!requests_.has_hash(request, group, logical)) return;
    const Piece piece = requests_.piece_of(request, group, logical);
    const bool at_hand = arena_->contains(piece.key) ||
                         (with_tiers && !requests_.verdict(request, piece).good().empty());
    request.has[static_cast<std::size_t>(group.value())][static_cast<std::size_t>(logical)] =
        at_hand ? 1 : 0;
  });
}

// The manager looks at a byte for each block, once. Nothing is read for a load that it would
// refuse.
Result<Loadable> Offload::Impl::reach(Request& request, std::int32_t limit) {
  const auto info = manager_.info(request.sequence);
  if (info && info->reserved_tokens > 0) {
    return Status(ErrorCode::kFailedPrecondition, "offload: begin_load() refuses a promise");
  }
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

// ---- its time (offload.h) ----

// That bytes may take to come.
std::uint64_t Offload::Impl::time_of(std::int64_t bytes) const noexcept {
  constexpr double kMostUs = 1e15;
  const double rate = options_.load_bytes_per_s > 0.0 ? options_.load_bytes_per_s : kAssumedRate;
  return static_cast<std::uint64_t>(std::min(2e6 * static_cast<double>(bytes) / rate, kMostUs));
}

// Once, however often it loads. A tier that hangs would have the time of all bytes of a long
// prompt, so most of that comes with the bytes.
void Offload::Impl::give_load_time(Request& request) const {
  if (request.has_load_time || request.bytes == 0) return;
  request.has_load_time = true;
  const std::uint64_t all_us = time_of(request.bytes);
  const std::uint64_t at_once_us = std::min(all_us, kTimeAtOnceUs);
  request.deadline_us = later(request.deadline_us, at_once_us);
  request.owed_us = all_us - at_once_us;
}

void Offload::Impl::earn_time(Request& request, std::int64_t bytes) const {
  const std::uint64_t us = std::min(time_of(bytes), request.owed_us);
  request.owed_us -= us;
  request.since_us = std::min(later(request.since_us, us), now_us_);
  request.deadline_us = std::min(later(request.deadline_us, us),
                                 later(later(now_us_, options_.timeout_us), kTimeAtOnceUs));
}

// May end the request.
void Offload::Impl::go_on(Request& request) {
  using State = Request::State;
  if (has_gone_on(request)) {
    if (!end_copies(request)) return;  // only its blocks wait
    ++counters_.requests_canceled;
    if (request.state == State::kWriting) {
      request.stops = false;
      static_cast<void>(manager_.finish_load(request.load.id, 0));
    }
    return drop_request(request);
  }
  if (request.state == State::kNew) {
    if (!requests_.hash_part(request, steps_) || !steps_.has_any()) return;  // in the next poll
    request.deadline_us = later(now_us_, options_.timeout_us);
    request.since_us = now_us_;
    requests_.enter(request, State::kListing);
  }
  const bool late = request.is_late(now_us_);
  if (request.state == State::kListing) {
    if (!list_questions(request) && !late) return;
    requests_.enter(request, State::kAsking);
  }
  if (request.state == State::kAsking) {
    const bool answered = ask(request) && request.waiting == 0;
    // A tier that does not say what it has costs nothing that another one said it has.
    if (!answered && !late &&
        !(request.is_half_over(now_us_) && request.has_an_answer(num_ports()))) {
      return;
    }
    if (!late && !steps_.has_any()) return;
    if (!answered) {
      if (late) request.why = LoadEnd::kTimeout;
      request.silence = true;
      note_silent_tiers(request);
    }
    requests_.begin_round(request, now_us_);
  }
  if (request.state == State::kChoosing || request.state == State::kHolding) {
    if (!late && !choose(request)) return;
    if (late) {
      request.pieces.clear();
      request.why = LoadEnd::kTimeout;
      requests_.enter(request, State::kLoading);
    }
  }
  if (request.state == State::kLoading) {
    if (!late) turn_to_others(request);
    const bool came = bring(request) && request.waiting == 0;
    if (!came && !late) return;
    if (!came) {
      request.why = LoadEnd::kTimeout;
      stop_waiting(request, true);
    } else if (!late && request.loads_once_more(num_ports())) {
      if (steps_.has_any()) requests_.begin_round(request, now_us_);
      return;
    }
    requests_.enter(request, State::kReady);
    request.deadline_us = later(now_us_, options_.copy_timeout_us);
  }
  write_in_turn(request);
}

void Offload::Impl::stop_waiting(Request& request, bool is_late) {
  if (request.state != Request::State::kLoading) return;
  // What is on its way is among the last that were begun.
  for (std::size_t i = request.begun; i > 0 && request.waiting > 0; --i) {
    const TierKey& key = request.pieces[i - 1].key;
    if (requests_.waits_for(request, key)) give_up(request, key, is_late);
  }
  KVFOLIO_CHECK(request.waiting == 0);
}

// What has not come by half of the time is brought by another tier that has it, while there is time
// for that. So a tier that hangs costs no prompt what another one has.
void Offload::Impl::turn_to_others(Request& request) {
  if (!request.is_half_over(now_us_) || request.waiting == 0) return;
  if (request.turn_end == 0) request.turn_end = request.begun;
  for (; request.turned < request.turn_end && steps_.has_any(); ++request.turned) {
    steps_.took(1);
    const Piece piece = request.pieces[request.turned];
    if (!requests_.waits_for(request, piece.key)) continue;
    Request::Tiers late;
    late.add(ops_.at(requests_.arriving(piece.key)->tag).tier);
    Verdict& said = requests_.verdict(request, piece);
    if (said.good().without(late).empty()) continue;
    said.failed.add(late.first());
    give_up(request, piece.key, true);
    request.pieces.push_back(piece);  // begun anew
  }
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
  if (request.walk.empty()) requests_.clear_verdicts(request);
  if (ports_.empty()) return true;
  return requests_.walk(request, request.horizon, steps_, [&](GroupId group, std::int32_t logical) {
    if (!requests_.has_hash(request, group, logical)) return;
    const Piece piece = requests_.piece_of(request, group, logical);
    if (arena_->contains(piece.key)) return;
    const Arriving* const arriving = requests_.arriving(piece.key);
    if (arriving == nullptr) return request.pieces.push_back(piece);
    const std::int32_t tier = ops_.at(arriving->tag).tier;
    requests_.verdict(request, piece).has.add(tier);
    request.promised.add(tier);
    if (ports_.size() > 1) request.pieces.push_back(piece);
  });
}

// Asks every tier for every piece, as far as they take questions now. True: all are asked.
bool Offload::Impl::ask(Request& request) {
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
      if (!steps_.has_any()) {
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
                  .request = request.id,
                  .piece = piece,
                  .part_begin = request.part_begin},
                 nullptr);
      }
      steps_.took(std::ssize(places));
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
bool Offload::Impl::hold_or_list(Request& request) {
  return requests_.walk(request, request.limit, steps_, [&](GroupId group, std::int32_t logical) {
    const auto& needed = request.has[static_cast<std::size_t>(group.value())];
    if (needed[static_cast<std::size_t>(logical)] == 0) return;
    const Piece piece = requests_.piece_of(request, group, logical);
    if (arena_->contains(piece.key)) {
      return requests_.hold(request, requests_.end_of(piece), arena_->hold(piece.key));
    }
    request.bytes += record_bytes(group);
    request.pieces.push_back(piece);  // the beginning of the prefix first: it is worth most
  });
}

// What to load: as much as tiers have, the arena can hold and is worth it.
bool Offload::Impl::choose(Request& request) {
  using State = Request::State;
  for (;;) {
    if (request.state == State::kChoosing) {
      if (!look_for_blocks(request, true, request.limit)) return false;
      const auto can = reach(request, request.limit);
      request.pieces.clear();
      if (!can) break;
      request.can = *can;
      request.bytes = 0;
      requests_.release_behind(request, request.limit);
      requests_.enter(request, State::kHolding);
    }
    if (!hold_or_list(request)) return false;
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
    requests_.enter(request, State::kChoosing);
  }
  give_load_time(request);
  requests_.enter(request, State::kLoading);
  return true;
}

// Has the pieces brought, each by the cheapest tier that has it, as far as tiers and arena have
// room now. True: nothing is left to begin.
bool Offload::Impl::bring(Request& request) {
  for (; request.begun < request.pieces.size(); ++request.begun) {
    if (!steps_.has_any()) return false;
    steps_.took(1);
    const Piece& piece = request.pieces[request.begun];
    if (arena_->contains(piece.key)) {
      requests_.hold(request, requests_.end_of(piece), arena_->hold(piece.key));
      continue;
    }
    Verdict& said = requests_.verdict(request, piece);
    Begun begun = Begun::kNo;
    while (begun == Begun::kNo && !said.good().empty()) {
      const std::int32_t tier = said.good().first();
      begun = start_load(request, piece, tier);
      if (begun == Begun::kNo) said.failed.add(tier);
    }
    if (begun == Begun::kLater) return false;
    request.failed |= begun == Begun::kNo;
  }
  return true;
}

// Prompts are served in the order of open().
bool Offload::Impl::take_from_younger(const Request& request) {
  if (!requests_.take_from_younger(request)) return false;
  steps_.took(1);
  return true;
}

}  // namespace kvfolio
