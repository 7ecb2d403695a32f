// SPDX-License-Identifier: Apache-2.0
#pragma once

// The jobs of the disk tier. Each is filled by the owner, given to an engine, and read by the owner
// when it is done. Checksums are computed by the engine's thread, not by the owner's.
//
// Thread safety: as IoJob.

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "disk/format.h"
#include "disk/step.h"
#include "kvfolio/status.h"
#include "kvfolio/tier.h"

namespace kvfolio::disk {

// Memory that O_DIRECT takes.
class AlignedBuffer {
 public:
  AlignedBuffer() noexcept = default;
  // Empty if there is no memory. Requires: bytes is a multiple of kPiece.
  explicit AlignedBuffer(std::int64_t bytes) noexcept
      : memory_(static_cast<std::byte*>(
            std::aligned_alloc(std::size_t{kPiece}, static_cast<std::size_t>(bytes)))) {
    KVFOLIO_CHECK(bytes > 0 && bytes % kPiece == 0);
  }
  [[nodiscard]] std::byte* data() const noexcept { return memory_.get(); }

 private:
  struct Free {
    void operator()(std::byte* memory) const noexcept { std::free(memory); }
  };
  std::unique_ptr<std::byte, Free> memory_;
};

// A file of the directory, and where in it something lies.
struct Extent {
  int file = -1;
  std::int64_t offset = 0;
  bool direct = false;  // the file was opened with O_DIRECT
};

// The memory of a record's data, and how it meets the pieces of the disk. The header, with the tail
// of data in it, and a body that ends within a piece go through memory of this object; so does all
// of data that is not aligned. The rest is read and written where it lies.
class RecordMemory {
 public:
  // False: no memory.
  [[nodiscard]] bool prepare(std::byte* data, std::int64_t bytes) noexcept;
  void add_parts(IoStep& step) noexcept;
  [[nodiscard]] std::span<std::byte, kPiece> header() noexcept {
    return std::span<std::byte, kPiece>(edge_.data(), kPiece);
  }
  [[nodiscard]] std::span<std::byte> data() const noexcept {
    return {data_, static_cast<std::size_t>(bytes_)};
  }
  [[nodiscard]] std::span<std::byte> tail() const noexcept {
    return data().last(static_cast<std::size_t>(tail_bytes(bytes_)));
  }
  // Copies what goes through memory of this object: before a write, and after a read.
  void fill_own() noexcept;
  void take_own() noexcept;

 private:
  std::byte* data_ = nullptr;
  std::int64_t bytes_ = 0;
  std::int64_t in_place_ = 0;  // bytes of the body that lie in data
  AlignedBuffer edge_;         // the header, and the last piece of the body if it is not whole
  AlignedBuffer bounce_;       // the body, if data is not aligned
};

// Seals a record and writes it.
class StoreJob final : public IoJob {
 public:
  Extent place;
  RecordHeader header;
  std::byte* data = nullptr;
  RecordKeys keys{};        // of the tier
  std::int64_t result = 0;  // when done: 0 or -errno

  IoStep next(std::int64_t last) noexcept override;

 private:
  RecordMemory memory_;
  int step_ = 0;
};

// Reads a record and compares it with what the index says.
class LoadJob final : public IoJob {
 public:
  Extent place;
  RecordHeader expected;
  std::byte* data = nullptr;
  RecordKeys keys{};         // of the tier
  bool drop_cached = false;  // the file goes through the page cache
  // When done: kOk, kMiss: it was erased, or is of another key; kCorrupt, kIoError, or kBusy: no
  // memory.
  TierResult result = TierResult::kOk;
  bool is_of_another_key = false;  // kMiss: or of none; it may be right for another process
  std::int64_t error = 0;          // of kIoError: -errno

  IoStep next(std::int64_t last) noexcept override;
  void use_file(int file, bool direct) noexcept override;
  void fail(std::int64_t why) noexcept override;

 private:
  [[nodiscard]] TierResult compare() noexcept;

  RecordMemory memory_;
  int step_ = 0;
};

// Makes a segment file: all of its room is taken at once, so that ENOSPC comes here and not later.
class CreateJob final : public IoJob {
 public:
  int directory = -1;
  std::string name;
  SegmentHeader header;
  std::int64_t bytes = 0;
  bool direct = true;
  int file = -1;            // when done without an error
  std::int64_t result = 0;  // 0 or -errno: then there is no file

  IoStep next(std::int64_t last) noexcept override;

 private:
  IoStep give_up(std::int64_t error) noexcept;

  AlignedBuffer piece_;
  int step_ = 0;
};

// Ends a segment: what it has is made durable, then its footer, and the room behind is given back.
class SealJob final : public IoJob {
 public:
  Extent place;  // of the footer
  int directory = -1;
  std::uint64_t epoch = 0;
  std::vector<FooterEntry> entries;
  bool footer_begun = false;  // it may be there, whatever follows
  bool truncated = false;     // the file ends behind it, whatever follows
  std::int64_t result = 0;    // 0 or -errno: the segment is readable, but may have no footer

  IoStep next(std::int64_t last) noexcept override;
  [[nodiscard]] std::int64_t end() const noexcept {
    return place.offset + footer_bytes(static_cast<std::int64_t>(entries.size()));
  }

