// SPDX-License-Identifier: Apache-2.0
#pragma once

// SegmentStore is the disk tier without its options: the owner's side of it, a state machine that
// never touches the disk itself. It gives jobs to an engine, and learns in poll() how they ended.
// store.cc takes items and answers them; store_jobs.cc starts jobs and takes what they say;
// store_segments.cc lets segments live and go; store_erase.cc takes records away for good;
// store_open.cc takes what a directory has.
//
// The life of a segment:
//   creating --+-> ready -> active -> full -> sealing -> sealed -> evicting -> draining
//   continuing-+                                                    -> removing -> forgetting
//  - continuing: a sealed one of an earlier run, which this run goes on in.
//  - ready: the next to become active. There is one at most.
//  - active: takes records. full: takes no more (no room, an error, or the end), and waits for the
//    writes that are under way.
//  - sealed: durable, read only. Without a footer if sealing failed. Its file may be closed.
//  - evicting: what was used is written again to the active segment; the rest is not found any
//    more.
//  - draining: its records are taken out of the index, then reads end. Then its file goes. One that
//    cannot be removed stays here, in the budget, and is tried again.
//  - forgetting: its file is gone, and its records give their memory back.
//
// What is to be done for all records of a segment is done some at a time (Segment::Walk), so a call
// never looks at more than kStepsOfCall records, places of the index and waiting items together,
// and a few more for each job that has ended (steps() counts them).
//
// Invariants: the files together take at most the budget, and a new one is only begun when the old
// one is gone. A record is found only after its write has ended well. What is in a segment that is
// not draining yet is never moved or written over. Each item that was accepted gets one answer.
//
// In a child of fork() every item is answered with kClosed, and nothing is submitted: the engine
// and what it works at are the parent's.
//
// Thread safety: one owner, as Tier.

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "disk/directory.h"
#include "disk/engine.h"
#include "disk/erases.h"
#include "disk/error_budget.h"
#include "disk/eviction.h"
#include "disk/index.h"
#include "disk/jobs.h"
#include "disk/recover.h"
#include "disk/scrub.h"
#include "disk/segments.h"
#include "disk/waiting.h"
#include "kvfolio/disk_tier.h"
#include "tiers/process.h"

namespace kvfolio::disk {

struct StoreOptions {
  std::string path;
  std::int64_t bytes = 0;
  std::int64_t segment_bytes = 0;
  std::int64_t queued_bytes_max = 0;
  std::int64_t scrub_bytes_per_s = 0;
  std::int32_t items_max = 0;
  std::int32_t open_files_max = 0;
  bool direct = true;
  RecordKeys keys{};
};

class SegmentStore {
 public:
  static constexpr std::int64_t kStepsOfCall = 4096;
  // A part of these is for items: segments that come and go do not keep them waiting.
  static constexpr std::int64_t kStepsOfItems = 2048;
  static_assert(kStepsOfItems < kStepsOfCall);
  // So that going on in a segment costs a bounded number of reads.
  static constexpr std::int64_t kContinuedRecordsMax = 4096;

  // Takes the lock and what the directory has. `event_fd` is closed with the store.
  static Result<std::unique_ptr<SegmentStore>> open(DiskCalls& calls, const StoreOptions& options,
                                                    Directory directory,
                                                    std::unique_ptr<IoEngine> engine, int event_fd);
  // Waits for what is in flight.
  ~SegmentStore();
  SegmentStore(const SegmentStore&) = delete;
  SegmentStore& operator=(const SegmentStore&) = delete;

  std::size_t submit(TierOp op, std::span<const TierItem> items, Deadline deadline);
  std::size_t poll(std::uint64_t now_us, std::span<TierDone> done);
  void close(Deadline deadline);
  [[nodiscard]] bool idle() const noexcept;
  [[nodiscard]] int event_fd() const noexcept { return event_fd_; }
  [[nodiscard]] TierHealth health() const noexcept;
  [[nodiscard]] DiskTierStats stats() const noexcept;
  [[nodiscard]] std::int64_t data_bytes_max() const noexcept;
  [[nodiscard]] std::string describe() const;
  // Files of segments that are open.
  [[nodiscard]] int open_files() const noexcept { return files_.size(); }
  // Records, places of the index and waiting items that were looked at since open().
  [[nodiscard]] std::uint64_t steps() const noexcept { return steps_ + index_.steps(); }
  // The first rule of this class that is broken, or ok. O(records).
  [[nodiscard]] Status check_invariants() const;

