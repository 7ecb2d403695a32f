// SPDX-License-Identifier: Apache-2.0
#pragma once

// What several calls ask of their arguments before they look at any state: each says ok, or what is
// wrong with the numbers and what is allowed. `what` names the call.

#include <cstdint>
#include <span>
#include <string_view>

#include "kvfolio/manager_types.h"
#include "kvfolio/span_arena.h"
#include "kvfolio/status.h"

namespace kvfolio {

// Tokens: not too many, none below 0, and not in the manager's own memory. An error names the
// sequence, if there is one yet.
[[nodiscard]] Status check_tokens(std::string_view what, std::span<const std::int32_t> tokens,
                                  const SpanArena& arena, SequenceId sequence = SequenceId());
// A prompt and its options, but for `publish`, which not every call reads.
[[nodiscard]] Status check_open(std::string_view what, std::span<const std::int32_t> tokens,
                                const OpenOptions& options, const SpanArena& arena);
[[nodiscard]] Status check_publish(std::string_view what, Publish publish);
// May a sequence of `length` tokens get `count` tokens longer? max_tokens 0: it has no own limit.
[[nodiscard]] Status check_growth(std::string_view what, std::int64_t count, std::int32_t length,
                                  std::int32_t max_tokens, SequenceId sequence = SequenceId());
// One token for each sequence.
[[nodiscard]] Status check_sizes(std::string_view what, std::size_t sequences, std::size_t tokens);

}  // namespace kvfolio
