// SPDX-License-Identifier: Apache-2.0
#pragma once

// DiskTier keeps records in a directory of the local disk, up to a budget of bytes. It is a log of
// segments, files that are written once from the beginning to the end and removed whole:
//
//   const DiskTierOptions options{.directory = "/var/cache/kvfolio", .bytes = 64ll << 30};
//   const std::unique_ptr<DiskTier> disk = *DiskTier::open(options);
//   const OffloadTier below{.tier = disk.get()};
//   auto offload = Offload::create(manager, {.model = model, .tiers = {&below, 1}});
//
//  - One writer for each directory, which holds a lock on it. Ranks and processes have a directory
//    each. The directory has mode 0700 and its files 0600; one that is there already is refused if
//    another user owns it or may write to it, or if it has files and is not of a disk tier. If the
//    directory is deleted and made anew, it belongs to the process that made it, and this tier
//    turns off.
//  - Reads and writes bypass the page cache (O_DIRECT) where the file system allows it, which
//    open() finds out by a write and a read. They go through io_uring, or through threads where
//    that is blocked, as it is in most containers.
//  - A store is kOk when the system has the bytes: they outlive the process, and a failure of power
//    only once their segment is sealed, that is full, or the tier was closed.
//  - Records are sealed (record.h), and verified by the threads that read: a load has the bytes
//    that were stored under the key, or fails. A damaged record is kCorrupt, and is not found
//    again. Segments of version 1 are read, and go first; with a key their records are of another.
//  - When the budget is full the oldest segment goes. Records of it that were loaded since they
//    were written are written again, up to half of a segment.
//  - A run goes on in the last segment of the one before, so many short runs leave few segments.
//    Segments are files that are opened when they are read, open_files_max at a time; where the
//    process has no descriptor left, those that are open make room.
//  - ENOSPC, EDQUOT: the oldest segment goes, or else the store is dropped (kBusy). A segment with
//    an error is not written any more, and goes after three.
//  - The tier is passed over (health().usable is false, submit() accepts nothing) after eight
//    errors without a success between them, after eight failures to write a record or to make, seal
//    or remove a file without a written record between them, and when items only become late and
//    nothing has ended for a second. After half a second it gets one more chance; each that fails
//    doubles the pause, up to 30 seconds. If memory runs out for what a segment needs, the tier
//    ends for good. describe() says why.
//  - Its threads take no signals, and a limit of file sizes (RLIMIT_FSIZE) is an error like
//    another. If the system refuses io_uring later, the tier goes on with plain calls.
//  - In a child of fork() it answers kClosed to all and submits nothing; its destructor closes
//    descriptors and frees memory there, and the lock stays the parent's.
//  - kErase is for good. From the call on the record is not found, and kOk says that nothing on the
//    medium can bring it back, also if power fails: a tombstone lies over its header, and a hole
//    over its data where the file system makes one. After kIoError or kBusy (no space) it stays
//    erased until the next open(), which may find it; a further kErase tries again. A file that
//    open() could not read is out of its reach.
//
// After a crash open() finds every record of a sealed segment, and of the others all up to the
// first that is not whole; a damaged header of a segment does not matter. A file that cannot be
// read then is not removed: it counts in the budget, goes when it is the oldest, and is read again
// by the next open(). Files of other programs count for nothing, whatever their names are; a
// segment under another name is used. Memory: about 110 bytes for each record, and in flight 8 KiB
// for each operation (the size of the record, too, if the caller's memory is not aligned to 4 KiB).
//
// No call waits for the disk except open(), the destructor and check_disk_directory(), and none
// looks at more than some thousand records and items, however many there are. Thread safety: as
// Tier.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvfolio/export.h"
#include "kvfolio/record.h"
#include "kvfolio/status.h"
#include "kvfolio/tier.h"

