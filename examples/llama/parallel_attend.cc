// SPDX-License-Identifier: Apache-2.0
#include "parallel_attend.h"

#include <algorithm>
#include <bit>

namespace kvfolio::llama {
namespace {

// Rows of a slice: enough that a call costs little beside its work.
constexpr std::int32_t kRowsPerSlice = 8;
// More parts than threads, so that a slow part does not keep the others waiting.
constexpr std::int32_t kPartsPerThread = 4;

}  // namespace

Status ParallelAttend::size_workspaces(const AttentionArgs& args) {
  std::int32_t longest = 1;
  for (const std::int32_t length : args.batch.kv_lens) longest = std::max(longest, length);
  if (longest <= sized_for_) return {};
  // Twice what is needed now: a sequence that grows by a token a step seldom comes here.
  const std::int32_t tokens = std::min(longest, kMaxSequenceTokens / 2) * 2;
  const Result<std::int64_t> bytes =
      attention_workspace_bytes(args.cache, args.q.num_heads, tokens, args.target);
  if (!bytes) return bytes.error();
  const std::int32_t num_parts = kPartsPerThread * pool_.num_threads();
  const auto parts = static_cast<std::size_t>(num_parts);
  workspace_bytes_ = (static_cast<std::size_t>(*bytes) + 63) / 64 * 64;
  workspaces_.resize(parts * workspace_bytes_ + 64);
  statuses_.resize(parts);
  sized_for_ = tokens;
  return {};
}

Status ParallelAttend::run(const AttentionArgs& args) {
  KVFOLIO_RETURN_IF_ERROR(size_workspaces(args));
  const std::int32_t heads = args.cache.num_kv_heads;
  const std::int32_t rows = args.q.num_tokens;
  const std::int32_t slices = (rows + kRowsPerSlice - 1) / kRowsPerSlice * heads;
  const std::int32_t parts = std::min(slices, kPartsPerThread * pool_.num_threads());
  // The vector's memory need not be aligned to a cache line; its share for the parts is.
  const auto address = std::bit_cast<std::uintptr_t>(workspaces_.data());
  std::byte* const aligned = workspaces_.data() + (64 - address % 64) % 64;

  pool_.parallel_for(parts, [&](std::int32_t part) {
    AttentionArgs mine = args;
    const auto index = static_cast<std::size_t>(part);
    mine.workspace = {aligned + index * workspace_bytes_, workspace_bytes_};
    statuses_[index] = Status();
    for (std::int32_t slice = part; slice < slices; slice += parts) {
      const std::int32_t first_row = slice / heads * kRowsPerSlice;
      mine.slice = {.first_row = first_row,
                    .num_rows = std::min(kRowsPerSlice, rows - first_row),
                    .first_kv_head = slice % heads,
                    .num_kv_heads = 1};
      if (Status status = attend(mine); !status.ok()) {
        statuses_[index] = std::move(status);
        return;
      }
    }
  });
  for (std::int32_t part = 0; part < parts; ++part) {
    KVFOLIO_RETURN_IF_ERROR(std::move(statuses_[static_cast<std::size_t>(part)]));
  }
  return {};
}

}  // namespace kvfolio::llama
