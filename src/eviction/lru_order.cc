// SPDX-License-Identifier: Apache-2.0

// The order of eviction, without touch() and forget(), which are inline. The one idea: a rank is a
// place in a log of releases, so nothing is ever sorted. The candidates of a turn are a set of
// places (BitTree), whose smallest member is the coldest. compact() moves the ranks to the front,
// in order, when the log is full. lru_order.h says what that costs; bit_tree.h is the set.

#include "kvfolio/lru_order.h"

#include "base/text.h"

namespace kvfolio {

using text::concat;

Result<LruOrder> LruOrder::create(std::int32_t num_blocks) {
  if (num_blocks < 1 || num_blocks > kMaxBlocks) {
    return Status(ErrorCode::kInvalidArgument,
                  concat("num_blocks is ", num_blocks, ", allowed: 1 to ", kMaxBlocks));
  }
  LruOrder order;
  order.capacity_ = num_blocks + num_blocks / 2 + 1;
  bool ok = order.log_.allocate_zeroed(order.capacity_) && order.place_.allocate_zeroed(num_blocks);
  for (BitTree& turn : order.candidates_) ok = ok && turn.allocate(order.capacity_);
  if (!ok) {
    return Status(ErrorCode::kOutOfMemory,
                  concat("no memory for the eviction order of ", num_blocks, " blocks"));
  }
  return order;
}

void LruOrder::set_turn(BlockId block, EvictionTurn turn) noexcept {
  const std::int32_t place = place_[block.value()];
  KVFOLIO_CHECK(place != 0);
  Entry& entry = log_[place - 1];
  const auto wanted = static_cast<std::uint32_t>(turn);
  if (entry.turn == wanted) return;
  if (entry.turn < kTurns) candidates_[entry.turn].erase(place - 1);
  if (wanted < kTurns) candidates_[wanted].insert(place - 1);
  entry.turn = wanted & 3u;
}

EvictionTurn LruOrder::turn(BlockId block) const noexcept {
  const std::int32_t place = place_[block.value()];
  return place == 0 ? EvictionTurn::kNever : static_cast<EvictionTurn>(log_[place - 1].turn);
}

BlockId LruOrder::victim() const noexcept {
  for (const BitTree& turn : candidates_) {
    if (const std::int64_t at = turn.first(); at != BitTree::kNone) return block_at(at);
  }
  return BlockId();
}

BlockId LruOrder::victim_after(BlockId block) const noexcept {
  auto own = static_cast<std::size_t>(turn(block));
  std::int64_t at =
      own < kTurns ? candidates_[own].next(place_[block.value()] - 1) : BitTree::kNone;
  while (at == BitTree::kNone && ++own < kTurns) at = candidates_[own].first();
  return at == BitTree::kNone ? BlockId() : block_at(at);
}

void LruOrder::compact() noexcept {
  std::int32_t to = 0;
  for (std::int32_t from = 0; from < capacity_; ++from) {
    const Entry entry = log_[from];
    if (entry.name == 0) continue;
    if (from != to) {
      log_[from] = {0, kTurns};
      log_[to] = entry;
      place_[static_cast<std::int32_t>(entry.name) - 1] = to + 1;
      if (entry.turn < kTurns) {
        candidates_[entry.turn].erase(from);
        candidates_[entry.turn].insert(to);
      }
    }
    ++to;
  }
  end_ = to;
}

// A member that is not named here does not compile.
void LruOrder::copy_from(const LruOrder& other) noexcept {
  const auto& [log, place, candidates, capacity, end] = other;
  KVFOLIO_CHECK(capacity_ == capacity);
  log_.copy_from(log);
  place_.copy_from(place);
  for (std::size_t turn = 0; turn < kTurns; ++turn) candidates_[turn].copy_from(candidates[turn]);
  end_ = end;
}

Status LruOrder::check_invariants() const {
  const auto broken = [](const std::string& what) {
    return Status(ErrorCode::kFailedPrecondition, "LRU order: " + what);
  };
  for (std::int32_t i = 0; i < capacity_; ++i) {
    const std::int32_t block = block_at(i).value();
    if (block >= 0 && place_[block] != i + 1) {
      return broken(concat("place ", i, " names block ", block, " which stands elsewhere"));
    }
    for (std::uint32_t turn = 0; turn < kTurns; ++turn) {
      const bool listed = candidates_[turn].contains(i);
      if (listed && (block < 0 || i >= end_)) {
        return broken(concat("a candidate at empty place ", i));
      }
      if (listed != (block >= 0 && log_[i].turn == turn)) {
        return broken(concat("place ", i, " is listed in turn ", turn, ", or is not"));
      }
    }
  }
  for (std::size_t i = 0; i < place_.size(); ++i) {
    if (place_[i] != 0 && block_at(place_[i] - 1).value() != static_cast<std::int32_t>(i)) {
      return broken(concat("block ", i, " is not in its place"));
    }
  }
  for (std::size_t turn = 0; turn < kTurns; ++turn) {
    if (!candidates_[turn].is_consistent()) return broken(concat("turn ", turn, " is wrong"));
  }
  return {};
}

}  // namespace kvfolio
