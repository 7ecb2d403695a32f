// SPDX-License-Identifier: Apache-2.0
#include "disk/open.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/text.h"
#include "tiers/file_size_signal.h"

namespace kvfolio::disk {
namespace {

constexpr std::int64_t kSegmentBytesMin = 64 << 10;
constexpr std::int64_t kSegmentBytesUsual = std::int64_t{256} << 20;
constexpr std::int64_t kSegmentsMax = 256;
constexpr std::int64_t kBudgetMax = std::int64_t{1} << 50;

Status out_of_range(const char* name, std::int64_t value, std::int64_t least, std::int64_t most) {
  return Status(ErrorCode::kInvalidArgument, text::concat("disk tier: ", name, " is ", value,
                                                          ", allowed: ", least, " to ", most));
}

Status check_range(const char* name, std::int64_t value, std::int64_t least, std::int64_t most) {
  return value < least || value > most ? out_of_range(name, value, least, most) : Status();
}

Status check_options(const DiskTierOptions& options) {
  if (options.directory.empty() || options.directory.find('\0') != std::string_view::npos) {
    return Status(ErrorCode::kInvalidArgument, "disk tier: directory is empty or has a zero byte");
  }
  KVFOLIO_RETURN_IF_ERROR(
      check_range("bytes", options.bytes, kSegmentBytesMin + kOtherBytes, kBudgetMax));
  KVFOLIO_RETURN_IF_ERROR(check_range("num_threads", options.num_threads, 1, 64));
  KVFOLIO_RETURN_IF_ERROR(check_range("queue_depth", options.queue_depth, 1, 1024));
  KVFOLIO_RETURN_IF_ERROR(
      check_range("queued_bytes_max", options.queued_bytes_max, 1, std::int64_t{1} << 40));
  KVFOLIO_RETURN_IF_ERROR(
      check_range("scrub_bytes_per_s", options.scrub_bytes_per_s, 0, std::int64_t{1} << 40));
  KVFOLIO_RETURN_IF_ERROR(check_range("items_max", options.items_max, 1, 1 << 20));
  KVFOLIO_RETURN_IF_ERROR(check_range("open_files_max", options.open_files_max, 0, 1 << 20));
  if (options.segment_bytes == 0) return {};
  KVFOLIO_RETURN_IF_ERROR(
      check_range("segment_bytes", options.segment_bytes, kSegmentBytesMin, kSegmentBytesMax));
  if (options.segment_bytes % kPiece != 0) {
    return Status(ErrorCode::kInvalidArgument,
                  text::concat("disk tier: segment_bytes is ", options.segment_bytes,
                               ", which is no multiple of ", kPiece));
  }
  if (options.segment_bytes + kOtherBytes > options.bytes) {
    return Status(ErrorCode::kInvalidArgument,
                  text::concat("disk tier: bytes is ", options.bytes, ", one segment needs ",
                               options.segment_bytes + kOtherBytes));
  }
  return {};
}

// What the process may have; `most` where there is no limit.
std::int64_t limit_of(int resource, std::int64_t most) {
  rlimit limit{};
  if (::getrlimit(static_cast<__rlimit_resource>(resource), &limit) != 0) return most;
  const bool is_less =
      limit.rlim_cur != RLIM_INFINITY && limit.rlim_cur < static_cast<rlim_t>(most);
  return is_less ? static_cast<std::int64_t>(limit.rlim_cur) : most;
}

// A quarter of what the process may have: the others are the host's.
std::int32_t open_files_max(const DiskTierOptions& options) {
  constexpr std::int64_t kLeast = 8, kMost = 256;
  if (options.open_files_max != 0) return options.open_files_max;
  return static_cast<std::int32_t>(
      std::clamp(limit_of(RLIMIT_NOFILE, 4 * kMost) / 4, kLeast, kMost));
}

std::int64_t segment_bytes(const DiskTierOptions& options) {
  if (options.segment_bytes != 0) return options.segment_bytes;
  const std::int64_t eighth = (options.bytes - kOtherBytes) / 8;
  const std::int64_t usual =
      std::max(std::min(eighth, kSegmentBytesUsual), options.bytes / kSegmentsMax);
  const std::int64_t bytes = std::min(usual, limit_of(RLIMIT_FSIZE, kSegmentBytesMax));
  return std::clamp(bytes / kPiece * kPiece, kSegmentBytesMin, kSegmentBytesMax);
}

// An engine that has shown that it writes and reads here.
struct ProvenEngine {
  std::unique_ptr<IoEngine> engine;
  bool direct = false;
};

Result<ProvenEngine> prove(Result<std::unique_ptr<IoEngine>> engine, const Directory& directory,
                           bool direct, int event_fd) {
  if (!engine) return std::move(engine).error();
  ProbeJob probe;
  probe.directory = directory.file();
  probe.name = temporary_name();
  probe.direct = direct;
  (*engine)->submit(&probe);
  IoJob* done = nullptr;
  while ((*engine)->reap(std::span(&done, 1)) == 0) {
    pollfd event{.fd = event_fd, .events = POLLIN, .revents = 0};
    ::poll(&event, 1, 100);
  }
  if (probe.result < 0) {
    return Status(
        ErrorCode::kUnavailable,
        text::concat("disk tier: ", (*engine)->name(), " cannot write and read a file in ",
                     directory.path(), ": ", error_text(probe.result)));
  }
  return ProvenEngine{*std::move(engine), probe.direct};
}

// The first that works; else the last one's reason.
Result<ProvenEngine> choose_engine(const Directory& directory, bool direct, int event_fd,
                                   std::span<const MakeEngine> engines) {
  Result<ProvenEngine> chosen = Status(ErrorCode::kUnsupported, "disk tier: no engine");
  for (const MakeEngine& make : engines) {
    chosen = prove(make(event_fd), directory, direct, event_fd);
    if (chosen) break;
  }
  return chosen;
}

}  // namespace

Result<std::unique_ptr<SegmentStore>> open_store(DiskCalls& calls, const DiskTierOptions& options,
                                                 std::span<const MakeEngine> engines) {
  KVFOLIO_RETURN_IF_ERROR(check_options(options));
  const Result<RecordKeys> keys = RecordKeys::create(options.keys);
  if (!keys) return keys.error();
  const NoFileSizeSignal no_signal;  // writes of this thread fail, as those of the engine do
  std::string path(options.directory);
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  Result<Directory> directory = Directory::open(calls, path, Directory::Use::kServe);
  if (!directory) return std::move(directory).error();
  const int event_fd = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (event_fd < 0) {
    return Status(ErrorCode::kUnavailable,
                  text::concat("disk tier: eventfd: ", error_text(-errno)));
  }
  Result<ProvenEngine> proven = choose_engine(*directory, options.direct, event_fd, engines);
  if (!proven) {
    ::close(event_fd);
    return std::move(proven).error();
  }
  const StoreOptions store{.path = path,
                           .bytes = options.bytes,
                           .segment_bytes = segment_bytes(options),
                           .queued_bytes_max = options.queued_bytes_max,
                           .scrub_bytes_per_s = options.scrub_bytes_per_s,
                           .items_max = options.items_max,
                           .open_files_max = open_files_max(options),
                           .direct = proven->direct,
                           .keys = *keys};
  return SegmentStore::open(calls, store, *std::move(directory), std::move(proven->engine),
                            event_fd);
}

Result<std::unique_ptr<SegmentStore>> open_store(DiskCalls& calls, const DiskTierOptions& options,
                                                 RingFaults* faults) {
  std::vector<MakeEngine> engines;
  if (options.engine != DiskEngine::kThreads) {
    engines.emplace_back([&calls, &options, faults](int event_fd) {
      return create_ring_engine(calls, options.queue_depth, event_fd, faults);
    });
  }
  if (options.engine != DiskEngine::kIoUring) {
    engines.emplace_back([&calls, &options](int event_fd) {
      return create_thread_engine(calls, options.num_threads, event_fd);
    });
  }
  return open_store(calls, options, engines);
}

}  // namespace kvfolio::disk
