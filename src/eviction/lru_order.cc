// SPDX-License-Identifier: Apache-2.0
#include "kvfolio/lru_order.h"

#include <bit>

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
  for (std::int64_t bits = order.capacity_; ok;) {
    const std::int64_t words = (bits + 63) / 64;
    ok = order.levels_[static_cast<std::size_t>(order.num_levels_++)].allocate_zeroed(words);
    if (words == 1) break;
    bits = words;
  }
  if (!ok) {
    return Status(ErrorCode::kOutOfMemory,
                  concat("no memory for the eviction order of ", num_blocks, " blocks"));
  }
  return order;
}

void LruOrder::set_candidate(BlockId block, bool candidate) noexcept {
  const std::int32_t place = place_[block.value()];
  KVFOLIO_CHECK(place != 0);
  if (candidate) {
    set_bit(place - 1);
  } else {
    clear_bit(place - 1);
  }
}

bool LruOrder::is_candidate(BlockId block) const noexcept {
  const std::int32_t place = place_[block.value()];
  return place != 0 && bit(place - 1);
}

BlockId LruOrder::victim() const noexcept {
  std::int64_t at = 0;
  for (int level = num_levels_ - 1; level >= 0; --level) {
    const std::uint64_t word = levels_[static_cast<std::size_t>(level)][at];
    if (word == 0) return BlockId();  // only ever at the top
    at = at * 64 + std::countr_zero(word);
  }
  return BlockId(log_[at] - 1);
}

BlockId LruOrder::victim_after(BlockId block) const noexcept {
  // Up to the first level with a bit behind this place, and down from there.
  std::int64_t at = place_[block.value()] - 1;
  for (int level = 0; level < num_levels_; ++level, at >>= 6) {
    const std::uint64_t behind = ~std::uint64_t{1} << (at & 63);
    const std::uint64_t word = levels_[static_cast<std::size_t>(level)][at >> 6] & behind;
    if (word == 0) continue;
    at = at >> 6 << 6 | std::countr_zero(word);
    while (level-- > 0) {
      at = at << 6 | std::countr_zero(levels_[static_cast<std::size_t>(level)][at]);
    }
    return BlockId(log_[at] - 1);
  }
  return BlockId();
}

void LruOrder::set_bit(std::int64_t at) noexcept {
  for (int level = 0; level < num_levels_; ++level) {
    std::uint64_t& word = levels_[static_cast<std::size_t>(level)][at >> 6];
    const std::uint64_t before = word;
    word |= std::uint64_t{1} << (at & 63);
    if (before != 0) return;  // the levels above know already
    at >>= 6;
  }
}

void LruOrder::compact() noexcept {
  std::int32_t to = 0;
  for (std::int32_t from = 0; from < capacity_; ++from) {
    const std::int32_t entry = log_[from];
    if (entry == 0) continue;
    const bool candidate = bit(from);
    if (candidate) clear_bit(from);
    log_[from] = 0;
    log_[to] = entry;
    place_[entry - 1] = to + 1;
    if (candidate) set_bit(to);
    ++to;
  }
  end_ = to;
}

// A member that is not named here does not compile.
void LruOrder::copy_from(const LruOrder& other) noexcept {
  const auto& [log, place, levels, num_levels, capacity, end] = other;
  KVFOLIO_CHECK(capacity_ == capacity && num_levels_ == num_levels);
  log_.copy_from(log);
  place_.copy_from(place);
  for (std::size_t level = 0; level < levels.size(); ++level) {
    levels_[level].copy_from(levels[level]);
  }
  end_ = end;
}

Status LruOrder::check_invariants() const {
  const auto broken = [](const std::string& what) {
    return Status(ErrorCode::kFailedPrecondition, "LRU order: " + what);
  };
  for (std::int32_t i = 0; i < capacity_; ++i) {
    const std::int32_t entry = log_[i];
    if (entry != 0 && place_[entry - 1] != i + 1) {
      return broken(concat("place ", i, " names block ", entry - 1, " which stands elsewhere"));
    }
    if (bit(i) && (entry == 0 || i >= end_))
      return broken(concat("a candidate at empty place ", i));
  }
  for (std::size_t i = 0; i < place_.size(); ++i) {
    if (place_[i] != 0 && log_[place_[i] - 1] != static_cast<std::int32_t>(i) + 1) {
      return broken(concat("block ", i, " is not in its place"));
    }
  }
  for (int level = 1; level < num_levels_; ++level) {
    const auto& below = levels_[static_cast<std::size_t>(level - 1)];
    const auto& above = levels_[static_cast<std::size_t>(level)];
    for (std::size_t word = 0; word < below.size(); ++word) {
      if ((below[word] != 0) != ((above[word >> 6] >> (word & 63) & 1u) != 0)) {
        return broken(concat("level ", level, " is wrong at ", word));
      }
    }
  }
  return {};
}

}  // namespace kvfolio
