// SPDX-License-Identifier: Apache-2.0
#pragma once

// Memory whose copies end late, in any order, and fail at times. For tests.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <random>
#include <span>
#include <vector>

#include "kvfolio/memory.h"

namespace kvfolio::test {

// Says that it is a device's; a test may touch it all the same. What is submitted reads its sources
// and writes its destinations only when it ends, in a poll() of some ticket; until then the
// destinations are full of garbage. So a source that is overwritten early, and a destination that
// is used early or given to others, show in the bytes. Memory that is given back is touched no
// more. Fresh memory is full of 0xff.
class LateMemory final : public MemoryResource {
 public:
  explicit LateMemory(std::uint32_t seed = 1) : random_(seed) {}

  unsigned ends_percent = 30;     // of the polls end their ticket, and as many end another one
  unsigned fails_permille = 0;    // of the tickets; and of the submits
  std::uint64_t num_failed = 0;   // of both
  bool is_captured = false;       // the caller's stream
  unsigned refused_permille = 0;  // of the submits come while it is
  std::uint64_t num_refused = 0;
  std::uint64_t num_submitted = 0, num_unknown = 0;
  std::size_t num_left = 0;
  std::size_t most_on_their_way = 0;

  [[nodiscard]] std::size_t on_their_way() const { return on_their_way_.size(); }
  // Where the copy that was begun i-th of these reads from.
  [[nodiscard]] const std::byte* source(std::size_t i) const {
    return on_their_way_.at(i).runs.front().src;
  }
  // Those that still read and write, also if no poll asks for their tickets.
  [[nodiscard]] std::size_t num_moving() const {
    return static_cast<std::size_t>(std::count_if(on_their_way_.begin(), on_their_way_.end(),
                                                  [](const Copy& one) { return !one.has_ended; }));
  }

  [[nodiscard]] MemoryKind kind() const noexcept override { return MemoryKind::kDevice; }
  Result<std::byte*> allocate(std::int64_t bytes) override {
    auto memory = host_.allocate(bytes);
    if (memory) std::memset(*memory, 0xff, static_cast<std::size_t>(bytes));
    return memory;
  }
  // Waits for the copies that touch it.
  void deallocate(std::byte* memory, std::int64_t bytes) noexcept override {
    for (std::size_t i = 0; i < on_their_way_.size(); ++i) {
      if (on_their_way_[i].touches(memory, bytes)) end(i);
    }
    host_.deallocate(memory, bytes);
  }
  Status copy(std::byte* dst, const std::byte* src, std::int64_t bytes) noexcept override {
    return host_.copy(dst, src, bytes);
  }
  Status copy_in(std::span<const CopyRun> runs) noexcept override { return copy_batch(runs); }
  Status copy_out(std::span<const CopyRun> runs) noexcept override { return copy_batch(runs); }

  [[nodiscard]] bool copies_later() const noexcept override { return true; }
  Result<CopyTicket> submit(std::span<const CopyRun> runs, CopyDirection, void*) noexcept override {
    if (is_captured || (refused_permille > 0 && random_() % 1000 < refused_permille)) {
      ++num_refused;
      return Status(ErrorCode::kFailedPrecondition, "the stream is being captured");
    }
    if (fails()) return Status(ErrorCode::kUnavailable, "the queue is full");
    for (const CopyRun& run : runs) spoil(run);
    on_their_way_.push_back({++num_submitted, {runs.begin(), runs.end()}, false, false});
    most_on_their_way = std::max(most_on_their_way, on_their_way_.size());
    return CopyTicket{num_submitted};
  }
  Result<bool> poll(CopyTicket ticket) noexcept override {
    if (chance(ends_percent)) end(random_() % on_their_way_.size());
    const auto asked = std::find_if(on_their_way_.begin(), on_their_way_.end(),
                                    [&](const Copy& one) { return one.ticket == ticket.number; });
    if (asked == on_their_way_.end()) {
      ++num_unknown;
      return Status(ErrorCode::kInvalidArgument, "there is no such ticket");
    }
    if (!asked->has_ended && chance(ends_percent)) {
      end(static_cast<std::size_t>(asked - on_their_way_.begin()));
    }
    if (!asked->has_ended) return false;
    const bool failed = asked->has_failed;
    on_their_way_.erase(asked);
    if (failed) return Status(ErrorCode::kTimedOut, "the cable was cut");
    return true;
  }
  void leave(CopyTicket ticket) noexcept override {
    num_left += std::any_of(on_their_way_.begin(), on_their_way_.end(),
                            [&](const Copy& one) { return one.ticket == ticket.number; });
  }
  // Everything arrives, or fails, now.
  void end_all() {
    for (std::size_t i = 0; i < on_their_way_.size(); ++i) end(i);
  }

 private:
  struct Copy {
    std::uint64_t ticket = 0;
    std::vector<CopyRun> runs;
    bool has_ended = false, has_failed = false;

    [[nodiscard]] bool touches(const std::byte* memory, std::int64_t bytes) const {
      const auto within = [&](const std::byte* at) {
        return !std::less<>{}(at, memory) && std::less<>{}(at, memory + bytes);
      };
      return std::any_of(runs.begin(), runs.end(),
                         [&](const CopyRun& run) { return within(run.dst) || within(run.src); });
    }
  };

  bool chance(unsigned percent) { return random_() % 100 < percent; }
  bool fails() {
    const bool now = random_() % 1000 < fails_permille;
    num_failed += now ? 1 : 0;
    return now;
  }
  static void spoil(const CopyRun& run) {
    std::memset(run.dst, 0xee, static_cast<std::size_t>(run.bytes));
  }
  void end(std::size_t i) {
    Copy& one = on_their_way_[i];
    if (one.has_ended) return;
    one.has_ended = true;
    one.has_failed = fails();
    for (const CopyRun& run : one.runs) {
      if (one.has_failed) {
        spoil(run);
      } else {
        std::memcpy(run.dst, run.src, static_cast<std::size_t>(run.bytes));
      }
    }
  }

  HostMemory host_;
  std::mt19937 random_;
  std::vector<Copy> on_their_way_;
};

}  // namespace kvfolio::test
