// SPDX-License-Identifier: Apache-2.0
//
// A decode step in one call: one token for each of many sequences. The body is that of append() and
// set_tokens(); what the loop adds is to ask ahead. A step of many sequences reads a record, a
// table cell and a block of each, at random places of a pool that exceeds the caches, each found
// through the one before. So three rounds of prefetches run in front of the loop.

#include "manager/impl.h"

namespace kvfolio {

using text::concat;

namespace {

// Sequences in front of the one that is appended to.
constexpr std::size_t kRecordAhead = 12;
constexpr std::size_t kCellAhead = 8;
constexpr std::size_t kBlockAhead = 4;

}  // namespace

// Ids may be anything: rows are checked, and the record of a row that is not open is read as well.
void KVCacheManager::Impl::prefetch_each(std::span<const SequenceId> ids,
                                         std::size_t at) const noexcept {
  const auto row_ahead = [&](std::size_t ahead) {
    if (at + ahead >= ids.size()) return -1;
    const std::int32_t row = row_in(ids[at + ahead].value());
    return row < num_rows() ? row : -1;
  };
  if (const std::int32_t row = row_ahead(kRecordAhead); row >= 0) {
    __builtin_prefetch(&rows_[row], 1);
    __builtin_prefetch(&table(row, 0));
    victims_.prefetch(row);
  }
  if (const std::int32_t row = row_ahead(kCellAhead); row >= 0) {
    const Sequence& s = rows_[row];
    for (std::int32_t g = 0; g < num_groups(); ++g) {
      const auto blocks = table(row, g).blocks(arena());
      __builtin_prefetch(blocks.data() + block_of(g, s.length));
    }
    if (s.publishes) __builtin_prefetch(arena().at(s.pending) + (s.length - s.place.position), 1);
  }
  if (const std::int32_t row = row_ahead(kBlockAhead); row >= 0) {
    const std::int32_t length = rows_[row].length;
    for (std::int32_t g = 0; g < num_groups(); ++g) {
      const auto blocks = table(row, g).blocks(arena());
      const auto logical = static_cast<std::size_t>(block_of(g, length));
      if (logical < blocks.size() && blocks[logical] >= 0)
        pool(g).prefetch(BlockId(blocks[logical]));
    }
  }
}

// What append() or set_tokens() said of sequences[at], as the call that names many says it.
Status KVCacheManager::Impl::each_failed(std::string_view what, std::span<const SequenceId> ids,
                                         const std::int32_t* tokens, std::size_t at,
                                         Status status) const {
  if (status.code() == ErrorCode::kFailedPrecondition) {
    for (std::size_t before = 0; before < at; ++before) {
      if (ids[before] != ids[at]) continue;
      return {status.code(),
              concat(what, " names ", to_string(ids[at]), " twice, at ", before, " and at ", at)};
    }
  }
  const bool is_negative = tokens != nullptr && tokens[at] < 0;
  if (status.code() == ErrorCode::kInvalidArgument && is_negative) {
    return {ErrorCode::kInvalidArgument,
            concat(what, ": token ", at, " is ", tokens[at], ", allowed: 0 and above")};
  }
  return status;
}

Status KVCacheManager::Impl::append_each(std::string_view what, std::span<const SequenceId> ids,
                                         const std::int32_t* tokens, std::int32_t& num_done) {
  for (std::size_t i = 0; i < ids.size(); ++i) {
    prefetch_each(ids, i);
    const std::int32_t* token = tokens != nullptr ? tokens + i : nullptr;
    const std::int32_t row = lookup(ids[i]);
    if (row < 0) return not_found(ids[i]);
    if (!steps_.is_open() || !append_inside(steps_.open(), row, token)) {
      Status status = append_to(row, what, token, 1, {});
      if (!status.ok()) return each_failed(what, ids, tokens, i, std::move(status));
    }
    ++num_done;
  }
  return {};
}

Status KVCacheManager::Impl::check_sizes(std::string_view what, std::size_t sequences,
                                         std::size_t tokens) {
  if (sequences == tokens) return {};
  return {ErrorCode::kInvalidArgument, concat(what, " of ", tokens, " tokens to ", sequences,
                                              " sequences, allowed: one for each")};
}

Status KVCacheManager::append_each(std::span<const SequenceId> sequences,
                                   std::span<const std::int32_t> tokens,
                                   std::int32_t* num_appended) {
  std::int32_t done = 0;
  Status status = Impl::check_sizes("append_each", sequences.size(), tokens.size());
  if (status.ok() && !sequences.empty()) {
    status = impl_->append_each("append_each", sequences, tokens.data(), done);
  }
  if (num_appended != nullptr) *num_appended = done;
  return status;
}

Status KVCacheManager::append_unnamed_each(std::span<const SequenceId> sequences,
                                           std::int32_t* num_appended) {
  std::int32_t done = 0;
  Status status = impl_->append_each("append_unnamed_each", sequences, nullptr, done);
  if (num_appended != nullptr) *num_appended = done;
  return status;
}

Status KVCacheManager::set_tokens_each(std::span<const SequenceId> sequences,
                                       std::span<const std::int32_t> tokens,
                                       std::int32_t* num_named) {
  std::int32_t done = 0;
  Status status = Impl::check_sizes("set_tokens_each", sequences.size(), tokens.size());
  for (std::size_t i = 0; i < sequences.size() && status.ok(); ++i) {
    impl_->prefetch_each(sequences, i);
    status = set_tokens(sequences[i], tokens.subspan(i, 1));
    if (status.ok()) ++done;
  }
  if (num_named != nullptr) *num_named = done;
  return status;
}

}  // namespace kvfolio
