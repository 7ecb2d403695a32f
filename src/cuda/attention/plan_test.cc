// SPDX-License-Identifier: Apache-2.0

#include "cuda/attention/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <vector>

namespace kvfolio::cuda {
namespace {

constexpr std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

struct Batch {
  std::vector<std::int32_t> start = {0}, lens, sinks, kept;
  Mask mask;
  PlanOptions options;
  [[nodiscard]] BatchLengths lengths() const { return {start, lens, sinks, kept}; }
  [[nodiscard]] std::int32_t queries(std::size_t i) const { return start[i + 1] - start[i]; }
  [[nodiscard]] Sight sight(std::size_t i, std::int32_t first, std::int32_t count) const {
    const std::int32_t base = lens[i] - queries(i);
    return sight_of_any(mask, base + first / options.group_size,
                        base + (first + count - 1) / options.group_size, lens[i], sinks[i],
                        kept[i]);
  }
};

Batch drawn(std::mt19937& random, bool decode) {
  auto draw = [&](int low, int high) {
    return low + static_cast<int>(random() % static_cast<unsigned>(high - low + 1));
  };
  Batch batch;
  batch.mask.rule = static_cast<Rule>(draw(0, 2));
  batch.mask.window = draw(1, 3000);
  batch.mask.num_sinks = batch.mask.rule == Rule::kFull ? 0 : draw(0, 1) * draw(0, 600);
  batch.options.group_size = draw(1, decode ? 8 : 20);
  batch.options.num_heads = draw(1, 4);
  batch.options.group_rows = batch.options.group_size > 8 ? 16 : 8;
  for (int i = draw(1, 9); i > 0; --i) {
    const int len = draw(1, draw(0, 3) == 0 ? 20000 : 1500);
    batch.lens.push_back(len);
    batch.start.push_back(batch.start.back() + (decode ? 1 : draw(0, std::min(len, 70))));
    const bool trimmed = draw(0, 4) == 0;
    batch.sinks.push_back(trimmed ? draw(0, 400) : 0);
    batch.kept.push_back(trimmed ? draw(0, len) : 0);
  }
  return batch;
}

// The positions of tiles of a group that some row sees, by brute force.
std::set<std::int32_t> seen_units(const Sight& sight, std::int32_t tokens) {
  std::set<std::int32_t> units;
  for (std::int32_t p = 0; p <= sight.high; ++p)
    if (sight.sees(p)) units.insert(p / tokens);
  return units;
}

// The rules in their own words, one row and one position at a time.
bool row_sees(const Mask& mask, std::int32_t at, std::int32_t kv_len, std::int32_t trim_sinks,
              std::int32_t first_kept, std::int32_t p) {
  if (mask.causal != 0 ? p > at : p >= kv_len) return false;
  bool in_rule = true;
  if (mask.rule == Rule::kSlidingWindow) in_rule = p > at - mask.window;
  if (mask.rule == Rule::kChunked) in_rule = p / mask.window >= at / mask.window;
  if (!in_rule && p >= mask.num_sinks) return false;
  return p < trim_sinks || p >= first_kept;
}

TEST(CudaSight, OneRowAndManySeeWhatTheRulesSay) {
  std::mt19937 random(3);
  auto draw = [&](int low, int high) {
    return low + static_cast<int>(random() % static_cast<unsigned>(high - low + 1));
  };
  for (int round = 0; round < 3000; ++round) {
    Mask mask;
    mask.rule = static_cast<Rule>(draw(0, 2));
    mask.window = draw(1, 40);
    mask.num_sinks = mask.rule == Rule::kFull ? 0 : draw(0, 2) * draw(0, 9);
    mask.causal = draw(0, 3) == 0 ? 0 : 1;
    const int kv_len = draw(1, 90), first = draw(0, kv_len - 1), last = draw(first, kv_len - 1);
    const int trim_sinks = draw(0, 1) * draw(0, 30), first_kept = draw(0, 1) * draw(0, kv_len);
    const Sight any = sight_of_any(mask, first, last, kv_len, trim_sinks, first_kept);
    const Sight each = sight_of_each(mask, first, last, kv_len, trim_sinks, first_kept);
    for (int p = 0; p < kv_len + 3; ++p) {
      bool some = false, all = true;
      for (int at = first; at <= last; ++at) {
        const bool want = row_sees(mask, at, kv_len, trim_sinks, first_kept, p);
        ASSERT_EQ(sight_of(mask, at, kv_len, trim_sinks, first_kept).sees(p), want)
            << "row at " << at << ", position " << p;
        some = some || want;
        all = all && want;
      }
      ASSERT_EQ(any.sees(p), some) << p;
      ASSERT_TRUE(all || !each.surely_sees_all(p, p)) << p;
    }
    for (int p = 0; p < kv_len; ++p) {
      int next = p;
      while (next <= any.high && !any.sees(next)) ++next;
      if (next <= any.high) {
        ASSERT_EQ(any.next(p), next);
      } else {
        ASSERT_GT(any.next(p), any.high);
      }
    }
  }
}

TEST(CudaPlan, EveryRowIsInOneGroupAndEveryNodeItSeesInOneItem) {
  std::mt19937 random(1);
  for (int round = 0; round < 400; ++round) {
    Batch batch = drawn(random, false);
    batch.options.prefill_rows = round % 2 == 0 ? 128 : 0;
    batch.options.prefill_from = 40;
    const WorkPlan plan = plan_work(batch.lengths(), batch.mask, batch.options);
    std::map<std::pair<std::int32_t, std::int32_t>, int> rows;  // (sequence, row) -> how often
    for (const Item& item : plan.prefill_items) {
      const auto i = index(item.sequence);
      const std::int32_t all = batch.queries(i) * batch.options.group_size;
      ASSERT_GE(all, batch.options.prefill_from);
      for (std::int32_t r = item.first_row; r < std::min(all, item.first_row + 128); ++r)
        ++rows[{item.sequence, r}];
    }
    for (std::size_t g = 0; g < plan.groups.size(); ++g) {
      const Group& group = plan.groups[g];
      const auto i = index(group.sequence);
      const std::int32_t all = batch.queries(i) * batch.options.group_size;
      const std::int32_t count = std::min(batch.options.group_rows, all - group.first_row);
      for (std::int32_t r = 0; r < count; ++r) ++rows[{group.sequence, group.first_row + r}];
      std::vector<std::int32_t> nodes;
      for (std::int32_t j = 0; j < group.num_items; ++j) {
        const Item& item = plan.items[index(group.first_item + j)];
        ASSERT_EQ(item.group, static_cast<std::int32_t>(g));
        ASSERT_EQ(item.sequence, group.sequence);
        ASSERT_EQ(item.first_row, group.first_row);
        nodes.push_back(item.node);
      }
      const std::set<std::int32_t> want =
          seen_units(batch.sight(i, group.first_row, count), kNodeTokens);
      if (want.empty()) {
        ASSERT_EQ(nodes, std::vector<std::int32_t>{0});
      } else {
        ASSERT_EQ(nodes, std::vector<std::int32_t>(want.begin(), want.end()));
      }
    }
    for (std::size_t i = 0; i < batch.lens.size(); ++i)
      for (std::int32_t r = 0; r < batch.queries(i) * batch.options.group_size; ++r)
        ASSERT_EQ((rows[{static_cast<std::int32_t>(i), r}]), 1) << "sequence " << i << " row " << r;
  }
}

TEST(CudaPlan, AStreamHasEveryLeafOnceEvenlyAndInOrder) {
  std::mt19937 random(2);
  int streams = 0;
  for (int round = 0; round < 400; ++round) {
    Batch batch = drawn(random, true);
    batch.options.stream_blocks = 1 + static_cast<std::int32_t>(random() % 400);
    const WorkPlan plan = plan_work(batch.lengths(), batch.mask, batch.options);
    if (plan.stream_blocks == 0) continue;
    ++streams;
    ASSERT_TRUE(plan.items.empty());
    ASSERT_LE(plan.segments_per_block, 24);
    std::map<std::pair<std::int32_t, std::int32_t>, std::vector<std::int32_t>> tiles;
    std::int64_t most = 0, all = 0, least = std::int64_t{1} << 40;
    std::int32_t last_state = 0;
    for (std::int32_t b = 0; b < plan.stream_blocks; ++b) {
      std::int64_t leaves = 0;
      for (std::int32_t s = 0; s < plan.segments_per_block; ++s) {
        const Segment& segment = plan.segments[index(b * plan.segments_per_block + s)];
        if (segment.num_tiles == 0) continue;
        const std::int32_t last = segment.first_tile + segment.num_tiles - 1;
        leaves += last / kTilesPerLeaf - segment.first_tile / kTilesPerLeaf + 1;
        ASSERT_GE(segment.state, last_state) << "states are in the order of segments";
        last_state = segment.state;
        ASSERT_GE(segment.state, segment.group_state);
        ASSERT_LE(segment.state, segment.group_state + segment.group_states);
        ASSERT_EQ(segment.whole == 1, segment.group_states == 0);
        auto& mine = tiles[{segment.sequence, segment.head}];
        ASSERT_TRUE(mine.empty() || mine.back() + 1 == segment.first_tile);
        for (std::int32_t t = segment.first_tile; t <= last; ++t) mine.push_back(t);
      }
      most = std::max(most, leaves);
      least = std::min(least, leaves);
      all += leaves;
    }
    ASSERT_LE(most - least, 1) << "balance";
    ASSERT_GT(all, 0);
    for (std::size_t i = 0; i < batch.lens.size(); ++i)
      for (std::int32_t h = 0; h < batch.options.num_heads; ++h) {
        const auto& mine = tiles[{static_cast<std::int32_t>(i), h}];
        const std::set<std::int32_t> want =
            seen_units(batch.sight(i, 0, batch.options.group_size), kTileTokens);
        ASSERT_FALSE(mine.empty());
        ASSERT_EQ(mine.front(), *want.begin());
        ASSERT_EQ(mine.back(), *want.rbegin());
      }
  }
  EXPECT_GT(streams, 100);
}

}  // namespace
}  // namespace kvfolio::cuda
