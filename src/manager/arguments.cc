// SPDX-License-Identifier: Apache-2.0
#include "manager/arguments.h"

#include <algorithm>

#include "base/media.h"
#include "base/text.h"
#include "kvfolio/ids.h"

namespace kvfolio {

using text::concat;

namespace {

// " to sequence 0.1", or nothing.
std::string to(SequenceId sequence) {
  return sequence.valid() ? concat(" to ", to_string(sequence)) : std::string();
}

}  // namespace

Status check_tokens(std::string_view what, std::span<const std::int32_t> tokens,
                    const SpanArena& arena, SequenceId sequence) {
  if (tokens.size() > static_cast<std::size_t>(kMaxSequenceTokens)) {
    return {ErrorCode::kInvalidArgument, concat(what, to(sequence), ": ", tokens.size(),
                                                " tokens, allowed: at most ", kMaxSequenceTokens)};
  }
  if (arena.overlaps(tokens)) {
    return {ErrorCode::kInvalidArgument,
            concat(what, to(sequence),
                   ": the tokens lie in memory of the manager, which moves while it reads "
                   "them; copy them")};
  }
  // Sixteen at a time without a branch inside: one by one, this was half of the instructions of
  // open() of a cached prompt.
  std::size_t i = 0;
  for (; i + 16 <= tokens.size(); i += 16) {
    std::int32_t signs = 0;
    for (std::size_t j = 0; j < 16; ++j) signs |= tokens[i + j];
    if (signs < 0) break;
  }
  while (i < tokens.size() && tokens[i] >= 0) ++i;
  if (i == tokens.size()) return {};
  return {ErrorCode::kInvalidArgument,
          concat(what, to(sequence), ": token ", i, " is ", tokens[i], ", allowed: 0 and above")};
}

Status check_open(std::string_view what, std::span<const std::int32_t> tokens,
                  const OpenOptions& options, const SpanArena& arena) {
  KVFOLIO_RETURN_IF_ERROR(check_tokens(what, tokens, arena));
  KVFOLIO_RETURN_IF_ERROR(check_media(what, options.media));
  if (options.max_tokens < 0 || options.max_tokens > kMaxSequenceTokens) {
    return {ErrorCode::kInvalidArgument, concat(what, ": max_tokens is ", options.max_tokens,
                                                ", allowed: 0 to ", kMaxSequenceTokens)};
  }
  if (options.max_tokens > 0 && tokens.size() > static_cast<std::size_t>(options.max_tokens)) {
    return {ErrorCode::kInvalidArgument,
            concat(what, ": a prompt of ", tokens.size(), " tokens, allowed: at most max_tokens, ",
                   options.max_tokens)};
  }
  const RootKey& root = options.root;
  constexpr std::size_t kMaxKeyBytes = 65536;
  std::size_t key_bytes = 0;
  for (const std::string_view field :
       {root.model, root.adapter, root.adapter_version, root.tenant_salt}) {
    // Field by field, so that the sum cannot wrap.
    if (field.size() > kMaxKeyBytes || (key_bytes += field.size()) > kMaxKeyBytes) {
      return {ErrorCode::kInvalidArgument, concat(what, ": the root key's fields have more than ",
                                                  kMaxKeyBytes, " bytes together")};
    }
  }
  return {};
}

Status check_publish(std::string_view what, Publish publish) {
  const auto value = static_cast<std::int32_t>(publish);
  if (value >= 0 && value <= static_cast<std::int32_t>(Publish::kNothing)) return {};
  return {ErrorCode::kInvalidArgument,
          concat(what, ": publish is ", value,
                 ", allowed: 0 (kAll), 1 (kFullBlocks) and 2 (kNothing)")};
}

Status check_growth(std::string_view what, std::int64_t count, std::int32_t length,
                    std::int32_t max_tokens, SequenceId sequence) {
  if (count < 0 || count > kMaxSequenceTokens - length) {
    return {ErrorCode::kInvalidArgument,
            concat(what, " of ", count, " tokens", to(sequence), " behind ", length,
                   ", allowed: 0 to ", kMaxSequenceTokens - length)};
  }
  if (max_tokens == 0 || count <= std::max(0, max_tokens - length)) return {};
  return {ErrorCode::kResourceExhausted, concat(what, " of ", count, " tokens", to(sequence),
                                                ": full: ", length, " of ", max_tokens, " tokens")};
}

Status check_sizes(std::string_view what, std::size_t sequences, std::size_t tokens) {
  if (sequences == tokens) return {};
  return {ErrorCode::kInvalidArgument, concat(what, " of ", tokens, " tokens to ", sequences,
                                              " sequences, allowed: one for each")};
}

}  // namespace kvfolio
