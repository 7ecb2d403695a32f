// SPDX-License-Identifier: Apache-2.0
//
// Lists of media extents alone, without a tree.

#include "prefix/media_extents.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/mutants.h"

namespace kvfolio {
namespace {

using Media = std::vector<MediaSpan>;
constexpr std::int32_t kNoExtent = MediaExtents::kNone;

MediaSpan image(std::int32_t begin, std::int32_t end, int content, bool attends = false) {
  MediaSpan span{.begin = begin, .end = end, .content_id = {}, .attends_to_itself = attends};
  span.content_id[0] = static_cast<std::byte>(content);
  return span;
}

MediaExtents make_extents(std::int32_t max_extents) {
  MediaExtents extents;
  EXPECT_TRUE(extents.allocate(max_extents));
  return extents;
}

TEST(MediaExtents, AListIsTheQueryUpToTheFirstDifference) {
  MediaExtents extents = make_extents(8);
  std::int32_t list = kNoExtent;
  const Media media = {image(2, 5, 1), image(8, 12, 2)};
  ASSERT_TRUE(extents.append(list, media, 0, 20));
  EXPECT_EQ(extents.check_list(list, 0, 20), 2);
  EXPECT_EQ(extents.same(list, 0, 20, media), 20);
  EXPECT_EQ(extents.same(list, 0, 20, {}), 2);
  EXPECT_EQ(extents.same(list, 5, 20, {}), 8);
  EXPECT_EQ(extents.same(list, 0, 20, Media{image(2, 5, 3), media[1]}), 2);
  EXPECT_EQ(extents.same(list, 0, 20, Media{image(2, 6, 1), media[1]}), 2);  // of another length
  EXPECT_EQ(extents.same(list, 0, 20, Media{media[0], image(8, 12, 2, true)}), 8);
  EXPECT_EQ(extents.same(list, 0, 20, Media{media[0], image(7, 11, 2)}), 7);
  EXPECT_EQ(extents.same(kNoExtent, 0, 20, media), 2);
}

TEST(MediaExtents, SpansInOrderAreAscendingDisjointAndNotEmpty) {
  EXPECT_TRUE(MediaExtents::in_order({}));
  EXPECT_TRUE(MediaExtents::in_order(Media{image(0, 2, 1), image(2, 4, 1)}));
  EXPECT_FALSE(MediaExtents::in_order(Media{image(2, 4, 1), image(0, 2, 1)}));
  EXPECT_FALSE(MediaExtents::in_order(Media{image(0, 3, 1), image(2, 4, 1)}));
  EXPECT_FALSE(MediaExtents::in_order(Media{image(1, 1, 1)}));
}

TEST(MediaExtents, APieceGrowsInsideItsSpan) {
  MediaExtents extents = make_extents(1);
  std::int32_t list = kNoExtent;
  const Media media = {image(2, 12, 1)};
  ASSERT_TRUE(extents.append(list, media, 0, 4));
  ASSERT_TRUE(extents.append(list, media, 4, 20));
  EXPECT_EQ(extents.check_list(list, 0, 20), 1);
  EXPECT_EQ(extents.same(list, 0, 20, media), 20);
}

TEST(MediaExtents, WhatDoesNotFitLeavesTheListAsItWas) {
  MediaExtents extents = make_extents(2);
  std::int32_t list = kNoExtent;
  const Media media = {image(0, 2, 1), image(2, 4, 2), image(4, 6, 3)};
  ASSERT_TRUE(extents.append(list, media, 0, 1));
  EXPECT_FALSE(extents.append(list, media, 1, 6));
  EXPECT_EQ(extents.check_list(list, 0, 1), 1);
  EXPECT_TRUE(extents.check(1).ok());
  extents.cut(list, 0);
  EXPECT_EQ(list, kNoExtent);
  EXPECT_TRUE(extents.check(0).ok());
  EXPECT_EQ(extents.check(1).message(),
            "prefix tree, media: 1 extents are in use and 2 free, of 2");
}

TEST(MediaExtents, ASplitInsideAPieceDoublesIt) {
  MediaExtents extents = make_extents(3);
  std::int32_t lower = kNoExtent;
  const Media media = {image(1, 3, 1), image(4, 10, 2)};
  ASSERT_TRUE(extents.append(lower, media, 0, 12));
  ASSERT_TRUE(extents.can_split(lower, 6));
  const std::int32_t upper = extents.split(lower, 6);
  EXPECT_EQ(extents.check_list(upper, 0, 6), 2);
  EXPECT_EQ(extents.check_list(lower, 6, 12), 1);
  EXPECT_EQ(extents.same(upper, 0, 6, media), 6);
  EXPECT_EQ(extents.same(lower, 6, 12, media), 12);
  EXPECT_FALSE(extents.can_split(lower, 8));  // all are in use
  EXPECT_TRUE(extents.can_split(lower, 11));  // behind the last one
  EXPECT_TRUE(extents.check(3).ok());
}

TEST(MediaExtents, NoMediumComesFirstThenContentPlaceAndLength) {
  MediaExtents extents = make_extents(1);
  std::int32_t list = kNoExtent;
  ASSERT_TRUE(extents.append(list, Media{image(2, 6, 5)}, 0, 8));
  EXPECT_LT(extents.order(list, 3, {}), 0);
  EXPECT_GT(extents.order(kNoExtent, 3, Media{image(2, 6, 5)}), 0);
  EXPECT_LT(extents.order(list, 3, Media{image(2, 6, 4)}), 0);
  EXPECT_GT(extents.order(list, 3, Media{image(2, 6, 6)}), 0);
  EXPECT_GT(extents.order(list, 3, Media{image(1, 5, 5)}), 0);
  EXPECT_GT(extents.order(list, 3, Media{image(2, 7, 5)}), 0);
  EXPECT_GT(extents.order(list, 3, Media{image(2, 6, 5, true)}), 0);
}

TEST(MediaExtents, EqualMediaGiveEqualHashes) {
  MediaExtents extents = make_extents(4);
  std::int32_t list = kNoExtent;
  const Media media = {image(1, 6, 1), image(7, 9, 2)};
  ASSERT_TRUE(extents.append(list, media, 0, 12));
  std::int32_t extent = list;
  for (std::int32_t at = 0; at < 12; at += 4) {
    EXPECT_EQ(extents.mix(3, extent, at, 4), MediaExtents::mix(3, media, at, 4)) << at;
  }
  EXPECT_EQ(MediaExtents::mix(3, {}, 0, 4), 3u);
  const Media other = {image(1, 6, 2)};
  EXPECT_TRUE(constant_hash() ||
              MediaExtents::mix(3, media, 0, 4) != MediaExtents::mix(3, other, 0, 4));
}

TEST(MediaExtents, ACopyHasTheSameLists) {
  MediaExtents extents = make_extents(2);
  MediaExtents copy = make_extents(2);
  std::int32_t list = kNoExtent;
  const Media media = {image(1, 3, 1)};
  ASSERT_TRUE(extents.append(list, media, 0, 4));
  copy.copy_from(extents);
  EXPECT_EQ(copy.same(list, 0, 4, media), 4);
  EXPECT_TRUE(copy.check(1).ok());
}

}  // namespace
}  // namespace kvfolio
