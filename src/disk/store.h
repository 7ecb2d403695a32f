// SPDX-License-Identifier: Apache-2.0
#pragma once

// SegmentStore is the disk tier without its options: the owner's side of it, a state machine that
// never touches the disk itself. It gives jobs to an engine, and learns in poll() how they ended.
// store.cc takes items and answers them; store_segments.cc lets segments live and go;
// store_erase.cc takes records away for good.
//
// The life of a segment:
//   creating -> ready -> active -> full -> sealing -> sealed -> evicting -> draining -> removing
//  - ready: empty, and the next to become active. There is one at most.
//  - active: takes records. full: takes no more (no room, an error, or the end), and waits for the
//    writes that are under way.
//  - sealed: durable, read only. Without a footer if sealing failed.
//  - evicting: what was used is written again to the active segment; the rest is not found any
//    more.
//  - draining: no record of it is found any more; reads are still under way. Then its file goes.
//  One that cannot be removed stays here, in the budget, and is tried again.
//
// Invariants: the files together take at most the budget, and a new one is only begun when the old
// one is gone. A record is found only after its write has ended well. What is in a segment that is
// not draining yet is never moved or written over.
//
// Thread safety: one owner, as Tier.

#include <sys/types.h>

#include <array>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "disk/directory.h"
#include "disk/engine.h"
#include "disk/index.h"
#include "disk/jobs.h"
#include "disk/recover.h"
#include "kvfolio/disk_tier.h"
#include "tiers/key_spread.h"

namespace kvfolio::disk {

// A record that is to go, and which kErase waits for that.
struct EraseTarget {
  std::uint32_t record = 0;
  std::uint64_t erase = 0;
};

struct Segment {
  enum class State : std::uint8_t {
    kCreating,
    kReady,
    kActive,
    kFull,
    kSealing,
    kSealed,
    kEvicting,
    kDraining,
    kRemoving,
  };
  State state = State::kCreating;
  std::uint64_t number = 0;
  std::uint64_t epoch = 0;
  int file = -1;
  bool direct = false;
  std::int64_t bytes = 0;     // of the file, in the budget
  std::int64_t used = 0;      // where the next record goes
  int reads = 0, writes = 0;  // under way
  int errors = 0;
  std::uint64_t retry_us = 0;  // of a file that could not be removed: not again before that
  std::vector<std::uint32_t> records{};  // ids, in the order of the file
  std::int64_t in_footer = -1;           // records that its footer names; -1: it has none
  std::vector<EraseTarget> to_erase{};   // not begun
  bool erasing = false;                  // some are under way
};

struct StoreOptions {
  std::string path;
  std::int64_t bytes = 0;
  std::int64_t segment_bytes = 0;
  std::int64_t queued_bytes_max = 0;
  std::int64_t scrub_bytes_per_s = 0;
  bool direct = true;
};

class SegmentStore {
 public:
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
  // The first rule of this class that is broken, or ok. O(records).
  [[nodiscard]] Status check_invariants() const;

 private:
  void close_files();
  using State = Segment::State;
  // Why a job runs, and what its end means.
  struct Op {
    enum class Kind : std::uint8_t { kStore, kLoad, kMoveRead, kMoveWrite, kScrub, kErase, kFile };
    Kind kind = Kind::kFile;
    std::unique_ptr<IoJob> job{};
    Segment* segment = nullptr;
    std::uint32_t record = RecordIndex::kNone;
    TierItem item{};                              // of kStore, kLoad
    Deadline deadline{};                          // likewise
    AlignedBuffer memory{};                       // of the kinds that have no item
    std::uint32_t replaces = RecordIndex::kNone;  // of kMoveWrite
    std::vector<EraseTarget> targets{};           // of kErase
  };
  struct Waiting {
    TierItem item;
    Deadline deadline;
  };
  // One kErase, until all that it found is gone.
  struct Erase {
    std::uint64_t tag = 0;
    Deadline deadline{};
    std::int64_t left = 0;  // targets
    TierResult result = TierResult::kOk;
  };

  SegmentStore(DiskCalls& calls, const StoreOptions& options, Directory directory,
               std::unique_ptr<IoEngine> engine, int event_fd);

  // ---- store.cc: items ----
  bool take(TierOp op, const TierItem& item, Deadline deadline);
  void answer(std::uint64_t tag, TierOp op, TierResult result);
  void expire(std::deque<Waiting>& queue, TierOp op);
  void refuse_all(std::deque<Waiting>& queue, TierOp op, TierResult result);
  void begin_waiting();
  bool begin_load(const Waiting& waiting);
  bool begin_store(const Waiting& waiting);
  void begin_scrub();
  void submit_load(Op op, std::byte* data);
  void submit_store(Op op, std::byte* data);
  void start(Op op);
  void collect();
  void on_done(Op& op);
  void on_stored(Op& op);
  void on_loaded(Op& op);
  TierResult on_read(Op& op);  // whatever the read was for
  TierResult on_written(Op& op);
  enum class Task : std::uint8_t { kRead, kWrite };  // kWrite: without it no store can succeed
  void on_error(Segment& segment, Task task);
  void count_error(Task task);
  void notify();
  [[nodiscard]] bool has_room_for_job() const noexcept;
  [[nodiscard]] TierResult in_time(Deadline deadline, TierResult result) const noexcept;

