// SPDX-License-Identifier: Apache-2.0
#pragma once

// What a sequence still knows of the prompt that open() was given, or of the longer one of a load
// behind it: how long it is, how much of it was found, and hashes of both parts. It is kept for one
// mistake of hosts: behind a hit, to append the whole prompt again and not only what is left of it;
// or, behind a load, what was left of it before.
// While the sequence publishes, the tree and its pending tokens say what was found; else its hash
// does. It has no state of its own; what is known lies in SequenceDetails.

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "kvfolio/prefix_tree.h"
#include "kvfolio/status.h"
#include "manager/rows.h"
#include "manager/sequence.h"
#include "manager/tables.h"
#include "manager/transfers.h"

namespace kvfolio {

class Prompts {
 public:
  // Requires: all of these outlive this. They may be empty still.
  Prompts(Rows& rows, const Tables& tables, const std::optional<PrefixTree>& tree) noexcept
      : rows_(rows), tables_(tables), tree_(tree) {}

  // It has what open() found, or a load behind it brought, and no step has added to that.
  [[nodiscard]] bool stands_at_open(std::int32_t row) const noexcept {
    const Sequence& s = rows_[row];
    return !s.has_planned && s.length == rows_.details(row).found_tokens;
  }
  // These tokens, to be appended, are not the prompt over again, neither the whole of it nor,
  // behind a load, from the end of open()'s hit on.
  [[nodiscard]] Status check_not_again(std::int32_t row, std::string_view what,
                                       std::span<const std::int32_t> tokens) const;

  // ---- what changes ----

  // open() was given this prompt and found found_tokens of it. `with_loads`: a load may bring more.
  void keep(std::int32_t row, std::span<const std::int32_t> prompt, bool with_loads) noexcept;
  // The child has no plan of its own, so what its parent stood at would look like its beginning.
  void note_fork(std::int32_t parent, std::int32_t child, bool publishes) noexcept;
  // The row stops publishing.
  void note_unpublished(std::int32_t row) noexcept;
  // What is to be known of a load's whole prompt; nothing if the row does not stand at open().
  [[nodiscard]] Transfers::Prompt behind(std::int32_t row,
                                         std::span<const std::int32_t> whole) const noexcept;
  // The row gets the tokens of the cache or of a load up to `end`.
  void note_loaded(std::int32_t row, std::int32_t end, const Transfers::Prompt& prompt) noexcept;

 private:
  // Hashes the tokens that open() found. Requires: the sequence has and keeps them.
  [[nodiscard]] std::uint64_t hash_of_head(std::int32_t row) const noexcept;
  [[nodiscard]] bool is_tail(std::int32_t row, std::span<const std::int32_t> tokens) const noexcept;
  [[nodiscard]] bool is_prompt(std::int32_t row,
                               std::span<const std::int32_t> tokens) const noexcept;

  Rows& rows_;
  const Tables& tables_;
  const std::optional<PrefixTree>& tree_;
};

}  // namespace kvfolio
