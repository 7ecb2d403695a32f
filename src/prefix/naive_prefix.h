// SPDX-License-Identifier: Apache-2.0
#pragma once

// What the prefix tree must do, said as slowly and plainly as possible: a list of entries, each
// with the whole text that its block ends; every question is a scan.

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "kvfolio/prefix_tree.h"

namespace kvfolio::naive {

// Per position one number that stands for the token and the medium behind it.
using Text = std::vector<std::int64_t>;

inline std::int32_t common(const Text& a, const Text& b) {
  const auto [in_a, in_b] = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  return static_cast<std::int32_t>(in_a - a.begin());
}
inline std::int32_t length(const Text& text) { return static_cast<std::int32_t>(text.size()); }

struct Entry {
  std::int32_t root;
  Text text;  // from the root to the last token that the entry covers
  bool idle;
};

struct Query {
  std::int32_t root;
  Text text;
  std::vector<MediaSpan> media;
};

class Prefixes {
 public:
  explicit Prefixes(std::vector<TreeGroup> specs)
      : groups(std::move(specs)), by_block(groups.size()) {}

  std::vector<TreeGroup> groups;
  std::vector<std::map<std::int32_t, Entry>> by_block;  // per group

  [[nodiscard]] std::int32_t size_of(std::size_t g) const { return groups[g].block_size; }
  [[nodiscard]] bool full(std::size_t g) const { return groups[g].kind == AttentionKind::kFull; }
  [[nodiscard]] std::int32_t logical(std::size_t g, const Text& text) const {
    return (length(text) - 1) / size_of(g);
  }

  static bool goes_on(const Entry& e, const Entry& below) {
    return e.root == below.root && length(below.text) > length(e.text) &&
           common(e.text, below.text) == length(e.text);
  }
  [[nodiscard]] bool candidate(std::size_t g, const Entry& e) const {
    return e.idle &&
           (!full(g) || std::none_of(by_block[g].begin(), by_block[g].end(),
                                     [&](const auto& o) { return goes_on(e, o.second); }));
  }
  [[nodiscard]] bool evictable(std::size_t g, const Entry& e) const {
    return e.idle &&
           (!full(g) || std::none_of(by_block[g].begin(), by_block[g].end(), [&](const auto& o) {
             return !o.second.idle && goes_on(e, o.second);
           }));
  }

  // How far some block serves logical block `index` of the query; its start where none does.
  [[nodiscard]] std::int32_t reach(std::size_t g, const Query& q, std::int32_t index,
                                   bool whole_blocks) const {
    std::int32_t best = index * size_of(g);
    for (const auto& [block, e] : by_block[g]) {
      if (e.root != q.root || logical(g, e.text) != index) continue;
      const std::int32_t same = common(e.text, q.text);
      if (!whole_blocks || same == (index + 1) * size_of(g)) best = std::max(best, same);
    }
    return best;
  }
  // First token of the window that a hit of p tokens needs. One token at least: a sequence goes on
  // inside its last block.
  [[nodiscard]] std::int32_t window_begin(std::size_t g, std::int32_t p, std::int32_t extra) const {
    return full(g) ? 0 : std::max(0, p - std::max(groups[g].window, 2) + 1 - extra);
  }
  [[nodiscard]] bool serves(std::size_t g, const Query& q, std::int32_t p, std::int32_t extra,
                            bool whole_blocks) const {
    const std::int32_t size = size_of(g);
    const std::int32_t sinks = full(g) ? 0 : std::min(groups[g].num_sinks, p);
    for (std::int32_t i = 0; i * size < p; ++i) {
      const std::int32_t end = (i + 1) * size;
      const bool needed = i * size < sinks || end > window_begin(g, p, extra);
      if (needed && reach(g, q, i, whole_blocks) < std::min(end, p)) return false;
    }
    return true;
  }
  static bool inside_span(const Query& q, std::int32_t p) {
    return std::any_of(q.media.begin(), q.media.end(), [p](const MediaSpan& span) {
      return span.attends_to_itself && span.begin < p && p < span.end;
    });
  }
  // The longest prefix of at most `limit` tokens that every group serves. With whole_blocks, using
  // only positions where every group's blocks end.
  [[nodiscard]] std::int32_t longest(const Query& q, std::int32_t limit, std::int32_t extra,
                                     bool whole_blocks) const {
    for (std::int32_t p = std::min(limit, length(q.text)); p > 0; --p) {
      bool good = !inside_span(q, p);
      for (std::size_t g = 0; g < groups.size() && good; ++g) {
        good = (!whole_blocks || p % size_of(g) == 0) && serves(g, q, p, extra, whole_blocks);
      }
      if (good) return p;
    }
    return 0;
  }
};

}  // namespace kvfolio::naive
