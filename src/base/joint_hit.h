// SPDX-License-Identifier: Apache-2.0
#pragma once

// How far several groups serve a prompt together: the largest position such that every group has
// what that position reads. The prefix tree asks this of the blocks that it keeps (match.cc), and
// loads ask it of what a tier has and of what was copied (src/manager/loads.cc).
//
// reach(logical) says up to which position a group has the tokens of a logical block: the block's
// begin if it has none of them. Values only; nothing here knows where blocks are.

#include <algorithm>
#include <cstdint>
#include <span>

#include "kvfolio/group_rule.h"
#include "kvfolio/root_key.h"

namespace kvfolio {

// Position p lies inside a span that attends to itself, with tokens of it on both sides.
[[nodiscard]] inline bool cuts(const MediaSpan& span, std::int32_t p) noexcept {
  return span.attends_to_itself && span.begin < p && p < span.end;
}

// What a group without windows leaves of position `at`: it serves up to its first missing token.
template <typename Reach>
[[nodiscard]] std::int32_t served_by_full(std::int32_t block_size, std::int32_t at,
                                          Reach&& reach) noexcept {
  for (std::int32_t logical = 0; logical * block_size < at; ++logical) {
    const std::int32_t there = reach(logical);
    if (there < std::min((logical + 1) * block_size, at)) return there;
  }
  return at;
}

// What a window group leaves of position `at`, which reads as position at - extra_window does. It
// is found from the right: each missing block pushes the position down to where it begins.
// All tokens of a block with sinks count that stand in front of the position. Below `floor` any
// answer will do. `sinks` and `reach` answer for the same blocks; each is asked from the right to
// the left.
template <typename SinkReach, typename Reach>
[[nodiscard]] std::int32_t served_by_window(const GroupRule& rule, std::int32_t block_size,
                                            std::int32_t at, std::int32_t extra_window,
                                            std::int32_t floor, SinkReach&& sinks,
                                            Reach&& reach) noexcept {
  const auto need = [&](std::int32_t logical, std::int32_t there) {
    if (there < std::min((logical + 1) * block_size, at)) at = there;
  };
  const std::int32_t num_sinks = std::min(rule.num_sinks(), at);
  if (num_sinks > 0) {
    for (std::int32_t logical = (num_sinks - 1) / block_size; logical >= 0; --logical) {
      need(logical, sinks(logical));
    }
  }
  if (at <= floor) return at;
  for (std::int32_t logical = (at - 1) / block_size; at > floor && logical >= 0; --logical) {
    if ((logical + 1) * block_size <= rule.first_read(std::max(at - extra_window, 0))) break;
    need(logical, reach(logical));
  }
  return at;
}

// The largest position, at most `at`, that no medium and no group lowers: lower(g, at) says what
// group g leaves of it. It stops at `floor`.
template <typename Lower>
[[nodiscard]] std::int32_t agreed(std::int32_t at, std::int32_t floor,
                                  std::span<const MediaSpan> media, std::int32_t num_groups,
                                  Lower&& lower) noexcept {
  for (std::int32_t before = -1; before != at && at > floor;) {
    before = at;
    for (const MediaSpan& span : media) {
      if (cuts(span, at)) at = span.begin;
    }
    for (std::int32_t g = 0; g < num_groups; ++g) at = lower(g, at);
  }
  return at;
}

// All of it for groups whose blocks are known by number: rule(g), block_size(g) and reach(g,
// logical).
template <typename Rule, typename Size, typename Reach>
[[nodiscard]] std::int32_t joint_hit(std::int32_t limit, std::int32_t floor,
                                     std::span<const MediaSpan> media, std::int32_t num_groups,
                                     Rule&& rule, Size&& block_size, Reach&& reach) noexcept {
  for (std::int32_t g = 0; g < num_groups; ++g) {
    if (!rule(g).keeps_all()) continue;
    limit = served_by_full(block_size(g), limit, [&](std::int32_t i) { return reach(g, i); });
  }
  return agreed(limit, floor, media, num_groups, [&](std::int32_t g, std::int32_t at) {
    if (rule(g).keeps_all()) return at;
    const auto has = [&](std::int32_t i) { return reach(g, i); };
    return served_by_window(rule(g), block_size(g), at, 0, floor, has, has);
  });
}

}  // namespace kvfolio
