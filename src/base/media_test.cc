// SPDX-License-Identifier: Apache-2.0
#include "base/media.h"

#include <gtest/gtest.h>

#include <vector>

namespace kvfolio {
namespace {

MediaSpan span_at(std::int32_t begin, std::int32_t end) {
  return {.begin = begin, .end = end, .content_id = {std::byte{1}}};
}

TEST(Media, ThoseWithinAreThoseThatTouch) {
  const std::vector<MediaSpan> media = {span_at(2, 5), span_at(5, 6), span_at(9, 12)};
  for (std::int32_t begin = 0; begin < 14; ++begin) {
    for (std::int32_t end = begin; end < 14; ++end) {
      std::vector<std::int32_t> expected, found;
      for (const MediaSpan& span : media) {
        if (span.end > begin && span.begin < end) expected.push_back(span.begin);
      }
      for (const MediaSpan& span : spans_within(media, begin, end)) found.push_back(span.begin);
      EXPECT_EQ(found, expected) << begin << " to " << end;
    }
  }
}

TEST(Media, AContentIdIsThereIfOneByteIs) {
  EXPECT_FALSE(names_content({.begin = 0, .end = 1}));
  for (std::size_t i = 0; i < 32; ++i) {
    MediaSpan span{.begin = 0, .end = 1};
    span.content_id[i] = std::byte{0x80};
    EXPECT_TRUE(names_content(span));
  }
}

}  // namespace
}  // namespace kvfolio
