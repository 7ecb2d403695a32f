// SPDX-License-Identifier: Apache-2.0
//
// A request: asks which records there are, has them brought to the arena, then loads as much of the
// prompt as can be had in one piece, a bounded number of bytes in each poll.

#include <algorithm>

#include "kvfolio/checked_copy.h"
#include "offload/offload_impl.h"

namespace kvfolio {

Offload::Impl::Piece Offload::Impl::piece_of(const Request& request, GroupId group,
                                             std::int32_t logical) const {
  const std::int32_t end = (logical + 1) * block_size(group);
  const auto unit = static_cast<std::size_t>(end / identity_.unit()) - 1;
  return {group, logical, identity_.key(group, request.hashes[unit])};
}

// One place for each block up to the last token but one, which has to be computed. Blocks that end
// within what the cache had at open() have no hash here, and need none; nor has a last block that
// the prompt does not fill.
void Offload::Impl::fill_has(const Request& request, bool with_tiers) {
  has_views_.clear();
  for (std::int32_t g = 0; g < identity_.num_groups(); ++g) {
    const GroupId group(g);
    std::vector<std::uint8_t>& has = has_[static_cast<std::size_t>(g)];
    const auto size = static_cast<std::size_t>(block_size(group));
    has.assign((request.tokens.size() - 2) / size + 1, 0);
    for (std::int32_t i = 0; static_cast<std::size_t>(i) < has.size(); ++i) {
      if (!has_hash(request, group, i)) continue;
      const TierKey key = piece_of(request, group, i).key;
      const bool at_hand = arena_->contains(key) || (with_tiers && request.where.count(key) > 0);
      has[static_cast<std::size_t>(i)] = at_hand ? 1 : 0;
    }
    has_views_.emplace_back(has);
  }
}

bool Offload::Impl::has_hash(const Request& request, GroupId group, std::int32_t logical) const {
  const std::int64_t end = std::int64_t{logical + 1} * block_size(group);
  return end > std::int64_t{request.first_hash} * identity_.unit() &&
         end <= static_cast<std::int64_t>(request.tokens.size());
}

Result<Loadable> Offload::Impl::reach(const Request& request, bool with_tiers) {
  fill_has(request, with_tiers);
  return manager_.loadable(request.sequence, request.tokens,
                           static_cast<std::int32_t>(request.tokens.size()) - 1, has_views_);
}

bool Offload::Impl::worth_loading(std::int64_t bytes, std::int32_t tokens) const {
  if (options_.load_bytes_per_s <= 0.0 || options_.prefill_tokens_per_s <= 0.0) return true;
  return static_cast<double>(bytes) / options_.load_bytes_per_s <
         static_cast<double>(tokens) / options_.prefill_tokens_per_s;
}

// Closed, or its owner appends or has appended.
bool Offload::Impl::has_gone_on(const Request& request) const {
  const auto info = manager_.info(request.sequence);
  if (!info) return true;
  if (request.state == Request::State::kWriting) return false;
  return info->in_open_step || info->length != request.length;
}

void Offload::Impl::go_on(std::uint64_t id) {
  const auto found = requests_.find(id);
  if (found == requests_.end()) return;
  Request& request = found->second;
  if (has_gone_on(request)) {
    ++counters_.requests_canceled;
    if (request.state == Request::State::kWriting) {
      static_cast<void>(manager_.finish_load(request.load.id, 0));
    }
    drop_request(id);
    return;
  }
  if (request.deadline_us == 0) {
    constexpr double kMostUs = 2e6;
    const double bytes = static_cast<double>(request.tokens.size()) *
                         static_cast<double>(record_bytes(GroupId(0))) / block_size(GroupId(0));
    const double rate = options_.load_bytes_per_s / 2;
    const double moving = rate > 0.0 ? std::min(bytes / rate * 1e6, kMostUs) : 0.0;
    request.deadline_us = now_us_ + options_.timeout_us + static_cast<std::uint64_t>(moving);
  }
  const bool late = now_us_ >= request.deadline_us;
  if (request.state == Request::State::kNew) ask(id);
  if (request.state == Request::State::kAsking && (request.waiting == 0 || late)) {
    if (request.waiting > 0) request.why = LoadEnd::kTimeout;
    request.waiting = 0;
    choose(id);
    return;
  }
  if (request.state == Request::State::kLoading && (request.waiting == 0 || late)) {
    if (request.waiting > 0) {
      request.why = LoadEnd::kTimeout;
      for (auto& [key, arriving] : arriving_) give_up(arriving, id);
      request.waiting = 0;
    } else if (request.failed && request.attempts < 2 && !late) {
      request.state = Request::State::kNew;  // the verdicts that were wrong are gone
      return;
    }
    begin_writing(id);
    return;
  }
  if (request.state == Request::State::kWriting) write(id);
}

// Asks every tier for every record that the arena lacks; the first tier that has it is the verdict.
void Offload::Impl::ask(std::uint64_t id) {
  Request& request = requests_.at(id);
  ++request.attempts;
  request.state = Request::State::kAsking;
  if (tiers_.empty()) return;
  fill_has(request, true);
  for (std::int32_t g = 0; g < identity_.num_groups(); ++g) {
    const std::vector<std::uint8_t>& has = has_[static_cast<std::size_t>(g)];
    for (std::int32_t i = 0; static_cast<std::size_t>(i) < has.size(); ++i) {
      if (!has_hash(request, GroupId(g), i) || has[static_cast<std::size_t>(i)] != 0) continue;
      const Piece piece = piece_of(request, GroupId(g), i);
      if (arriving_.count(piece.key) > 0 && !arriving_.at(piece.key).abandoned) {
        request.where[piece.key] = arriving_.at(piece.key).tier;
        continue;
      }
      for (std::size_t t = 0; t < tiers_.size(); ++t) {
        const bool asked = submit({.kind = TierOp::kExists,
                                   .tier = static_cast<std::int32_t>(t),
                                   .key = piece.key,
                                   .request = id},
                                  nullptr, request.deadline_us);
        request.waiting += asked ? 1 : 0;
      }
    }
  }
}

// All answers are here, or the deadline is: what to load, and from where.
void Offload::Impl::choose(std::uint64_t id) {
  Request& request = requests_.at(id);
  const auto can = reach(request, true);
  if (!can) return finish(id, request.length, LoadEnd::kNothing);
  std::vector<Piece> missing;
  std::int64_t bytes = 0;
  for (std::int32_t g = 0; g < identity_.num_groups(); ++g) {
    const std::vector<std::uint8_t>& needed = has_[static_cast<std::size_t>(g)];
    for (std::int32_t i = 0; static_cast<std::size_t>(i) < needed.size(); ++i) {
      if (needed[static_cast<std::size_t>(i)] == 0) continue;
      Piece piece = piece_of(request, GroupId(g), i);
      if (arena_->contains(piece.key)) continue;
      bytes += record_bytes(piece.group);
      missing.push_back(piece);
    }
  }
  const bool in_time = now_us_ < request.deadline_us;
  if (!missing.empty() && in_time && !worth_loading(bytes, can->end - can->begin)) {
    request.why = LoadEnd::kRecompute;
    missing.clear();
  }
  request.failed = false;
  request.state = Request::State::kLoading;
  for (const Piece& piece : missing) {
    const auto verdict = request.where.find(piece.key);
    if (!in_time || verdict == request.where.end()) continue;
    const std::int32_t tier = verdict->second;
    request.where.erase(verdict);  // true only until it is used
    if (start_load(id, piece, tier)) {
      ++request.waiting;
    } else {
      request.failed = true;
    }
  }
  if (request.waiting == 0) begin_writing(id);
}

// ---- from the arena to the blocks ----

void Offload::Impl::begin_writing(std::uint64_t id) {
  Request& request = requests_.at(id);
  const auto can = reach(request, false);
  if (!can) return finish(id, request.length, LoadEnd::kNothing);
  const LoadEnd otherwise = request.why != LoadEnd::kNothing ? request.why
                            : request.failed                 ? LoadEnd::kPart
                                                             : LoadEnd::kNothing;
  if (can->end <= request.length) return finish(id, request.length, otherwise);
  const auto load = manager_.begin_load(request.sequence, request.tokens, can->end);
  if (!load) {
    const ErrorCode code = load.error().code();
    if (code == ErrorCode::kNoBlocks || code == ErrorCode::kResourceExhausted) {
      return finish(id, request.length, LoadEnd::kNoBlocks);
    }
    return finish(id, request.length, LoadEnd::kNothing);
  }
  if (!load->id.valid()) return finish(id, load->end, LoadEnd::kLoaded);
  request.load = *load;
  request.good = load->end;
  request.done = 0;
  request.state = Request::State::kWriting;
  for (std::int32_t g = 0; g < identity_.num_groups(); ++g) {
    blocks_.resize(request.tokens.size() / static_cast<std::size_t>(block_size(GroupId(g))) + 2);
    const auto count = manager_.blocks_to_load(load->id, GroupId(g), blocks_);
    KVFOLIO_CHECK(count.has_value());
    for (std::int32_t i = 0; i < *count; ++i) {
      const auto& [logical, block] = blocks_[static_cast<std::size_t>(i)];
      const bool is_known = has_hash(request, GroupId(g), logical);
      Piece piece{GroupId(g), logical, {}};
      ArenaPin pin;
      if (is_known) {
        piece = piece_of(request, GroupId(g), logical);
        pin = arena_->find(piece.key);
        if (pin && pin.uses() == 1) store_to_tiers(piece.key, true);
      }
      request.todo.emplace_back(piece, block);
      request.pins.push_back(std::move(pin));
    }
  }
  write(id);
}

// As much as the poll has bytes left for. A block behind one that failed is not written.
void Offload::Impl::write(std::uint64_t id) {
  Request& request = requests_.at(id);
  while (request.done < request.todo.size() && budget_ > 0) {
    const auto& [piece, block] = request.todo[request.done];
    const ArenaPin& pin = request.pins[request.done];
    ++request.done;
    const std::int32_t begin = piece.logical * block_size(piece.group);
    if (begin >= request.good) continue;
    budget_ -= record_bytes(piece.group);
    if (pin && write_block(piece, block, pin)) {
      ++counters_.loads;
      continue;
    }
    request.good = begin;
    if (!pin) continue;
    ++counters_.arena_corrupt;
    arena_->erase(piece.key);
  }
  if (request.done == request.todo.size()) end_writing(id);
}

bool Offload::Impl::write_block(const Piece& piece, BlockId block, const ArenaPin& pin) {
  const std::span<const std::byte> record = pin.record();
  const RecordInfo expected =
      record_of(piece.group, (piece.logical + 1) * block_size(piece.group), piece.key);
  RecordInfo seen;
  if (check_record_header(record, expected) != RecordFault::kNone ||
      read_record_header(record, seen) != RecordFault::kNone) {
    return false;
  }
  const auto payload = record.subspan(static_cast<std::size_t>(kRecordHeaderBytes));
  KVStorage& storage = *manager_.storage();
  if (storage.memory_kind() != MemoryKind::kHost) {
    const std::int32_t number = block.value();
    return checksum(payload, payload_seed(piece.key)) == seen.checksum &&
           storage.write_blocks(piece.group, std::span(&number, 1), payload).ok();
  }
  // In one pass: nothing reads the block before the load is finished.
  auto count = storage.image_runs(piece.group, block.value(), 0, runs_);
  if (count && static_cast<std::size_t>(*count) > runs_.size()) {
    runs_.resize(static_cast<std::size_t>(*count));
    count = storage.image_runs(piece.group, block.value(), 0, runs_);
  }
  if (!count) return false;
  copies_.clear();
  for (const KVStorage::ImageRun& run : std::span(runs_).first(static_cast<std::size_t>(*count))) {
    copies_.push_back({run.memory, payload.data() + run.offset, run.bytes});
  }
  return copy_with_checksum(copies_, payload_seed(piece.key)) == seen.checksum;
}

// What was not written is not good either: a cancel() may come in the middle.
void Offload::Impl::end_writing(std::uint64_t id) {
  Request& request = requests_.at(id);
  for (std::size_t i = request.done; i < request.todo.size(); ++i) {
    const Piece& piece = request.todo[i].first;
    request.good = std::min(request.good, piece.logical * block_size(piece.group));
  }
  const bool whole = request.good == request.load.end;
  const std::int32_t unit = identity_.unit();
  const std::int32_t good = whole ? request.good : request.good / unit * unit;
  const auto stood = manager_.finish_load(request.load.id, std::max(good - request.load.begin, 0));
  KVFOLIO_CHECK(stood.has_value());
  counters_.tokens_loaded += static_cast<std::uint64_t>(*stood);
  LoadEnd why = request.why;
  if (why == LoadEnd::kNothing) {
    why = whole && !request.failed ? LoadEnd::kLoaded : LoadEnd::kPart;
  }
  finish(id, request.load.begin + *stood, why);
}

}  // namespace kvfolio
