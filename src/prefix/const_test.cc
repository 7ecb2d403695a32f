// SPDX-License-Identifier: Apache-2.0
//
// Const calls of the tree: several threads may make them at the same time, and they need little of
// the stack. That they take no heap memory is in tests/api/manager_heap_test.cc.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <thread>
#include <vector>

#include "heap_calls/heap_calls.h"
#include "heap_calls/stack_depth.h"
#include "kvfolio/prefix_tree.h"

namespace kvfolio {
namespace {

constexpr std::int32_t kNumTokens = 240;
constexpr std::array<GroupId, 2> kGroups = {GroupId(0), GroupId(1)};
constexpr std::array<std::int32_t, 2> kSizes = {8, 4};

// A path of many runs: at every second unit another prompt branches off.
class Branches {
 public:
  Branches()
      : tree_(*PrefixTree::create({.groups = {{.block_size = 8, .num_blocks = 2000},
                                              {.block_size = 4,
                                               .kind = AttentionKind::kSlidingWindow,
                                               .window = 24,
                                               .num_sinks = 6,
                                               .num_blocks = 4000}},
                                   .max_index_tokens = 1 << 16,
                                   .max_runs = 1 << 12})),
        root_(tree_.make_root(key_)) {
    prompt_.resize(kNumTokens);
    std::iota(prompt_.begin(), prompt_.end(), 1);
    place_ = tree_.enter(root_, 0);
    publish(place_, prompt_);
    for (std::int32_t at = 8; at < kNumTokens; at += 8) {
      std::vector<std::int32_t> side(prompt_.begin(), prompt_.begin() + at);
      side.insert(side.end(), 9, -at);
      Place place = tree_.enter(root_, 0);
      publish(place, side);
      tree_.leave(place);
    }
    // The last block of the full group is missing, so siblings are asked too.
    tree_.unhang(GroupId(0), tree_.entry_at(place_, GroupId(0), kNumTokens / 8 - 1));
    tree_.clear_changes();
  }

  // What all const calls answer, as numbers.
  void ask(std::vector<std::int64_t>& out) const {
    out.clear();
    out.push_back(tree_.find_root(key_));
    for (std::size_t n = 1; n <= prompt_.size(); n += 7) {
      const std::span<const std::int32_t> tokens(prompt_.data(), n);
      const PrefixMatch match = tree_.match(root_, tokens, {}, static_cast<std::int32_t>(n), true);
      out.push_back(match.tokens);
      std::array<std::int32_t, kNumTokens> table;
      for (std::size_t g = 0; g < kGroups.size(); ++g) {
        const std::int32_t count = (match.held_tokens() + kSizes[g] - 1) / kSizes[g];
        const std::span<std::int32_t> blocks(table.data(), static_cast<std::size_t>(count));
        tree_.fill_table(match, kGroups[g], blocks);
        std::array<std::int32_t, kNumTokens> ends;
        tree_.findable_ends(kGroups[g], blocks, std::span(ends).first(blocks.size()));
        out.insert(out.end(), blocks.begin(), blocks.end());
        out.insert(out.end(), ends.begin(), ends.begin() + count);
      }
    }
    std::array<std::int32_t, 100> tokens;
    tree_.copy_tokens(place_, 100, tokens);
    out.insert(out.end(), tokens.begin(), tokens.end());
    out.push_back(tree_.entry_at(place_, GroupId(1), 20).value());
    out.push_back(tree_.num_idle(GroupId(0)));
    out.push_back(tree_.check_invariants().ok() ? 1 : 0);
  }

 private:
  void publish(Place& place, const std::vector<std::int32_t>& tokens) {
    std::array<std::vector<std::int32_t>, 2> tables;
    for (std::size_t g = 0; g < tables.size(); ++g) {
      const auto size = static_cast<std::size_t>(kSizes[g]);
      tables[g].resize((tokens.size() + size - 1) / size);
      for (std::int32_t& block : tables[g]) block = next_block_[g]++;
    }
    const std::array<std::span<const std::int32_t>, 2> spans = {tables[0], tables[1]};
    Published published;
    ASSERT_TRUE(tree_.extend(place, tokens, {}, {.tables = spans, .tail = true}, published));
    tree_.clear_changes();
  }

  RootKey key_{.model = "m", .adapter = "a"};
  PrefixTree tree_;
  std::int32_t root_;
  Place place_;
  std::vector<std::int32_t> prompt_;
  std::array<std::int32_t, 2> next_block_{};
};

TEST(PrefixTreeConst, SeveralThreadsMayAskAtTheSameTime) {
  const Branches branches;
  std::vector<std::int64_t> expected;
  branches.ask(expected);
  ASSERT_EQ(expected.back(), 1);
  std::array<std::vector<std::int64_t>, 4> answers;
  std::vector<std::thread> threads;
  threads.reserve(answers.size());
  for (std::vector<std::int64_t>& answer : answers) {
    threads.emplace_back([&] {
      for (int i = 0; i < 20; ++i) branches.ask(answer);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::vector<std::int64_t>& answer : answers) EXPECT_EQ(answer, expected);
}

#if defined(NDEBUG) && !defined(KVFOLIO_TEST_SANITIZED)
TEST(PrefixTreeConst, CallsNeedAtMost8KiBOfTheStack) {
  const Branches branches;
  std::vector<std::int64_t> out;
  branches.ask(out);                         // it has its memory now
  std::array<std::int64_t, kNumTokens> own;  // about what ask() itself has on the stack
  const std::size_t nothing = testing_heap::stack_of([&] { own.fill(1); });
  const std::size_t asked = testing_heap::stack_of([&] { branches.ask(out); });
  EXPECT_LE(asked - nothing, std::size_t{8} << 10);
  RecordProperty("bytes", static_cast<int>(asked - nothing));
}
#endif

}  // namespace
}  // namespace kvfolio
