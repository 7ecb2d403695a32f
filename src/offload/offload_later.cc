// SPDX-License-Identifier: Apache-2.0
//
// Over memory that copies later (MemoryResource::copies_later()): what is on its way between the
// cache and the arena, each under a ticket. No call waits for one; each poll asks. Until a ticket
// is over, its block stays with a hold or a load, and its record where it is. Records are checked
// in the arena, by the CPU, when the ticket is over: a record is sealed from the bytes that have
// arrived in it, and one that was copied to a block is verified as it lies in the arena still. So
// damage that a record takes there shows, also while it is copied: arena_corrupt counts it, the
// record is erased, and the load ends in front of that block, whatever was copied behind it. What
// only the block took is not read back, and what a record took on its way from a block is in its
// checksum: against both stands the resource's word that the bytes arrived (poll()).

#include <algorithm>

#include "base/mutants.h"
#include "kvfolio/checked_copy.h"
#include "kvfolio/storage.h"
#include "offload/offload_impl.h"

namespace kvfolio {

Result<bool> Offload::Impl::is_over(CopyTicket ticket) const {
  Result<bool> over = manager_.storage()->poll_copy(ticket);
  if (over && mutant(Mutant::kTicketNotWaitedFor)) return true;
  return over;
}

// ---- stores ----

// Each block on its way takes a hold.
bool Offload::Impl::has_room_to_store() const {
  return !manager_.storage()->copies_later() ||
         std::ssize(storing_) < manager_.options().max_transfers;
}

// kFailedPrecondition is no failure: the open step writes the block, or the engine's stream is
// being captured. Requires: the slot is reserved.
Offload::Impl::Begun Offload::Impl::begin_store(const FindableBlock& block, const RecordInfo& info,
                                                ArenaSlot slot) {
  const std::span<std::byte> record = arena_->fill(slot);
  KVFOLIO_CHECK(std::ssize(record) == record_bytes(block.group));
  const std::int32_t number = block.block.value();
  const auto hold = manager_.hold_blocks(block.group, {&number, 1});
  bool not_now = !hold && hold.error().code() == ErrorCode::kFailedPrecondition;
  if (hold) {
    const auto ticket = manager_.storage()->submit_read(
        block.group, number, record.subspan(static_cast<std::size_t>(kRecordHeaderBytes)),
        options_.stream);
    if (ticket) {
      storing_.push_back({*ticket, *hold, slot, record, info});
      return Begun::kYes;
    }
    KVFOLIO_CHECK(manager_.release_hold(*hold).ok());
    not_now = ticket.error().code() == ErrorCode::kFailedPrecondition;
    if (!not_now) ++counters_.copies_failed;
  }
  arena_->abandon(slot);
  if (not_now) return Begun::kLater;
  ++counters_.stores_dropped;
  return Begun::kNo;
}

void Offload::Impl::end_stores() {
  std::erase_if(storing_, [this](const Storing& one) {
    const Result<bool> over = is_over(one.ticket);
    if (over && !*over) return false;
    end_store(one, over.has_value());
    return true;
  });
}

void Offload::Impl::end_store(const Storing& one, bool arrived) {
  KVFOLIO_CHECK(manager_.release_hold(one.hold).ok());
  if (!arrived) ++counters_.copies_failed;
  if (!arrived || one.is_forgotten) {
    ++counters_.stores_dropped;
    return arena_->abandon(one.slot);
  }
  seal_record(one.info, one.record);
  arena_->seal(one.slot);
  if (!arena_->publish(one.slot)) return;  // it came from a tier meanwhile
  ++counters_.stores;
  arrived_otherwise(one.info.key);
  store_to_tiers(one.info.key, std::ssize(one.record), false);
}

// `root`: whose; null: all.
void Offload::Impl::forget_stores(const Digest* root) {
  for (Storing& one : storing_) {
    one.is_forgotten |= root == nullptr || one.info.owner == root_owner(*root);
  }
}

void Offload::Impl::forget_store(const TierKey& key) {
  for (Storing& one : storing_) one.is_forgotten |= one.info.key == key;
}

// ---- loads ----

// A load of which one copy failed brings nothing.
bool Offload::Impl::end_copies(Request& request) {
  std::erase_if(request.copying, [&](Request::Copying& one) {
    if (mutant(Mutant::kStagingReusedEarly)) one.pin.release();
    const Result<bool> over = is_over(one.ticket);
    if (over && !*over) return false;
    if (!over) {
      ++counters_.copies_failed;
      request.good = 0;
    } else if (!one.pin || is_right(one.pin.record(), one.piece.key)) {
      note_loaded(one.piece.key);
    } else {
      note_damaged(request, one.piece);
    }
    return true;
  });
  return request.copying.empty();
}

// Requires: its header was checked.
bool Offload::Impl::is_right(std::span<const std::byte> record, const TierKey& key) {
  RecordInfo info;
  return read_record_header(record, info) == RecordFault::kNone &&
         checksum(record.subspan(static_cast<std::size_t>(kRecordHeaderBytes)),
                  payload_seed(key)) == info.checksum;
}

// ---- the end ----

// Gives what is on its way a few polls. What has not ended then keeps its blocks: its hold or load
// stays open. Returns a pinned record of the arena that is still read, if there is one.
std::optional<std::pair<TierKey, std::int64_t>> Offload::Impl::leave_copies() {
  forget_stores(nullptr);  // too late for a record
  Request* const writer = requests_.writer();
  const bool can_ask = !alias_.has_ended();
  constexpr int kPolls = 100;
  for (int i = 0; i < kPolls && can_ask; ++i) {
    end_stores();
    if ((writer == nullptr || end_copies(*writer)) && storing_.empty()) break;
  }
  for (const Storing& one : storing_) {
    if (can_ask) manager_.storage()->leave_copy(one.ticket);
    arena_->quarantine(one.slot);
  }
  storing_.clear();
  if (writer == nullptr) return std::nullopt;
  if (!writer->copying.empty()) {
    for (const Request::Copying& one : writer->copying) {
      if (can_ask) manager_.storage()->leave_copy(one.ticket);
    }
    const Request::Copying& one = writer->copying.front();
    return std::pair{one.piece.key, static_cast<std::int64_t>(std::ssize(one.pin.record()))};
  }
  if (can_ask) static_cast<void>(manager_.finish_load(writer->load.id, 0));
  return std::nullopt;
}

}  // namespace kvfolio
