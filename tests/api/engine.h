// SPDX-License-Identifier: Apache-2.0
#pragma once

// A manager with the calls of a very small engine, for black-box tests: what should succeed throws
// when it does not, so that a test shows only what it is about.

#include <cstdint>
#include <limits>
#include <numeric>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "kvfolio/manager.h"

namespace kvfolio::testing_engine {

using Tokens = std::vector<std::int32_t>;

inline constexpr ErrorCode kInvalid = ErrorCode::kInvalidArgument;
inline constexpr ErrorCode kMoment = ErrorCode::kFailedPrecondition;
inline constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();

// first, first + 1, ... : n tokens.
inline Tokens tokens(std::int32_t first, int n) {
  Tokens all(static_cast<std::size_t>(n));
  std::iota(all.begin(), all.end(), first);
  return all;
}

inline Tokens joined(Tokens head, const Tokens& tail) {
  head.insert(head.end(), tail.begin(), tail.end());
  return head;
}

inline GroupSpec full_group(std::int32_t block_size, std::int32_t num_blocks) {
  GroupSpec group;
  group.head_dim_k = 8;
  group.head_dim_v = 8;
  group.block_size = block_size;
  group.num_blocks = num_blocks;
  return group;
}

inline GroupSpec window_group(std::int32_t block_size, std::int32_t num_blocks, std::int32_t window,
                              std::int32_t sinks = 0) {
  GroupSpec group = full_group(block_size, num_blocks);
  group.kind = AttentionKind::kSlidingWindow;
  group.window = window;
  group.num_sinks = sinks;
  return group;
}

inline void must(const Status& status) {
  if (!status.ok()) throw std::runtime_error(status.message());
}
template <typename T>
T must(Result<T> result) {
  if (!result.has_value()) throw std::runtime_error(result.error().message());
  return std::move(*result);
}

inline std::vector<SequenceId> ids_of(std::span<const EndedSequence> ended) {
  std::vector<SequenceId> ids;
  for (const EndedSequence& each : ended) ids.push_back(each.sequence);
  return ids;
}

// What a plan said of one group, kept after the plan is gone.
struct Planned {
  Tokens slots;
  Tokens copy_src;
  Tokens copy_dst;
};

class Engine {
 public:
  explicit Engine(std::vector<GroupSpec> groups, const ManagerOptions& options = {})
      : manager(must(KVCacheManager::create(CacheSpec{std::move(groups)}, options))) {}

  Opened open(const Tokens& prompt, const OpenOptions& options = {}) {
    return must(manager.open(prompt, options));
  }
  std::int32_t probe(const Tokens& prompt, const OpenOptions& options = {}) const {
    return must(manager.probe(prompt, options));
  }
  // Opens, computes what is not cached, and returns the sequence.
  SequenceId say(const Tokens& prompt, const OpenOptions& options = {}) {
    const Opened opened = open(prompt, options);
    feed(opened.sequence, Tokens(prompt.begin() + opened.cached_tokens, prompt.end()));
    return opened.sequence;
  }
  // say() and close(): the prompt is cached then.
  void cache(const Tokens& prompt, const OpenOptions& options = {}) {
    must(manager.close(say(prompt, options)));
  }
  // A whole step with one sequence.
  Planned feed(SequenceId sequence, const Tokens& more, std::int32_t draft = 0) {
    const Ticket ticket = must(manager.begin_step());
    must(manager.append(sequence, more, {.draft = draft}));
    Planned planned = plan();
    must(manager.finish(ticket));
    return planned;
  }
  // The same by count, without ids: a new sequence, or more tokens of one.
  SequenceId say_count(std::int64_t count, const OpenOptions& options = {}) {
    const Ticket ticket = must(manager.begin_step());
    const SequenceId sequence = must(manager.open_unnamed(count, options));
    must(manager.finish(ticket));
    return sequence;
  }
  void feed_count(SequenceId sequence, std::int64_t count) {
    const Ticket ticket = must(manager.begin_step());
    must(manager.append_unnamed(sequence, count));
    must(manager.finish(ticket));
  }
  // begin, append, commit; the step stays in flight.
  Ticket launch(SequenceId sequence, const Tokens& more) {
    const Ticket ticket = must(manager.begin_step());
    must(manager.append(sequence, more));
    must(manager.commit(ticket));
    return ticket;
  }
  Ticket launch_count(SequenceId sequence, std::int64_t count) {
    const Ticket ticket = must(manager.begin_step());
    must(manager.append_unnamed(sequence, count));
    must(manager.commit(ticket));
    return ticket;
  }
  Planned plan(std::size_t group = 0) {
    const StepPlan& plan = *must(manager.plan());
    const GroupPlan& g = plan.groups[group];
    return {{g.slot_mapping.begin(), g.slot_mapping.end()},
            {g.copy_src.begin(), g.copy_src.end()},
            {g.copy_dst.begin(), g.copy_dst.end()}};
  }
  Tokens table(SequenceId sequence, std::int32_t group = 0) const {
    const auto blocks = must(manager.block_table(sequence, GroupId(group)));
    return {blocks.begin(), blocks.end()};
  }
  // Logical blocks that are still there.
  Tokens live(SequenceId sequence, std::int32_t group = 0) const {
    Tokens indices;
    const Tokens all = table(sequence, group);
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (all[i] >= 0) indices.push_back(static_cast<std::int32_t>(i));
    }
    return indices;
  }
  SequenceInfo info(SequenceId sequence) const { return must(manager.info(sequence)); }
  GroupUsage usage(std::int32_t group = 0) const { return must(manager.usage(GroupId(group))); }
  std::int32_t refs(std::int32_t block, std::int32_t group = 0) const {
    return must(manager.ref_count(GroupId(group), BlockId(block)));
  }
  bool findable(std::int32_t block, std::int32_t group = 0) const {
    return must(manager.is_findable(GroupId(group), BlockId(block)));
  }
  std::int32_t evict(std::int32_t blocks, std::int32_t group = 0) {
    return must(manager.evict(GroupId(group), blocks));
  }
  const Counters& counters() const { return manager.counters(); }

  KVCacheManager manager;
};

}  // namespace kvfolio::testing_engine
