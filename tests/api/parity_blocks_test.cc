// SPDX-License-Identifier: Apache-2.0
// A pool of blocks with K and V: what llama_rs offers.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kvfolio/block_pool.h"
#include "kvfolio/storage.h"
#include "kvfolio/view.h"
#include "parity_vectors.h"

namespace kvfolio::parity {
namespace {

using testing::HasSubstr;

CacheSpec two_layers() {
  GroupSpec group{.num_layers = 2, .num_kv_heads = 2, .head_dim_k = 4, .head_dim_v = 4};
  group.num_blocks = 4;
  return {{group}};
}

TEST(ParityBlocks, ThePoolAloneHandsOutAndCounts) {
  BlockPool pool = must(BlockPool::create(8));
  const BlockId block = pool.acquire();   // not valid(): full
  pool.hold(block);                       // a second user
  const bool last = pool.release(block);  // false: one is left
  EXPECT_FALSE(last);
  EXPECT_EQ(pool.refs(block), 1);
  EXPECT_EQ(pool.num_free(), 7);
  EXPECT_TRUE(pool.release(block));
  pool.make_free(block);
  EXPECT_EQ(pool.num_free(), 8);
}

TEST(ParityBlocks, OneTokenOfOneHeadIsWrittenAndRead) {
  KVStorage storage = must(KVStorage::create(two_layers()));
  const KVView view = must(storage.view(GroupId(0)));
  const TokenPlace place{.layer = 1, .head = 1, .slot = 2 * 16 + 5};  // block 2, offset 5
  float k[4] = {1, 2, 3, 4};
  float v[4] = {5, 6, 7, 8};
  const auto row = [](float* data) {
    return RowsView{reinterpret_cast<std::byte*>(data), 16, 16, 1, 1, 4, DType::kF32};
  };
  must(write_token(view, place, row(k), row(v)));
  float k_back[4] = {};
  float v_back[4] = {};
  must(read_token(view, place, row(k_back), row(v_back)));
  EXPECT_THAT(k_back, testing::ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(v_back, testing::ElementsAre(5, 6, 7, 8));
  // Faults L6, L7: wrong shapes and layers were "ok", nothing was written.
  float three[3] = {};
  const RowsView narrow{reinterpret_cast<std::byte*>(three), 12, 12, 1, 1, 3, DType::kF32};
  EXPECT_FALSE(write_token(view, place, narrow, row(v)).ok());
  EXPECT_FALSE(write_token(view, {.layer = 5, .head = 0, .slot = 0}, row(k), row(v)).ok());
  EXPECT_FALSE(write_token(view, {.layer = 0, .head = 0, .slot = 64}, row(k), row(v)).ok());
}

TEST(ParityBlocks, OneHeadOfOneLayerIsGathered) {
  KVStorage storage = must(KVStorage::create(two_layers()));
  must(storage.fill(std::byte{0xff}));
  const KVView view = must(storage.view(GroupId(0)));
  const std::vector<std::int32_t> table = {3, 0};
  for (std::int32_t position = 0; position < 20; ++position) {
    float k[4];
    std::fill_n(k, 4, static_cast<float>(position));
    const ConstRowsView row(reinterpret_cast<const std::byte*>(k), 16, 16, 1, 1, 4, DType::kF32);
    const std::int32_t slot = table[static_cast<std::size_t>(position / 16)] * 16 + position % 16;
    must(write_token(view, {.layer = 1, .head = 1, .slot = slot}, row, row));
  }
  std::vector<float> k(20 * 4);
  std::vector<float> v(20 * 4);
  const auto rows = [](std::vector<float>& data) {
    return RowsView{reinterpret_cast<std::byte*>(data.data()), 16, 16, 20, 1, 4, DType::kF32};
  };
  GatherArgs args{.cache = view, .block_table = table, .length = 20, .count = 20};
  args.first_layer = 1;
  args.first_head = 1;
  args.k = rows(k);
  args.v = rows(v);
  must(gather(args));
  for (std::size_t i = 0; i < k.size(); ++i) {
    const std::size_t position = i / 4;
    EXPECT_EQ(k[i], static_cast<float>(position));
    EXPECT_EQ(v[i], static_cast<float>(position));
  }
}

TEST(ParityBlocks, ABlockIsCopiedWithAllItsLayers) {
  KVStorage storage = must(KVStorage::create(two_layers()));
  must(storage.fill(std::byte{0}));
  const KVView view = must(storage.view(GroupId(0)));
  for (std::int32_t layer = 0; layer < 2; ++layer) *view.v_at(layer, 1, 1, 15) = std::byte{7};
  const std::int32_t src[] = {1};
  const std::int32_t dst[] = {3};
  must(storage.copy_blocks(GroupId(0), src, dst));
  for (std::int32_t layer = 0; layer < 2; ++layer) {
    EXPECT_EQ(*view.v_at(layer, 3, 1, 15), std::byte{7});
  }
  const std::int32_t nowhere[] = {4};
  EXPECT_FALSE(storage.copy_blocks(GroupId(0), src, nowhere).ok());
}

// Faults L1, L17: a pool that is short kept what it had taken; huge counts panicked.
TEST(ParityBlocks, AShortPoolTakesNothing) {
  KVCacheManager cache = vector_cache(4, 3);
  const SequenceId sequence = must(cache.open({})).sequence;
  const Ticket step = must(cache.begin_step());
  const Status status = cache.append_unnamed(sequence, 4 * 16);
  EXPECT_EQ(status.code(), ErrorCode::kNoBlocks);
  EXPECT_THAT(status.message(), HasSubstr("need 4 blocks, 3 free, 0 evictable"));
  EXPECT_EQ(must(cache.usage(GroupId(0))).free, 3);
  must(cache.drop(step));
}

}  // namespace
}  // namespace kvfolio::parity
