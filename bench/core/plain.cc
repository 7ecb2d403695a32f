// SPDX-License-Identifier: Apache-2.0
#include "plain.h"

#include <algorithm>
#include <cstring>

namespace kvfolio::bench {
namespace {

constexpr std::int64_t kLine = 64;

}  // namespace

Chase::Chase(std::int64_t bytes) : lines_(std::max(bytes, 2 * kLine)) {
  const std::vector<std::int32_t> order =
      shuffled(static_cast<std::int32_t>(static_cast<std::int64_t>(lines_.size()) / kLine), 81);
  for (std::size_t i = 0; i < order.size(); ++i) {
    const std::int32_t next = order[(i + 1) % order.size()];
    std::memcpy(lines_.data() + order[i] * kLine, &next, sizeof next);
  }
}

double Chase::time(std::int64_t loads) {
  return nanoseconds_of([&] {
    for (std::int64_t i = 0; i < loads; ++i) {
      std::memcpy(&at_, lines_.data() + at_ * kLine, sizeof at_);
    }
    keep(static_cast<std::uint64_t>(at_));
  });
}

PlainIndex::PlainIndex(std::int32_t num_blocks)
    : tokens_(static_cast<std::size_t>(num_blocks) * kBlockSize),
      cells_(static_cast<std::size_t>(num_blocks)),
      order_(shuffled(num_blocks, 82)) {}

double PlainIndex::publish(std::span<const std::int32_t> tokens) {
  return nanoseconds_of([&] {
    for (std::size_t at = 0; at < tokens.size(); at += kBlockSize) {
      std::memcpy(tokens_.data() + next_ * kBlockSize, tokens.data() + at,
                  kBlockSize * sizeof(std::int32_t));
      cells_[static_cast<std::size_t>(order_[next_])] = static_cast<std::int32_t>(next_);
      next_ = next_ + 1 == order_.size() ? 0 : next_ + 1;
    }
    keep(tokens_.data());
    keep(cells_.data());
  });
}

PlainDecode::PlainDecode(std::int32_t count, std::int32_t length)
    : widest_(static_cast<std::size_t>(length / kBlockSize) + 1),
      rows_(static_cast<std::size_t>(count)),
      tails_(static_cast<std::size_t>(count) * kBlockSize),
      tables_(static_cast<std::size_t>(count) * widest_),
      free_(shuffled(count * static_cast<std::int32_t>(widest_), 83)),
      slots_(static_cast<std::size_t>(count)) {
  // A sixteenth of them fills a block in each step.
  for (std::int32_t i = 0; i < count; ++i) {
    rows_[static_cast<std::size_t>(i)].length = i % kBlockSize;
  }
}

double PlainDecode::step(std::int32_t steps) {
  const auto longest = static_cast<std::int32_t>(widest_) * kBlockSize;
  return nanoseconds_of([&] {
    for (std::int32_t step = 0; step < steps; ++step) {
      for (std::size_t i = 0; i < rows_.size(); ++i) {
        Row& row = rows_[i];
        const std::int32_t within = row.length % kBlockSize;
        if (within == 0) {
          if (row.length == longest) row.length = 0;
          row.block = free_[taken_];
          taken_ = taken_ + 1 == free_.size() ? 0 : taken_ + 1;
          tables_[i * widest_ + static_cast<std::size_t>(row.length / kBlockSize)] = row.block;
        }
        tails_[i * kBlockSize + static_cast<std::size_t>(within)] = 7;
        slots_[i] = row.block * kBlockSize + within;
        ++row.length;
      }
      keep(slots_.data());
      keep(tails_.data());
    }
  });
}

OrderedSet::OrderedSet(std::int32_t count) : highest_(count) {
  for (const std::int32_t i : shuffled(count, 84)) ranks_.emplace(i, i);
}

double OrderedSet::turn(std::int32_t times) {
  return nanoseconds_of([&] {
    for (std::int32_t i = 0; i < times; ++i) {
      const std::int32_t lowest = ranks_.begin()->second;
      ranks_.erase(ranks_.begin());
      ranks_.emplace(highest_++, lowest);
    }
  });
}

RankedArray::RankedArray(std::int32_t count, std::int32_t sequence_blocks)
    : sequence_blocks_(sequence_blocks),
      tables_(shuffled(count * sequence_blocks, 85)),
      states_(tables_.size()) {
  for (const std::int32_t rank : shuffled(count, 86)) {
    sequences_.push_back({rank, static_cast<std::int32_t>(sequences_.size()), sequence_blocks});
    ranks_.push_back(static_cast<std::uint64_t>(rank));
  }
  listed_.reserve(tables_.size());
}

double RankedArray::scan(std::int32_t times) {
  return nanoseconds_of([&] {
    for (std::int32_t i = 0; i < times; ++i) {
      const auto lowest = std::min_element(ranks_.begin(), ranks_.end());
      keep(&*lowest);
      keep(ranks_.data());
    }
  });
}

double RankedArray::give_up_half() {
  sorted_ = sequences_;
  std::fill(states_.begin(), states_.end(), std::uint8_t{0});
  listed_.clear();
  const auto each = static_cast<std::size_t>(sequence_blocks_);
  return nanoseconds_of([&] {
    std::sort(sorted_.begin(), sorted_.end(),
              [](const Sequence& a, const Sequence& b) { return a.rank < b.rank; });
    for (std::size_t i = 0; i < sorted_.size() / 2; ++i) {
      const std::int32_t* const table = &tables_[static_cast<std::size_t>(sorted_[i].id) * each];
      for (std::size_t b = 0; b < each; ++b) {
        states_[static_cast<std::size_t>(table[b])] = 1;
        listed_.push_back(table[b]);
      }
    }
    keep(listed_.data());
    keep(states_.data());
  });
}

}  // namespace kvfolio::bench
