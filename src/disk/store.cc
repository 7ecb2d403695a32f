// SPDX-License-Identifier: Apache-2.0
//
// Items: how they are accepted, wait, begin and are answered. See store.h.

#include "disk/store.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <new>
#include <utility>

#include "base/mutants.h"
#include "base/text.h"

namespace kvfolio::disk {
namespace {

// In the largest unit of which it is a whole number: rounded, eight segments of 8188 KiB would seem
// to leave a megabyte of each unused.
std::string in_whole_units(std::int64_t bytes) {
  int unit = 0;
  constexpr std::array kUnits = {" bytes", " KiB", " MiB", " GiB"};
  for (; unit + 1 < std::ssize(kUnits) && bytes % 1024 == 0; ++unit) bytes /= 1024;
  return text::concat(bytes, kUnits[static_cast<std::size_t>(unit)]);
}

}  // namespace

SegmentStore::SegmentStore(DiskCalls& calls, const StoreOptions& options, Directory directory,
                           std::unique_ptr<IoEngine> engine, int event_fd)
    : calls_(calls),
      options_(options),
      directory_(std::move(directory)),
      event_fd_(event_fd),
      engine_(std::move(engine)),
      files_(options.open_files_max),
      loads_(static_cast<std::size_t>(options.items_max)),
      stores_(static_cast<std::size_t>(options.items_max)),
      ready_(static_cast<std::size_t>(options.items_max)),
      scrub_(options.scrub_bytes_per_s, options.segment_bytes) {
  ops_.reserve(4 * static_cast<std::size_t>(engine_->depth()));
}

SegmentStore::~SegmentStore() {
  if (process_.is_this()) {
    close({now_us_});
    std::array<TierDone, 64> done;
    while (!idle()) {
      if (poll(now_us_, done) > 0 || idle()) continue;
      pollfd event{.fd = event_fd_, .events = POLLIN, .revents = 0};
      // Where the host closed the descriptor there is nothing to sleep on.
      if (::poll(&event, 1, 100) != 0 && (event.revents & POLLIN) == 0) ::usleep(1000);
    }
  }
  engine_.reset();  // its threads write to event_fd_
  close_files();
}

void SegmentStore::close_files() noexcept {
  for (const auto& [id, segment] : segments_.all()) {
    if (segment->file >= 0) calls_.close(segment->file);
  }
  ::close(event_fd_);
}

// ---- from the owner ----

std::size_t SegmentStore::submit(TierOp op, std::span<const TierItem> items, Deadline deadline) {
  if (closing_ || is_off() || !process_.is_this()) return 0;
  begin_call();
  std::size_t n = 0;
  // What is done counts until it is handed over, so a caller that does not poll ends this.
  while (n < items.size() && items_ < options_.items_max && take(op, items[n], deadline)) ++n;
  // What can begin at once does, so that the disk works until the next poll.
  work();
  notify();
  return n;
}

// False: it is not accepted, and nothing has changed.
bool SegmentStore::take(TierOp op, const TierItem& item, Deadline deadline) {
  bool accepted = false;
  try {
    accepted = take_item(op, item, deadline);
  } catch (const std::bad_alloc&) {
  }
  items_ += accepted ? 1 : 0;
  KVFOLIO_CHECK(items_ <= options_.items_max);  // there is a place for each answer
  return accepted;
}

bool SegmentStore::take_item(TierOp op, const TierItem& item, Deadline deadline) {
  const std::uint32_t id = index_.find(item.key);
  const bool known = id != RecordIndex::kNone;
  const bool found = known && index_[id].visible;
  switch (op) {
    case TierOp::kExists:
      answer(item.tag, op, found ? TierResult::kOk : TierResult::kMiss);
      return true;
    case TierOp::kErase:
      return take_erase(item, deadline);
    case TierOp::kLoad:
      if (found && item.bytes == std::int64_t{index_[id].data_bytes}) break;
      stats_.corrupt += found ? 1 : 0;
      answer(item.tag, op, found ? TierResult::kCorrupt : TierResult::kMiss);
      return true;
    case TierOp::kStore:
      if (known || item.bytes < 0 || item.bytes > data_bytes_max()) {
        answer(item.tag, op,
               found   ? TierResult::kOk
               : known ? TierResult::kBusy  // it is being written now
                       : TierResult::kUnavailable);
        return true;
      }
      break;
  }
  if (queued_bytes_ + item.bytes > options_.queued_bytes_max) return false;
  if (!(op == TierOp::kLoad ? loads_ : stores_).push(item, deadline)) return false;
  queued_bytes_ += item.bytes;
  return true;
}

void SegmentStore::answer(std::uint64_t tag, TierOp op, TierResult result) noexcept {
  KVFOLIO_CHECK(num_ready_ < ready_.size());
  ready_[(ready_at_ + num_ready_++) % ready_.size()] = {tag, result};
  if (result == TierResult::kOk) {
    health_.stores_ok += op == TierOp::kStore ? 1 : 0;
    health_.loads_ok += op == TierOp::kLoad ? 1 : 0;
  } else if (result != TierResult::kMiss) {
    ++health_.failures;
    corrupt_answers_ += op == TierOp::kLoad && result == TierResult::kCorrupt ? 1 : 0;
  }
}

std::size_t SegmentStore::hand_over(std::span<TierDone> done) noexcept {
  const std::size_t n = std::min(done.size(), num_ready_);
  for (std::size_t i = 0; i < n; ++i) {
    done[i] = ready_[ready_at_];
    ready_at_ = (ready_at_ + 1) % ready_.size();
  }
  num_ready_ -= n;
  items_ -= static_cast<std::int64_t>(n);
  KVFOLIO_DCHECK(items_ >= static_cast<std::int64_t>(num_ready_));
  return n;
}

std::size_t SegmentStore::poll(std::uint64_t now_us, std::span<TierDone> done) {
  begin_call();
  if (now_us > now_us_) {
    scrub_.earn(now_us - now_us_);
    now_us_ = now_us;
  }
  if (!process_.is_this()) leave_to_parent();
  if (!left_to_parent_) {
    collect();
    expire(loads_, TierOp::kLoad);
    expire(stores_, TierOp::kStore);
    expire_erases();
    work();
  }
  const std::size_t n = hand_over(done);
  notify();
  return n;
}

void SegmentStore::close(Deadline deadline) {
  if (!process_.is_this()) return leave_to_parent();
  begin_call();
  close_by_ = closing_ ? close_by_ : deadline;
  closing_ = true;
  refuse_all(loads_, TierOp::kLoad, TierResult::kClosed);
  refuse_all(stores_, TierOp::kStore, TierResult::kClosed);
  stop_evicting();
  if (active_ != nullptr) stop_writing(*active_);
  // One that this run was to go on in lost its footer for that.
  if (next_ != nullptr && next_->state == State::kReady && next_->num_records > 0) {
    segments_.set_state(*next_, State::kFull);
    segments_.touch(*next_);
    next_ = nullptr;
  }
  work();
  notify();
}

bool SegmentStore::idle() const noexcept {
  if (num_ready_ > 0) return false;
  if (left_to_parent_) return true;
  const bool is_idle = ops_.empty() && loads_.empty() && stores_.empty() && erases_.size() == 0 &&
                       to_erase_ == 0 && segments_.num_touched() == 0;
  KVFOLIO_DCHECK(!is_idle || (items_ == 0 && queued_bytes_ == 0 && eviction_.moves() == 0));
  return is_idle;
}

TierHealth SegmentStore::health() const noexcept {
  TierHealth health = health_;
  health.usable = !closing_ && !is_off() && process_.is_this();
  health.corrupt_unasked = stats_.corrupt - corrupt_answers_;
  health.of_another_key = stats_.of_another_key;
  return health;
}

DiskTierStats SegmentStore::stats() const noexcept {
  DiskTierStats stats = stats_;
  stats.bytes = bytes_used();
  stats.records = index_.size();
  stats.segments = segments_.size();
  return stats;
}

std::int64_t SegmentStore::data_bytes_max() const noexcept {
  const std::int64_t room = options_.segment_bytes - kPiece - footer_bytes(1) - kPiece;
  return std::min(room, kDataBytesMax);
}

std::string SegmentStore::describe() const {
  std::string removed, sealed, off, engine(engine_->name());
  if (removed_by_open_ > 0) {
    removed =
        text::concat(", the oldest ", removed_by_open_, " removed, which were beyond the budget");
  }
  if (const std::int64_t refused = engine_->refused(); refused < 0) {
    engine += text::concat(" refused since (", error_text(refused), "), plain calls");
  }
  if (stats_.of_another_key > 0) {
    sealed = text::concat(", ", stats_.of_another_key, " loads met a record of another key");
  }
  if (is_off()) off = text::concat(", off after errors: ", budget_.reason());
  return text::concat("disk ", options_.path, ": ", in_whole_units(options_.bytes),
                      " in segments of ", in_whole_units(options_.segment_bytes), ", ", engine,
                      options_.direct && !went_buffered_ ? ", O_DIRECT, " : ", page cache, ",
                      index_.size(), " records", removed, sealed, off);
}

// event_fd is readable exactly if there is something to hand over or to go on with, or a job may
// have ended. In a child it is the parent's.
void SegmentStore::notify() noexcept {
  has_more_ = segments_.num_touched() > 0 || loads_.refuses() || stores_.refuses() || left_ == 0;
  if ((num_ready_ == 0 && !has_more_) || notified_ || left_to_parent_) return;
  const std::uint64_t one = 1;
  static_cast<void>(!::write(event_fd_, &one, sizeof one));
  notified_ = true;
}

// ---- ends ----

bool SegmentStore::spend() noexcept {
  KVFOLIO_DCHECK(left_ >= 0);
  if (left_ == 0) return false;
  --left_;
  ++steps_;
  return true;
}

void SegmentStore::spend_at_least(std::int64_t steps) noexcept {
  left_ = std::max<std::int64_t>(left_ - steps, 0);
  steps_ += static_cast<std::uint64_t>(steps);
}

void SegmentStore::drop_queued(std::int64_t bytes) noexcept {
  KVFOLIO_CHECK(bytes >= 0 && queued_bytes_ >= bytes);
  queued_bytes_ -= bytes;
}

void SegmentStore::answer_unbegun(const Waiting& waiting, TierOp op, TierResult result) noexcept {
  KVFOLIO_DCHECK(result != TierResult::kOk || op == TierOp::kStore);
  drop_queued(waiting.item.bytes);
  answer(waiting.item.tag, op, result);
}

void SegmentStore::expire(WaitingItems& queue, TierOp op) noexcept {
  while (spend()) {
    const std::optional<Waiting> late = queue.take_late(now_us_);
    if (!late) return;
    answer_unbegun(*late, op, TierResult::kTimeout);
    if (!ops_.empty() && budget_.was_late(under_way_since_us_, now_us_)) {
      turn_off(TierResult::kUnavailable);
    }
  }
}

// Its targets go all the same.
void SegmentStore::expire_erases() noexcept {
  while (spend()) {
    const std::optional<Erases::Erase> late = erases_.take_late(now_us_);
    if (!late) return;
    answer(late->tag, TierOp::kErase, TierResult::kTimeout);
  }
}

void SegmentStore::refuse_some(WaitingItems& queue, TierOp op) noexcept {
  while (queue.refuses() && spend()) {
    const std::optional<Waiting> refused = queue.take_refused();
    answer_unbegun(*refused, op, queue.refusal());
    stats_.dropped += op == TierOp::kStore ? 1 : 0;
  }
}

void SegmentStore::refuse_all(WaitingItems& queue, TierOp op, TierResult result) noexcept {
  queue.refuse_all(result);
  refuse_some(queue, op);
}

void SegmentStore::turn_off(TierResult result) noexcept {
  refuse_all(loads_, TierOp::kLoad, result);
  refuse_all(stores_, TierOp::kStore, result);
}

// What is under way ends, nothing begins any more, and the next open() finds what a process leaves
// that is killed.
void SegmentStore::end_for_good(const char* reason) noexcept {
  try {
    budget_.end_for_good(reason);
  } catch (const std::bad_alloc&) {  // short texts take no memory
  }
  stop_evicting();
  turn_off(TierResult::kUnavailable);
}

// A child of fork() has none of the engine's threads, and nothing to finish: all of it is its
// parent's.
void SegmentStore::leave_to_parent() noexcept {
  if (std::exchange(left_to_parent_, true)) return;
  closing_ = true;
  for (const auto& [job, op] : ops_) {
    if (op.kind == Op::Kind::kStore) answer(op.item.tag, TierOp::kStore, TierResult::kClosed);
    if (op.kind == Op::Kind::kLoad) answer(op.item.tag, TierOp::kLoad, TierResult::kClosed);
  }
  while (!loads_.empty()) {
    answer(loads_.take_front().item.tag, TierOp::kLoad, TierResult::kClosed);
  }
  while (!stores_.empty()) {
    answer(stores_.take_front().item.tag, TierOp::kStore, TierResult::kClosed);
  }
  while (const std::optional<Erases::Erase> erase = erases_.take_any()) {
    answer(erase->tag, TierOp::kErase, TierResult::kClosed);
  }
}

// ---- waiting items ----

// Where there is no memory for what a segment needs, the tier ends: with each poll it would be the
// same.
void SegmentStore::work() {
  try {
    refuse_some(loads_, TierOp::kLoad);
    refuse_some(stores_, TierOp::kStore);
    const std::int64_t kept =
        std::exchange(left_, std::max<std::int64_t>(left_ - kStepsOfItems, 0));
    const std::int64_t given = left_;
    keep_going();
    left_ += kept - given;
    begin_waiting();
  } catch (const std::bad_alloc&) {
    end_for_good("no memory");
  }
}

// As many as keep the engine busy until the next poll: the others wait here, where loads pass
// stores.
bool SegmentStore::has_room_for_job() const noexcept {
  return ops_.size() < 2 * static_cast<std::size_t>(engine_->depth());
}

void SegmentStore::begin_waiting() {
  while (!loads_.empty() && !loads_.refuses() && has_room_for_job() && spend()) {
    const Waiting waiting = loads_.front();
    bool begun = false;
    try {
      begun = begin_load(waiting);
    } catch (const std::bad_alloc&) {
      answer(waiting.item.tag, TierOp::kLoad, TierResult::kBusy);
    }
    loads_.take_front();
    if (!begun) drop_queued(waiting.item.bytes);
  }
  while (!stores_.empty() && !stores_.refuses() && has_room_for_job() && spend()) {
    const Waiting waiting = stores_.front();
    try {
      if (!begin_store(waiting)) break;
    } catch (const std::bad_alloc&) {
      ++stats_.dropped;
      answer_unbegun(waiting, TierOp::kStore, TierResult::kBusy);
    }
    stores_.take_front();
  }
  // A medium that gave no room a moment ago is not waited for.
  if (active_ == nullptr && next_ == nullptr && !eviction_.is_under_way() &&
      now_us_ < retry_create_us_) {
    refuse_all(stores_, TierOp::kStore, TierResult::kBusy);
  }
  if (loads_.empty() && stores_.empty() && has_room_for_job()) begin_scrub();
}

// False: it was answered.
bool SegmentStore::begin_load(const Waiting& waiting) {
  const std::uint32_t id = index_.find(waiting.item.key);
  // Where its size is another, another one took its place.
  if (id == RecordIndex::kNone || !index_[id].visible ||
      waiting.item.bytes != std::int64_t{index_[id].data_bytes}) {
    answer(waiting.item.tag, TierOp::kLoad, TierResult::kMiss);
    return false;
  }
  start_load(Op::Kind::kLoad, id, waiting.item.data, &waiting, {});
  index_[id].used = true;
  return true;
}

// False: there is no place for it now.
bool SegmentStore::begin_store(const Waiting& waiting) {
  const std::uint32_t known = index_.find(waiting.item.key);
  if (known != RecordIndex::kNone) {  // stored while this one waited
    answer_unbegun(waiting, TierOp::kStore,
                   index_[known].visible ? TierResult::kOk : TierResult::kBusy);
    return true;
  }
  Op* op = start_store(Op::Kind::kStore, waiting.item.key, waiting.item.bytes);
  if (op == nullptr) return false;
  index_.publish(op->record);
  op->item = waiting.item;
  op->deadline = waiting.deadline;
  if (mutant(Mutant::kAcknowledgedBeforeWritten)) {
    answer(waiting.item.tag, TierOp::kStore, TierResult::kOk);
  }
  begin_write(*op, waiting.item.data);
  return true;
}

void SegmentStore::begin_scrub() {
  if (!scrub_.may_read() || closing_ || is_off()) return;
  const std::uint32_t id = scrub_.next(segments_, index_);
  if (id == RecordIndex::kNone) return;
  const std::int64_t bytes = record_bytes(index_[id].data_bytes);
  AlignedBuffer memory(bytes);
  if (memory.data() == nullptr) return;
  scrub_.spend(bytes);
  std::byte* data = memory.data();
  start_load(Op::Kind::kScrub, id, data, nullptr, std::move(memory));
}

TierResult SegmentStore::in_time(Deadline deadline, TierResult result) const noexcept {
  if (deadline.at_us < now_us_) return TierResult::kTimeout;
  return closing_ && close_by_.at_us < now_us_ ? TierResult::kClosed : result;
}

}  // namespace kvfolio::disk
