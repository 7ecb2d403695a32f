// SPDX-License-Identifier: Apache-2.0
#pragma once

// What the prefix tree must do, said as slowly and plainly as possible: a list of entries, each
// with the whole text that its block ends; every question is a scan.

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "kvfolio/group_rule.h"
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
  bool read = false;  // by an end
  bool maybe_read = false;
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
  [[nodiscard]] Candidate candidate(std::size_t g, const Entry& e) const {
    if (!e.idle) return Candidate::kNone;
    if (!full(g)) return Candidate::kLeaf;
    Candidate candidate = Candidate::kLeaf;
    for (const auto& [block, other] : by_block[g]) {
      if (!goes_on(e, other)) continue;
      if (other.idle) return Candidate::kNone;
      candidate = Candidate::kHead;
    }
    return candidate;
  }

  // The block that keeps exactly this text, or -1.
  [[nodiscard]] std::int32_t keeper(std::size_t g, std::int32_t root, const Text& text) const {
    for (const auto& [block, e] : by_block[g]) {
      if (e.root == root && e.text == text) return block;
    }
    return -1;
  }

  // A hit at p reads some of the block with this text.
  [[nodiscard]] bool reads(std::size_t g, std::int32_t p, const Text& text) const {
    const TreeGroup& group = groups[g];
    const std::int32_t begin = logical(g, text) * size_of(g);
    const GroupRule rule(group.kind, group.window, group.num_sinks);
    const std::int32_t first = p < 1 ? 0 : std::min(rule.first_read(p), p % size_of(g) ? p - 1 : p);
    return begin < p && (begin < group.num_sinks || begin + size_of(g) > first);
  }
  // A hit at p on the path of `text` is an end: whole blocks of window groups there are read.
  void note_end(std::int32_t root, const Text& text, std::int32_t p, bool sure) {
    for (std::size_t g = 0; g < groups.size(); ++g) {
      for (auto& [block, e] : by_block[g]) {
        const bool whole = length(e.text) % size_of(g) == 0;
        if (full(g) || !whole || e.root != root || !reads(g, p, e.text)) continue;
        if (length(e.text) > length(text) || common(e.text, text) < length(e.text)) continue;
        (sure ? e.read : e.maybe_read) = true;
      }
    }
  }
  // Do strings go on in several ways behind the first q tokens of `text`? A way that another begins
  // with is the same way.
  [[nodiscard]] static bool part_at(const Text& text, std::int32_t q, std::int32_t unit,
                                    const std::vector<Text>& strings) {
    std::vector<Text> next;
    for (const Text& each : strings) {
      if (common(each, text) < q || length(each) == q) continue;
      next.emplace_back(each.begin() + q, each.begin() + std::min(q + unit, length(each)));
    }
    return std::any_of(next.begin(), next.end(), [&](const Text& each) {
      return common(each, next.front()) < std::min(length(each), length(next.front()));
    });
  }

  // Would `e` of group h leave with `out` of group g? A full group serves nothing behind a block
  // that it lacks. kMaybe: what ends inside the block that leaves, or hangs beside a tail that ends
  // inside a unit, goes if it is on the same run, which a text does not say.
  enum class Along : std::uint8_t { kNo, kMaybe, kYes };
  [[nodiscard]] Along along(std::size_t g, const Entry& out, std::size_t h, const Entry& e,
                            std::int32_t unit) const {
    if (!full(g) || e.root != out.root) return Along::kNo;
    if (logical(h, e.text) * size_of(h) < logical(g, out.text) * size_of(g)) return Along::kNo;
    const std::int32_t same = common(e.text, out.text);
    if (same == length(out.text)) return same % unit == 0 ? Along::kYes : Along::kMaybe;
    return same == length(e.text) ? Along::kMaybe : Along::kNo;
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
  // First token of the window that a hit of p tokens needs. Where p lies inside a block, serves()
  // wants the tokens before it there too: a sequence goes on in that block.
  [[nodiscard]] std::int32_t window_begin(std::size_t g, std::int32_t p, std::int32_t extra) const {
    const TreeGroup& group = groups[g];
    return GroupRule(group.kind, group.window, group.num_sinks).first_read(std::max(0, p - extra));
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
  // Some entry begins with the first p tokens: a window of one token needs none of its blocks where
  // p is a border, and what nothing was published of is not known there either.
  [[nodiscard]] bool known(const Query& q, std::int32_t p) const {
    return std::any_of(by_block.begin(), by_block.end(), [&](const auto& entries) {
      return std::any_of(entries.begin(), entries.end(), [&](const auto& entry) {
        return entry.second.root == q.root && common(entry.second.text, q.text) >= p;
      });
    });
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
      bool good = !inside_span(q, p) && (!whole_blocks || known(q, p));
      for (std::size_t g = 0; g < groups.size() && good; ++g) {
        good = (!whole_blocks || p % size_of(g) == 0) && serves(g, q, p, extra, whole_blocks);
      }
      if (good) return p;
    }
    return 0;
  }
};

}  // namespace kvfolio::naive
