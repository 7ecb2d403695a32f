// SPDX-License-Identifier: Apache-2.0
#pragma once

// ForgottenRoots are the roots that were forgotten while the arena still has records of theirs.
// Nothing asks for those, since what is computed under the root key now has other names: so they
// leave the arena in pieces, and no call looks at all of it.
//
// Invariant: the circle of each root that is leaving ends later than all that was looked at, and
// not before those of the roots in front of it. Thread safety: none.

#include <algorithm>
#include <cstdint>
#include <deque>
#include <span>
#include <unordered_set>

#include "kvfolio/host_arena.h"
#include "kvfolio/record.h"

namespace kvfolio {

class ForgottenRoots {
 public:
  // `root`: under which its records were made until now.
  void add(const Digest& root, const HostArena& arena) {
    const std::uint64_t owner = root_owner(root);
    leaving_.push_back({owner, looked_at_ + arena.num_slots()});
    owners_.insert(owner);
  }
  void clear() noexcept {
    leaving_.clear();
    owners_.clear();
  }
  [[nodiscard]] bool empty() const noexcept { return leaving_.empty(); }

  // It goes to no tier any more. What cannot be read has no owner, and goes too.
  [[nodiscard]] bool owns(std::span<const std::byte> record) const noexcept {
    if (empty()) return false;
    RecordInfo info;
    return read_record_header(record, info) != RecordFault::kNone || owners_.contains(info.owner);
  }

  // Looks at `most` slots; returns at how many.
  std::int64_t erase_some(HostArena& arena, std::int64_t most) {
    if (empty()) return 0;
    // Each root's circle began where the last call for those before it had ended.
    const std::int64_t count = std::min(most, leaving_.back().end - looked_at_);
    KVFOLIO_DCHECK(count >= 0 && leaving_.front().end > looked_at_);
    arena.erase_some_if(count, [this](std::span<const std::byte> record) { return owns(record); });
    looked_at_ += count;
    while (!leaving_.empty() && leaving_.front().end <= looked_at_) {
      owners_.erase(leaving_.front().owner);
      leaving_.pop_front();
    }
    return count;
  }

  [[nodiscard]] Status check() const {
    const auto broken = [](const char* rule) { return Status(ErrorCode::kAborted, rule); };
    std::int64_t least = looked_at_ + 1;
    for (const Leaving& one : leaving_) {
      if (one.end < least) return broken("offload: a forgotten root leaves out of line");
      if (!owners_.contains(one.owner)) return broken("offload: a forgotten root is not known");
      least = one.end;
    }
    if (owners_.size() > leaving_.size()) return broken("offload: a forgotten root never leaves");
    return {};
  }

 private:
  struct Leaving {
    std::uint64_t owner = 0;
    std::int64_t end = 0;  // of its circle, in slots that were looked at since the beginning
  };
  std::deque<Leaving> leaving_;  // in the order of `end`
  std::unordered_set<std::uint64_t> owners_;
  std::int64_t looked_at_ = 0;
};

}  // namespace kvfolio
