// SPDX-License-Identifier: Apache-2.0

// The order of eviction, without touch() and forget(), which are inline. The one idea: a rank is a
// place in a log of releases, so nothing is ever sorted. The candidates of a group and turn are a
// set of places (BitTree), whose smallest member is the coldest. compact() moves the ranks to the
// front, in order, when the log is full. lru_order.h says what that costs; bit_tree.h is the set.

#include "kvfolio/lru_order.h"

#include <string>

#include "base/text.h"

namespace kvfolio {

using text::concat;

Result<LruOrder> LruOrder::create(std::span<const std::int32_t> num_blocks) {
  if (num_blocks.empty() || num_blocks.size() > static_cast<std::size_t>(kMaxGroups)) {
    return Status(ErrorCode::kInvalidArgument, concat("an eviction order of ", num_blocks.size(),
                                                      " groups, allowed: 1 to ", kMaxGroups));
  }
  std::int64_t all = 0;
  for (std::size_t g = 0; g < num_blocks.size(); ++g) {
    if (num_blocks[g] < 1) {
      return Status(ErrorCode::kInvalidArgument, concat("group ", g, ": num_blocks is ",
                                                        num_blocks[g], ", allowed: at least 1"));
    }
    all += num_blocks[g];
    if (all > kMaxBlocks) {
      return Status(ErrorCode::kInvalidArgument,
                    concat("group ", g, ": num_blocks is ", num_blocks[g], ", which makes ", all,
                           " together with the groups before, allowed: at most ", kMaxBlocks));
    }
  }
  LruOrder order;
  std::int32_t total = 0;
  for (std::size_t g = 0; g < num_blocks.size(); ++g) {
    order.first_[g] = total;
    total += num_blocks[g];
    order.first_[g + 1] = total;
  }
  order.capacity_ = total + total / 2 + 1;
  bool ok = order.log_.allocate_zeroed(order.capacity_) && order.place_.allocate_zeroed(total);
  order.candidates_ = std::vector<Turns>(num_blocks.size());
  for (Turns& turns : order.candidates_) {
    for (BitTree& turn : turns) ok = ok && turn.allocate(order.capacity_);
  }
  if (!ok) {
    return Status(ErrorCode::kOutOfMemory,
                  concat("no memory for the eviction order of ", total, " blocks"));
  }
  return order;
}

void LruOrder::set_turn(GroupId group, BlockId block, EvictionTurn turn) noexcept {
  const std::int32_t place = place_of(group, block);
  if (place == 0 && turn == EvictionTurn::kNever) return;
  KVFOLIO_CHECK(place != 0);
  Entry& entry = log_[place - 1];
  const auto wanted = static_cast<std::uint32_t>(turn);
  if (entry.turn == wanted) return;
  Turns& turns = candidates_[index(group)];
  if (entry.turn < kTurns) turns[entry.turn].erase(place - 1);
  if (wanted < kTurns) turns[wanted].insert(place - 1);
  entry.turn = wanted & 3u;
}

EvictionTurn LruOrder::turn(GroupId group, BlockId block) const noexcept {
  const std::int32_t place = place_of(group, block);
  return place == 0 ? EvictionTurn::kNever : static_cast<EvictionTurn>(log_[place - 1].turn);
}

BlockId LruOrder::victim(GroupId group) const noexcept {
  for (const BitTree& turn : candidates_[index(group)]) {
    const std::int64_t at = turn.first();
    if (at != BitTree::kNone) return block_at(index(group), at);
  }
  return BlockId();
}

LruOrder::Member LruOrder::victim(std::uint32_t groups) const noexcept {
  for (std::size_t turn = 0; turn < kTurns; ++turn) {
    std::int64_t coldest = BitTree::kNone;
    std::size_t of = 0;
    for (std::size_t g = 0; g < candidates_.size(); ++g) {
      if ((groups >> g & 1) == 0) continue;
      const std::int64_t at = candidates_[g][turn].first();
      if (at == BitTree::kNone || (coldest != BitTree::kNone && at > coldest)) continue;
      coldest = at;
      of = g;
    }
    if (coldest == BitTree::kNone) continue;
    return {GroupId(static_cast<std::int32_t>(of)), block_at(of, coldest)};
  }
  return {};
}

BlockId LruOrder::victim_after(GroupId group, BlockId block) const noexcept {
  const Turns& turns = candidates_[index(group)];
  auto own = static_cast<std::size_t>(turn(group, block));
  std::int64_t at = own < kTurns ? turns[own].next(place_of(group, block) - 1) : BitTree::kNone;
  while (at == BitTree::kNone && ++own < kTurns) at = turns[own].first();
  return at == BitTree::kNone ? BlockId() : block_at(index(group), at);
}

void LruOrder::compact() noexcept {
  std::int32_t to = 0;
  for (std::int32_t from = 0; from < capacity_; ++from) {
    const Entry entry = log_[from];
    if (entry.name == 0) continue;
    if (from != to) {
      const std::int32_t number = static_cast<std::int32_t>(entry.name) - 1;
      log_[from] = {0, kTurns};
      log_[to] = entry;
      place_[number] = to + 1;
      if (entry.turn < kTurns) {
        BitTree& turn = candidates_[group_of(number)][entry.turn];
        turn.erase(from);
        turn.insert(to);
      }
    }
    ++to;
  }
  end_ = to;
}

// A member that is not named here does not compile.
void LruOrder::copy_from(const LruOrder& other) noexcept {
  const auto& [log, place, candidates, first, capacity, end] = other;
  KVFOLIO_CHECK(capacity_ == capacity && first_ == first);
  log_.copy_from(log);
  place_.copy_from(place);
  for (std::size_t g = 0; g < candidates.size(); ++g) {
    for (std::size_t turn = 0; turn < kTurns; ++turn) {
      candidates_[g][turn].copy_from(candidates[g][turn]);
    }
  }
  end_ = end;
}

MemoryUse LruOrder::memory() const noexcept {
  std::int64_t bytes = log_.bytes() + place_.bytes();
  for (const Turns& turns : candidates_) {
    for (const BitTree& turn : turns) bytes += turn.bytes();
  }
  return MemoryUse::whole(bytes);
}

Status LruOrder::check_invariants() const {
  const auto broken = [](const std::string& what) {
    return Status(ErrorCode::kFailedPrecondition, "LRU order: " + what);
  };
  for (std::int32_t i = 0; i < capacity_; ++i) {
    const std::int32_t number = static_cast<std::int32_t>(log_[i].name) - 1;
    if (number >= 0 && i >= end_) return broken(concat("a rank at place ", i, " behind the end"));
    if (number >= 0 && place_[number] != i + 1) {
      return broken(
          concat("place ", i, " names block ", number, " of all, which stands elsewhere"));
    }
    for (std::size_t g = 0; g < candidates_.size(); ++g) {
      for (std::uint32_t turn = 0; turn < kTurns; ++turn) {
        const bool listed = candidates_[g][turn].contains(i);
        if (listed && (number < 0 || i >= end_)) {
          return broken(concat("a candidate at empty place ", i));
        }
        if (listed != (number >= 0 && group_of(number) == g && log_[i].turn == turn)) {
          return broken(
              concat("place ", i, " is listed in turn ", turn, " of group ", g, ", or is not"));
        }
      }
    }
  }
  for (std::size_t i = 0; i < place_.size(); ++i) {
    if (place_[i] != 0 && static_cast<std::size_t>(log_[place_[i] - 1].name) != i + 1) {
      return broken(concat("block ", i, " of all is not in its place"));
    }
  }
  for (const Turns& turns : candidates_) {
    for (std::size_t turn = 0; turn < kTurns; ++turn) {
      if (!turns[turn].is_consistent()) return broken(concat("turn ", turn, " is wrong"));
    }
  }
  return {};
}

}  // namespace kvfolio
