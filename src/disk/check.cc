// SPDX-License-Identifier: Apache-2.0
//
// The check of a directory that no tier uses: every record is read, and compared with its header.

#include <algorithm>

#include "base/text.h"
#include "disk/jobs.h"
#include "disk/recover.h"
#include "kvfolio/disk_tier.h"
#include "tiers/file_size_signal.h"

namespace kvfolio {
namespace {

constexpr std::size_t kFaultsMax = 100;

class Checker {
 public:
  Checker(disk::DiskCalls& calls, const disk::Directory& directory, const DiskCheckOptions& options,
          RecordKeys keys)
      : calls_(calls), directory_(directory), options_(options), keys_(std::move(keys)) {}

  // The first look only adds up what there is to read.
  Status check_all(const disk::FindOptions& find) {
    const auto nothing = [](std::string_view, std::string_view) {};
    const auto add = [&](disk::FoundSegment& segment) {
      bytes_ += segment.used;
      return Status();
    };
    if (options_.progress) {
      KVFOLIO_RETURN_IF_ERROR(
          disk::find_segments(calls_, directory_, {.writes = false}, add, nothing));
    }
    const auto check = [&](disk::FoundSegment& segment) {
      if (segment.is_empty) return Status();
      return check_segment(segment);
    };
    KVFOLIO_RETURN_IF_ERROR(disk::find_segments(
        calls_, directory_, find, check,
        [&](std::string_view name, std::string_view what) { add_unused(name, what); }));
    return find_others();
  }
  DiskCheck take() { return std::move(seen_); }

 private:
  Status check_segment(const disk::FoundSegment& segment) {
    ++seen_.segments;
    seen_.unsealed += segment.sealed ? 0 : 1;
    if (segment.read_error < 0) {
      seen_.damaged += segment.sealed ? 0 : 1;  // at least: its records are not known
      add_fault(segment, 0, "cannot be read: " + disk::error_text(segment.read_error));
    } else if (!segment.has_header) {
      add_fault(segment, 0, "its header is damaged, its records are not");
    }
    std::vector<disk::FooterEntry> named, damaged;  // what a new footer names; what goes
    std::int64_t num_wrong = 0;
    for (const disk::FooterEntry& entry : segment.entries) {
      if (entry.erased) {  // the next tier goes on with that
        named.push_back(entry);
        continue;
      }
      const disk::LoadJob job = read_record(segment, entry);
      if (job.result == TierResult::kOk) {
        ++seen_.records;
        seen_.record_bytes += entry.data_bytes;
        named.push_back(entry);
      } else if (job.is_of_another_key) {
        ++seen_.of_another_key;
        named.push_back(entry);                      // for a process that has the key
      } else if (job.result != TierResult::kMiss) {  // that is one that was erased
        ++num_wrong;
        add_fault(segment, entry.offset, what_of(job));
        if (job.result == TierResult::kCorrupt) damaged.push_back(entry);
        named.push_back(entry);
        named.back().erased = true;
      }
      bytes_read_ += disk::record_bytes(entry.data_bytes);
      if (options_.progress && !options_.progress(bytes_read_, bytes_)) {
        return Status(ErrorCode::kAborted, "disk tier: the check was stopped");
      }
    }
    // A new footer would leave out what is not known.
    const bool all_known = segment.sealed || segment.read_error == 0;
    seen_.damaged += num_wrong;
    const bool is_whole = num_wrong == 0 && named.size() == segment.entries.size();
    if (!options_.erase || is_whole || !all_known) return {};
    if (segment.sealed) {
      KVFOLIO_RETURN_IF_ERROR(erase(segment, std::move(named), std::move(damaged)));
    } else {
      KVFOLIO_RETURN_IF_ERROR(erase(segment, {}, damaged));
      std::erase_if(named, [&](const disk::FooterEntry& entry) {
        return std::any_of(damaged.begin(), damaged.end(),
                           [&](const auto& gone) { return gone.offset == entry.offset; });
      });
      KVFOLIO_RETURN_IF_ERROR(write_footer(segment, std::move(named)));
    }
    seen_.erased += num_wrong;
    return {};
  }

