// SPDX-License-Identifier: Apache-2.0

#include "manager/media_spans.h"

#include <gtest/gtest.h>

#include <vector>

namespace kvfolio {
namespace {

MediaSpan span(std::int32_t begin, std::int32_t end, int content, bool attends = false) {
  MediaSpan span{.begin = begin, .end = end, .content_id = {}, .attends_to_itself = attends};
  span.content_id.fill(static_cast<std::byte>(content));
  return span;
}

TEST(SameMedia, EndsWhereOneHasAMediumAndTheOtherHasNone) {
  const std::vector<MediaSpan> one = {span(2, 5, 1), span(7, 9, 2)};
  const std::vector<MediaSpan> front = {span(2, 5, 1)};
  EXPECT_EQ(same_media({}, {}, 0, 12), 12);
  EXPECT_EQ(same_media(one, one, 0, 12), 12);
  EXPECT_EQ(same_media(one, front, 0, 12), 7);
  EXPECT_EQ(same_media(front, one, 0, 12), 7);
  EXPECT_EQ(same_media(one, {}, 0, 12), 2);
  EXPECT_EQ(same_media(one, {}, 5, 12), 7);
  EXPECT_EQ(same_media(one, {}, 5, 7), 7);
  EXPECT_EQ(same_media(one, front, 0, 0), 0);
}

TEST(SameMedia, EndsBeforeAnotherMedium) {
  const std::vector<MediaSpan> one = {span(2, 5, 1)};
  for (const MediaSpan& other : {span(2, 5, 2), span(2, 6, 1), span(2, 5, 1, true)}) {
    EXPECT_EQ(same_media(one, {&other, 1}, 0, 12), 2);
    EXPECT_EQ(same_media(one, {&other, 1}, 3, 12), 3);
  }
  const MediaSpan later = span(3, 5, 1);
  EXPECT_EQ(same_media(one, {&later, 1}, 0, 12), 2);
}

}  // namespace
}  // namespace kvfolio
