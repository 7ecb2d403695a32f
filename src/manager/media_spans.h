// SPDX-License-Identifier: Apache-2.0
#pragma once

// Media of two prompts, compared position by position. Thread safety: free functions.

#include <cstdint>
#include <span>

#include "kvfolio/root_key.h"

namespace kvfolio {

// The first position of [begin, end) at which one has another medium than the other, or `end`. Both
// are ascending and disjoint.
[[nodiscard]] inline std::int32_t same_media(std::span<const MediaSpan> a,
                                             std::span<const MediaSpan> b, std::int32_t begin,
                                             std::int32_t end) noexcept {
  const auto skip_to = [](std::span<const MediaSpan>& spans, std::int32_t at) {
    while (!spans.empty() && spans.front().end <= at) spans = spans.subspan(1);
  };
  const auto next_of = [end](std::span<const MediaSpan> spans) {
    return spans.empty() || spans.front().begin >= end ? end : spans.front().begin;
  };
  for (std::int32_t at = begin; at < end;) {
    skip_to(a, at);
    skip_to(b, at);
    const bool in_a = next_of(a) <= at;
    const bool in_b = next_of(b) <= at;
    if (in_a != in_b) return at;
    if (!in_a) {
      at = next_of(a) < next_of(b) ? next_of(a) : next_of(b);
      continue;
    }
    const MediaSpan& of_a = a.front();
    const MediaSpan& of_b = b.front();
    if (of_a.begin != of_b.begin || of_a.end != of_b.end || of_a.content_id != of_b.content_id ||
        of_a.attends_to_itself != of_b.attends_to_itself) {
      return at;
    }
    at = of_a.end;
  }
  return end;
}

}  // namespace kvfolio
