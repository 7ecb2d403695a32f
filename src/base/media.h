// SPDX-License-Identifier: Apache-2.0
#pragma once

// What every list of media has to be, and a look at the part of one. Thread safety: free functions.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/invalid.h"
#include "base/text.h"
#include "kvfolio/root_key.h"
#include "kvfolio/spec.h"
#include "kvfolio/status.h"

namespace kvfolio {

// A content_id that was not filled in is equal to any other such one: prompts with different media
// would find each other's K and V.
[[nodiscard]] inline bool names_content(const MediaSpan& span) noexcept {
  return span.content_id != std::array<std::byte, 32>{};
}

// kInvalidArgument, naming the span, unless the spans are ascending, disjoint, not empty, within
// the positions of a sequence, and each has a content_id.
[[nodiscard]] inline Status check_media(std::string_view what, std::span<const MediaSpan> media) {
  std::int32_t last = 0;
  for (std::size_t i = 0; i < media.size(); ++i) {
    const MediaSpan& span = media[i];
    if (span.begin < last || span.end <= span.begin || span.end > kMaxSequenceTokens) {
      return invalid(text::concat(what, ": media span ", i, " is [", span.begin, ", ", span.end,
                                  "), allowed: not empty, ascending, disjoint, within 0 to ",
                                  kMaxSequenceTokens));
    }
    if (!names_content(span)) {
      return invalid(text::concat(what, ": media span ", i,
                                  " has a content_id of zeros, allowed: a digest of its content"));
    }
    last = span.end;
  }
  return {};
}

// Those that have one of the positions [begin, end). Looks at log2 of them. Requires: ascending and
// disjoint.
[[nodiscard]] inline std::span<const MediaSpan> spans_within(std::span<const MediaSpan> spans,
                                                             std::int32_t begin,
                                                             std::int32_t end) noexcept {
  const auto first = std::partition_point(spans.begin(), spans.end(),
                                          [&](const MediaSpan& span) { return span.end <= begin; });
  const auto last = std::partition_point(first, spans.end(),
                                         [&](const MediaSpan& span) { return span.begin < end; });
  return {first, last};
}

}  // namespace kvfolio
