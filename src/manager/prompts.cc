// SPDX-License-Identifier: Apache-2.0
#include "manager/prompts.h"

#include <algorithm>
#include <array>

#include "base/hash.h"
#include "base/text.h"

namespace kvfolio {

using text::concat;

std::uint64_t Prompts::hash_of_head(std::int32_t row) const noexcept {
  const Sequence& s = rows_[row];
  const std::int32_t count = rows_.details(row).head_tokens;
  const std::int32_t on_tree = std::min(count, s.place.position);
  XXH3_state_t hash;
  XXH3_64bits_reset(&hash);
  std::array<std::int32_t, 256> piece;
  for (std::int32_t at = 0; at < on_tree;) {
    const std::int32_t size = std::min(on_tree - at, static_cast<std::int32_t>(piece.size()));
    tree_->copy_tokens(s.place, at, std::span(piece).first(static_cast<std::size_t>(size)));
    XXH3_64bits_update(&hash, piece.data(), static_cast<std::size_t>(size) * 4);
    at += size;
  }
  XXH3_64bits_update(&hash, tables_.arena().at(s.pending),
                     static_cast<std::size_t>(count - on_tree) * 4);
  return XXH3_64bits_digest(&hash);
}

// These are the tokens of the prompt behind what open() found, as many as there are.
bool Prompts::is_tail(std::int32_t row, std::span<const std::int32_t> tokens) const noexcept {
  return XXH3_64bits(tokens.data(), tokens.size_bytes()) == rows_.details(row).tail_hash;
}

// These are the tokens of the prompt, as many as it has.
bool Prompts::is_prompt(std::int32_t row, std::span<const std::int32_t> tokens) const noexcept {
  const SequenceDetails& d = rows_.details(row);
  const auto head = tokens.first(static_cast<std::size_t>(d.head_tokens));
  const auto tail = tokens.subspan(head.size());
  return is_tail(row, tail) && XXH3_64bits(head.data(), head.size_bytes()) ==
                                   (rows_[row].publishes ? hash_of_head(row) : d.head_hash);
}

// Behind a hit the host appends what is left of the prompt. The whole of it would be taken for a
// text that says its beginning twice: the answer would be that of another question. So would, once
// a load has brought more than open() found, what was left before: a host that still goes by
// open()'s length appends that. A prompt that repeats itself can have a rest that, with what
// follows, looks like all of it; only the host knows which of the two it means, and the rest is
// what it should append, so that is believed.
Status Prompts::check_not_again(std::int32_t row, std::string_view what,
                                std::span<const std::int32_t> tokens) const {
  const Sequence& s = rows_[row];
  const SequenceDetails& d = rows_.details(row);
  if (!stands_at_open(row)) return {};
  for (const std::int32_t from : {0, d.head_tokens}) {
    const auto size = static_cast<std::size_t>(d.prompt_tokens - from);
    if (from >= s.length || tokens.size() < size) continue;
    const auto again = tokens.first(size);  // the prompt from there on, if it is
    const auto rest = again.subspan(static_cast<std::size_t>(s.length - from));
    const bool begins_with_rest = std::equal(rest.begin(), rest.end(), tokens.begin());
    if (begins_with_rest || !(from == 0 ? is_prompt(row, again) : is_tail(row, again))) continue;
    return {ErrorCode::kInvalidArgument,
            concat(what, " of ", tokens.size(), " tokens to ", to_string(rows_.id_of(s)), " of ",
                   s.length, ": they begin with the ", s.length - from,
                   " that it has of its prompt of ", d.prompt_tokens,
                   from > 0 ? concat(" from ", from, " on") : std::string(),
                   "; append only those behind them")};
  }
  return {};
}

// ---- what changes ----

void Prompts::keep(std::int32_t row, std::span<const std::int32_t> prompt,
                   bool with_loads) noexcept {
  SequenceDetails& d = rows_.details(row);
  d.prompt_tokens = static_cast<std::int32_t>(prompt.size());
  d.head_tokens = d.found_tokens;
  if (d.found_tokens == 0 && !with_loads) return;
  const auto head = prompt.first(static_cast<std::size_t>(d.head_tokens));
  const auto tail = prompt.subspan(head.size());
  if (!rows_[row].publishes) d.head_hash = XXH3_64bits(head.data(), head.size_bytes());
  d.tail_hash = XXH3_64bits(tail.data(), tail.size_bytes());
}

void Prompts::note_fork(std::int32_t parent, std::int32_t child, bool publishes) noexcept {
  const bool stands = stands_at_open(parent);
  if (!stands) rows_.details(child).found_tokens = -1;
  if (stands && rows_[parent].publishes && !publishes) {
    rows_.details(child).head_hash = hash_of_head(parent);
  }
}

// Also of one that is in its first step, which undo() may take back.
void Prompts::note_unpublished(std::int32_t row) noexcept {
  SequenceDetails& d = rows_.details(row);
  const bool may_stand = !rows_[row].has_planned && d.found_tokens <= rows_[row].length;
  if (may_stand && d.found_tokens >= 0) d.head_hash = hash_of_head(row);
}

Transfers::Prompt Prompts::behind(std::int32_t row,
                                  std::span<const std::int32_t> whole) const noexcept {
  if (!stands_at_open(row)) return {};
  const auto tail = whole.subspan(static_cast<std::size_t>(rows_.details(row).head_tokens));
  return {static_cast<std::int32_t>(whole.size()), XXH3_64bits(tail.data(), tail.size_bytes())};
}

void Prompts::note_loaded(std::int32_t row, std::int32_t end,
                          const Transfers::Prompt& prompt) noexcept {
  if (!stands_at_open(row)) return;
  SequenceDetails& d = rows_.details(row);
  d.found_tokens = end;
  if (prompt.tokens <= d.prompt_tokens) return;
  d.prompt_tokens = prompt.tokens;
  d.tail_hash = prompt.tail_hash;
}

}  // namespace kvfolio
