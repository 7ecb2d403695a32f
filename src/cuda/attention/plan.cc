// SPDX-License-Identifier: Apache-2.0

#include "cuda/attention/plan.h"

#include <algorithm>
#include <cstddef>

#include "base/mutants.h"

namespace kvfolio::cuda {
namespace {

struct Sequence {
  std::int32_t number = 0;
  std::int32_t queries = 0;
  std::int32_t kv_len = 0;
  std::int32_t trim_sinks = 0;
  std::int32_t first_kept = 0;
};

Sequence sequence_of(const BatchLengths& lengths, std::size_t i) {
  Sequence sequence{static_cast<std::int32_t>(i),
                    lengths.query_start[i + 1] - lengths.query_start[i], lengths.kv_lens[i], 0, 0};
  if (!lengths.trim_sinks.empty()) {
    sequence.trim_sinks = lengths.trim_sinks[i];
    sequence.first_kept = lengths.trim_first_kept[i];
  }
  return sequence;
}

// What rows [first, first + count) of the sequence see together.
Sight sight_of_rows(const Sequence& sequence, const Mask& mask, std::int32_t group_size,
                    std::int32_t first, std::int32_t count) {
  const std::int32_t base = sequence.kv_len - sequence.queries;
  return sight_of_any(mask, base + first / group_size, base + (first + count - 1) / group_size,
                      sequence.kv_len, sequence.trim_sinks, sequence.first_kept);
}

// Calls visit(unit) for each unit of `tokens` positions of which some is seen, in order.
template <typename Visit>
void for_each_seen(const Sight& sight, std::int32_t tokens, Visit&& visit) {
  for (std::int32_t p = sight.next(0); p <= sight.high;) {
    const std::int32_t unit = p / tokens;
    visit(unit);
    if (sight.high / tokens == unit) return;
    p = sight.next((unit + 1) * tokens);
  }
}

void add_nodes(WorkPlan& plan, const Sequence& sequence, const Mask& mask,
               const PlanOptions& options) {
  const std::int32_t rows = sequence.queries * options.group_size;
  for (std::int32_t first = 0; first < rows; first += options.group_rows) {
    const std::int32_t count = std::min(options.group_rows, rows - first);
    const Sight sight = sight_of_rows(sequence, mask, options.group_size, first, count);
    const auto group = static_cast<std::int32_t>(plan.groups.size());
    const auto first_item = static_cast<std::int32_t>(plan.items.size());
    for_each_seen(sight, kNodeTokens, [&](std::int32_t node) {
      plan.items.push_back({sequence.number, first, node, group});
    });
    if (static_cast<std::int32_t>(plan.items.size()) == first_item) {
      plan.items.push_back({sequence.number, first, 0, group});
    }
    const std::int32_t items = static_cast<std::int32_t>(plan.items.size()) - first_item;
    plan.groups.push_back({sequence.number, first, first_item, items});
    plan.merges = plan.merges || items > 1;
  }
}

// ---- the stream
// ----------------------------------------------------------------------------------

// A sequence and KV head: a run of leaves.
struct StreamGroup {
  Segment segment;  // what its segments have in common
  std::int32_t first_leaf = 0;
  std::int32_t last_leaf = 0;
  std::int32_t last_tile = 0;
  std::int32_t first_state = 0;
  std::int32_t num_states = 0;
  std::int32_t num_segments = 0;
};

// Empty where the stream does not take the batch: a sequence without its one query, one that sees
// nothing, or one whose sinks lie apart from its window.
std::vector<StreamGroup> stream_groups(const BatchLengths& lengths, const Mask& mask,
                                       const PlanOptions& options) {
  std::vector<StreamGroup> groups;
  for (std::size_t i = 0; i < lengths.kv_lens.size(); ++i) {
    const Sequence sequence = sequence_of(lengths, i);
    if (sequence.queries == 0 && options.stream_of_any_decode) continue;
    if (sequence.queries != 1) return {};
    const Sight sight = sight_of_rows(sequence, mask, options.group_size, 0, options.group_size);
    StreamGroup group;
    std::int32_t leaves = 0;
    for_each_seen(sight, kLeafTokens, [&](std::int32_t leaf) {
      if (leaves++ == 0) group.first_leaf = leaf;
      group.last_leaf = leaf;
    });
    const bool sees_nothing = leaves == 0;
    if (sees_nothing && options.stream_of_any_decode) leaves = 1;
    if (leaves == 0 || group.last_leaf - group.first_leaf + 1 != leaves) return {};
    for (std::int32_t t = group.last_leaf * kTilesPerLeaf; t <= sight.high / kTileTokens; ++t) {
      if (sight.sees_any(t * kTileTokens, t * kTileTokens + kTileTokens - 1)) group.last_tile = t;
    }
    Segment& segment = group.segment;
    segment.sequence = sequence.number;
    segment.first_token = lengths.query_start[i];
    segment.group_first_tile = sees_nothing ? 0 : sight.next(0) / kTileTokens;
    segment.group_last_leaf = group.last_leaf;
    segment.sight = sight;
    const std::int32_t low = std::max(sight.low, sight.first_kept);
    segment.first_sure_tile = (low + kTileTokens - 1) / kTileTokens;
    segment.end_sure_tile = (sight.high + 1) / kTileTokens;
    for (std::int32_t head = 0; head < options.num_heads; ++head) {
      segment.head = head;
      segment.group = static_cast<std::int32_t>(groups.size());
      groups.push_back(group);
    }
  }
  return groups;
}

// Leaves [from, to] of a group.
Segment segment_of(const StreamGroup& group, std::int32_t from, std::int32_t to) {
  Segment segment = group.segment;
  segment.first_tile = std::max(from * kTilesPerLeaf, segment.group_first_tile);
  segment.num_tiles = std::min((to + 1) * kTilesPerLeaf, group.last_tile + 1) - segment.first_tile;
  segment.whole = from == group.first_leaf && to == group.last_leaf ? 1 : 0;
  return segment;
}

// Adds what the kernel writes for leaves [from, to], which are not the whole group, in its order.
void add_states(const StreamGroup& group, std::int32_t from, std::int32_t to,
                std::vector<std::int32_t>& flags) {
  const bool from_start = from == group.first_leaf;
  bool apart = from % kLeavesPerNode != 0 && !from_start;
  for (std::int32_t leaf = from; leaf <= to; ++leaf) {
    const bool ends = leaf % kLeavesPerNode == kLeavesPerNode - 1 || leaf == group.last_leaf;
    if (apart) {
      flags.push_back(ends ? kEndsNode : kPartOfNode);
    } else if (ends && !from_start) {
      flags.push_back(kWholeNodes);
    }
    if (leaf == to) {
      if (from_start && (leaf + 1) / kLeavesPerNode > group.first_leaf / kLeavesPerNode) {
        flags.push_back(kWholeNodes);
      }
      if (!ends && !apart) flags.push_back(kPartOfNode);
    }
    if (ends) apart = false;
  }
}

struct Piece {
  std::size_t group = 0;
  std::int32_t from = 0;
  std::int32_t to = 0;
};

// The leaves of all groups in order, cut evenly over `blocks` lists.
std::vector<std::vector<Piece>> cut_evenly(const std::vector<StreamGroup>& groups,
                                           std::int64_t leaves, std::int64_t blocks) {
  std::vector<std::vector<Piece>> lists(static_cast<std::size_t>(blocks));
  std::size_t group = 0;
  std::int32_t at = groups[0].first_leaf;
  for (std::int64_t b = 0; b < blocks; ++b) {
    std::int64_t left = leaves * (b + 1) / blocks - leaves * b / blocks;
    while (left > 0) {
      const std::int32_t last = groups[group].last_leaf;
      const auto take = static_cast<std::int32_t>(std::min<std::int64_t>(left, last - at + 1));
      lists[static_cast<std::size_t>(b)].push_back({group, at, at + take - 1});
      left -= take;
      at += take - (mutant(Mutant::kPlanLeafTwice) && take > 1 ? 1 : 0);
      if (at > last && ++group < groups.size()) at = groups[group].first_leaf;
    }
  }
  return lists;
}

bool plan_stream(WorkPlan& plan, const BatchLengths& lengths, const Mask& mask,
                 const PlanOptions& options) {
  constexpr std::size_t kMostSegments = 24;  // of a block: its shared memory
  std::vector<StreamGroup> groups = stream_groups(lengths, mask, options);
  if (groups.empty()) return false;
  std::int64_t leaves = 0;
  for (const StreamGroup& group : groups) leaves += group.last_leaf - group.first_leaf + 1;
  std::vector<std::vector<Piece>> lists;
  std::size_t most = 0;
  for (std::int64_t blocks = std::min<std::int64_t>(leaves, options.stream_blocks);; blocks *= 2) {
    lists = cut_evenly(groups, leaves, blocks);
    most = 0;
    for (const auto& list : lists) most = std::max(most, list.size());
    if (most <= kMostSegments) break;
  }
  plan.segments.assign(lists.size() * most, Segment{});
  for (std::size_t b = 0; b < lists.size(); ++b) {
    for (std::size_t i = 0; i < lists[b].size(); ++i) {
      const Piece& piece = lists[b][i];
      StreamGroup& group = groups[piece.group];
      Segment segment = segment_of(group, piece.from, piece.to);
      segment.state = static_cast<std::int32_t>(plan.state_flags.size());
      if (piece.from == group.first_leaf) group.first_state = segment.state;
      if (segment.whole == 0) add_states(group, piece.from, piece.to, plan.state_flags);
      ++group.num_segments;
      group.num_states = static_cast<std::int32_t>(plan.state_flags.size()) - group.first_state;
      plan.segments[b * most + i] = segment;
    }
  }
  for (Segment& segment : plan.segments) {
    if (segment.num_tiles == 0) continue;
    const StreamGroup& group = groups[static_cast<std::size_t>(segment.group)];
    segment.group_state = group.first_state;
    segment.group_states = group.num_states;
    segment.group_segments = group.num_segments;
  }
  plan.stream_blocks = static_cast<std::int32_t>(lists.size());
  plan.segments_per_block = static_cast<std::int32_t>(most);
  plan.stream_groups = static_cast<std::int32_t>(groups.size());
  return true;
}

}  // namespace

WorkPlan plan_work(const BatchLengths& lengths, const Mask& mask, const PlanOptions& options) {
  WorkPlan plan;
  if (options.stream_blocks > 0 && plan_stream(plan, lengths, mask, options)) return plan;
  for (std::size_t i = 0; i < lengths.kv_lens.size(); ++i) {
    const Sequence sequence = sequence_of(lengths, i);
    const std::int32_t rows = sequence.queries * options.group_size;
    if (options.prefill_rows == 0 || rows < options.prefill_from) {
      add_nodes(plan, sequence, mask, options);
      continue;
    }
    for (std::int32_t first = 0; first < rows; first += options.prefill_rows) {
      plan.prefill_items.push_back({sequence.number, first, 0, 0});
    }
  }
  // The rows of a causal sequence that see most come first, so that the last blocks are short.
  std::reverse(plan.prefill_items.begin(), plan.prefill_items.end());
  return plan;
}

}  // namespace kvfolio::cuda