  // ---- store_erase.cc ----
  bool take_erase(const TierItem& item, Deadline deadline);
  void drop_waiting_stores(const TierKey& key);
  std::int64_t find_targets(const TierKey& key, std::uint64_t erase);
  void expire_erases();
  void begin_erases();
  void begin_erase(Segment& segment);
  void on_erased(Op& op);
  void end_target(const EraseTarget& target, TierResult result);
  void end_waiting_targets(Segment& segment, TierResult result);
  void add_stale(std::uint32_t id);
  void remove_stale(std::uint32_t id);

  // ---- store_segments.cc ----
  Status adopt(const std::vector<FoundSegment>& found);
  Segment& adopt_segment(const FoundSegment& found);
  Status seal_found(Segment& segment);
  void keep_going();
  void choose_active();
  void prepare_next();
  void begin_seal(Segment& segment);
  void begin_evict(Segment& segment);
  void go_on_evicting(Segment& segment);
  void stop_evicting();
  bool move_one(Segment& segment, std::uint32_t id);
  void on_moved_read(Op& op);
  void on_moved(Op& op);
  void drain(Segment& segment);
  void begin_remove(Segment& segment);
  void on_file_done(Op& op);
  void take_footer(Segment& segment, const SealJob& job);
  [[nodiscard]] bool can_be_removed(const Segment& segment) const noexcept;
  void on_created(Segment& segment, const CreateJob& job);
  void on_removed(Segment& segment, const RemoveJob& job);
  void keep_for_later(Segment& segment);
  void on_no_segment(std::int64_t error);
  bool make_room();
  void forget_segment(Segment& segment);
  void stop_writing(Segment& segment);
  // The place of a new record in the active segment; kNone: it does not fit.
  std::uint32_t place(const TierKey& key, std::int64_t data_bytes);
  [[nodiscard]] bool fits(const Segment& segment, std::int64_t data_bytes) const noexcept;
  [[nodiscard]] std::vector<FooterEntry> entries_of(const Segment& segment) const;
  [[nodiscard]] Segment* oldest_sealed() noexcept;
  [[nodiscard]] std::int64_t bytes_used() const noexcept;

  DiskCalls& calls_;
  const StoreOptions options_;
  Directory directory_;
  const int event_fd_;
  std::unique_ptr<IoEngine> engine_;
  const pid_t process_;  // that opened it
  RecordIndex index_;
  std::map<std::uint64_t, Segment> segments_;  // by number, so oldest first; they do not move
  Segment* active_ = nullptr;
  Segment* next_ = nullptr;             // creating or ready
  Segment* evicting_ = nullptr;         // makes room: one at a time, until its file is gone
  std::vector<std::uint32_t> to_move_;  // of evicting_
  std::int64_t moves_ = 0;              // under way
  std::uint64_t last_number_ = 0, last_sequence_ = 0;
  std::uint64_t removed_by_open_ = 0;  // records that were beyond the budget

  std::unordered_map<IoJob*, Op> ops_;
  std::deque<Waiting> loads_, stores_;               // accepted, not begun
  std::unordered_map<std::uint64_t, Erase> erases_;  // by number, which no other gets
  std::uint64_t last_erase_ = 0;
  std::int64_t to_erase_ = 0;  // targets in Segment::to_erase
  // Records that lie in a file, or are on their way, and that no key leads to: erased, replaced, or
  // not what was written. A kErase of their key takes them, too, since the next open() finds them.
  // Those of segments that go are not all here.
  std::unordered_multimap<TierKey, std::uint32_t, TierKeyHash> stale_;
  std::int64_t queued_bytes_ = 0;  // of these and of what is in flight
  std::deque<TierDone> ready_;
  bool notified_ = false;  // event_fd is readable

  std::uint64_t now_us_ = 0;
  Deadline close_by_{};
  bool closing_ = false, off_ = false;
  bool went_buffered_ = false;
  int errors_in_row_ = 0;              // without a success between them
  int write_errors_in_row_ = 0;        // without a written record between them, whatever is read
  std::uint64_t retry_create_us_ = 0;  // no segment is made before that
  std::int64_t scrub_credit_ = 0;      // bytes
  std::int64_t scrub_rest_ = 0;        // millionths of a byte: polls may be close together
  std::uint64_t scrub_segment_ = 0;
  std::size_t scrub_record_ = 0;
  DiskTierStats stats_;
  TierHealth health_;
  std::uint64_t corrupt_answers_ = 0;  // of stats_.corrupt
};

}  // namespace kvfolio::disk
