// SPDX-License-Identifier: Apache-2.0
#pragma once

// The parts of a manager below its verbs, made without one: for tests of Blocks and Promises.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "manager/blocks.h"
#include "manager/tables.h"

namespace kvfolio {

// Two groups of 6 blocks of 4 tokens; the second one has a window of 5.
class PartsTest : public testing::Test {
 protected:
  static constexpr std::int32_t kSize = 4;
  static constexpr std::int32_t kFull = 0;
  static constexpr std::int32_t kWindow = 1;

  explicit PartsTest(Order order = Order::kInOrder)
      : blocks_(tree_, groups_, steps_, rows_, counters_, order) {}

  void SetUp() override {
    PrefixTreeOptions options;
    for (const std::int32_t window : {0, 5}) {
      GroupSpec spec{.num_layers = 1, .num_kv_heads = 1, .head_dim_k = 8, .head_dim_v = 8};
      spec.block_size = kSize;
      spec.num_blocks = 6;
      spec.window = window;
      spec.kind = window > 0 ? AttentionKind::kSlidingWindow : AttentionKind::kFull;
      groups_.push_back({spec, GroupRule(spec), 64, BlockSize(kSize)});
      options.groups.push_back({kSize, spec.kind, window, 0, spec.num_blocks});
      specs_.push_back(spec);
    }
    options.max_index_tokens = 256;
    options.max_runs = 32;
    options.max_root_keys = 4;
    options.max_root_key_bytes = 64;
    Result<PrefixTree> tree = PrefixTree::create(options);
    ASSERT_TRUE(tree) << tree.error().message();
    tree_.emplace(std::move(*tree));
    root_ = tree_->make_root({});
    ASSERT_GE(root_, 0);
    ASSERT_TRUE(steps_.allocate(2, 2, 4, 64));
    ASSERT_TRUE(rows_.allocate(4, 4, 0));
    ASSERT_TRUE(tables_.allocate(4, 2, 1024, true).ok());
    ASSERT_TRUE(blocks_.allocate(specs_).ok());
    ASSERT_TRUE(blocks_.findable().allocate(specs_));
  }
  void TearDown() override {
    const Status whole = blocks_.check();
    EXPECT_TRUE(whole.ok()) << whole.message();
  }

  // Blocks that hold the tokens first, first + 1, ..., `count` of them, and are findable.
  struct Prefix {
    std::array<std::vector<std::int32_t>, 2> tables;
    Place place;
  };
  Prefix publish(std::int32_t first, std::int32_t count) {
    Prefix prefix;
    std::array<std::span<const std::int32_t>, 2> spans;
    for (std::int32_t g = 0; g < 2; ++g) {
      auto& table = prefix.tables[static_cast<std::size_t>(g)];
      for (std::int32_t at = 0; at < count; at += kSize) {
        const BlockId block = blocks_.acquire(g);
        blocks_.set_written(g, block, {std::min(kSize, count - at), 0, 1});
        table.push_back(block.value());
      }
      spans[static_cast<std::size_t>(g)] = table;
    }
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(count));
    for (std::int32_t i = 0; i < count; ++i) tokens[static_cast<std::size_t>(i)] = first + i;
    prefix.place = tree_->enter(root_, 0);
    Published published;
    EXPECT_TRUE(
        tree_->extend(prefix.place, tokens, {}, {.tables = spans, .tail = true}, published));
    blocks_.follow_tree(&published);
    last_published_ = published;
    return prefix;
  }
  void let_go(Prefix& prefix) {
    for (std::int32_t g = 0; g < 2; ++g) {
      blocks_.let_go_each(g, prefix.tables[static_cast<std::size_t>(g)], true, 0);
    }
    tree_->leave(prefix.place);
  }
  [[nodiscard]] BlockState state(std::int32_t g, std::int32_t block) const {
    return blocks_.pool(g).state(BlockId(block));
  }
  // A sequence of `length` tokens in blocks that it holds alone.
  std::int32_t add_row(std::int32_t length) {
    const std::int32_t row = rows_.take();
    rows_[row].length = rows_[row].accepted = length;
    rows_[row].step_entry = -1;
    tables_.begin(row);
    for (std::int32_t g = 0; g < 2; ++g) {
      std::vector<std::int32_t> blocks;
      for (std::int32_t at = 0; at < length; at += kSize) {
        blocks.push_back(blocks_.acquire(g).value());
      }
      EXPECT_TRUE(tables_.of(row, g).reserve(tables_.arena(), 16));
      tables_.of(row, g).assign(tables_.arena(), blocks);
    }
    return row;
  }
  std::uint64_t commit_a_step() {
    steps_.begin();
    return steps_.commit().ticket;
  }

  std::optional<PrefixTree> tree_;
  std::vector<GroupSpec> specs_;
  std::vector<Group> groups_;
  StepLog steps_;
  Rows rows_;
  Tables tables_;
  Counters counters_;
  Blocks blocks_;
  std::int32_t root_ = -1;
  Published last_published_;
};

}  // namespace kvfolio