 private:
  using State = Segment::State;
  using Task = ErrorBudget::Task;
  // Why a job runs, and what its end means.
  struct Op {
    enum class Kind : std::uint8_t {
      kStore,
      kLoad,
      kMoveRead,
      kMoveWrite,
      kScrub,
      kErase,
      kFile,
      kOpen,
      kClose,
    };
    Kind kind = Kind::kFile;
    std::unique_ptr<IoJob> job{};
    Segment* segment = nullptr;
    std::uint32_t record = RecordIndex::kNone;
    TierItem item{};                              // of kStore, kLoad
    Deadline deadline{};                          // the same
    AlignedBuffer memory{};                       // of the kinds that have no item
    std::uint32_t replaces = RecordIndex::kNone;  // of kMoveWrite
    std::vector<EraseTarget> targets{};           // of kErase
  };
  using Waiting = WaitingItems::Waiting;

  SegmentStore(DiskCalls& calls, const StoreOptions& options, Directory directory,
               std::unique_ptr<IoEngine> engine, int event_fd);

  // ---- store.cc: items ----
  bool take(TierOp op, const TierItem& item, Deadline deadline);
  bool take_item(TierOp op, const TierItem& item, Deadline deadline);
  void answer(std::uint64_t tag, TierOp op, TierResult result) noexcept;
  void drop_queued(std::int64_t bytes) noexcept;
  void answer_unbegun(const Waiting& waiting, TierOp op, TierResult result) noexcept;
  std::size_t hand_over(std::span<TierDone> done) noexcept;
  void begin_call() noexcept { left_ = kStepsOfCall; }
  [[nodiscard]] bool spend() noexcept;
  void spend_at_least(std::int64_t steps) noexcept;  // more than there are are counted, too
  void expire(WaitingItems& queue, TierOp op) noexcept;
  void expire_erases() noexcept;
  void refuse_some(WaitingItems& queue, TierOp op) noexcept;
  void refuse_all(WaitingItems& queue, TierOp op, TierResult result) noexcept;
  void work();
  void begin_waiting();
  bool begin_load(const Waiting& waiting);
  bool begin_store(const Waiting& waiting);
  void begin_scrub();
  void turn_off(TierResult result) noexcept;
  void end_for_good(const char* reason) noexcept;
  void leave_to_parent() noexcept;
  void close_files() noexcept;
  void notify() noexcept;
  [[nodiscard]] bool is_off() const noexcept { return budget_.is_off(now_us_); }
  [[nodiscard]] bool has_room_for_job() const noexcept;
  [[nodiscard]] TierResult in_time(Deadline deadline, TierResult result) const noexcept;

  // ---- store_jobs.cc ----
  // Each takes memory before it changes anything: it may throw std::bad_alloc.
  Op& add_op(Op::Kind kind, std::unique_ptr<IoJob> job);
  void start_load(Op::Kind kind, std::uint32_t record, std::byte* data, const Waiting* waiting,
                  AlignedBuffer memory);
  Op* start_store(Op::Kind kind, const TierKey& key, std::int64_t data_bytes);
  void begin_write(Op& op, std::byte* data) noexcept;
  void prepare_file(Segment& segment);
  void start_in(Segment& segment, Op& op) noexcept;
  void start(Op& op) noexcept;
  void open_file(Segment& segment);
  bool close_least_used();
  void end_held(Segment& segment, std::int64_t error);
  void collect();
  void on_done(Op& op);
  void on_opened(Op& op);
  void on_stored(Op& op);
  void on_loaded(Op& op);
  TierResult on_read(Op& op);  // whatever the read was for
  TierResult on_written(Op& op);
  void on_error(Segment& segment, Task task, std::int64_t error);
  void count_error(Task task, std::int64_t error);

  // ---- store_erase.cc ----
  bool take_erase(const TierItem& item, Deadline deadline);
  void drop_waiting_stores(const TierKey& key) noexcept;
  void find_targets(const TierKey& key, std::uint64_t erase) noexcept;
  static bool keep_target(Segment& segment, const EraseTarget& target) noexcept;
  void go_on_erasing(Segment& segment);
  void begin_erase(Segment& segment);
  void on_erased(Op& op);
  void end_target(const EraseTarget& target, TierResult result) noexcept;
  // True: none is left.
  bool end_waiting_targets(Segment& segment, TierResult result) noexcept;

  // ---- store_open.cc ----
  Status take_directory();
  void take_found(FoundSegment& found, std::vector<Segment*>& unsealed);
  void add_found_record(Segment& segment, const FooterEntry& entry);
  void seal_found(Segment& segment);
  Status keep_budget();
  void choose_continued();
  int open_now(const Segment& segment);
  bool close_one_now();