namespace kvfolio {

enum class DiskEngine : std::int32_t {
  kAuto = 0,     // io_uring, or threads where that does not work
  kIoUring = 1,  // or open() fails
  kThreads = 2,
};

struct DiskTierOptions {
  std::string_view directory{};  // made if it is not there; its parent must be
  // What all files together may take. The smallest budget is one segment and 16 KiB. If the
  // directory has more, open() removes the oldest segments, and describe() says how many records
  // went.
  std::int64_t bytes = 0;
  // 0: an eighth of the budget, at most 256 MiB; more where that would be more than 256 segments,
  // and no more than RLIMIT_FSIZE. Else 64 KiB to 64 GiB, a multiple of 4096.
  std::int64_t segment_bytes = 0;
  DiskEngine engine = DiskEngine::kAuto;
  std::int32_t num_threads = 8;   // of kThreads, 1 to 64
  std::int32_t queue_depth = 32;  // of kIoUring, transfers in flight, 1 to 1024
  bool direct = true;             // try O_DIRECT
  // Bytes of items that are accepted and not done. submit() accepts no more: the caller drops the
  // rest.
  std::int64_t queued_bytes_max = std::int64_t{512} << 20;
  // Reads records of sealed segments again when there is nothing else to do. 0: not.
  std::int64_t scrub_bytes_per_s = 0;
  std::int32_t items_max = 4096;  // accepted and not done, 1 to 1048576
  // Segments whose files are open at the same time; the others are opened when they are read. 0: a
  // quarter of the descriptors that the process may have (RLIMIT_NOFILE), 8 to 256.
  std::int32_t open_files_max = 0;
  // With a key, a record is believed only if it was sealed with that key. One of another key, or of
  // none, is a miss (DiskTierStats::of_another_key) and stays for who has its key: it keeps its
  // name, so a store under that is kOk and changes nothing, until its segment goes or kErase takes
  // it.
  RecordKeyOptions keys{};
};

struct DiskTierStats {
  std::int64_t bytes = 0;  // that the files take, at most the budget
  std::int64_t records = 0;
  std::int64_t segments = 0;
  std::uint64_t recovered = 0;            // records that open() found
  std::uint64_t recovered_by_footer = 0;  // of these, without a look at their headers
  std::uint64_t stored = 0, stored_bytes = 0;
  std::uint64_t loaded = 0, loaded_bytes = 0;
  std::uint64_t corrupt = 0;  // records that were not what was stored
  std::uint64_t io_errors = 0;
  std::uint64_t no_space = 0;    // ENOSPC, EDQUOT
  std::uint64_t dropped = 0;     // stores that were accepted and found no room
  std::uint64_t evicted = 0;     // records that went with their segment
  std::uint64_t reinserted = 0;  // records that were written again instead
  std::uint64_t scrubbed_bytes = 0;
  std::uint64_t of_another_key = 0;  // loads that met a record of another key, or of none: misses
};

class KVFOLIO_API DiskTier final : public Tier {
 public:
  // kInvalidArgument: an option out of range, with its name. kFailedPrecondition: another process
  // writes here (its number is said), the directory is of a newer version, or it is not the tier's
  // own: it has other files, belongs to another user, may be written to by others, or is none.
  // Nothing is written then. kUnavailable: the system refuses something, with the path.
  // kUnsupported: DiskEngine::kIoUring, and there is none. kResourceExhausted: no memory, no
  // thread, or a segment that leaves no number for another.
  static Result<std::unique_ptr<DiskTier>> open(const DiskTierOptions& options);
  // Waits for what is in flight and seals what was stored.
  ~DiskTier() override;

  // "disk /var/cache/kvfolio: 64 GiB in segments of 256 MiB, io_uring, O_DIRECT, 1234 records"
  [[nodiscard]] std::string describe() const;
  [[nodiscard]] DiskTierStats stats() const noexcept;
  // Nothing that was accepted is still to be answered, and nothing is in flight.
  [[nodiscard]] bool idle() const noexcept;

  [[nodiscard]] std::string_view name() const noexcept override;
  [[nodiscard]] TierLimits limits() const noexcept override;
  std::size_t submit(TierOp op, std::span<const TierItem> items,
                     Deadline deadline) noexcept override;
  std::size_t poll(std::uint64_t now_us, std::span<TierDone> done) noexcept override;
  [[nodiscard]] int event_fd() const noexcept override;
  [[nodiscard]] TierHealth health() const noexcept override;
  Status close(Deadline deadline) noexcept override;

 private:
  class Impl;
  explicit DiskTier(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

// ---- the check of a directory ----

struct DiskFault {
  std::string file{};  // within the directory
  std::int64_t offset = 0;
  std::string what{};
};

struct DiskCheck {
  std::int64_t segments = 0;
  std::int64_t unsealed = 0;  // segments without a footer: of a writer that was killed
  std::int64_t records = 0;   // that are right
  std::int64_t record_bytes = 0;
  std::int64_t damaged = 0;
  // Records that were sealed with a key that is not given here, or without a key although one is
  // given. They are misses here, and may be right for the holder of their key. Never erased.
  std::int64_t of_another_key = 0;
  std::int64_t erased = 0;          // of the damaged ones
  std::int64_t unused = 0;          // files that open() leaves alone: they are not of a tier
  std::vector<DiskFault> faults{};  // the first 100
};

struct DiskCheckOptions {
  std::string_view directory{};
  RecordKeyOptions keys{};  // those of the tier
  bool erase = false;       // what is damaged is not found any more: new footers leave it out
  // Called now and then with what was read and what there is; false ends the check.
  std::function<bool(std::int64_t bytes_read, std::int64_t bytes)> progress{};
};

// Reads every record and compares it with its checksum; without `erase` it writes nothing. Errors
// as DiskTier::open(); kAborted: progress() said so. kNotFound: there is no disk tier in the
// directory.
KVFOLIO_API Result<DiskCheck> check_disk_directory(const DiskCheckOptions& options);

}  // namespace kvfolio
