// SPDX-License-Identifier: Apache-2.0
#pragma once

// Plain code that a row is measured against in the same run: the least that its work can be on this
// machine, without rules, checks or a way back. A floor that is a part of it says the same of a
// slow machine and of a fast one.

#include <cstdint>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "harness.h"
#include "prompts.h"

namespace kvfolio::bench {

// Loads that each wait for the one before: a circle through all cache lines of so much memory, in
// random order.
class Chase {
 public:
  explicit Chase(std::int64_t bytes);
  // Nanoseconds of so many loads; goes on where it stopped.
  double time(std::int64_t loads);

 private:
  Buffer lines_;  // each begins with the number of the next
  std::int32_t at_ = 0;
};

// Makes blocks findable as a table without a tree would: their tokens one behind the other, and a
// cell set at random.
class PlainIndex {
 public:
  explicit PlainIndex(std::int32_t num_blocks);
  // Nanoseconds for all blocks of these tokens.
  double publish(std::span<const std::int32_t> tokens);

 private:
  std::vector<std::int32_t> tokens_;
  std::vector<std::int32_t> cells_;
  std::vector<std::int32_t> order_;  // of the cells
  std::size_t next_ = 0;
};

// A decode step of sequences that only grow: the token, its slot and, at the border of a block, an
// entry of the table.
class PlainDecode {
 public:
  PlainDecode(std::int32_t count, std::int32_t length);
  // Nanoseconds of so many steps of all sequences.
  double step(std::int32_t steps);

 private:
  struct Row {
    std::int32_t length = 0;
    std::int32_t block = 0;
  };
  std::size_t widest_;
  std::vector<Row> rows_;
  std::vector<std::int32_t> tails_;   // [row][kBlockSize]
  std::vector<std::int32_t> tables_;  // [row][widest]
  std::vector<std::int32_t> free_;
  std::vector<std::int32_t> slots_;
  std::size_t taken_ = 0;
};

// Ranks in a std::set.
class OrderedSet {
 public:
  explicit OrderedSet(std::int32_t count);
  // Nanoseconds: so many times the lowest leaves and comes back as the highest.
  double turn(std::int32_t times);

 private:
  std::set<std::pair<std::int64_t, std::int32_t>> ranks_;
  std::int64_t highest_;
};

// Sequences in an array, by rank.
class RankedArray {
 public:
  RankedArray(std::int32_t count, std::int32_t sequence_blocks);
  // Nanoseconds of so many looks at all of them for the lowest rank: at an array of ranks alone.
  double scan(std::int32_t times);
  // Nanoseconds: all are sorted, and the blocks of the first half are marked and listed.
  double give_up_half();

 private:
  struct Sequence {
    std::int64_t rank = 0;
    std::int32_t id = 0;
    std::int32_t blocks = 0;  // that its end would free
  };
  std::int32_t sequence_blocks_;
  std::vector<Sequence> sequences_;
  std::vector<std::uint64_t> ranks_;  // of these
  std::vector<Sequence> sorted_;
  std::vector<std::int32_t> tables_;  // [sequence][sequence_blocks]
  std::vector<std::uint8_t> states_;  // by block
  std::vector<std::int32_t> listed_;
};

}  // namespace kvfolio::bench
