// SPDX-License-Identifier: Apache-2.0
//
// A decode step in one call: one token for each of many sequences. The body is that of append() and
// set_tokens(); what the loop adds is to ask ahead. A step of many sequences reads a record, a
// table cell and a block of each, at random places of a pool that exceeds the caches, each found
// through the one before. So all records of some sequences are asked for, then all their cells,
// then all their blocks, before the first token is appended.

#include <algorithm>
#include <array>

#include "kvfolio/prefetch.h"
#include "manager/impl.h"
#include "manager/op_writer.h"

namespace kvfolio {

using text::concat;

namespace {

// Sequences that are asked for together: enough to wait once for all, few enough for the
// first-level cache.
constexpr std::size_t kTogether = 32;

// What append() or set_tokens() said of sequences[at], as the call that names many says it.
Status each_failed(std::string_view what, std::span<const SequenceId> ids,
                   const std::int32_t* tokens, std::size_t at, Status status) {
  if (status.code() == ErrorCode::kFailedPrecondition) {
    for (std::size_t before = 0; before < at; ++before) {
      if (ids[before] != ids[at]) continue;
      return {status.code(),
              concat(what, " names ", to_string(ids[at]), " twice, at ", before, " and at ", at)};
    }
  }
  if (status.code() == ErrorCode::kNotFound || status.code() == ErrorCode::kAborted) {
    return {status.code(), concat(what, ": at ", at, ": ", status.message())};
  }
  const bool is_negative = tokens != nullptr && tokens[at] < 0;
  if (status.code() == ErrorCode::kInvalidArgument && is_negative) {
    return {ErrorCode::kInvalidArgument,
            concat(what, ": token ", at, " is ", tokens[at], ", allowed: 0 and above")};
  }
  // "set_tokens names 1 tokens, 0 are unnamed": of the many, which.
  constexpr std::string_view kSetTokens = "set_tokens names ";
  const std::string message = status.message();
  if (status.code() == ErrorCode::kInvalidArgument && message.starts_with(kSetTokens)) {
    return {status.code(), concat(what, ": at ", at, ", ", to_string(ids[at]), ", it names ",
                                  std::string_view(message).substr(kSetTokens.size()))};
  }
  return status;
}

}  // namespace

// Before the first of each few that are asked for together. Ids may be anything: rows are checked,
// and the record of a row that is not open is read as well.
void KVCacheManager::Impl::prefetch_each(std::span<const SequenceId> ids,
                                         std::size_t at) const noexcept {
  if (at % kTogether != 0) return;
  std::array<std::int32_t, kTogether> rows;
  std::size_t n = 0;
  for (const SequenceId id : ids.subspan(at, std::min(kTogether, ids.size() - at))) {
    const std::int32_t row = PackedId::row_of(id.value());
    if (row >= rows_.size()) continue;
    rows[n++] = row;
    prefetch_to_write(&rows_[row]);
    prefetch_to_read(&table(row, 0));
    victims_.prefetch(row);
  }
  for (std::size_t i = 0; i < n; ++i) {
    const Sequence& s = rows_[rows[i]];
    for (std::int32_t g = 0; g < num_groups(); ++g) {
      prefetch_to_read(table(rows[i], g).blocks(arena()).data() + block_of(g, s.length));
    }
    if (s.publishes) prefetch_to_write(arena().at(s.pending) + (s.length - s.place.position));
  }
  for (std::int32_t g = 0; g < num_groups(); ++g) {
    for (std::size_t i = 0; i < n; ++i) {
      const auto blocks = table(rows[i], g).blocks(arena());
      if (blocks.empty()) continue;
      // Behind a full block its successor comes from the pool, and the full one is looked at.
      const auto logical = static_cast<std::size_t>(block_of(g, rows_[rows[i]].length));
      const std::int32_t block = blocks[std::min(logical, blocks.size() - 1)];
      if (block >= 0) blocks_.pool(g).prefetch(BlockId(block));
    }
  }
}

Status KVCacheManager::Impl::append_each(std::string_view what, std::span<const SequenceId> ids,
                                         const std::int32_t* tokens, std::int32_t& num_done) {
  const bool may_be_quick = may_append_inside(tokens, ids.size());
  for (std::size_t i = 0; i < ids.size(); ++i) {
    prefetch_each(ids, i);
    const std::int32_t* token = tokens != nullptr ? tokens + i : nullptr;
    const std::int32_t row = lookup(ids[i]);
    if (row < 0) return each_failed(what, ids, tokens, i, not_found(ids[i]));
    if (!may_be_quick || !append_inside(steps_.open(), row, token)) {
      Status status = append_to(row, what, token, 1, {});
      if (!status.ok()) return each_failed(what, ids, tokens, i, std::move(status));
    }
    ++num_done;
  }
  return {};
}

Status KVCacheManager::append_each(std::span<const SequenceId> sequences,
                                   std::span<const std::int32_t> tokens,
                                   std::int32_t* num_appended) {
  KVFOLIO_RECORDED(kAppendEach, append_each(sequences, tokens, num_appended), sequences, tokens,
                   OutCount{num_appended});
  std::int32_t done = 0;
  Status status = check_sizes("append_each", sequences.size(), tokens.size());
  if (status.ok() && !sequences.empty()) {
    status = impl_->append_each("append_each", sequences, tokens.data(), done);
  }
  if (num_appended != nullptr) *num_appended = done;
  return status;
}

Status KVCacheManager::append_unnamed_each(std::span<const SequenceId> sequences,
                                           std::int32_t* num_appended) {
  KVFOLIO_RECORDED(kAppendUnnamedEach, append_unnamed_each(sequences, num_appended), sequences,
                   OutCount{num_appended});
  std::int32_t done = 0;
  Status status = impl_->append_each("append_unnamed_each", sequences, nullptr, done);
  if (num_appended != nullptr) *num_appended = done;
  return status;
}

Status KVCacheManager::set_tokens_each(std::span<const SequenceId> sequences,
                                       std::span<const std::int32_t> tokens,
                                       std::int32_t* num_named) {
  KVFOLIO_RECORDED(kSetTokensEach, set_tokens_each(sequences, tokens, num_named), sequences, tokens,
                   OutCount{num_named});
  std::int32_t done = 0;
  Status status = check_sizes("set_tokens_each", sequences.size(), tokens.size());
  for (std::size_t i = 0; i < sequences.size() && status.ok(); ++i) {
    impl_->prefetch_each(sequences, i);
    status = set_tokens(sequences[i], tokens.subspan(i, 1));
    if (!status.ok()) {
      status = each_failed("set_tokens_each", sequences, tokens.data(), i, std::move(status));
      break;
    }
    ++done;
  }
  if (num_named != nullptr) *num_named = done;
  return status;
}

}  // namespace kvfolio