  void add_fault(const disk::FoundSegment& segment, std::int64_t offset, std::string what) {
    add_fault(disk::segment_name(segment.name), offset, std::move(what));
  }
  void add_fault(std::string name, std::int64_t offset, std::string what) {
    if (seen_.faults.size() >= kFaultsMax) return;
    seen_.faults.push_back({std::move(name), offset, std::move(what)});
  }
  void add_unused(std::string_view name, std::string_view what) {
    ++seen_.unused;
    add_fault(std::string(name), 0, text::concat("is not used: ", what));
  }
  // Files that have no name of ours either.
  Status find_others() {
    const Result<std::vector<std::string>> names = directory_.others();
    if (!names) return names.error();
    for (const std::string& name : *names) add_unused(name, "it is not of a disk tier");
    return {};
  }

  static std::string what_of(const disk::LoadJob& job) {
    if (job.result == TierResult::kBusy) return "no memory to read it";
    if (job.result == TierResult::kIoError) return disk::error_text(job.error);
    return "its header or its checksum is wrong";
  }

  disk::LoadJob read_record(const disk::FoundSegment& segment, const disk::FooterEntry& entry) {
    const disk::AlignedBuffer memory(
        std::max(disk::round_up_to_piece(entry.data_bytes), disk::kPiece));
    disk::LoadJob job;
    if (memory.data() == nullptr) {
      job.result = TierResult::kBusy;
      return job;
    }
    job.place = {segment.file, entry.offset, segment.direct};
    job.expected = {.epoch = segment.epoch,
                    .sequence = entry.sequence,
                    .key = entry.key,
                    .data_bytes = entry.data_bytes};
    job.data = memory.data();
    job.keys = keys_;
    job.drop_cached = !segment.direct;
    disk::run_job(job, calls_);
    return job;
  }

  // A record that cannot be read gets no tombstone here: the footer says that it is being erased,
  // and the next tier goes on with that.
  Status erase(const disk::FoundSegment& segment, std::vector<disk::FooterEntry> named,
               std::vector<disk::FooterEntry> damaged) {
    disk::EraseJob job;
    job.place = {segment.file, segment.bytes, segment.direct};
    job.has_footer = segment.sealed;
    job.epoch = segment.epoch;
    job.entries = std::move(named);
    job.tombstones = std::move(damaged);
    disk::run_job(job, calls_);
    return job.result < 0 ? cannot("erase records of", segment, job.result) : Status();
  }

  // Behind what the file has, so that it is the last one.
  Status write_footer(const disk::FoundSegment& segment, std::vector<disk::FooterEntry> named) {
    disk::SealJob job;
    job.place = {segment.file, disk::round_up_to_piece(segment.bytes), segment.direct};
    job.directory = directory_.file();
    job.epoch = segment.epoch;
    job.entries = std::move(named);
    disk::run_job(job, calls_);
    return job.result < 0 ? cannot("write a footer to", segment, job.result) : Status();
  }

  [[nodiscard]] Status cannot(const char* what, const disk::FoundSegment& segment,
                              std::int64_t result) const {
    return Status(ErrorCode::kUnavailable,
                  text::concat("disk tier: cannot ", what, " ",
                               directory_.path_of(disk::segment_name(segment.name)), ": ",
                               disk::error_text(result)));
  }

  disk::DiskCalls& calls_;
  const disk::Directory& directory_;
  const DiskCheckOptions& options_;
  const RecordKeys keys_;
  DiskCheck seen_;
  std::int64_t bytes_ = 0, bytes_read_ = 0;
};

}  // namespace

Result<DiskCheck> check_disk_directory(const DiskCheckOptions& options) {
  const Result<RecordKeys> keys = RecordKeys::create(options.keys);
  if (!keys) return keys.error();
  disk::DiskCalls& calls = disk::system_calls();
  const Result<disk::Directory> directory = disk::Directory::open(
      calls, std::string(options.directory),
      options.erase ? disk::Directory::Use::kMend : disk::Directory::Use::kCheck);
  if (!directory) return directory.error();
  Checker checker(calls, *directory, options, *keys);
  const NoFileSizeSignal no_signal;
  KVFOLIO_RETURN_IF_ERROR(checker.check_all({.writes = options.erase}));
  return checker.take();
}

}  // namespace kvfolio
