// SPDX-License-Identifier: Apache-2.0
#pragma once

// The words of the arena that a sequence has: the spans of its tables, its pending tokens and its
// media. SequenceSpans says how many words a length takes, gets them, all that a call needs or
// none, and gives back what is too much. It knows no blocks: a span is room for entries. It has no
// state of its own; the spans lie in Tables and Rows.
//
// Tokens are kept for the cache alone. So where there is room for tables only, grow() can do
// without the tokens, and the sequence stops publishing: that is the caller's.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "kvfolio/prefix_tree.h"
#include "kvfolio/root_key.h"
#include "kvfolio/status.h"
#include "manager/group.h"
#include "manager/rows.h"
#include "manager/sequence.h"
#include "manager/tables.h"

namespace kvfolio {

class SequenceSpans {
 public:
  // Requires: all of these outlive this. They may be empty still.
  SequenceSpans(Rows& rows, Tables& tables, const std::vector<Group>& groups,
                const std::optional<PrefixTree>& tree) noexcept
      : rows_(rows), tables_(tables), groups_(groups), tree_(tree) {}

  // ---- how many words ----

  // For tokens that the sequence keeps itself, when it is `end` tokens long.
  [[nodiscard]] static std::int64_t pending_words(const Sequence& s, std::int32_t end) noexcept {
    return s.publishes ? std::max(0, std::min(end, s.exact_until) - s.place.position) : 0;
  }
  // For the tables of a sequence of `end` tokens.
  [[nodiscard]] std::int64_t table_words(std::int32_t end) const noexcept;
  // For both.
  [[nodiscard]] std::int64_t words_for(const Sequence& s, std::int32_t end) const noexcept {
    return pending_words(s, end) + table_words(end);
  }
  // The tokens of a hit that the tree keeps for the sequence; it keeps the others itself.
  [[nodiscard]] std::int32_t kept_tokens(const PrefixMatch& match) const noexcept {
    return match.tokens / tree_->unit() * tree_->unit();
  }
  // The arena has no room for so many words.
  [[nodiscard]] Status full(std::string_view what, std::int64_t wanted) const;

  // ---- words come ----

  // Room for the tables of the row at `end` tokens, and `with_pending` for its pending tokens.
  // False: there is none, and nothing has moved.
  [[nodiscard]] bool grow(std::int32_t row, std::int32_t end, bool with_pending) noexcept;
  // Room for the tables of a hit and for the tokens that the sequence keeps of it. False: there is
  // none, and the row has no tables.
  [[nodiscard]] bool grow_for_hit(std::int32_t row, const PrefixMatch& match) noexcept;
  // Room for what the parent has, its media copied. `publishes`: false where there is none for
  // tokens. False: no room; the child may have some of it.
  [[nodiscard]] bool grow_for_fork(std::int32_t parent, std::int32_t child,
                                   bool& publishes) noexcept;
  [[nodiscard]] bool keep_media(Sequence& s, std::span<const MediaSpan> media) noexcept;
  [[nodiscard]] std::span<const MediaSpan> media_of(const Sequence& s) const noexcept;
  // Where the span begins that attends to itself and that lies on both sides of position p; kNever
  // if there is none. A step that ends inside such a span attends only to the part it already has.
  [[nodiscard]] std::int32_t cut_span(const Sequence& s, std::int32_t p) const noexcept {
    return !s.has_media ? Sequence::kNever : cut_span(media_of(s), p);
  }
  [[nodiscard]] static std::int32_t cut_span(std::span<const MediaSpan> media,
                                             std::int32_t p) noexcept;

  // ---- words go ----

  // What neither the tokens need nor admit() promised.
  void shrink_to_need(std::int32_t row) noexcept;
  // The tree has taken pending tokens; `rest` are left.
  void shrink_pending(std::int32_t row, std::int32_t rest) noexcept;
  // All of the row.
  void release(std::int32_t row) noexcept;

 private:
  [[nodiscard]] std::int32_t num_groups() const noexcept {
    return static_cast<std::int32_t>(groups_.size());
  }
  [[nodiscard]] std::int32_t blocks_for(std::int32_t g, std::int32_t tokens) const noexcept {
    return groups_[static_cast<std::size_t>(g)].blocks_for(tokens);
  }
  [[nodiscard]] SpanArena& arena() noexcept { return tables_.arena(); }

  Rows& rows_;
  Tables& tables_;
  const std::vector<Group>& groups_;
  const std::optional<PrefixTree>& tree_;
};

}  // namespace kvfolio
