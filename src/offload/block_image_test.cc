// SPDX-License-Identifier: Apache-2.0
#include "offload/block_image.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "kvfolio/checked_copy.h"
#include "offload/model_rows.h"

namespace kvfolio {
namespace {

std::vector<GroupSpec> shapes() {
  std::vector<GroupSpec> shapes;
  for (const DType dtype :
       {DType::kF64, DType::kF32, DType::kF16, DType::kBF16, DType::kInt8, DType::kE4M3}) {
    for (const Format format : {Format::kHnd, Format::kNhd, Format::kGranule}) {
      for (const std::int32_t block_size : {3, 16, 32}) {
        for (const std::pair<int, bool>& v : {std::pair{16, false}, {0, false}, {8, true}}) {
          const bool granule = format == Format::kGranule;
          if (granule && (!fits_granule(dtype) || block_size == 3 || v.second)) continue;
          shapes.push_back({.num_layers = 2,
                            .num_kv_heads = 3,
                            .head_dim_k = 8,
                            .head_dim_v = v.first,
                            .v_is_prefix_of_k = v.second,
                            .block_size = block_size,
                            .dtype = dtype,
                            .format = format,
                            .num_blocks = 2});
        }
      }
    }
  }
  return shapes;
}

std::vector<std::byte> image_of_block(const KVStorage& storage, std::int32_t block) {
  std::vector<std::byte> image(static_cast<std::size_t>(storage.block_image_bytes(GroupId(0))));
  EXPECT_TRUE(storage.read_blocks(GroupId(0), std::span(&block, 1), image).ok());
  return image;
}

// The block had another owner, who filled it. What is kept is, bit for bit, a block that was never
// used before: the kernels say which bytes a token has.
TEST(ZeroBehind, NothingOfAnEarlierOwnerIsLeftInAnyTypeAndFormat) {
  for (const GroupSpec& group : shapes()) {
    KVStorage storage = *KVStorage::create({.groups = {group}});
    for (std::int32_t tokens = 0; tokens <= group.block_size; ++tokens) {
      SCOPED_TRACE(testing::Message()
                   << to_string(group.dtype) << " " << to_string(group.format) << ", block size "
                   << group.block_size << ", V " << group.head_dim_v << ", tokens " << tokens);
      ASSERT_TRUE(storage.fill(std::byte{0xee}).ok());
      std::vector<std::int32_t> slots(static_cast<std::size_t>(tokens));
      std::iota(slots.begin(), slots.end(), group.block_size);
      std::vector<std::uint32_t> seeds(slots.size());
      std::iota(seeds.begin(), seeds.end(), 5u);
      test::append_rows(storage, GroupId(0), seeds, slots);
      std::vector<std::byte> image = image_of_block(storage, 1);
      zero_behind(group, tokens, image);
      ASSERT_EQ(image, test::image_of(group, GroupId(0), seeds));
    }
  }
}

TEST(BlockImages, PiecesAreTheImageInItsOrderWhereTheyAreLong) {
  GroupSpec group{
      .num_layers = 2, .num_kv_heads = 2, .head_dim_k = 64, .head_dim_v = 64, .num_blocks = 4};
  KVStorage storage = *KVStorage::create({.groups = {group}});
  std::vector<std::uint32_t> seeds(16);
  std::iota(seeds.begin(), seeds.end(), 9u);
  std::vector<std::int32_t> slots(16);
  std::iota(slots.begin(), slots.end(), 32);
  test::append_rows(storage, GroupId(0), seeds, slots);
  BlockImages images(storage);
  const std::vector<std::byte> image = image_of_block(storage, 2);
  std::vector<std::byte> joined;
  for (const BlockImages::Piece piece : images.pieces(GroupId(0), BlockId(2))) {
    joined.insert(joined.end(), piece.begin(), piece.end());
  }
  EXPECT_EQ(joined, image);
  EXPECT_EQ(copy_with_checksum(images.reads(), 77), checksum(image, 77));
  group.head_dim_k = group.head_dim_v = 8;
  KVStorage small = *KVStorage::create({.groups = {group}});
  EXPECT_TRUE(BlockImages(small).pieces(GroupId(0), BlockId(2)).empty());
}

}  // namespace
}  // namespace kvfolio
