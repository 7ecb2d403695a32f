// SPDX-License-Identifier: Apache-2.0
//
// The search for a joint hit against a scan over all positions.

#include "base/joint_hit.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace kvfolio {
namespace {

struct Group {
  GroupRule rule;
  std::int32_t size;
  std::vector<bool> has;  // [logical block]
};

// Every position that p reads is there; where p lies inside a block, so is the token before it, and
// so are whole blocks of sinks in front of p.
bool serves(const Group& group, std::int32_t p) {
  for (std::int32_t i = 0; i < p; ++i) {
    const std::int32_t begin = i / group.size * group.size;
    const bool in_sinks = begin < group.rule.num_sinks();
    const bool before = i == p - 1 && p % group.size != 0;
    if (!in_sinks && !before && !group.rule.reads(p, i, i + 1)) continue;
    if (!group.has[static_cast<std::size_t>(i / group.size)]) return false;
  }
  return true;
}

TEST(JointHit, IsTheLargestPositionThatEveryGroupServes) {
  std::mt19937 random(7);
  const auto below = [&](int n) {
    return static_cast<std::int32_t>(random() % static_cast<unsigned>(n));
  };
  for (int round = 0; round < 20000; ++round) {
    const std::int32_t limit = below(40);
    std::vector<Group> groups;
    for (int g = below(3); g >= 0; --g) {
      Group group{GroupRule(), 1 << below(4), {}};
      if (below(2) == 0) {
        group.rule = GroupRule(AttentionKind::kSlidingWindow, 1 + below(9), below(6));
      }
      group.has.resize(41);
      for (std::size_t i = 0; i < group.has.size(); ++i) group.has[i] = below(6) != 0;
      groups.push_back(group);
    }
    std::vector<MediaSpan> media;
    if (below(3) == 0) media.push_back({.begin = 5, .end = 14, .attends_to_itself = true});
    const std::int32_t found = joint_hit(
        limit, 0, media, static_cast<std::int32_t>(groups.size()),
        [&](std::int32_t g) -> const GroupRule& {
          return groups[static_cast<std::size_t>(g)].rule;
        },
        [&](std::int32_t g) { return groups[static_cast<std::size_t>(g)].size; },
        [&](std::int32_t g, std::int32_t logical) {
          const Group& group = groups[static_cast<std::size_t>(g)];
          const bool has = group.has[static_cast<std::size_t>(logical)];
          return has ? std::min((logical + 1) * group.size, limit) : logical * group.size;
        });
    std::int32_t expected = limit;
    const auto good = [&](std::int32_t p) {
      return std::none_of(media.begin(), media.end(), [&](const auto& m) { return cuts(m, p); }) &&
             std::all_of(groups.begin(), groups.end(), [&](const auto& g) { return serves(g, p); });
    };
    while (expected > 0 && !good(expected)) --expected;
    ASSERT_EQ(found, expected) << "round " << round << " of seed 7, limit " << limit;
  }
}

}  // namespace
}  // namespace kvfolio