  // ---- store_segments.cc ----
  void keep_going();
  void look_at(Segment& segment);
  void walk_on(Segment& segment);
  void begin_walk(Segment& segment, Segment::Walk walk);
  void walk_record(Segment& segment, std::uint32_t id);
  void end_walk(Segment& segment);
  void choose_active() noexcept;
  void prepare_next();
  bool continue_last();
  void create_next();
  void begin_seal(Segment& segment);
  void begin_evict(Segment& segment) noexcept;
  void go_on_evicting(Segment& segment);
  void stop_evicting() noexcept;
  bool move_one(std::uint32_t id);
  void on_moved_read(Op& op);
  void on_moved(Op& op);
  void drain(Segment& segment) noexcept;
  void begin_remove(Segment& segment);
  void on_file_done(Op& op);
  void take_footer(Segment& segment, const SealJob& job) noexcept;
  void on_created(Segment& segment, const CreateJob& job);
  void on_continued(Segment& segment, const ContinueJob& job);
  void on_removed(Segment& segment, const RemoveJob& job);
  void keep_for_later(Segment& segment) noexcept;
  void on_no_segment(std::int64_t error);
  bool make_room() noexcept;
  void stop_writing(Segment& segment) noexcept;
  // The place of a new record in the active segment; kNone: it does not fit, or there is no memory.
  std::uint32_t place(const TierKey& key, std::int64_t data_bytes);
  std::uint32_t add_record(Segment& segment, const FooterEntry& entry) noexcept;
  [[nodiscard]] static bool fits(std::int64_t used, std::int64_t records, std::int64_t data_bytes,
                                 std::int64_t bytes) noexcept;
  [[nodiscard]] bool fits(const Segment& segment, std::int64_t data_bytes) const noexcept;
  [[nodiscard]] FooterEntry entry_of(std::uint32_t id) const noexcept;
  [[nodiscard]] bool is_kept(std::uint32_t id) const noexcept;
  // One that is not being erased.
  [[nodiscard]] static bool has_record(std::span<const FooterEntry> entries) noexcept {
    return std::any_of(entries.begin(), entries.end(), [](const auto& one) { return !one.erased; });
  }
  [[nodiscard]] Segment& segment_of(std::uint32_t id) noexcept {
    return segments_[index_[id].segment];
  }
  [[nodiscard]] std::uint64_t sequence_of(std::uint32_t id) const noexcept {
    return segments_[index_[id].segment].first_sequence + index_[id].sequence;
  }
  [[nodiscard]] std::int64_t bytes_used() const noexcept { return kOtherBytes + segments_.bytes(); }
  [[nodiscard]] Status check_segment(const Segment& segment, std::int64_t& live) const;

  DiskCalls& calls_;
  const StoreOptions options_;
  Directory directory_;
  const int event_fd_;
  std::unique_ptr<IoEngine> engine_;
  const Process process_;  // that opened it
  bool left_to_parent_ = false;
  RecordIndex index_;
  Segments segments_;
  OpenFiles files_;
  Segment* active_ = nullptr;
  Segment* next_ = nullptr;        // creating, continuing or ready
  Segment* last_found_ = nullptr;  // of an earlier run, to go on in; sealed
  Eviction eviction_{options_.segment_bytes / 2};
  std::uint64_t last_number_ = 0, last_sequence_ = 0;
  int names_taken_ = 0;                // in a row: files of others under the next names
  std::uint64_t removed_by_open_ = 0;  // records that were beyond the budget

  std::unordered_map<IoJob*, Op> ops_;
  std::map<Segment*, std::vector<IoJob*>> held_;  // of ops_: they wait for their file to be opened
  std::uint64_t under_way_since_us_ = 0;
  WaitingItems loads_, stores_;  // accepted, not begun
  Erases erases_;
  std::int64_t to_erase_ = 0;      // targets in Segment::to_erase
  std::int64_t queued_bytes_ = 0;  // of what waits and of what is in flight
  std::int64_t items_ = 0;         // accepted and not handed over
  std::vector<TierDone> ready_;    // a ring: items_max of them
  std::size_t ready_at_ = 0, num_ready_ = 0;
  bool notified_ = false;  // event_fd is readable
  bool has_more_ = false;  // the last call left work that waits for nothing

  std::uint64_t now_us_ = 0;
  std::int64_t left_ = 0;  // steps of this call
  std::uint64_t steps_ = 0;
  Deadline close_by_{};
  bool closing_ = false;
  bool went_buffered_ = false;
  ErrorBudget budget_;
  std::uint64_t retry_create_us_ = 0;  // no segment is made before that
  Scrub scrub_;
  DiskTierStats stats_;
  TierHealth health_;
  std::uint64_t corrupt_answers_ = 0;  // of stats_.corrupt
};

}  // namespace kvfolio::disk