 private:
  AlignedBuffer footer_;
  int step_ = 0;
};

// Takes records out of a segment for good. A footer that names them is first written anew, and
// says that they are being erased. Then a tombstone goes over each header. Then the footer leaves
// them out, shorter and at the same end of the file, and the room behind the headers is given back
// where that can be done. A crash in between leaves a record that is found whole, or one that is
// not found and that the next open() knows of, so that no later kErase is answered without it. A
// torn footer is as good as none. The tombstones are on the medium when it is done.
class EraseJob final : public IoJob {
 public:
  Extent place;  // the file; `offset` is where its footer ends
  bool has_footer = false;
  std::uint64_t epoch = 0;
  std::vector<FooterEntry> entries;  // of the footer: all that it has; those that go are `erased`
  std::vector<FooterEntry> tombstones;  // the records that go
  bool footer_written = false;
  std::int64_t result = 0;  // 0 or -errno: any part of it may have been done

  IoStep next(std::int64_t last) noexcept override;
  void use_file(int file, bool direct) noexcept override;
  void fail(std::int64_t error) noexcept override { result = error; }

 private:
  enum class Phase : std::uint8_t {
    kFooter,
    kFooterSync,
    kTombstones,
    kSync,
    kShorterFooter,
    kHoles,
    kDone
  };
  IoStep write_footer() noexcept;
  void leave_out_tombstones() noexcept;
  IoStep write_tombstone(const FooterEntry& record) noexcept;
  IoStep give_up(std::int64_t error) noexcept;

  AlignedBuffer memory_;
  Phase phase_ = Phase::kFooter;
  std::size_t at_ = 0;
};

// Opens a segment that was closed, if it is still the file that it was.
class OpenJob final : public IoJob {
 public:
  int directory = -1;
  std::string name;
  std::uint64_t epoch = 0;
  bool direct = true;       // when done: whether it was opened so
  int file = -1;            // when done without an error
  std::int64_t result = 0;  // 0 or -errno; -ENOENT also for another file of that name

  IoStep next(std::int64_t last) noexcept override;

 private:
  [[nodiscard]] IoStep open_it() const noexcept;
  [[nodiscard]] bool is_the_same() const noexcept;

  AlignedBuffer piece_;
  int step_ = 0;
};

class CloseJob final : public IoJob {
 public:
  int file = -1;

  IoStep next(std::int64_t last) noexcept override;

 private:
  bool done_ = false;
};

// Makes a sealed segment ready to take records again: those of a run that ended in order, or that
// was recovered. Its records were safe because its footer named them; from now on they are found by
// their headers, one behind the other, as in any segment that is being filled. So first all headers
// are read, and if one is not what the index says nothing is changed. Then the end of the footer is
// written over, and only when that is on the medium the file becomes longer. A crash at any moment
// leaves a segment with its footer, or one whose headers lead to all of its records.
class ContinueJob final : public IoJob {
 public:
  Extent place;
  int directory = -1;
  std::uint64_t epoch = 0;
  std::int64_t old_bytes = 0;        // it ends behind its footer
  std::int64_t bytes = 0;            // that it is to have
  std::vector<FooterEntry> entries;  // the records that it has, in the order of the file
  bool footer_gone = false;          // when done: or may be
  std::int64_t used = 0;             // behind the last record
  std::uint64_t last_sequence = 0;   // of that
  std::int64_t result = 0;           // 0 or -errno; -ESTALE: its headers do not lead to all records

  IoStep next(std::int64_t last) noexcept override;
  void use_file(int file, bool direct) noexcept override;
  void fail(std::int64_t error) noexcept override { result = error; }

 private:
  enum class Phase : std::uint8_t {
    kHeaders,
    kFooter,
    kFooterSync,
    kAllocate,
    kTruncate,
    kSync,
    kDone,
  };
  // The headers that the window has. True: there may be more of them behind it.
  [[nodiscard]] bool walk() noexcept;
  [[nodiscard]] bool take_header(std::span<const std::byte> piece) noexcept;
  IoStep read_window() noexcept;
  IoStep give_up(std::int64_t error) noexcept;

  Phase phase_ = Phase::kHeaders;
  AlignedBuffer window_;
  std::int64_t window_at_ = 0, window_bytes_ = 0;
  std::size_t met_ = 0;  // of entries
  bool begun_ = false;
};

// Removes a segment, and closes it in any case. If another one lies in the place of a closed one,
// that stays: ours is gone then. Requires: no read of it is under way.
class RemoveJob final : public IoJob {
 public:
  int directory = -1;
  std::string name;
  std::optional<std::uint64_t> epoch{};  // of one that is closed
  int file = -1;                         // -1: it is closed already
  std::int64_t result = 0;               // of unlink; a file that is gone already is fine

  IoStep next(std::int64_t last) noexcept override;

 private:
  enum class Phase : std::uint8_t { kLook, kRead, kCompare, kUnlink, kUnlinked, kClose, kDone };
  [[nodiscard]] bool is_another() const noexcept;

  Phase phase_ = Phase::kLook;
  AlignedBuffer piece_;
  int seen_ = -1;
};

// Reads or writes one stretch of a file. Requires: place and size are multiples of kPiece, and the
// memory is aligned.
class TransferJob final : public IoJob {
 public:
  TransferJob(IoStep::Kind kind, const Extent& place, std::byte* memory,
              std::int64_t bytes) noexcept;
  std::int64_t result = 0;  // 0 or -errno

  IoStep next(std::int64_t last) noexcept override;

 private:
  IoStep step_;
};

// Finds out what the directory and the engine can do: makes a file, takes its name away at once,
// writes it, and reads it.
class ProbeJob final : public IoJob {
 public:
  int directory = -1;
  std::string name;         // no file has it
  bool direct = true;       // when done: whether O_DIRECT works
  std::int64_t result = 0;  // 0 or -errno; -EILSEQ: other bytes came back

  IoStep next(std::int64_t last) noexcept override;

 private:
  [[nodiscard]] IoStep make_file() const noexcept;

  AlignedBuffer pieces_;
  int file_ = -1;
  int step_ = 0;
};

}  // namespace kvfolio::disk
