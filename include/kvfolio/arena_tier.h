// SPDX-License-Identifier: Apache-2.0
#pragma once

// ArenaTier: a tier in host memory, over a HostArena. An Offload has an arena of its own; this one
// is for what several of them share: each manager of a process has an Offload with a tier of its
// own, and all of these stand over one arena, so each finds what the others computed, and what is
// there stays when one of them ends.
//
//   ArenaTier first = *ArenaTier::create({.bytes = 1 << 30, .record_bytes = sizes});
//   ArenaTier second = first.another();  // over the same records
//
// Records are evicted as in the arena, the coldest first. It answers everything in the next poll(),
// where it also copies. Thread safety: each has one owner, as every Tier; those of several over one
// arena may be different threads.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "kvfolio/export.h"
#include "kvfolio/host_arena.h"
#include "kvfolio/status.h"
#include "kvfolio/tier.h"

namespace kvfolio {

class ArenaTier final : public Tier {
 public:
  // The errors of HostArena::create().
  KVFOLIO_API static Result<ArenaTier> create(const HostArenaOptions& options);
  // A tier of its own over the same records, which last as long as one of them.
  [[nodiscard]] KVFOLIO_API ArenaTier another() const;

  KVFOLIO_API ArenaTier(ArenaTier&&) noexcept;
  ArenaTier& operator=(ArenaTier&&) = delete;
  // Touches no item any more.
  KVFOLIO_API ~ArenaTier() override;

  [[nodiscard]] KVFOLIO_API std::string_view name() const noexcept override;  // "memory"
  [[nodiscard]] KVFOLIO_API TierLimits limits() const noexcept override;
  // Accepts what a queue of kQueue items has room for.
  KVFOLIO_API std::size_t submit(TierOp op, std::span<const TierItem> items,
                                 Deadline deadline) noexcept override;
  // A record of a size that the options do not have is kIoError; one that finds no room, kBusy.
  KVFOLIO_API std::size_t poll(std::uint64_t now_us, std::span<TierDone> done) noexcept override;
  [[nodiscard]] KVFOLIO_API int event_fd() const noexcept override;  // -1
  [[nodiscard]] KVFOLIO_API TierHealth health() const noexcept override;
  KVFOLIO_API Status close(Deadline deadline) noexcept override;

  [[nodiscard]] KVFOLIO_API ArenaStats stats() const noexcept;

  static constexpr std::size_t kQueue = 1024;

 private:
  struct Waiting {
    TierOp op = TierOp::kExists;
    TierItem item{};
    std::uint64_t deadline_us = 0;
  };
  struct Shared {
    Shared(HostArena of, std::span<const std::int64_t> record_bytes)
        : arena(std::move(of)), sizes(record_bytes.begin(), record_bytes.end()) {}
    std::mutex mutex{};  // of the arena
    HostArena arena;
    std::vector<std::int64_t> sizes;  // of records
  };
  explicit ArenaTier(std::shared_ptr<Shared> shared);
  TierResult perform(const Waiting& one) noexcept;
  TierResult store(const TierItem& item) noexcept;
  TierResult load(const TierItem& item) noexcept;
  void count(TierOp op, TierResult result) noexcept;

  std::shared_ptr<Shared> shared_;
  std::vector<Waiting> waiting_;  // a ring of kQueue
  std::size_t first_ = 0, count_ = 0;
  TierHealth health_{};
  bool closed_ = false;
};

}  // namespace kvfolio
