// SPDX-License-Identifier: Apache-2.0
//
// From the arena to the blocks of the cache, one request at a time: so the loads of all requests
// together never hold more blocks than the largest one needs, and each is over as soon as it can
// be. A poll writes a bounded number of bytes.

#include <algorithm>

#include "base/mutants.h"
#include "kvfolio/checked_copy.h"
#include "kvfolio/storage.h"
#include "offload/offload_impl.h"

namespace kvfolio {

// May end the request.
void Offload::Impl::write_in_turn(Request& request) {
  KVFOLIO_DCHECK(request.state >= Request::State::kReady && request.waiting == 0);
  const bool late = request.is_late(now_us_);
  if (request.state == Request::State::kReady) {
    const bool is_its_turn = requests_.writer() == nullptr;
    if (!is_its_turn) request.walk.clear();
    if (is_its_turn && budget_ > 0 && look_for_blocks(request, false, request.horizon)) {
      return begin_writing(request);
    }
    if (late) finish(request, request.length, LoadEnd::kTimeout);
    return;
  }
  end_copies(request);
  if (!request.stops) write(request);
  const bool all = !has_block_to_write(request);
  if (!all && late && !request.stops) request.why = LoadEnd::kTimeout;
  request.stops |= all || late;
  if (request.stops && request.copying.empty()) end_writing(request);
}

void Offload::Impl::begin_writing(Request& request) {
  const auto can = reach(request, request.horizon);
  if (!can) return finish(request, request.length, LoadEnd::kNothing);
  request.failed |= request.silence && can->end < request.horizon;
  const LoadEnd otherwise = request.why != LoadEnd::kNothing ? request.why
                            : request.failed                 ? LoadEnd::kPart
                                                             : LoadEnd::kNothing;
  if (can->end <= request.length) return finish(request, request.length, otherwise);
  const auto load = manager_.begin_load(request.sequence, request.tokens, can->end);
  if (!load) {
    const ErrorCode code = load.error().code();
    if (code == ErrorCode::kNoBlocks || code == ErrorCode::kResourceExhausted) {
      return finish(request, request.length, LoadEnd::kNoBlocks);
    }
    return finish(request, request.length, LoadEnd::kNothing);
  }
  if (!load->id.valid()) {
    if (load->end == request.horizon && !request.is_last_part()) {
      return requests_.begin_next_part(request, load->end);
    }
    return finish(request, load->end, LoadEnd::kLoaded);
  }
  KVFOLIO_CHECK(load->begin <= load->end && load->end <= request.horizon);
  request.load = *load;
  request.good = load->end;
  request.group = -1;
  requests_.enter(request, Request::State::kWriting);
  write(request);
  request.stops = !has_block_to_write(request);
  if (request.stops && request.copying.empty()) end_writing(request);
}

// The blocks that the load waits for, group by group.
bool Offload::Impl::has_block_to_write(Request& request) {
  while (request.done == request.todo.size()) {
    if (request.group + 1 == identity_.num_groups()) return false;
    const GroupId group(++request.group);
    request.done = 0;
    request.todo.resize(request.has[static_cast<std::size_t>(request.group)].size());
    const auto count = manager_.blocks_to_load(request.load.id, group, request.todo);
    KVFOLIO_CHECK(count && static_cast<std::size_t>(*count) <= request.todo.size());
    request.todo.resize(static_cast<std::size_t>(*count));
  }
  return true;
}

// As much as the poll has bytes and steps left for.
void Offload::Impl::write(Request& request) {
  while (budget_ > 0 && steps_.has_any() && has_block_to_write(request)) {
    if (!write_next(request)) return;
  }
}

// A block behind one that failed is not written. False: memory begins no copy now, and the block
// stays the next one, with its record.
bool Offload::Impl::write_next(Request& request) {
  steps_.took(1);
  KVFOLIO_CHECK(request.done < request.todo.size());
  const auto& [logical, block] = request.todo[request.done++];
  const GroupId group(request.group);
  const std::int32_t begin = logical * block_size(group);
  if (begin >= request.good) return true;
  budget_ -= record_bytes(group);
  ArenaPin pin;
  Piece piece{group, logical, {}};
  if (requests_.has_hash(request, group, logical)) {
    piece = requests_.piece_of(request, group, logical);
    pin = arena_->hold(piece.key);
  }
  if (!pin) {
    request.good = begin;
    return true;
  }
  const Written written = write_block(request, piece, block, pin);
  if (written == Written::kNotNow) {
    --request.done;
    budget_ += record_bytes(group);
    return false;
  }
  const ArenaPin used = arena_->find(piece.key);  // each record once, however often it was tried
  requests_.release(request, requests_.end_of(piece), used);
  if (used.uses() == 1) store_to_tiers(piece.key, record_bytes(group), true);
  switch (written) {
    case Written::kYes:
      note_loaded(piece.key);
      break;
    case Written::kLater:
    case Written::kNotNow:
      break;
    case Written::kDamaged:
      note_damaged(request, piece);
      break;
    case Written::kFailed:  // memory that failed once is not trusted with the rest of the load
      ++counters_.copies_failed;
      if (!mutant(Mutant::kFailedWriteFindable)) request.good = 0;
      break;
  }
  return true;
}

// Where the image of a block lies, in the order of the image. Valid until the next call.
Result<std::span<const KVStorage::ImageRun>> Offload::Impl::runs_of(GroupId group, BlockId block) {
  const KVStorage& storage = *manager_.storage();
  auto count = storage.image_runs(group, block.value(), 0, runs_);
  if (count && static_cast<std::size_t>(*count) > runs_.size()) {
    runs_.resize(static_cast<std::size_t>(*count));
    count = storage.image_runs(group, block.value(), 0, runs_);
  }
  if (!count) return count.error();
  return std::span<const KVStorage::ImageRun>(runs_).first(static_cast<std::size_t>(*count));
}

void Offload::Impl::note_loaded(const TierKey& key) {
  ++counters_.loads;
  loaded_.add(key);
}

void Offload::Impl::note_damaged(Request& request, const Piece& piece) {
  request.good = std::min(request.good, piece.logical * block_size(piece.group));
  ++counters_.arena_corrupt;
  arena_->erase(piece.key);
}

// The pin goes with what is copied later, whose payload is checked when it has arrived.
Offload::Impl::Written Offload::Impl::write_block(Request& request, const Piece& piece,
                                                  BlockId block, ArenaPin& pin) {
  const std::span<const std::byte> record = pin.record();
  const RecordInfo expected =
      record_of(piece.group, (piece.logical + 1) * block_size(piece.group), piece.key);
  RecordInfo seen;
  if (check_record_header(record, expected) != RecordFault::kNone ||
      read_record_header(record, seen) != RecordFault::kNone) {
    return Written::kDamaged;
  }
  const auto payload = record.subspan(static_cast<std::size_t>(kRecordHeaderBytes));
  KVStorage& storage = *manager_.storage();
  if (storage.memory_kind() != MemoryKind::kHost) {
    if (storage.copies_later()) {
      const auto ticket =
          storage.submit_write(piece.group, block.value(), payload, options_.stream);
      if (!ticket) {
        const bool not_now = ticket.error().code() == ErrorCode::kFailedPrecondition;
        return not_now ? Written::kNotNow : Written::kFailed;
      }
      request.copying.push_back({*ticket, piece, std::move(pin)});
      return Written::kLater;
    }
    if (checksum(payload, payload_seed(piece.key)) != seen.checksum) return Written::kDamaged;
    const std::int32_t number = block.value();
    const Status wrote = storage.write_blocks(piece.group, std::span(&number, 1), payload);
    return wrote.ok() ? Written::kYes : Written::kFailed;
  }
  // In one pass: nothing reads the block before the load is finished.
  const auto runs = runs_of(piece.group, block);
  if (!runs) return Written::kFailed;
  copies_.clear();
  for (const KVStorage::ImageRun& run : *runs) {
    KVFOLIO_DCHECK(run.offset >= 0 && run.offset + run.bytes <= std::ssize(payload));
    copies_.push_back({run.memory, payload.data() + run.offset, run.bytes});
  }
  const bool right = copy_with_checksum(copies_, payload_seed(piece.key)) == seen.checksum;
  return right || mutant(Mutant::kChecksumUnread) ? Written::kYes : Written::kDamaged;
}

// What was not written is not good either: a cancel() may come in the middle.
void Offload::Impl::end_writing(Request& request) {
  KVFOLIO_CHECK(request.copying.empty());
  request.stops = false;
  for (; has_block_to_write(request); request.done = request.todo.size()) {
    const std::int32_t begin =
        request.todo[request.done].logical * block_size(GroupId(request.group));
    request.good = std::min(request.good, begin);
  }
  const bool whole = request.good == request.load.end;
  const std::int32_t unit = identity_.unit();
  const std::int32_t good = whole ? request.good : request.good / unit * unit;
  const auto stood = manager_.finish_load(request.load.id, std::max(good - request.load.begin, 0));
  KVFOLIO_CHECK(stood.has_value() && *stood <= std::max(good - request.load.begin, 0));
  counters_.tokens_loaded += static_cast<std::uint64_t>(*stood);
  LoadEnd why = request.why;
  if (why == LoadEnd::kNothing) {
    why = whole && !request.failed ? LoadEnd::kLoaded : LoadEnd::kPart;
  }
  const std::int32_t length = request.load.begin + *stood;
  if (why == LoadEnd::kLoaded && length == request.horizon && !request.is_last_part()) {
    return requests_.begin_next_part(request, length);
  }
  finish(request, length, why);
}

}  // namespace kvfolio
