// SPDX-License-Identifier: Apache-2.0

#include "kvfolio/block_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <map>
#include <random>
#include <sstream>
#include <utility>
#include <vector>

#include "kvfolio/kernels.h"
#include "storage/failing_memory.h"

namespace kvfolio {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

using Blocks = std::vector<std::int32_t>;
using Bytes = std::vector<std::byte>;

constexpr GroupSpec kSmall{.num_layers = 2,
                           .num_kv_heads = 2,
                           .head_dim_k = 4,
                           .head_dim_v = 4,
                           .block_size = 4,
                           .num_blocks = 3};

BlockStore blocks_of(const GroupSpec& spec) {
  Result<BlockStore> store = BlockStore::create(spec);
  EXPECT_TRUE(store) << store.error().message();
  return std::move(*store);
}

Bytes image_of(const BlockStore& store, std::int32_t block) {
  Bytes image(static_cast<std::size_t>(store.block_image_bytes()));
  EXPECT_TRUE(store.read({&block, 1}, image).ok());
  return image;
}

Bytes image_with(const BlockStore& store, unsigned char value) {
  return Bytes(static_cast<std::size_t>(store.block_image_bytes()), std::byte{value});
}

// The call failed with this code, and says this.
void expect_refused(const Status& status, ErrorCode code, const std::string& text) {
  EXPECT_EQ(status.code(), code) << status.message();
  EXPECT_EQ(status.message(), text);
}

TEST(BlockStore, ABlockIsFreeUntilItIsAllocatedAndOnceNobodyHoldsIt) {
  BlockStore store = blocks_of(kSmall);
  EXPECT_EQ(store.num_free(), 3);
  Blocks table(2);
  ASSERT_TRUE(store.allocate(table).ok());
  EXPECT_EQ(*store.ref_count(BlockId(table[0])), 1);
  ASSERT_TRUE(store.hold(table).ok());
  ASSERT_TRUE(store.release(table).ok());
  EXPECT_EQ(*store.ref_count(BlockId(table[1])), 1);
  EXPECT_EQ(store.num_free(), 1);
  ASSERT_TRUE(store.release(table).ok());
  EXPECT_EQ(*store.ref_count(BlockId(table[1])), 0);
  EXPECT_EQ(store.num_free(), 3);
}

TEST(BlockStore, AllocatesAllOrNone) {
  BlockStore store = blocks_of(kSmall);
  ASSERT_TRUE(store.allocate());
  Blocks table(3, 77);
  expect_refused(store.allocate(table), ErrorCode::kResourceExhausted,
                 "allocate of 3 blocks: 2 of 3 are free");
  EXPECT_THAT(table, ElementsAre(77, 77, 77));
  EXPECT_EQ(store.num_free(), 2);
  EXPECT_TRUE(store.allocate(std::span<std::int32_t>()).ok());
}

TEST(BlockStore, HoldsAndReleasesAllOrNone) {
  BlockStore store = blocks_of(kSmall);
  const std::int32_t block = store.allocate()->value();
  const std::int32_t free = 2;
  expect_refused(store.hold(Blocks{block, free}), ErrorCode::kFailedPrecondition,
                 "hold: block 2 is free");
  expect_refused(store.release(Blocks{block, free}), ErrorCode::kFailedPrecondition,
                 "release: block 2 is free");
  expect_refused(store.release(Blocks{block, 3}), ErrorCode::kInvalidArgument,
                 "release: block 3, the store has 3 blocks");
  expect_refused(store.hold(Blocks{block, -1}), ErrorCode::kInvalidArgument,
                 "hold: block -1, the store has 3 blocks");
  EXPECT_EQ(*store.ref_count(BlockId(block)), 1);
  expect_refused(store.ref_count(BlockId(3)).error(), ErrorCode::kInvalidArgument,
                 "ref_count: block 3, the store has 3 blocks");
}

TEST(BlockStore, ABlockThatIsNamedTwiceCountsTwice) {
  BlockStore store = blocks_of(kSmall);
  const std::int32_t block = store.allocate()->value();
  const std::int32_t other = store.allocate()->value();
  ASSERT_TRUE(store.hold(Blocks{block, block}).ok());
  EXPECT_EQ(*store.ref_count(BlockId(block)), 3);
  expect_refused(store.release(Blocks{block, other, block, block, block}),
                 ErrorCode::kFailedPrecondition,
                 "release: block 0 is named more often than it has references, 3");
  EXPECT_EQ(*store.ref_count(BlockId(other)), 1);
  ASSERT_TRUE(store.release(Blocks{block, block, other, block}).ok());
  EXPECT_EQ(store.num_free(), 3);
}

TEST(BlockStore, ABlockOfItsOwnIsWrittenInPlace) {
  BlockStore store = blocks_of(kSmall);
  const BlockId block = *store.allocate();
  EXPECT_EQ(*store.make_writable(block), block);
  EXPECT_EQ(store.num_free(), 2);
}

TEST(BlockStore, ASharedBlockIsCopiedBeforeItIsWritten) {
  BlockStore store = blocks_of(kSmall);
  const BlockId block = *store.allocate();
  const std::int32_t number = block.value();
  ASSERT_TRUE(store.write({&number, 1}, image_with(store, 7)).ok());
  ASSERT_TRUE(store.hold({&number, 1}).ok());
  expect_refused(store.write({&number, 1}, image_with(store, 8)), ErrorCode::kFailedPrecondition,
                 "write: block 0 has 2 references, whose holders would all read it; "
                 "make_writable() gives a copy");
  const std::int32_t copy = store.make_writable(block)->value();
  EXPECT_NE(copy, number);
  EXPECT_EQ(*store.ref_count(block), 1);
  EXPECT_EQ(*store.ref_count(BlockId(copy)), 1);
  EXPECT_EQ(image_of(store, copy), image_with(store, 7));
  ASSERT_TRUE(store.write({&copy, 1}, image_with(store, 8)).ok());
  EXPECT_EQ(image_of(store, number), image_with(store, 7));
  EXPECT_EQ(image_of(store, copy), image_with(store, 8));
}

TEST(BlockStore, ACopyThatHasNoRoomChangesNothing) {
  BlockStore store = blocks_of(kSmall);
  Blocks all(3);
  ASSERT_TRUE(store.allocate(all).ok());
  ASSERT_TRUE(store.hold(Blocks{all[1]}).ok());
  expect_refused(store.make_writable(BlockId(all[1])).error(), ErrorCode::kResourceExhausted,
                 "make_writable: block 1 has 2 references, and for a copy 0 of 3 blocks are free");
  EXPECT_EQ(*store.ref_count(BlockId(all[1])), 2);
  expect_refused(store.make_writable(BlockId(9)).error(), ErrorCode::kInvalidArgument,
                 "make_writable: block 9, the store has 3 blocks");
}

TEST(BlockStore, ACopyThatTheMemoryDoesNotMakeChangesNothing) {
  test::FailingMemory memory;
  BlockStore store = *BlockStore::create(kSmall, &memory);
  const std::int32_t block = store.allocate()->value();
  ASSERT_TRUE(store.write({&block, 1}, image_with(store, 7)).ok());
  ASSERT_TRUE(store.hold({&block, 1}).ok());
  memory.fail_run(1);
  expect_refused(store.make_writable(BlockId(block)).error(), ErrorCode::kUnavailable,
                 "block copy: the memory resource failed (timed out): the cable was cut");
  EXPECT_EQ(*store.ref_count(BlockId(block)), 2);
  EXPECT_EQ(store.num_free(), 2);
  EXPECT_EQ(image_of(store, block), image_with(store, 7));
  const std::int32_t copy = store.make_writable(BlockId(block))->value();  // again, and it works
  EXPECT_NE(copy, block);
  EXPECT_EQ(*store.ref_count(BlockId(block)), 1);
  EXPECT_EQ(store.num_free(), 1);
  EXPECT_EQ(image_of(store, copy), image_with(store, 7));
}

TEST(BlockStore, FreeBlocksAreNeitherReadNorWritten) {
  BlockStore store = blocks_of(kSmall);
  Bytes image = image_with(store, 1);
  expect_refused(store.read(Blocks{0}, image), ErrorCode::kFailedPrecondition,
                 "read: block 0 is free");
  expect_refused(store.write(Blocks{0}, image), ErrorCode::kFailedPrecondition,
                 "write: block 0 is free");
  ASSERT_TRUE(store.allocate());
  image.pop_back();
  EXPECT_EQ(store.read(Blocks{0}, image).code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(store.write(Blocks{0}, image).code(), ErrorCode::kInvalidArgument);
}

// Two tables with one block in common: what a kernel reads over a table is its own.
TEST(BlockStore, KernelsAttendOverATableOfBlocks) {
  BlockStore store =
      blocks_of({.head_dim_k = 2, .head_dim_v = 2, .block_size = 2, .num_blocks = 4});
  Blocks table(2);
  ASSERT_TRUE(store.allocate(table).ok());
  const std::array<float, 6> k = {1, 0, 0, 1, 0, 0};
  const std::array<float, 6> v = {5, 6, 7, 8, 9, 10};
  const std::array<std::int32_t, 3> slots = {table[0] * 2, table[0] * 2 + 1, table[1] * 2};
  ASSERT_TRUE(append(store.view(), 0, contiguous_rows(k.data(), 3, 1, 2),
                     contiguous_rows(v.data(), 3, 1, 2), slots)
                  .ok());
  std::array<float, 6> got{};
  ASSERT_TRUE(gather({.cache = store.view(),
                      .block_table = table,
                      .length = 3,
                      .count = 3,
                      .v = contiguous_rows(got.data(), 3, 1, 2)})
                  .ok());
  EXPECT_EQ(got, v);

  const std::array<float, 2> q = {0, 0};
  std::array<float, 2> out{};
  const std::array<std::int32_t, 2> query_start = {0, 1};
  const std::int32_t kv_len = 3;
  Bytes workspace(static_cast<std::size_t>(*attention_workspace_bytes(store.view(), 1, 3)));
  ASSERT_TRUE(attend({.cache = store.view(),
                      .batch = {.query_start = query_start,
                                .kv_lens = {&kv_len, 1},
                                .block_table = table,
                                .block_table_stride = 2},
                      .params = attention_params(store.spec(), 1.0),
                      .q = contiguous_rows(q.data(), 1, 1, 2),
                      .out = contiguous_rows(out.data(), 1, 1, 2),
                      .workspace = workspace})
                  .ok());
  EXPECT_NEAR(out[0], 7, 1e-5);  // the mean of three
  EXPECT_NEAR(out[1], 8, 1e-5);
}

TEST(BlockStore, AMovePassesTheBlocksOn) {
  BlockStore first = blocks_of(kSmall);
  const std::int32_t block = first.allocate()->value();
  ASSERT_TRUE(first.write({&block, 1}, image_with(first, 3)).ok());
  BlockStore second = std::move(first);
  EXPECT_EQ(image_of(second, block), image_with(second, 3));
  // NOLINTBEGIN(bugprone-use-after-move): what a moved-from store answers is the question.
  EXPECT_EQ(first.num_blocks(), 0);
  EXPECT_EQ(first.num_free(), 0);
  EXPECT_EQ(first.memory_bytes(), 0);
  EXPECT_EQ(first.view().k, nullptr);
  expect_refused(first.allocate().error(), ErrorCode::kResourceExhausted,
                 "allocate of 1 blocks: 0 of 0 are free");
  EXPECT_EQ(first.hold({&block, 1}).code(), ErrorCode::kInvalidArgument);
  EXPECT_TRUE(first.read({}, {}).ok() && first.write({}, {}).ok() && first.release({}).ok());
  first = blocks_of(kSmall);
  EXPECT_EQ(first.num_free(), 3);
  // NOLINTEND(bugprone-use-after-move)
}

TEST(BlockStore, ABadGroupIsNamed) {
  GroupSpec spec = kSmall;
  spec.head_dim_k = 0;
  const Status bad = BlockStore::create(spec).error();
  EXPECT_EQ(bad.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(bad.message(), HasSubstr("block store: "));
  EXPECT_THAT(bad.message(), HasSubstr("head_dim_k is 0"));
  spec = kSmall;
  spec.num_blocks = 0;
  EXPECT_THAT(BlockStore::create(spec).error().message(), HasSubstr("num_blocks is 0"));
  spec.num_blocks = 1 << 20;
  spec.head_dim_k = spec.num_kv_heads = 1 << 20;
  EXPECT_FALSE(BlockStore::create(spec));
}

TEST(BlockStore, PrintsWhatItHolds) {
  BlockStore store = blocks_of(kSmall);
  ASSERT_TRUE(store.allocate());
  EXPECT_EQ(to_string(store),
            "block store: 1 of 3 blocks of 4 tokens in use, f32, 2 layers, K 2 x 4, V 2 x 4; " +
                std::to_string(store.memory_bytes()) + " bytes");
  std::ostringstream out;
  out << blocks_of({.head_dim_k = 8, .dtype = DType::kBF16, .num_blocks = 1});
  EXPECT_THAT(out.str(), HasSubstr("0 of 1 blocks of 16 tokens in use, bf16, 1 layer, K 1 x 8, "
                                   "no V"));
}

// Against a map: random tables that fork, write and end.
TEST(BlockStore, RandomTablesReadWhatTheyWrote) {
  std::mt19937 random(36);
  BlockStore store = blocks_of({.head_dim_k = 1, .block_size = 1, .num_blocks = 24});
  struct Table {
    Blocks blocks;
    std::vector<unsigned char> values;
  };
  std::vector<Table> tables;
  std::map<std::int32_t, int> refs;
  const auto below = [&](std::size_t n) { return std::size_t{random()} % n; };
  for (int i = 0; i < 20000; ++i) {
    const std::size_t what = below(4);
    if (tables.empty() || what == 0) {
      Table made{Blocks(1 + below(4)), {}};
      if (!store.allocate(made.blocks).ok()) continue;
      for (const std::int32_t block : made.blocks) {
        made.values.push_back(static_cast<unsigned char>(random()));
        refs[block] = 1;
        ASSERT_TRUE(store.write({&block, 1}, image_with(store, made.values.back())).ok());
      }
      tables.push_back(std::move(made));
    } else if (what == 1) {
      const Table copy = tables[below(tables.size())];
      ASSERT_TRUE(store.hold(copy.blocks).ok());
      for (const std::int32_t block : copy.blocks) ++refs[block];
      tables.push_back(copy);
    } else if (what == 2) {
      Table& table = tables[below(tables.size())];
      const std::size_t at = below(table.blocks.size());
      const Result<BlockId> writable = store.make_writable(BlockId(table.blocks[at]));
      if (!writable) continue;
      --refs[table.blocks[at]];
      table.blocks[at] = writable->value();
      ++refs[table.blocks[at]];
      table.values[at] = static_cast<unsigned char>(random());
      const Bytes image = image_with(store, table.values[at]);
      ASSERT_TRUE(store.write({&table.blocks[at], 1}, image).ok());
    } else {
      const std::size_t which = below(tables.size());
      ASSERT_TRUE(store.release(tables[which].blocks).ok());
      for (const std::int32_t block : tables[which].blocks) --refs[block];
      tables.erase(tables.begin() + static_cast<std::ptrdiff_t>(which));
    }
    std::int32_t used = 0;
    for (const auto& [block, count] : refs) {
      ASSERT_EQ(*store.ref_count(BlockId(block)), count);
      used += count > 0 ? 1 : 0;
    }
    ASSERT_EQ(store.num_free(), 24 - used);
    for (const Table& table : tables) {
      for (std::size_t at = 0; at < table.blocks.size(); ++at) {
        ASSERT_EQ(image_of(store, table.blocks[at]), image_with(store, table.values[at]));
      }
    }
  }
}

}  // namespace
}  // namespace kvfolio
